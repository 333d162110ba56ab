//! Clicks: which items people took from the answers to a query.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use rehang_core::{Error, Result};
use serde_json::{Map, Value};

use crate::text::{for_each_line, split_csv};

/// Gain of one item for one query, from clicks.
#[derive(Debug, Clone, PartialEq)]
pub struct Clicked {
    /// The query, as the file writes it: its text, or its id.
    pub query: String,
    /// The item's id.
    pub item: String,
    /// Sum of the gains over all lines of this query and this item, 0 or more.
    pub gain: f64,
}

/// Place of each field in a line, in the order of [`FIELDS`].
type Places = [Option<usize>; 4];

/// The fields of a line.
const FIELDS: [&str; 4] = ["query", "item", "weight", "position"];

/// Reads clicks: CSV whose first line names the columns `query`, `item` and either `weight` or `position`, or
/// JSON lines with these fields. Other columns are ignored. A line with the weight w adds w to the gain of
/// its item for its query. A line with the position p, where the first answer has 1, adds log2(1 + p). This
/// is the discount that nDCG puts on that position, since fewer people look at an answer that stands farther
/// down. Queries and items come in the order in which the file names them first.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let log = folder.path().join("clicks.csv");
/// std::fs::write(&log, "query,item,position\nred shoes,i7,3\nred shoes,i7,1\n\"hat, wool\",i2,1\n")?;
/// let clicks = rehang_files::read_clicks(&log)?;
/// let said: Vec<_> = clicks.iter().map(|one| (one.query.as_str(), one.item.as_str(), one.gain)).collect();
/// assert_eq!(said, [("red shoes", "i7", 3.0), ("hat, wool", "i2", 1.0)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`Io`](rehang_core::ErrorKind::Io); [`Empty`](rehang_core::ErrorKind::Empty) for a file without a click;
/// [`Corrupt`](rehang_core::ErrorKind::Corrupt), with the line, for a column that is missing, a query or an item
/// that is blank, a weight that is no finite number of 0 or more, and a position that is no whole number of 1
/// or more.
pub fn read_clicks(path: impl AsRef<Path>) -> Result<Vec<Clicked>> {
    let path = path.as_ref();
    let mut clicks: Vec<Clicked> = Vec::new();
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    // Columns of CSV, known once the first line is read.
    let mut columns: Option<Places> = None;
    let mut is_json = false;
    for_each_line(path, |number, line| {
        let corrupt = |detail: String| Error::corrupt(path.display(), format!("line {number}: {detail}"));
        let is_first = !is_json && columns.is_none();
        is_json |= is_first && line.trim_start().starts_with('{');
        let fields = match &columns {
            _ if is_json => json_fields(line).map_err(corrupt)?,
            Some(columns) => csv_fields(line, columns).map_err(corrupt)?,
            None => {
                columns = Some(header(line).map_err(corrupt)?);
                return Ok(());
            }
        };
        let (query, item, gain) = click(fields).map_err(corrupt)?;
        match places.entry((query, item)) {
            Entry::Occupied(place) => clicks[*place.get()].gain += gain,
            Entry::Vacant(new) => {
                let (query, item) = new.key().clone();
                new.insert(clicks.len());
                clicks.push(Clicked { query, item, gain });
            }
        }
        Ok(())
    })?;
    if clicks.is_empty() {
        return Err(Error::empty(path.display()));
    }
    Ok(clicks)
}

/// Reads the places of the columns from the first line of CSV.
fn header(line: &str) -> std::result::Result<Places, String> {
    let names = split_csv(line).unwrap_or_default();
    let places: Places = FIELDS.map(|field| names.iter().position(|name| name == field));
    let [query, item, weight, position] = places;
    match (query, item, weight, position) {
        (Some(_), Some(_), Some(_), None) | (Some(_), Some(_), None, Some(_)) => Ok(places),
        _ => Err(format!("its columns are {:?}; {EXPECTED}", names.join(","))),
    }
}

const EXPECTED: &str =
    "query, item and either weight or position are expected, as columns of CSV or fields of JSON lines";

fn csv_fields(line: &str, columns: &Places) -> std::result::Result<[Option<String>; 4], String> {
    let mut fields = split_csv(line).ok_or("a quote does not end on its line")?;
    let wanted = columns.iter().flatten().max().map_or(0, |last| last + 1);
    if fields.len() < wanted {
        return Err(format!("it has {} fields where {wanted} are needed", fields.len()));
    }
    Ok(columns.map(|place| place.map(|place| std::mem::take(&mut fields[place]))))
}

fn json_fields(line: &str) -> std::result::Result<[Option<String>; 4], String> {
    let mut object: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("it is no JSON object ({error})"))?;
    let fields = FIELDS.map(|field| match object.remove(field) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(other) => Some(other.to_string()),
    });
    let [query, item, weight, position] = fields.each_ref().map(Option::is_some);
    if query && item && weight != position { Ok(fields) } else { Err(EXPECTED.into()) }
}

