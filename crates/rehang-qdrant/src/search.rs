//! Searches of a space by its named vector, and the server's indexes.

use std::time::Duration;

use rehang::{Distance, ErrorKind, Matrix, Provenance, Result};
use rehang_store::{Filter, Found, check, share_found};
use serde_json::{Value, json};

use crate::filters::{all_of, any_of, is};
use crate::handle::Handle;
use crate::items::tag_all;
use crate::meta;
use crate::points::Point;
use crate::scroll::With;
use crate::slot::SpaceSlot;

/// Further neighbours that are asked for, so that equally near ones come in the order of keys.
const MORE: usize = 8;
/// So much more than was asked for is looked at where many are equally near, or the server cannot decide a filter.
const LOOK_MAX: usize = 64;

pub(crate) fn search(
    handle: &Handle,
    space: &str,
    queries: &Matrix,
    k: usize,
    filter: &Filter,
) -> Result<Vec<Vec<Found>>> {
    let space = &meta::space(handle, space)?;
    check::queries(&space.record.space, queries)?;
    (0..queries.rows()).map(|row| search_one(handle, space, queries.row(row), k, filter, false)).collect()
}

fn search_one(
    handle: &Handle,
    space: &SpaceSlot,
    query: &[f32],
    k: usize,
    filter: &Filter,
    exact: bool,
) -> Result<Vec<Found>> {
    if k == 0 {
        return Ok(Vec::new());
    }
    let with =
        if filter.labels.is_empty() && filter.payload.is_empty() { handle.tag([]) } else { handle.with([]) };
    let look_max = k.saturating_mul(LOOK_MAX).saturating_add(1_000);
    let mut limit = k.saturating_add(MORE);
    loop {
        let points = ask(handle, space, query, limit, &conditions(handle, space, filter), &with, exact)?;
        if points.iter().any(|point| !point.has_tag()) {
            tag_all(handle)?;
            continue;
        }
        let is_all = points.len() < limit;
        let farthest = points.last().and_then(|point| distance(space, point));
        let mut found: Vec<Found> =
            points.iter().filter_map(|point| hit(handle, space, point, filter)).collect();
        found.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
        // Enough where the server has no more, or the last ones are farther away than the last one that is wanted.
        let is_enough = found.get(k - 1).is_some_and(|last| Some(last.distance) < farthest);
        if is_all || is_enough || limit >= look_max {
            found.truncate(k);
            return Ok(found);
        }
        limit = limit.saturating_mul(4).min(look_max);
    }
}

fn ask(
    handle: &Handle,
    space: &SpaceSlot,
    query: &[f32],
    limit: usize,
    filter: &Value,
    with: &With,
    exact: bool,
) -> Result<Vec<Point>> {
    let body = json!({
        "query": query, "using": space.vector, "limit": limit, "filter": filter, "with_payload": with.payload,
        "params": {"exact": exact},
    });
    let path = format!("/collections/{}/points/query", handle.collection());
    let mut answer = handle.client.ask("POST", &path, &body)?;
    Point::list(answer["points"].take(), &handle.client.name())
}

/// What the server can decide of a filter; the rest is looked at when the hits are here.
fn conditions(handle: &Handle, space: &SpaceSlot, filter: &Filter) -> Value {
    let all = [Provenance::Old, Provenance::Adapted, Provenance::Native];
    let provenances = if filter.provenances.is_empty() { &all[..] } else { &filter.provenances };
    let mut conditions = vec![space.made_by(provenances)];
    if let (Some(field), false) = (&handle.options.label, filter.labels.is_empty()) {
        // A label may be a number in the payload.
        let numbers = filter.labels.iter().filter_map(|label| label.parse::<i64>().ok());
        let any: Vec<Value> = filter.labels.iter().map(|label| is(field, label.as_str())).collect();
        conditions.push(any_of([any, numbers.map(|number| is(field, number)).collect()].concat()));
    }
    for (field, value) in &filter.payload {
        let is_plain = field.chars().all(|letter| letter.is_alphanumeric() || "_-".contains(letter));
        if field.is_empty() || !is_plain && field.contains(['"', '\\']) {
            continue;
        }
        let quoted = if is_plain { field.clone() } else { format!("\"{field}\"") };
        let path = handle.options.payload.as_ref().map_or(quoted.clone(), |path| format!("{path}.{quoted}"));
        if value.is_string() || value.is_boolean() || value.is_i64() {
            conditions.push(is(&path, value.clone()));
        } else if let Some(number) = value.as_f64() {
            conditions.push(json!({"key": path, "range": {"gte": number, "lte": number}}));
        }
    }
    all_of(conditions)
}

