//! Gradients compared with differences of the function, for tests here and in `rehang-train`.

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
        // Richardson's combination of two central differences: the error goes with the fourth power of the step.
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

/// Numbers between −1 and 1 without a pattern, the same on every run.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}
