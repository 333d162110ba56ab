//! Examination of a gallery: searches for what must never be in it, and tells how its indexes are.

use rehang_core::Result;
use rehang_store::{Counts, IndexHealth, IndexKind, Problem};
use serde_json::{Value, json};

use crate::collection::Health;
use crate::filters::is_empty;
use crate::handle::Handle;
use crate::payload::REVISION;
use crate::{indexes, items, meta, search, vectors};

/// Lists points that wait to become items, then looks for what must never be in the gallery.
pub(crate) fn check(handle: &Handle) -> Result<Vec<Problem>> {
    let meta = meta::read(handle)?;
    let unlisted = items::tag_new_points(handle, &mut |_| true)?;
    let mut problems = Vec::new();
    let mut report = |space: Option<&str>, what: &str, count: u64| {
        if count > 0 {
            problems.push(Problem { space: space.map(str::to_owned), what: what.to_owned(), count });
        }
    };
    report(None, "points whose ids cannot be those of items", unlisted);
    let broken = json!({"must_not": [is_empty(REVISION), {"key": REVISION, "range": {"gte": 1}}]});
    report(
        None,
        "points whose field \"rehang\" is not of ours",
        handle.client.count(handle.collection(), &broken)?,
    );
    let facts = handle.facts()?;
    let lacking = meta.spaces.iter().flat_map(|space| indexes::indexed_fields(space, &facts.limits));
    report(
        None,
        "fields of ours without an index: the next run makes it, or adopt the gallery once more",
        lacking.filter(|(field, _)| !facts.indexes.contains(field)).count() as u64,
    );
    if let Health::Red(error) = &facts.health {
        report(None, &format!("a collection is red: the server makes no indexes any more ({error})"), 1);
    }
    for space in &meta.spaces {
        let name = Some(space.record.space.name.as_str());
        if !facts.has(&space.vector) {
            let next =
                if space.is_applications { "finish the upgrade" } else { "adopt the gallery once more" };
            report(name, &format!("its named vector is not in the collection: {next}"), 1);
            continue;
        }
        let count = |filter: Value| handle.client.count(handle.collection(), &filter);
        let tag_condition = json!({"key": space.path("p"), "match": {"any": ["old", "adapted", "native"]}});
        let without = json!({"must": [tag_condition], "must_not": [space.has_vector()]});
        report(name, "items that are said to have a vector and have none", count(without)?);
        report(
            name,
            "sampled vectors of length 0, which have no direction: searches pass them over, and nothing is made of them",
            search::without_direction(handle, space)?,
        );
        if !space.is_applications {
            let unsaid = json!({"must": [space.has_vector(), is_empty(&space.path("p"))]});
            report(
                name,
                "vectors that were not written through the gallery, and do not count",
                count(unsaid)?,
            );
        }
    }
    Ok(problems)
}

/// Reports how the index of a space is. The server counts the vectors of all spaces together.
pub(crate) fn index_health(handle: &Handle, space: &str) -> Result<IndexHealth> {
    let Counts { old, adapted, native, .. } = vectors::counts(handle, space)?;
    let (vectors, facts) = ((old + adapted + native) as usize, handle.facts()?);
    let built = (facts.indexed as usize).min(vectors);
    let kind = if built == 0 { IndexKind::Exact } else { IndexKind::Graph };
    let waiting = if facts.health == Health::Green { 0 } else { vectors - built };
    Ok(IndexHealth { waiting, built, ..IndexHealth::new(kind, vectors) })
}
