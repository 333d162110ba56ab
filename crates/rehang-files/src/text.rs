//! Text files with one value a line, and JSON lines.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::given::{Scalars, WHOLE_END};
use crate::opened::open;
use rehang_core::{Error, Result};

/// Longest line in bytes that is read: 16 MiB.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Reads the lines of a UTF-8 file, without line ends and byte-order mark. One empty last line does not
/// count.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Io`], [`rehang_core::ErrorKind::Empty`] for a file without a line,
/// [`rehang_core::ErrorKind::Corrupt`] for a file that is not UTF-8.
pub fn read_lines(path: impl AsRef<Path>) -> Result<Vec<String>> {
    let path = path.as_ref();
    let opened = open(path)?;
    let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::corrupt(path.display(), format!("byte {at} is not UTF-8; save it as UTF-8 text"))
    })?;
    let lines: Vec<String> =
        text.strip_prefix('\u{feff}').unwrap_or(&text).lines().map(str::to_string).collect();
    if lines.is_empty() {
        return Err(opened.empty());
    }
    Ok(lines)
}

/// Reads one value a line: integers where every line is one, then floating-point numbers where every line is
/// one, else text.
pub(super) fn read_scalars(path: &Path) -> Result<Scalars> {
    let mut lines = read_lines(path)?;
    for (row, line) in lines.iter_mut().enumerate() {
        *line = line.trim().to_string();
        if line.is_empty() {
            return Err(Error::corrupt(path.display(), format!("line {} is empty", row + 1)));
        }
    }
    if let Some(integers) = lines.iter().map(|line| line.parse().ok()).collect() {
        return Ok(Scalars::Integers(integers));
    }
    if let Some(floats) = lines.iter().map(|line| line.parse().ok()).collect() {
        return Ok(Scalars::Floats(floats, WHOLE_END));
    }
    Ok(Scalars::Texts(lines))
}

/// Reads one field of every object in a file of JSON lines: the first of `names` that the object has.
pub(super) fn read_json_field(path: &Path, names: &[&str]) -> Result<Vec<String>> {
    let lines = read_lines(path)?;
    let at =
        |row: usize, detail: String| Error::corrupt(path.display(), format!("line {}: {detail}", row + 1));
    lines
        .iter()
        .enumerate()
        .map(|(row, line)| {
            let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line)
                .map_err(|error| at(row, format!("it is no JSON object ({error})")))?;
            match names.iter().find_map(|&name| object.get(name)) {
                Some(serde_json::Value::String(text)) => Ok(text.clone()),
                Some(serde_json::Value::Number(number)) if number.is_i64() || number.is_u64() => {
                    Ok(number.to_string())
                }
                Some(_) => {
                    Err(at(row, format!("its {} is neither text nor a whole number", names.join(" or "))))
                }
                None => Err(at(row, format!("it has no {}", names.join(" or ")))),
            }
        })
        .collect()
}

/// Reads one field of every object in a file of JSON lines: integers where every object has one, else text.
pub(super) fn read_json_scalars(path: &Path, names: &[&str]) -> Result<Scalars> {
    let values = read_json_field(path, names)?;
    if let Some(integers) = values.iter().map(|value| value.parse().ok()).collect() {
        return Ok(Scalars::Integers(integers));
    }
    Ok(Scalars::Texts(values))
}

/// Reads the next line, with its end, in the place of `line`; nothing at the end of the input. Returns
/// whether the line is short enough, 16 MiB. Of a longer line only the start is read.
///
/// # Errors
///
/// The errors of the reader.
pub fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    reader.take(LINE_BYTES_MAX + 1).read_until(b'\n', line)?;
    Ok(line.len() as u64 <= LINE_BYTES_MAX)
}

/// Calls `each(line number from 1, line)` for every line of a UTF-8 file that is not blank, without its line
/// end and without a byte-order mark. Holds one line at a time.
///
/// # Errors
///
/// As [`read_lines`], and the errors of `take`; a line of more than 16 MiB is taken for damage.
pub(crate) fn for_each_line(path: &Path, mut take: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    let opened = open(path)?;
    if opened.bytes == 0 {
        return Err(opened.empty());
    }
    let mut reader = BufReader::new(opened.file);
    let mut bytes = Vec::new();
    let mut number = 0;
    loop {
        let is_short = next_line(&mut reader, &mut bytes).map_err(|error| Error::io("read", path, &error))?;
        if bytes.is_empty() {
            return Ok(());
        }
        number += 1;
        let corrupt = |detail: String| Error::corrupt(path.display(), format!("line {number}: {detail}"));
        if !is_short {
            return Err(corrupt("it is longer than 16 MiB; this is no text file of lines".into()));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            corrupt(format!("byte {} is not UTF-8; save it as UTF-8 text", error.valid_up_to()))
        })?;
        let text = if number == 1 { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
        let text = text.trim_end_matches(['\n', '\r']);
        if !text.trim().is_empty() {
            take(number, text)?;
        }
    }
}

/// Splits one line of comma-separated values into trimmed fields. A field in double quotes may hold commas,
/// and `""` for a quote.
///
/// `None` for a quote that does not end on the line, or ends before its field does.
pub(crate) fn split_csv(line: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut unread = line;
    loop {
        let trimmed = unread.trim_start();
        let Some(quoted) = trimmed.strip_prefix('"') else {
            let (field, after) =
                unread.split_once(',').map_or((unread, None), |(field, after)| (field, Some(after)));
            fields.push(field.trim().to_owned());
            match after {
                Some(after) => unread = after,
                None => return Some(fields),
            }
            continue;
        };
        let mut field = String::new();
        let mut tail = quoted;
        loop {
            let (part, after) = tail.split_once('"')?;
            field.push_str(part);
            let Some(after_second) = after.strip_prefix('"') else {
                tail = after.trim_start();
                break;
            };
            field.push('"');
            tail = after_second;
        }
        fields.push(field);
        if tail.is_empty() {
            return Some(fields);
        }
        unread = tail.strip_prefix(',')?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_fields_may_hold_commas_and_quotes() {
        let split = |line: &str| split_csv(line).map(|fields| fields.join("|"));
        assert_eq!(split("a, b ,c").unwrap(), "a|b|c");
        assert_eq!(split("\"a,b\",c").unwrap(), "a,b|c");
        assert_eq!(split("\"a \"\"b\"\"\" , c").unwrap(), "a \"b\"|c");
        assert_eq!(split("a,,").unwrap(), "a||");
        assert_eq!(split("\"a").map(|_| ()), None);
        assert_eq!(split("\"a\"b,c"), None);
    }
}