/// Query, item and gain of one line.
fn click(fields: [Option<String>; 4]) -> std::result::Result<(String, String, f64), String> {
    let [query, item, weight, position] = fields;
    let named = |what: &str, text: Option<String>| {
        text.filter(|text| !text.trim().is_empty()).ok_or_else(|| format!("its {what} is blank"))
    };
    let (query, item) = (named("query", query)?, named("item", item)?);
    let gain = match (weight, position) {
        (Some(text), _) => {
            let weight = text.parse::<f64>().ok().filter(|weight| weight.is_finite() && *weight >= 0.0);
            weight.ok_or_else(|| format!("its weight {text:?} is no number of 0 or more"))?
        }
        (None, Some(text)) => {
            let position = text.parse::<u64>().ok().filter(|&position| position > 0);
            let position = position
                .ok_or_else(|| format!("its position {text:?} is no whole number; the first answer has 1"))?;
            (position as f64 + 1.0).log2()
        }
        (None, None) => return Err(EXPECTED.into()),
    };
    Ok((query, item, gain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Vec<Clicked>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs_err::write(&path, text).unwrap();
        read_clicks(&path)
    }

    /// Reads the same clicks slowly: line by line, with `split` for lines without quotes.
    fn slow(text: &str) -> Vec<Clicked> {
        let mut clicks: Vec<Clicked> = Vec::new();
        for line in text.lines().skip(1) {
            let [item, position, query] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let gain = (1.0 + position.parse::<f64>().unwrap()).log2();
            match clicks.iter_mut().find(|click| click.query == query && click.item == item) {
                Some(click) => click.gain += gain,
                None => clicks.push(Clicked { query: query.into(), item: item.into(), gain }),
            }
        }
        clicks
    }

    #[test]
    fn the_reader_adds_up_what_its_slow_twin_does_in_both_formats() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let rows: Vec<[u64; 3]> = (0..500).map(|_| [next(40), 1 + next(20), next(30)]).collect();
        let csv = rows.iter().fold("item,position,query\n".to_owned(), |text, [item, position, query]| {
            text + &format!("i{item},{position},how to {query}\n")
        });
        let json = rows.iter().fold(String::new(), |text, [item, position, query]| {
            text + &format!("{{\"query\": \"how to {query}\", \"item\": \"i{item}\", \"position\": {position}, \"at\": 3}}\n")
        });
        let expected = slow(&csv);
        assert!(expected.len() < rows.len(), "some are there more than once");
        assert_eq!(read("log.csv", &csv).unwrap(), expected);
        assert_eq!(read("log.jsonl", &json).unwrap(), expected);
    }

    #[test]
    fn a_weight_is_the_gain_and_numbers_are_ids() {
        let clicks = read(
            "c",
            "{\"query\": 4, \"item\": 7, \"weight\": 2.5}\n\n{\"query\": 4, \"item\": 7, \"weight\": 0}\n",
        );
        assert_eq!(clicks.unwrap(), [Clicked { query: "4".into(), item: "7".into(), gain: 2.5 }]);
        let quoted = read("c", "\u{feff}query,when,item,weight\n\"a, \"\"b\"\"\",x,i1,1\n").unwrap();
        assert_eq!(quoted, [Clicked { query: "a, \"b\"".into(), item: "i1".into(), gain: 1.0 }]);
    }

    #[test]
    fn what_is_no_click_is_named_with_its_line() {
        for (text, expected) in [
            ("", "empty"),
            ("query,item,weight\n", "empty"),
            ("query,weight\na,1\n", "line 1: its columns are \"query,weight\""),
            ("query,item\na,b\n", "either weight or position"),
            ("query,item,weight,position\na,b,1,1\n", "either weight or position"),
            ("query,item,weight\na,b,NaN\n", "line 2: its weight \"NaN\""),
            ("query,item,weight\na,b,inf\n", "its weight \"inf\""),
            ("query,item,weight\na,b,-1\n", "its weight \"-1\""),
            ("query,item,weight\na,b,\n", "its weight \"\""),
            ("query,item,weight\na,b\n", "it has 2 fields where 3"),
            ("query,item,weight\n\"a,b,1\n", "a quote does not end"),
            ("query,item,weight\n ,b,1\n", "its query is blank"),
            ("query,item,weight\na,,1\n", "its item is blank"),
            ("query,item,position\na,b,0\n", "the first answer has 1"),
            ("query,item,position\na,b,1.5\n", "its position \"1.5\""),
            ("{\"query\": \"a\", \"item\": \"b\"}\n", "line 1: query, item and either"),
            (
                "{\"query\": \"a\", \"item\": \"b\", \"weight\": 1, \"position\": 1}\n",
                "either weight or position",
            ),
            ("{\"query\": \"a\", \"weight\": 1}\n", "query, item and either"),
            ("{\"query\": \"a\", \"item\": \"b\", \"weight\": \"many\"}\n", "its weight \"many\""),
            ("{\"query\": \"a\", \"item\": \"b\", \"weight\": 1}\nquery\n", "line 2: it is no JSON object"),
        ] {
            let error = read("clicks.csv", text).unwrap_err().to_string();
            assert!(error.contains("clicks.csv") && error.contains(expected), "{text:?}: {error}");
        }
    }
}
