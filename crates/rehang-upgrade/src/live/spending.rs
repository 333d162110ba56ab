//! Spending: what all runs of an upgrade have used of its encoder, on whatever machines, as a small document
//! in the store.
//!
//! A budget is the upgrade's, not a process's. Once a second, every worker adds what it has used since the
//! last time and reads what the others have used. So workers that run at the same time may exceed a budget by
//! what they use within a second. What a killed worker used in its last second is never counted.

use rehang_core::{Error, Result};
use rehang_encode::{Encoder, Spent};
use rehang_store::Ledger;
use serde::{Deserialize, Serialize};

use crate::record::UpgradeRecord;

/// Name of the document with an upgrade's spending.
const DOCUMENT: &str = "spent";
/// Number of times that an addition is tried where others add at the same time.
const ATTEMPTS: usize = 100;

/// Spending of one upgrade, as its document holds it.
#[derive(Debug, Serialize, Deserialize)]
struct Account {
    old: String,
    new: String,
    spent: Spent,
}

/// Returns what all runs of an upgrade have used so far, pairs included.
///
/// # Errors
///
/// Those of the store.
pub fn spent_by_all(store: &dyn Ledger, record: &UpgradeRecord) -> Result<Spent> {
    Ok(read(store, record)?.1)
}

/// Reads the version of the document, whichever upgrade it is of, and what the upgrade of a record has used.
fn read(store: &dyn Ledger, record: &UpgradeRecord) -> Result<(Option<u64>, Spent)> {
    let Some((version, text)) = store.document(DOCUMENT)? else { return Ok((None, Spent::default())) };
    let account: Account = serde_json::from_str(&text)
        .map_err(|error| Error::corrupt(format!("what {} says was spent", store.name()), error))?;
    let is_own = (&account.old, &account.new) == (&record.old.name, &record.new.name);
    Ok((Some(version), if is_own { account.spent } else { Spent::default() }))
}

/// Tells the store what an encoder has used beyond what is `reported`, and the encoder what all others have.
/// Returns what the store has been told of this encoder by now.
///
/// # Errors
///
/// Those of the store; [`ErrorKind::ChangedMeanwhile`](rehang_core::ErrorKind::ChangedMeanwhile) where others were
/// faster a hundred times.
pub(crate) fn share(
    store: &dyn Ledger,
    record: &UpgradeRecord,
    encoder: &dyn Encoder,
    reported: Spent,
) -> Result<Spent> {
    // Tokens that were reserved and not used come back to the encoder. The store was told of them, and is not
    // told again when others take their place.
    let more = encoder.spent() - reported;
    let all = add(store, record, more)?;
    let reported = reported + more;
    encoder.note_others(all - reported);
    Ok(reported)
}

/// Adds what a worker has used; returns what all workers have.
fn add(store: &dyn Ledger, record: &UpgradeRecord, more: Spent) -> Result<Spent> {
    for _ in 0..ATTEMPTS {
        let (version, before) = read(store, record)?;
        if more == Spent::default() {
            return Ok(before);
        }
        let all = before + more;
        let account = Account { old: record.old.name.clone(), new: record.new.name.clone(), spent: all };
        let text =
            serde_json::to_string(&account).map_err(|error| Error::corrupt("what was spent", error))?;
        match store.set_document(DOCUMENT, version, &text) {
            Err(error) if error.is_changed_meanwhile() => {}
            outcome => return outcome.map(|_| all),
        }
    }
    Err(Error::changed_meanwhile(format!("what {} says was spent", store.name()), "others keep adding to it"))
}

#[cfg(test)]
mod tests {
    use rehang_core::{Distance, Space};
    use rehang_store_tests::MemoryStore;

    use super::*;
    use crate::record::OrderSettings;

    fn record(old: &str, new: &str) -> UpgradeRecord {
        let space = |name: &str| Space::new(name, 2, Distance::L2, false);
        UpgradeRecord::new(space(old), space(new), String::new(), OrderSettings::default())
    }

    #[test]
    fn what_many_workers_add_at_once_is_all_there_and_of_this_upgrade_alone() {
        let store = MemoryStore::new();
        let first = record("a", "b");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        add(&store, &first, Spent { items: 1, tokens: 3, money: 0.5 }).unwrap();
                    }
                });
            }
        });
        let all = Spent { items: 200, tokens: 600, money: 100.0 };
        assert_eq!(spent_by_all(&store, &first).unwrap(), all);
        let next = record("b", "c");
        assert_eq!(spent_by_all(&store, &next).unwrap(), Spent::default());
        let one_item = Spent { items: 1, ..Spent::default() };
        assert_eq!(add(&store, &next, one_item).unwrap(), one_item);
    }
}
