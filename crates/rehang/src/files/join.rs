//! Files that go by id instead of by row.

use std::collections::HashMap;

use crate::error::{ErrorKind, Result};

/// How many unmatched ids an error names.
const EXAMPLES_MAX: usize = 5;

/// What to do about ids that only one side has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingPolicy {
    /// Fail, and name them. A typo in an id is found before it costs a night.
    #[default]
    Error,
    /// Keep what both sides have; the rest is counted in the answer.
    KeepCommon,
}

/// Rows of two files that hold the same items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Joined {
    /// For every common item, its row on the left and its row on the right, in the order of the left.
    pub rows: Vec<(usize, usize)>,
    /// Rows of the left without a partner, in order.
    pub left_only: Vec<usize>,
    /// Rows of the right without a partner, in order.
    pub right_only: Vec<usize>,
}

/// Where every id stands.
fn index<'a>(what: &str, ids: &'a [String]) -> Result<HashMap<&'a str, usize>> {
    let mut rows = HashMap::with_capacity(ids.len());
    for (row, id) in ids.iter().enumerate() {
        if rows.insert(id.as_str(), row).is_some() {
            return Err(ErrorKind::Duplicate { what: what.into(), value: format!("id {id:?}") }.into());
        }
    }
    Ok(rows)
}

/// Pairs up the rows of two files by id; `left` and `right` name the files in errors.
///
/// ```
/// use rehang::files::join::{MissingPolicy, by_id};
///
/// let old = ["a", "b", "c"].map(String::from);
/// let new = ["c", "a", "z"].map(String::from);
/// let joined = by_id(("old.parquet", &old), ("new.parquet", &new), MissingPolicy::KeepCommon)?;
/// assert_eq!(joined.rows, [(0, 1), (2, 0)]);
/// assert_eq!((joined.left_only, joined.right_only), (vec![1], vec![2]));
/// // By default, what does not match is an error that names it.
/// assert!(by_id(("old.parquet", &old), ("new.parquet", &new), MissingPolicy::Error).is_err());
/// # Ok::<(), rehang::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Duplicate`] for an id that stands twice in one file; [`ErrorKind::Unmatched`] where an id has no
/// partner and the policy is [`MissingPolicy::Error`], or where no id has one.
pub fn by_id(
    (left, left_ids): (&str, &[String]),
    (right, right_ids): (&str, &[String]),
    policy: MissingPolicy,
) -> Result<Joined> {
    let left_rows = index(left, left_ids)?;
    let right_rows = index(right, right_ids)?;
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
        return Err(ErrorKind::Unmatched {
            what: format!(
                "the ids of {left} ({} rows) and {right} ({} rows)",
                left_ids.len(),
                right_ids.len()
            ),
            count: joined.left_only.len() + joined.right_only.len(),
            examples,
        }
        .into());
    }
    Ok(joined)
}

/// Pairs up the rows of any number of files by id: for every common item its row in each file, in the order of the
/// first file, as one list of rows a file (`[files][items]`).
///
/// # Errors
///
/// As [`by_id`]; [`ErrorKind::Empty`] where no file is given.
pub fn all_by_id(files: &[(&str, &[String])], policy: MissingPolicy) -> Result<Vec<Vec<usize>>> {
    let Some((&first, others)) = files.split_first() else {
        return Err(ErrorKind::Empty { what: "the list of files to join".into() }.into());
    };
    index(first.0, first.1)?;
    let mut rows: Vec<Vec<usize>> = vec![(0..first.1.len()).collect()];
    for &other in others {
        // Every file meets the whole first file, so that an error names what its user will look for.
        let joined = by_id(first, other, policy)?;
        let mut partner = vec![None; first.1.len()];
        for (row, found) in joined.rows {
            partner[row] = Some(found);
        }
        let kept: Vec<usize> = (0..rows[0].len()).filter(|&at| partner[rows[0][at]].is_some()).collect();
        let found = kept.iter().filter_map(|&at| partner[rows[0][at]]).collect();
        for column in &mut rows {
            *column = kept.iter().map(|&at| column[at]).collect();
        }
        rows.push(found);
    }
    if rows[0].is_empty() {
        return Err(ErrorKind::Unmatched {
            what: "the ids of all files together".into(),
            count: first.1.len(),
            examples: first.1.iter().take(EXAMPLES_MAX).map(|id| format!("{id:?}")).collect(),
        }
        .into());
    }
    Ok(rows)
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

    #[test]
    fn several_files_join_in_the_order_of_the_first() {
        let (old, new, labels) = (ids("a b c d"), ids("d c a"), ids("c d e"));
        let files: [(&str, &[String]); 3] = [("old", &old), ("new", &new), ("labels", &labels)];
        let rows = all_by_id(&files, MissingPolicy::KeepCommon).unwrap();
        assert_eq!(rows, [vec![2, 3], vec![1, 0], vec![0, 1]]);
        assert!(all_by_id(&files, MissingPolicy::Error).unwrap_err().is_mismatch());
    }
}
