//! Relevance judgements: which gallery items answer a query, and how well.

use std::collections::HashSet;
use std::path::Path;

use crate::join::{Unknown, rows_of};
use crate::text::read_lines;
use rehang_core::{Error, Result};

/// Reads judgements, tab- or blank-separated: `query-id corpus-id score`, with a header line or without
/// (BEIR), or `query-id iteration item-id score` (TREC). Returns a list for every query, in the order of
/// `query_ids`: the judged items by their places in `item_ids`, and their gains, in the order of the file.
/// [`Qrels::new`](rehang_core::curve::Qrels::new) takes these lists. A query without judgements has an empty list.
///
/// A score below 0 marks junk: such an item is taken out of the ranking of its query, as revisited Oxford and
/// Paris and Market-1501 ask for. `trec_eval` leaves such an item in as a wrong answer; for that, give it the
/// score 0.
///
/// # Errors
///
/// [`Io`](rehang_core::ErrorKind::Io), [`Empty`](rehang_core::ErrorKind::Empty) for a file without judgements,
/// [`Corrupt`](rehang_core::ErrorKind::Corrupt) for a line that is no judgement,
/// [`Duplicate`](rehang_core::ErrorKind::Duplicate) for ids or judgements that stand twice,
/// [`Unmatched`](rehang_core::ErrorKind::Unmatched) for ids that are not among `query_ids` and `item_ids`.
pub fn read_qrels(
    path: impl AsRef<Path>,
    query_ids: &[String],
    item_ids: &[String],
) -> Result<Vec<Vec<(usize, f64)>>> {
    let path = path.as_ref();
    let queries = rows_of("query ids", "id ", query_ids)?;
    let items = rows_of("gallery ids", "id ", item_ids)?;
    let mut judged = vec![Vec::new(); query_ids.len()];
    let mut judged_pairs = HashSet::new();
    let mut unknown = Unknown::default();
    let mut judgements = 0;
    for (number, line) in read_lines(path)?.iter().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let corrupt =
            |detail: String| Error::corrupt(path.display(), format!("line {}: {detail}", number + 1));
        // Ids may hold blanks where a tab separates the fields.
        let fields: Vec<&str> = if line.contains('\t') {
            line.split('\t').map(str::trim).collect()
        } else {
            line.split_whitespace().collect()
        };
        let ([query, item, score] | [query, _, item, score]) = *fields.as_slice() else {
            return Err(corrupt(format!(
                "it has {} fields where query-id, corpus-id and score are needed",
                fields.len()
            )));
        };
        let gain = match score.parse::<f32>() {
            Ok(score) if score.is_finite() => score,
            // The first line may name the fields.
            Err(_) if number == 0 => continue,
            _ => return Err(corrupt(format!("its score {score:?} is no number"))),
        };
        judgements += 1;
        match (queries.get(query), items.get(item)) {
            (Some(&query_row), Some(&item_row)) => {
                if !judged_pairs.insert((query_row, item_row)) {
                    let value = format!("the judgement of query {query:?} on item {item:?}");
                    return Err(Error::duplicate(path.display(), value));
                }
                judged[query_row].push((item_row, f64::from(gain)));
            }
            (None, _) => unknown.note(|| format!("query {query:?} (line {})", number + 1)),
            _ => unknown.note(|| format!("item {item:?} (line {})", number + 1)),
        }
    }
    if judgements == 0 {
        return Err(Error::empty(path.display()));
    }
    unknown.check(&format!("the {judgements} judgements of {}", path.display()))?;
    Ok(judged)
}
