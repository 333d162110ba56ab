//! Which items an upgrade cannot bring home, page by page: memory is bounded by the page, whatever the gallery.

use rehang::Result;
use rehang_store::{ItemKey, Ledger, Scan, Select, find_space};
use serde::{Deserialize, Serialize};

use crate::record::Recorded;

/// Items that the operator has to know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// Without a source, and not native: they stay adapted (or without a vector).
    WithoutSource,
    /// Without a vector in the new space and without an old one to adapt: no search finds them until they are embedded.
    WithoutVector,
    /// Without an old vector: no search finds them where the old space serves, until the application writes one. None once that space is
    /// gone.
    WithoutOldVector,
}

/// A page of ids in the order of keys, at most `limit`, after a key; and where the next page begins, `None` at the end.
///
/// # Errors
///
/// Not found where there is no upgrade; those of the store.
pub fn left(
    store: &dyn Ledger,
    what: Left,
    after: Option<ItemKey>,
    limit: usize,
) -> Result<(Vec<String>, Option<ItemKey>)> {
    let record = Recorded::expect(store)?.record;
    let (space, select) = match what {
        Left::WithoutSource => (&record.new.name, Select::WithoutSource),
        Left::WithoutVector => (&record.new.name, Select::Lacking),
        Left::WithoutOldVector => (&record.old.name, Select::Lacking),
    };
    if limit == 0 || find_space(store, space)?.is_none() {
        return Ok((Vec::new(), None));
    }
    let has_old = find_space(store, &record.old.name)?.is_some();
    let (mut ids, mut after) = (Vec::new(), after);
    loop {
        let records = store.scan(&Scan::new(space, select.clone(), limit).after(after))?;
        let is_whole = records.len() == limit;
        let keys: Vec<ItemKey> = records.iter().map(|record| record.item.key).collect();
        // What has an old vector only waits to be adapted.
        let has_vector = match what {
            Left::WithoutVector if has_old => store.provenances(&record.old.name, &keys)?,
            _ => vec![None; keys.len()],
        };
        for (record, has_vector) in records.into_iter().zip(has_vector) {
            after = Some(record.item.key);
            if has_vector.is_none() {
                ids.push(record.item.id);
            }
            if ids.len() == limit {
                return Ok((ids, after));
            }
        }
        if !is_whole {
            return Ok((ids, None));
        }
    }
}
