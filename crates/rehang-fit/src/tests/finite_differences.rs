//! Compares gradients with differences of the function, for tests here and in `rehang-train`, which includes
//! this file.

/// Compares a gradient with central differences of the function at `point`, in every coordinate.
pub(crate) fn check(point: &[f32], gradient: &[f32], tolerance: f64, mut value: impl FnMut(&[f32]) -> f64) {
    let step = 1e-2_f32;
    let mut moved = point.to_vec();
    for coordinate in 0..point.len() {
        let mut at = |offset: f32| {
            moved[coordinate] = point[coordinate] + offset;
            let value = value(&moved);
            moved[coordinate] = point[coordinate];
            value
        };
        // Richardson's combination of two central differences: the error goes with the fourth power of the
        // step.
        let wide = (at(step) - at(-step)) / (2.0 * f64::from(step));
        let narrow = (at(step / 2.0) - at(-step / 2.0)) / f64::from(step);
        let expected = (4.0 * narrow - wide) / 3.0;
        let received = f64::from(gradient[coordinate]);
        assert!(
            (expected - received).abs() < tolerance * (1.0 + expected.abs()),
            "coordinate {coordinate}: differences give {expected}, the gradient {received}"
        );
    }
}

/// Draws numbers between −1 and 1 without a pattern, the same on every run.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Compares numbers with a committed file of `rehang-python`'s tests, which compare others with it; with
/// `REHANG_BLESS=1` in the environment the file is written instead.
pub(crate) fn expect_recorded(name: &str, computed: &serde_json::Value) {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/rehang-python/tests").join(name);
    if std::env::var_os("REHANG_BLESS").is_some() {
        fs_err::write(&path, format!("{}\n", rounded(computed))).unwrap();
        return;
    }
    let recorded: serde_json::Value = serde_json::from_str(&fs_err::read_to_string(&path).unwrap()).unwrap();
    expect_close(&recorded, computed, name);
}

/// Rounds every number to seven decimals: more than single precision has of most of these.
fn rounded(value: &serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Array(values) => values.iter().map(rounded).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), rounded(value))).collect(),
        Value::Number(number) if number.is_f64() => ((number.as_f64().unwrap() * 1e7).round() / 1e7).into(),
        other => other.clone(),
    }
}

/// Compares numbers within 1e-5, as other processors may have them; everything else has to be equal.
fn expect_close(recorded: &serde_json::Value, computed: &serde_json::Value, at: &str) {
    use serde_json::Value;
    match (recorded, computed) {
        (Value::Array(recorded), Value::Array(computed)) if recorded.len() == computed.len() => {
            for (place, (recorded, computed)) in recorded.iter().zip(computed).enumerate() {
                expect_close(recorded, computed, &format!("{at}[{place}]"));
            }
        }
        (Value::Object(recorded), Value::Object(computed)) if recorded.len() == computed.len() => {
            for (key, recorded) in recorded {
                expect_close(recorded, &computed[key], &format!("{at}.{key}"));
            }
        }
        (Value::Number(recorded), Value::Number(computed)) => {
            let (recorded, computed) = (recorded.as_f64().unwrap(), computed.as_f64().unwrap());
            let is_close = (recorded - computed).abs() <= 1e-5 * (1.0 + recorded.abs());
            assert!(
                is_close,
                "{at}: {computed} where {recorded} is recorded; with REHANG_BLESS=1 it is recorded anew"
            );
        }
        _ => assert_eq!(recorded, computed, "{at}; with REHANG_BLESS=1 it is recorded anew"),
    }
}
