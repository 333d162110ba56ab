//! Whole numbers in JSON that a reader would round.

/// Finds the first whole number of a JSON text that a reader would not keep exactly, as it is written in the
/// text.
///
/// A reader of JSON makes a float of a number that does not fit 64 bits, or is written with a fraction or an
/// exponent, and two neighbours become one. Numbers inside of strings are text.
///
/// ```
/// use rehang_store::rounded_number;
///
/// assert_eq!(rounded_number(r#"{"id": 18446744073709551615, "price": 0.1, "text": "99999999999999999999"}"#), None);
/// assert_eq!(rounded_number(r#"{"id": 18446744073709551616}"#), Some("18446744073709551616"));
/// assert_eq!(rounded_number(r#"[1e15, 1980941545339129858.0]"#), Some("1980941545339129858.0"));
/// ```
pub fn rounded_number(json: &str) -> Option<&str> {
    let bytes = json.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_of_number =
                    |byte: &&u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = bytes[at..].iter().take_while(is_of_number).count();
                let number = &json[at..at + length];
                if is_rounded(number) {
                    return Some(number);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}

/// Whether a whole number is another one once a reader of JSON has read it.
fn is_rounded(number: &str) -> bool {
    /// Largest power of ten that is compared digit by digit: no float keeps a whole number with a larger one.
    const EXPONENT_MAX: i64 = 400;
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return false;
    }
    // Even where a float equals such a number, it is written in another way from then on.
    if number.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) {
        return number.bytes().any(|byte| byte.is_ascii_digit());
    }
    let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let Ok(exponent) = exponent.parse::<i64>() else { return false };
    let (integer, fraction) =
        digits.trim_start_matches('-').split_once('.').unwrap_or((digits.trim_start_matches('-'), ""));
    // The number is `digits` times ten to the power of `power`, without zeros at its ends.
    let all = format!("{integer}{fraction}");
    let digits = all.trim_start_matches('0').trim_end_matches('0');
    let power = (all.len() - all.trim_end_matches('0').len()) as i64 - fraction.len() as i64;
    let Some(power) = power.checked_add(exponent) else { return true };
    // Fractions are measured, and rounded everywhere; no application uses one as an id or a count.
    if digits.is_empty() || power < 0 {
        return false;
    }
    if power > EXPONENT_MAX {
        return true;
    }
    let meant = format!("{digits}{}", "0".repeat(power as usize));
    let read = number.parse::<f64>().unwrap_or(f64::INFINITY);
    format!("{:.0}", read.abs()) != meant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_exact_or_named() {
        for exact in [
            "0",
            "-1",
            "9007199254740993",
            "18446744073709551615",
            "-9223372036854775808",
            "1e3",
            "2.50",
            "1E-7",
            "1e22",
            "-0.0",
            "123456789.000",
        ] {
            assert_eq!(rounded_number(exact), None);
        }
        for rounded in [
            "18446744073709551616",
            "18446744073709551616000001",
            "-9223372036854775809",
            "30000000000000000001",
            "9007199254740993.0",
            "1e400",
            "1e9999",
            "123456789012345678901e2",
        ] {
            assert_eq!(rounded_number(&format!("{{\"a\\\"1\": [{rounded}]}}")), Some(rounded));
        }
        for broken in ["\"", "\"\\", "-", "1e", "--1", ""] {
            rounded_number(broken);
        }
    }
}
