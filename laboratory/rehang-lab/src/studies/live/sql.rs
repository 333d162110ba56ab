//! Searches by SQL beside those through the library, in a table of PostgreSQL that goes the road of the other
//! galleries.

use rehang::upgrade::{TableLocation, Unobserved};
use rehang::{Configuration, Error, Location, Result, Upgrade, Vectors};

use super::{new_space, search, walk};
use crate::studies::bridge::cosine;
use crate::studies::regret::Ground;
use crate::studies::whole::deal;

#[path = "../../../../../crates/rehang-postgres/tests/server/mod.rs"]
mod servers;

pub use servers::{Server, server};

/// Queries that are asked at each stage, at most, and how many items each asks for.
const QUERIES: usize = 100;
const DEPTH: usize = 10;
/// Difference of two distances, at most, that are the same but for rounding.
const ROUNDING: f32 = 1e-5;
const SEARCH: &str = "SELECT id, distance FROM rehang.search('items', $1, $2::text[]::vector[], $3)";

/// Takes a table of a gallery's items through its upgrade, and asks at every stage through the library and in
/// SQL. Returns the number of queries, of those that SQL answered with other items, and of those that it
/// answered with other items at the same distances.
pub fn compare(server: &Server, ground: &Ground, with_labels: bool) -> Result<[usize; 3]> {
    let address = server.database();
    let mut client = servers::client(&address);
    let (order, count) = deal(ground.old.len(), 0);
    let old = cosine(&ground.old)?;
    let text = |vectors: &Vectors, row: usize| format!("{:?}", vectors.matrix().row(row));
    let columns =
        format!("id text PRIMARY KEY, body text, label text, embedding vector({})", old.dimension());
    client.batch_execute(&format!("CREATE TABLE items ({columns})")).map_err(of_database)?;
    let mut transaction = client.transaction().map_err(of_database)?;
    let insert = "INSERT INTO items VALUES ($1, $2, $3, $4::text::vector)";
    let insert = transaction.prepare(insert).map_err(of_database)?;
    for row in order {
        let (id, label) = (row.to_string(), with_labels.then(|| ground.labels[row].to_string()));
        transaction.execute(&insert, &[&id, &id, &label, &text(&old, row)]).map_err(of_database)?;
    }
    transaction.commit().map_err(of_database)?;
    let location = Location::Table(Box::new(TableLocation {
        url: Some(address),
        table: "items".into(),
        source: Some("body".into()),
        label: Some("label".into()),
        vector: Some("embedding".into()),
        old: "old".into(),
        new: "new".into(),
        ..TableLocation::default()
    }));
    location.adopt(old.space(), &Unobserved)?;
    let upgrade = Upgrade::new(Configuration::new(location, old.space().clone(), new_space(ground))?)?;
    let gallery = upgrade.gallery();
    let models = vec!["old".to_owned(), "new".to_owned()];
    let mut counts = [0; 3];
    walk(&upgrade, ground, count, &mut |_, queries| {
        let step = queries.len().div_ceil(QUERIES).max(1);
        let rows: Vec<usize> = queries.iter().copied().step_by(step).collect();
        for (&row, hits) in rows.iter().zip(search(&gallery, ground, &rows, DEPTH)?) {
            let by_both = vec![text(&ground.old, row), text(&ground.new, row)];
            let depth = DEPTH as i32;
            let lines = client.query(SEARCH, &[&models, &by_both, &depth]).map_err(of_database)?;
            let answers: Vec<(String, f32)> = lines.iter().map(|line| (line.get(0), line.get(1))).collect();
            let both = || answers.iter().zip(&hits);
            let is_as_long = answers.len() == hits.len();
            let is_same = is_as_long && both().all(|((id, _), hit)| *id == hit.id);
            let is_as_near =
                is_as_long && both().all(|((_, away), hit)| (away - hit.distance).abs() <= ROUNDING);
            counts[0] += 1;
            counts[1] += usize::from(!is_same && !is_as_near);
            counts[2] += usize::from(!is_same && is_as_near);
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Words an error of the database.
fn of_database(error: postgres::Error) -> Error {
    Error::corrupt("the database", error)
}
