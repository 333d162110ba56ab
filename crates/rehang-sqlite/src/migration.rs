//! Migration of a gallery of an older format to this one's, when it is opened for writing.

use rehang::Provenance;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::schema;
use crate::trouble::Step;

/// Brings a gallery up, one format after the other, in one transaction: a process that is killed meanwhile
/// leaves it as it was. Of several processes at once, the first one does it.
pub(crate) fn to_this_format(connection: &Connection) -> Step<()> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let format: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if format <= 3 {
        transaction.execute_batch(schema::COLUMN_OF_4)?;
    }
    if format <= 4 {
        for (number, _) in spaces(&transaction)? {
            transaction.execute_batch(&schema::table_of_5(number))?;
        }
        for number in left(&transaction)? {
            transaction.execute_batch(&schema::table_of_5(number))?;
        }
    }
    if format <= 1 {
        from_1(&transaction)?;
    }
    if format <= 2 {
        for (number, written_as) in spaces(&transaction)? {
            transaction.execute_batch(&schema::space_from_2(number, written_as))?;
        }
        transaction.execute_batch(schema::FROM_2)?;
    }
    if format <= 3 {
        for (number, written_as) in spaces(&transaction)? {
            transaction.execute_batch(&schema::space_from_3(number, written_as))?;
        }
        transaction.execute_batch(&schema::from_3())?;
    }
    if format <= 4 {
        for (number, written_as) in spaces(&transaction)? {
            transaction.execute_batch(&schema::space_from_4(number, written_as))?;
        }
    }
    transaction.pragma_update(None, "user_version", schema::FORMAT)?;
    transaction.commit()?;
    Ok(())
}

fn from_1(transaction: &Transaction<'_>) -> Step<()> {
    for (number, written_as) in spaces(transaction)? {
        transaction.execute_batch(&schema::space_from_1(number, written_as))?;
    }
    for number in left(transaction)? {
        transaction.execute_batch(&schema::left_space_from_1(number))?;
    }
    transaction.execute_batch(schema::FROM_1)?;
    Ok(())
}

/// Numbers of spaces that were dropped and are still there.
fn left(transaction: &Transaction<'_>) -> Step<Vec<i64>> {
    Ok(transaction
        .prepare("SELECT value FROM gallery WHERE name LIKE 'left-%'")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?)
}

/// Numbers of the spaces, and the provenance of vectors that applications write to them.
fn spaces(transaction: &Transaction<'_>) -> Step<Vec<(i64, Provenance)>> {
    transaction
        .prepare("SELECT number, written_as FROM space")?
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?
        .map(|row| {
            let (number, written_as) = row?;
            Ok((number, written_as.parse()?))
        })
        .collect()
}
