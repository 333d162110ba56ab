//! Doctor: looks for what must never be in a gallery.

use rehang_core::check::is_finite;
use rehang_core::{NORMALISED_TOLERANCE, Result, norm};
use rehang_store::Problem;
use rusqlite::{Connection, Transaction};

use crate::connection::Database;
use crate::ignored;
use crate::spaces::{self, SpaceRow};
use crate::trouble::Step;

/// Vectors of each space whose numbers are read, about.
const SAMPLE: usize = 10_000;

/// Faults of a whole gallery: what must not be, and a statement that counts it.
const OF_THE_GALLERY: [(&str, &str); 3] = [
    (
        "items with a revision that was never given",
        "SELECT count(*) FROM item
         WHERE revision <= 0 OR revision > (SELECT value FROM gallery WHERE name = 'counter')",
    ),
    ("items that share a revision with another", "SELECT count(*) - count(DISTINCT revision) FROM item"),
    (
        "the serving space does not exist",
        "SELECT count(*) FROM gallery WHERE name = 'serving' AND value IS NOT NULL
         AND value NOT IN (SELECT name FROM space)",
    ),
];

/// Faults of a space: what must not be, and a statement that counts it. `{n}` is the space's number,
/// `{bytes}` the bytes of its vectors.
const OF_A_SPACE: [(&str, &str); 10] = [
    (
        "vectors of items that do not exist",
        "SELECT count(*) FROM vector_{n} WHERE item NOT IN (SELECT key FROM item)",
    ),
    (
        "vectors made from another revision than their item's",
        "SELECT count(*) FROM vector_{n} AS v JOIN item ON item.key = v.item
         WHERE v.revision <> item.revision",
    ),
    (
        "vectors of unknown provenance",
        "SELECT count(*) FROM vector_{n}
         WHERE provenance IS NULL OR provenance NOT IN ('old', 'adapted', 'native')",
    ),
    (
        "vectors of the wrong width",
        "SELECT count(*) FROM vector_{n} WHERE typeof(value) <> 'blob' OR length(value) <> {bytes}",
    ),
    (
        "vectors that searches cannot see, since they carry no change",
        "SELECT count(*) FROM vector_{n} WHERE change <= 0",
    ),
    (
        "items without a vector that are not in the list of those",
        "SELECT count(*) FROM item WHERE key NOT IN (SELECT item FROM vector_{n})
         AND key NOT IN (SELECT item FROM lacking_{n})
         AND NOT EXISTS (SELECT 1 FROM gallery WHERE name = 'listed-{n}')",
    ),
    (
        "items in the list of those without a vector that have one, or do not exist",
        "SELECT count(*) FROM lacking_{n} WHERE item IN (SELECT item FROM vector_{n})
         OR item NOT IN (SELECT key FROM item)",
    ),
    (
        "items whose place in the queue disagrees with their source or their failure",
        "SELECT (SELECT count(*) FROM vector_{n} AS v JOIN item ON item.key = v.item
         WHERE v.sourced <> (item.source IS NOT NULL)
         OR v.failed <> (v.item IN (SELECT item FROM failure_{n})))
         + (SELECT count(*) FROM lacking_{n} AS l JOIN item ON item.key = l.item
         WHERE l.sourced <> (item.source IS NOT NULL)
         OR l.failed <> (l.item IN (SELECT item FROM failure_{n})))",
    ),
    (
        "leases on items that are not in the queue",
        "SELECT count(*) FROM claim_{n} WHERE item NOT IN (SELECT item FROM vector_{n}
         WHERE provenance = 'adapted' AND failed = 0 AND sourced = 1)
         AND item NOT IN (SELECT item FROM lacking_{n} WHERE failed = 0 AND sourced = 1)",
    ),
    (
        "failures of items that do not exist or have another revision",
        "SELECT count(*) FROM failure_{n} AS f WHERE NOT EXISTS
         (SELECT 1 FROM item WHERE key = f.item AND ifnull(source_revision, revision) = f.revision)",
    ),
];

/// Looks for all faults of a gallery. Each question has a snapshot of its own: one for all would keep the log
/// of a gallery that is written to from being emptied for minutes.
pub(crate) fn check(database: &Database) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let broken: String = database
        .read(|transaction| Ok(transaction.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?))?;
    if broken != "ok" {
        problems.push(Problem {
            space: None,
            what: format!("the database is damaged ({broken}); restore it from a copy"),
            count: 1,
        });
        return Ok(problems);
    }
    problems.extend(database.read(|transaction| ignored::problems(transaction))?);
    for (what, sql) in OF_THE_GALLERY {
        let count: u64 =
            database.read(|transaction| Ok(transaction.query_row(sql, [], |row| row.get(0))?))?;
        problems.extend(found(None, what, count));
    }
    for row in database.read(|transaction| spaces::list(transaction))? {
        let space = Some(&row.space.name);
        // A space that was dropped meanwhile has no faults.
        let is_there = |transaction: &Transaction<'_>| -> Step<bool> {
            Ok(spaces::list(transaction)?.iter().any(|listed| listed.number == row.number))
        };
        let (number, bytes) = (row.number.to_string(), (4 * row.space.dimension).to_string());
        for (what, sql) in OF_A_SPACE {
            let sql = sql.replace("{n}", &number).replace("{bytes}", &bytes);
            let count: Option<u64> = database.read(|transaction| {
                if !is_there(transaction)? {
                    return Ok(None);
                }
                Ok(Some(transaction.query_row(&sql, [], |row| row.get(0))?))
            })?;
            problems.extend(found(space, what, count.unwrap_or(0)));
        }
        let numbers = database.read(|transaction| {
            if is_there(transaction)? { check_numbers(transaction, &row) } else { Ok([(0, ""); 3]) }
        })?;
        problems.extend(numbers.iter().filter_map(|&(count, what)| found(space, what, count)));
    }
    Ok(problems)
}

fn found(space: Option<&String>, what: &str, count: u64) -> Option<Problem> {
    (count > 0).then(|| Problem { space: space.cloned(), what: what.to_owned(), count })
}

/// Reads a sample of the vectors, spread over the whole space, and gives three counts, each with its fault in
/// words.
fn check_numbers(connection: &Connection, row: &SpaceRow) -> Step<[(u64, &'static str); 3]> {
    let n = row.number;
    let count: u64 = row.count(connection, "vector")?;
    let every = count.div_ceil(SAMPLE as u64).max(1);
    let mut select = connection.prepare(&format!("SELECT value FROM vector_{n} WHERE item % {every} = 0"))?;
    let mut rows = select.query([])?;
    let (mut not_finite, mut not_normalised, mut without_direction) = (0, 0, 0);
    while let Some(line) = rows.next()? {
        let Ok(bytes) = line.get_ref(0)?.as_blob() else { continue };
        let (values, _) = bytes.as_chunks::<4>();
        let vector: Vec<f32> = values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        if !is_finite(&vector) {
            not_finite += 1;
        } else if row.space.normalised && (norm(&vector) - 1.0).abs() > NORMALISED_TOLERANCE {
            not_normalised += 1;
        } else if !row.space.distance.can_place(&vector) {
            without_direction += 1;
        }
    }
    Ok([
        (not_finite, "sampled vectors with NaN or infinite numbers; searches pass them over"),
        (
            without_direction,
            "sampled vectors of length 0, which have no direction: searches pass them over, and nothing is made of them",
        ),
        (not_normalised, "sampled vectors whose length is not 1 although the space says so"),
    ])
}