fn hit(handle: &Handle, space: &SpaceSlot, point: &Point, filter: &Filter) -> Option<Found> {
    let provenance = point.mark(space).made_by(space, Some(true))?;
    let item = point.item(&handle.options)?;
    let distance = distance(space, point)?;
    filter.passes(&item, provenance).then_some(Found {
        key: point.key,
        id: item.id,
        distance,
        provenance,
        revision: item.revision,
    })
}

/// The distance as [`Distance`] defines it, of what the server calls a score. A vector with NaN, which the server takes over gRPC, has
/// a score of NaN, which is null in JSON: it is near to nothing.
fn distance(space: &SpaceSlot, point: &Point) -> Option<f32> {
    let score = point.score? as f32;
    Some(match space.record.space.distance {
        Distance::L2 => score * score,
        Distance::Cosine => 1.0 - score,
        // A minus sign would make the product 0 a negative zero, which sorts before the positive one of another.
        Distance::Dot => 0.0 - score,
    })
}

pub(crate) fn recall(handle: &Handle, space: &str, samples: usize, k: usize) -> Result<f64> {
    let space = &meta::space(handle, space)?;
    if samples == 0 || k == 0 {
        return Ok(1.0);
    }
    let body = json!({"query": {"sample": "random"}, "limit": samples, "filter": space.present(), "with_vector": [space.vector]});
    let path = format!("/collections/{}/points/query", handle.collection());
    let mut answer = handle.client.ask("POST", &path, &body)?;
    let (mut all_exact, mut all_found) = (Vec::new(), Vec::new());
    for point in Point::list(answer["points"].take(), &handle.client.name())? {
        let Some(query) = point.vector(space) else { continue };
        all_exact.push(search_one(handle, space, query, k, &Filter::default(), true)?);
        all_found.push(search_one(handle, space, query, k, &Filter::default(), false)?);
    }
    Ok(share_found(all_exact.iter().zip(&all_found)))
}

pub(crate) fn is_ready(handle: &Handle, space: &str) -> Result<bool> {
    meta::space(handle, space)?;
    // Green: no optimizer is at work, and none waits.
    Ok(handle.facts()?.is_green)
}

/// Waits for the server, which makes its indexes by itself.
pub(crate) fn prepare(handle: &Handle, space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    meta::space(handle, space)?;
    loop {
        let facts = handle.facts()?;
        if facts.is_green {
            return Ok(());
        }
        if !advance(facts.indexed.min(facts.points), facts.points) {
            return Err(ErrorKind::Cancelled.into());
        }
        rehang_clock::wait(Duration::from_millis(500));
    }
}

#[cfg(test)]
mod tests {
    use rehang::Space;
    use rehang_store::{Epoch, SpaceRecord};

    use super::*;

    #[test]
    fn what_has_no_number_for_a_score_has_no_distance() {
        let space = Space::new("m", 2, Distance::L2, false);
        let record = SpaceRecord { space, written_as: Provenance::Old, epoch: Epoch::FIRST };
        let space = SpaceSlot { record, slot: 1, vector: "m".into(), is_applications: true };
        let answer = json!([{"id": 1, "score": null}, {"id": 2, "score": 3.0}]);
        let points = Point::list(answer, "a server").unwrap();
        let distances: Vec<Option<f32>> = points.iter().map(|point| distance(&space, point)).collect();
        assert_eq!(distances, [None, Some(9.0)]);
    }
}
