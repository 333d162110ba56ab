//! Searches of a space by its named vector, and the state of the server's indexes.

use std::collections::BTreeSet;
use std::time::Duration;

use rehang_core::{Error, ErrorKind, Matrix, Provenance, Result};
use rehang_store::{Filter, Found, ItemKey, check, share_found};
use serde_json::{Value, json};

use crate::collection::Health;
use crate::filters::{all_of, any_of, is, is_empty, none_of};
use crate::handle::Handle;
use crate::indexes;
use crate::meta;
use crate::payload::REVISION;
use crate::points::Point;
use crate::scroll::With;
use crate::slot::SpaceSlot;

/// Number of further neighbours that are asked for, so that equally near ones come in the order of keys.
const MORE: usize = 8;
/// Factor by which a search may look at more than was asked for, where many are equally near, or the server
/// cannot decide a filter.
const LOOK_MAX: usize = 64;
/// Number of vectors that an examination looks at.
const SAMPLE: usize = 1_000;

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
    // A search asks for more than the server's limit only where the caller wants more.
    let most = handle.limits.query.max(k);
    let look_max = k.saturating_mul(LOOK_MAX).saturating_add(1_000).min(most);
    let mut limit = k.saturating_add(MORE).min(most);
    loop {
        let points = ask(handle, space, query, limit, &conditions(handle, space, filter), &with, exact)?;
        let is_all = points.len() < limit;
        let farthest = points.last().and_then(|point| distance(space, point));
        let mut hits: Vec<Found> =
            points.iter().filter_map(|point| hit(handle, space, point, filter)).collect();
        hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
        pass_over_without_direction(handle, space, &mut hits)?;
        // Enough where the server has no more, or its farthest hit is farther away than the
        // last one that is wanted.
        let is_enough = hits.get(k - 1).is_some_and(|last| Some(last.distance) < farthest);
        if is_all || is_enough || limit >= look_max {
            hits.truncate(k);
            return Ok(hits);
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

/// Returns the conditions of a filter that the server can decide; the rest is decided when the hits are here.
fn conditions(handle: &Handle, space: &SpaceSlot, filter: &Filter) -> Value {
    let all = [Provenance::Old, Provenance::Adapted, Provenance::Native];
    let provenances = if filter.provenances.is_empty() { &all[..] } else { &filter.provenances };
    let mut conditions = vec![space.made_by(provenances)];
    if !space.is_applications {
        // A vector of the gallery's in a point without a revision belongs to earlier content.
        conditions.push(none_of([is_empty(REVISION)]));
    }
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
    let made_by = point.mark(space).made_by(space, Some(true));
    // A search writes nothing: a point that the application has written since points were last listed
    // has no revision yet. Its own vector counts. A native vector counts too where the point says that
    // the source is the same.
    let (provenance, item) = if point.has_tag() {
        (made_by?, point.item(&handle.options)?)
    } else if space.is_applications {
        (space.record.written_as, point.new_item(&handle.options))
    } else {
        let is_native = |made_by: &Provenance| *made_by == Provenance::Native && point.has_new_old_vector();
        (made_by.filter(is_native)?, point.new_item(&handle.options))
    };
    let is_asked_for = filter.provenances.is_empty() || filter.provenances.contains(&provenance);
    let distance = distance(space, point)?;
    (is_asked_for && filter.passes(&item, provenance)).then_some(Found {
        key: point.key,
        id: item.id,
        distance,
        provenance,
        revision: item.revision,
    })
}

/// Takes out hits whose vector has no direction: the server finds them at right angles to every query, and an
/// application may hold such vectors.
fn pass_over_without_direction(handle: &Handle, space: &SpaceSlot, hits: &mut Vec<Found>) -> Result<()> {
    let of_space = space.record.space.distance;
    if of_space.heeds_lengths() {
        return Ok(());
    }
    let is_at_right_angles = |hit: &Found| (hit.distance - 1.0).abs() <= f32::EPSILON;
    let keys: Vec<ItemKey> = hits.iter().filter(|hit| is_at_right_angles(hit)).map(|hit| hit.key).collect();
    if keys.is_empty() {
        return Ok(());
    }
    let with = With { payload: Value::Bool(false), vectors: vec![space.vector.clone()] };
    let points = handle.client.retrieve(handle.collection(), keys.into_iter(), &with)?;
    let is_placed = |point: &Point| point.vector(space).is_none_or(|vector| of_space.can_place(vector));
    let without: BTreeSet<ItemKey> =
        points.iter().filter(|point| !is_placed(point)).map(|point| point.key).collect();
    hits.retain(|hit| !without.contains(&hit.key));
    Ok(())
}

/// Turns what the server calls a score, a value of a distance's [measure](rehang_core::Distance::measure),
/// into that distance. A vector with NaN, which the server takes over gRPC, has a score of NaN, which is null
/// in JSON: it has no distance to anything.
fn distance(space: &SpaceSlot, point: &Point) -> Option<f32> {
    // The server computes in 32 bits.
    let score = point.score? as f32;
    Some(space.record.space.distance.of_measure(f64::from(score)) as f32)
}

pub(crate) fn recall(handle: &Handle, space: &str, samples: usize, k: usize) -> Result<f64> {
    let space = &meta::space(handle, space)?;
    if samples == 0 || k == 0 {
        return Ok(1.0);
    }
    let (mut all_exact, mut all_found) = (Vec::new(), Vec::new());
    for point in some_vectors(handle, space, samples)? {
        let Some(query) = point.vector(space) else { continue };
        if !space.record.space.distance.can_place(query) {
            continue;
        }
        all_exact.push(search_one(handle, space, query, k, &Filter::default(), true)?);
        all_found.push(search_one(handle, space, query, k, &Filter::default(), false)?);
    }
    Ok(share_found(all_exact.iter().zip(&all_found)))
}

/// Counts how many vectors of a sample have no direction, where cosines are compared.
pub(crate) fn without_direction(handle: &Handle, space: &SpaceSlot) -> Result<u64> {
    let distance = space.record.space.distance;
    if distance.heeds_lengths() {
        return Ok(0);
    }
    let sampled = some_vectors(handle, space, SAMPLE)?;
    let without =
        sampled.iter().filter_map(|point| point.vector(space)).filter(|vector| !distance.can_place(vector));
    Ok(without.count() as u64)
}

/// Draws points at random that have a vector in a space, with that vector.
fn some_vectors(handle: &Handle, space: &SpaceSlot, count: usize) -> Result<Vec<Point>> {
    let body = json!({
        "query": {"sample": "random"}, "limit": count.min(handle.limits.query), "filter": space.present(),
        "with_vector": [space.vector],
    });
    let path = format!("/collections/{}/points/query", handle.collection());
    let mut answer = handle.client.ask("POST", &path, &body)?;
    Point::list(answer["points"].take(), &handle.client.name())
}

pub(crate) fn is_ready(handle: &Handle, space: &str) -> Result<bool> {
    meta::space(handle, space)?;
    // Green means that no optimizer is at work, and none waits.
    Ok(handle.facts()?.health == Health::Green)
}

/// How long a server that was told to begin its indexes may take to do so.
const GREY_MAX: Duration = Duration::from_mins(2);

/// Waits for the server, which makes its indexes by itself. A grey collection waits for a change since
/// the server restarted; the server's documentation names an empty change of its configuration for that.
/// A red one has given up.
pub(crate) fn prepare(handle: &Handle, space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    meta::space(handle, space)?;
    let mut grey_since = None;
    let stuck = |why: String| Error::conflict(format!("the search indexes of {}", handle.name()), why);
    loop {
        let facts = handle.facts()?;
        match facts.health {
            Health::Green => return indexes::make_again(handle),
            Health::Yellow => grey_since = None,
            Health::Grey => match grey_since {
                None => {
                    let path = format!("/collections/{}", handle.collection());
                    handle.client.ask("PATCH", &path, &json!({"optimizers_config": {}}))?;
                    grey_since = Some(rehang_clock::now());
                }
                Some(since) if since.elapsed() < GREY_MAX => {}
                Some(_) => {
                    let why = "the collection is grey: the server makes no indexes, although it was told to; its optimizers may be off \
                               (max_optimization_threads 0). Searches go on without, and slower";
                    return Err(stuck(why.to_owned()));
                }
            },
            Health::Red(error) => {
                return Err(stuck(format!(
                    "the collection is red: the server has given up making them ({error}); see to that, then start the server again. \
                     Searches go on without, and slower"
                )));
            }
        }
        if !advance(facts.indexed.min(facts.points), facts.points) {
            return Err(ErrorKind::Cancelled.into());
        }
        rehang_clock::wait(Duration::from_millis(500));
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::{Distance, Space};
    use rehang_store::{Epoch, SpaceRecord};

    use super::*;

    #[test]
    fn what_has_no_number_for_a_score_has_no_distance() {
        let space = Space::new("m", 2, Distance::L2, false);
        let record = SpaceRecord { space, written_as: Provenance::Old, epoch: Epoch::FIRST };
        let space = SpaceSlot {
            record,
            slot: 1,
            vector: "m".into(),
            is_applications: true,
            is_witnessed: false,
            was_there: true,
        };
        let answer = json!([{"id": 1, "score": null}, {"id": 2, "score": 3.0}]);
        let points = Point::list(answer, "a server").unwrap();
        let distances: Vec<Option<f32>> = points.iter().map(|point| distance(&space, point)).collect();
        assert_eq!(distances, [None, Some(9.0)]);
    }
}
