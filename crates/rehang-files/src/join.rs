//! Joining of files by id instead of by row.

use rehang_core::{Error, ErrorKind, Result};
use std::collections::HashMap;

/// Most unmatched ids that an error names.
const EXAMPLES_MAX: usize = 5;

/// Count of names that matched nothing, with the first few as examples.
#[derive(Default)]
pub(crate) struct Unknown {
    pub(crate) count: usize,
    examples: Vec<String>,
}

impl Unknown {
    pub(crate) fn note(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example());
        }
    }

    /// Fails where any name matched nothing; `what` says what was matched.
    pub(crate) fn check(self, what: &str) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        Err(ErrorKind::Unmatched { what: what.into(), count: self.count, examples: self.examples }.into())
    }
}

/// Policy for ids that only one side has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingPolicy {
    /// Fail, and name the ids. A typo in an id is found before it costs a night.
    #[default]
    Error,
    /// Keep the ids that both sides have; the answer counts the rest.
    KeepCommon,
}

/// Rows of two files that hold the same items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Joined {
    /// Row on the left and row on the right of every common item, in the order of the left.
    pub rows: Vec<(usize, usize)>,
    /// Rows of the left that have no partner, in order.
    pub left_only: Vec<usize>,
    /// Rows of the right that have no partner, in order.
    pub right_only: Vec<usize>,
}

/// Maps every id to its row. Fails for an id that stands twice; `what` names its file, and `of` goes before
/// the id in the error ("id ").
pub(crate) fn rows_of<'a>(what: &str, of: &str, ids: &'a [String]) -> Result<HashMap<&'a str, usize>> {
    let mut rows = HashMap::with_capacity(ids.len());
    for (row, id) in ids.iter().enumerate() {
        if rows.insert(id.as_str(), row).is_some() {
            return Err(Error::duplicate(what, format!("{of}{id:?}")));
        }
    }
    Ok(rows)
}

/// Pairs up the rows of two files by id; `left` and `right` name the files in errors.
///
/// ```
/// use rehang_files::join::{MissingPolicy, by_id};
///
/// let old = ["a", "b", "c"].map(String::from);
/// let new = ["c", "a", "z"].map(String::from);
/// let joined = by_id(("old.parquet", &old), ("new.parquet", &new), MissingPolicy::KeepCommon)?;
/// assert_eq!(joined.rows, [(0, 1), (2, 0)]);
/// assert_eq!((joined.left_only, joined.right_only), (vec![1], vec![2]));
/// // By default, what does not match is an error that names it.
/// assert!(by_id(("old.parquet", &old), ("new.parquet", &new), MissingPolicy::Error).is_err());
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Duplicate`] for an id that stands twice in one file; [`ErrorKind::Unmatched`] where an id has
/// no partner and the policy is [`MissingPolicy::Error`], or where no id has one.
pub fn by_id(
    (left, left_ids): (&str, &[String]),
    (right, right_ids): (&str, &[String]),
    policy: MissingPolicy,
) -> Result<Joined> {
    let left_rows = rows_of(left, "id ", left_ids)?;
    let right_rows = rows_of(right, "id ", right_ids)?;
    let mut joined = Joined::default();
    for (row, id) in left_ids.iter().enumerate() {
        match right_rows.get(id.as_str()) {
            Some(&other) => joined.rows.push((row, other)),
            None => joined.left_only.push(row),
        }
    }
    joined.right_only =
        (0..right_ids.len()).filter(|&row| !left_rows.contains_key(right_ids[row].as_str())).collect();
    let complete = joined.left_only.is_empty() && joined.right_only.is_empty();
    if joined.rows.is_empty() || (policy == MissingPolicy::Error && !complete) {
        let named = |file: &str, ids: &[String], rows: &[usize]| {
            rows.iter()
                .take(EXAMPLES_MAX)
                .map(|&row| format!("{:?} (only in {file})", ids[row]))
                .collect::<Vec<_>>()
        };
        let mut examples = named(left, left_ids, &joined.left_only);
        examples.extend(named(right, right_ids, &joined.right_only));
        let what =
            format!("the ids of {left} ({} rows) and {right} ({} rows)", left_ids.len(), right_ids.len());
        let count = joined.left_only.len() + joined.right_only.len();
        return Err(ErrorKind::Unmatched { what, count, examples }.into());
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn what_does_not_match_is_counted_and_named() {
        let (old, new) = (ids("a b c d e f g h"), ids("h x"));
        let error = by_id(("old", &old), ("new", &new), MissingPolicy::Error).unwrap_err();
        let ErrorKind::Unmatched { count, examples, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((*count, examples.len()), (8, 6));
        assert!(error.to_string().contains("\"x\" (only in new)"), "{error}");
    }

    #[test]
    fn an_id_that_stands_twice_is_named_on_either_side() {
        let (once, twice) = (ids("a b"), ids("b a b"));
        for (left, right) in [(&once, &twice), (&twice, &once)] {
            let error = by_id(("left", left), ("right", right), MissingPolicy::KeepCommon).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Duplicate { value, .. } if value == "id \"b\""),
                "{error}"
            );
        }
    }

    #[test]
    fn files_without_a_common_id_never_join() {
        let (old, new) = (ids("a"), ids("b"));
        assert!(by_id(("old", &old), ("new", &new), MissingPolicy::KeepCommon).unwrap_err().is_mismatch());
    }
}
