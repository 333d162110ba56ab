//! Pages of items, and random samples.

use std::collections::BTreeMap;

use rehang_core::Result;
use rehang_store::{Drawn, ItemKey, Record, Sample, Scan, Select};
use serde_json::json;

use crate::filters::{all_of, is_empty, none_of};
use crate::handle::Handle;
use crate::items::{has_source, tag_all};
use crate::meta;
use crate::payload::{REVISION, TAG};
use crate::points::Point;
use crate::queue::{first_of_shuffle, walk_queue};
use crate::scroll::With;
use crate::slot::SpaceSlot;

pub(crate) fn record(
    handle: &Handle,
    point: &Point,
    space: &SpaceSlot,
    vectors_of: Option<&SpaceSlot>,
) -> Option<Record> {
    let has_own = space.is_applications || vectors_of.is_some_and(|other| other.slot == space.slot);
    Some(Record {
        item: point.item(&handle.options)?,
        state: point.record(space, has_own, false),
        vector: vectors_of.and_then(|other| point.record(other, true, true)),
    })
}

/// Returns the payload fields and vectors that a read brings along for a record.
pub(crate) fn with_for_record(handle: &Handle, space: &SpaceSlot, vectors_of: Option<&SpaceSlot>) -> With {
    let applications_space = Some(space)
        .filter(|space| space.is_applications && vectors_of.is_none_or(|other| other.slot != space.slot));
    handle.with(applications_space.into_iter().chain(vectors_of))
}

pub(crate) fn scan(handle: &Handle, scan: &Scan) -> Result<Vec<Record>> {
    let (meta, name) = (meta::read(handle)?, handle.name());
    let space = meta.find(&scan.space, &name)?;
    let vectors_of = scan.vectors_of.as_deref().map(|other| meta.find(other, &name)).transpose()?;
    tag_all(handle)?;
    let with = with_for_record(handle, space, vectors_of);
    // A queue needs the items' sources, so its records are never bare.
    let is_bare = !scan.contents && scan.select != Select::Queued;
    let with = if is_bare { With { payload: json!([REVISION, TAG]), ..with } } else { with };
    let filter = match scan.select {
        Select::All => all_of([none_of([is_empty(REVISION)])]),
        Select::Provenance(provenance) => space.made_by(&[provenance]),
        Select::Lacking => json!({"must_not": [is_empty(REVISION), space.present()]}),
        Select::WithoutSource => all_of([has_source(false), space.waiting()]),
        Select::Queued => {
            let mut records = Vec::new();
            walk_queue(handle, space, &with, scan.limit, &[], &mut |points| {
                let queued = points.iter().filter_map(|point| record(handle, point, space, vectors_of));
                records.extend(queued.filter(|record| record.item.source.is_some()));
                Ok(records.len() < scan.limit)
            })?;
            records.truncate(scan.limit);
            return Ok(records);
        }
    };
    let (mut records, mut after) = (Vec::new(), scan.after);
    loop {
        let wanted = scan.limit - records.len();
        let points = handle.client.scroll(handle.collection(), &filter, after, wanted, &with)?;
        records.extend(points.iter().filter_map(|point| record(handle, point, space, vectors_of)));
        // Points that are no items leave their places on the page to those behind them.
        match points.last() {
            Some(last) if points.len() == wanted && records.len() < scan.limit => after = Some(last.key),
            _ => return Ok(records),
        }
    }
}

pub(crate) fn sample(handle: &Handle, sample: &Sample) -> Result<Drawn> {
    let (meta, name) = (meta::read(handle)?, handle.name());
    let space = meta.find(&sample.space, &name)?;
    let vectors_of = sample.vectors_of.as_deref().map(|other| meta.find(other, &name)).transpose()?;
    tag_all(handle)?;
    let (keys, drawn_from) = first_of_shuffle(handle, space, sample.among, sample.seed, sample.size)?;
    let points = in_order(handle, &keys, &with_for_record(handle, space, vectors_of))?;
    Ok(Drawn {
        records: points.iter().filter_map(|point| record(handle, point, space, vectors_of)).collect(),
        drawn_from,
    })
}

/// Reads points by key, in the order of the keys.
pub(crate) fn in_order(handle: &Handle, keys: &[ItemKey], with: &With) -> Result<Vec<Point>> {
    let points = handle.client.retrieve(handle.collection(), keys.iter().copied(), with)?;
    let mut by_key: BTreeMap<ItemKey, Point> = points.into_iter().map(|point| (point.key, point)).collect();
    Ok(keys.iter().filter_map(|key| by_key.remove(key)).collect())
}
