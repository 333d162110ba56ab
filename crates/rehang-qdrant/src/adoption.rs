//! Adoption of an application's collection as a gallery, and opening of one: checks of the server and the
//! collection, then every point becomes an item.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rehang_core::{Error, Remedy, Result};
use rehang_store::{SystemLeaseClock, TableFindings};
use serde_json::{Value, json};

use crate::address::QdrantAddress;
use crate::client::Client;
use crate::collection::{self, CollectionOptions, Facts};
use crate::filters::{all_of, is, is_empty, none_of};
use crate::handle::Handle;
use crate::ids::key_of;
use crate::indexes;
use crate::meta::Meta;
use crate::payload::{FIELDS, NEW_OLD_VECTOR, NO_SOURCE, REVISION, TAG, WITNESS};
use crate::points::Point;
use crate::scroll::With;
use crate::tokens::Tokens;
use crate::{items, meta, spaces};

/// Number of further indexes where the server wants one of every field of a filter, beside those of spaces:
/// one on the source's revision, one on the application's source field.
const FIELDS_OF_FEW: usize = 2;
/// Spaces of a gallery in an upgrade.
const SPACES: usize = 2;
/// Fields of leases that filters ask for, with the kind of their index.
const FIELDS_OF_A_LEASE: [(&str, &str); 2] = [("slot", "integer"), ("worker", "keyword")];

pub(crate) fn inspect(address: &QdrantAddress, options: &CollectionOptions) -> Result<TableFindings> {
    options.check()?;
    let client = Client::new(address)?;
    collection::expect_server(&client)?;
    let facts = collection::facts(&client, &options.collection)?;
    facts.expect_vector(options)?;
    let Facts { vectors, indexed: graphs, .. } = facts;
    let with = With { payload: Value::Bool(true), vectors: Vec::new() };
    let mut texts: Vec<String> = Vec::new();
    for point in client.scroll(&options.collection, &Value::Null, None, 32, &with)? {
        for (name, value) in point.payload {
            if value.is_string() && !texts.contains(&name) {
                texts.push(name);
            }
        }
    }
    let named = vectors.iter().find(|(name, ..)| options.vector.as_ref() == Some(name));
    let dimension = named.map(|(_, width, _)| *width);
    let vectors = vectors.into_iter().map(|(name, ..)| name).filter(|name| name != WITNESS).collect();
    Ok(TableFindings { dimension, id: Vec::new(), texts, vectors, graphs })
}

pub(crate) fn adopt(
    address: &QdrantAddress,
    options: &CollectionOptions,
    old: Option<&str>,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<Handle> {
    let (handle, meta) = look_up_gallery(address, options, old)?;
    handle.expect_same_collection()?;
    let facts = handle.facts()?;
    let (total, is_there) = (facts.points, meta.is_some());
    let meta = meta.unwrap_or_default();
    meta.expect_to_stay(&handle)?;
    if let Some(stored_options) = &meta.options {
        expect_options(stored_options, options)?;
    }
    spaces::expect_old_vector(&handle, &facts, &meta)?;
    expect_room_for_indexes(&handle, &facts, &meta)?;
    if meta.options.is_none() {
        if is_there {
            expect_ours(&handle)?;
        }
        expect_no_other_gallery(&handle)?;
        expect_ids(&handle)?;
    }
    // The indexes are made first: the server may want one of every field of a filter.
    for (field, kind) in FIELDS {
        handle.client.index(handle.collection(), field, kind)?;
    }
    if meta.options.is_none() {
        take_possession(&handle, &facts)?;
    }
    if !is_there {
        // The server may have a strict mode for new collections.
        let ours = json!({"vectors": {}, "strict_mode_config": {"enabled": false}});
        let creation = handle.client.ask("PUT", &format!("/collections/{}", handle.ours), &ours);
        // Where two processes adopt at once, or a request was sent twice, one comes second and
        // finds the collection made.
        if let Err(error) = creation
            && collection::look(&handle.client, &handle.ours)?.is_none()
        {
            return Err(error);
        }
    }
    for (field, kind) in FIELDS_OF_A_LEASE {
        handle.client.index(&handle.ours, field, kind)?;
    }
    if meta.options.is_none() {
        take_over_tags(&handle, &facts)?;
    }
    meta::change(&handle, |meta| {
        match &meta.options {
            Some(stored_options) => expect_options(stored_options, options)?,
            None => meta.options = Some(options.clone()),
        }
        meta.collection.get_or_insert_with(|| handle.collection.clone());
        Ok(())
    })?;
    indexes::make_missing(&handle, &facts)?;
    spaces::make_missing(&handle, &facts)?;
    items::tag_new_points(&handle, &mut |done| advance(done, total.max(done)))?;
    meta::change(&handle, |meta| {
        meta.is_listed = true;
        Ok(())
    })?;
    Ok(handle)
}

/// Fails where the server would refuse the last of the indexes that an upgrade needs.
fn expect_room_for_indexes(handle: &Handle, facts: &Facts, meta: &Meta) -> Result<()> {
    let of_space = indexes::fields_of_a_space(&facts.limits);
    let few = if facts.limits.wants_indexes { FIELDS_OF_FEW } else { 0 };
    let is_ours = |field: &&String| {
        *field == REVISION || field.starts_with("rehang_tag.") || meta.indexed.contains(field)
    };
    let theirs = facts.indexes.len() - facts.indexes.iter().filter(is_ours).count();
    let needed = theirs + FIELDS.len() + few + SPACES * of_space;
    if needed <= facts.limits.indexes {
        return Ok(());
    }
    let what = format!("max_payload_index_count of collection {}", handle.collection());
    let value = format!("{} in its strict mode", facts.limits.indexes);
    Err(Error::option(
        what,
        value,
        format!("{needed} or more: the collection has {theirs}, an upgrade makes the others"),
    ))
}

/// Fails where the application has a collection under the name of the gallery's own: a
/// release would delete it.
fn expect_ours(handle: &Handle) -> Result<()> {
    let ours = &handle.ours;
    let vectors = collection::look(&handle.client, ours)?.map(|answer| answer["config"]["params"].clone());
    let has_vectors = |kind: &str| {
        vectors
            .as_ref()
            .and_then(|params| params[kind].as_object())
            .is_some_and(|vectors| !vectors.is_empty())
    };
    let other_points = handle.client.count(ours, &none_of([meta::has_states()]))?;
    if other_points == 0 && !has_vectors("vectors") && !has_vectors("sparse_vectors") {
        return Ok(());
    }
    let why = format!(
        "a gallery of it keeps its state in a collection {ours:?}, and the application has one of that name; give that one another name, or reach \
         this one by an alias, whose gallery has another"
    );
    Err(Error::conflict(handle.name(), why))
}

/// Fails where the collection is a gallery already, under another of its names.
fn expect_no_other_gallery(handle: &Handle) -> Result<()> {
    let here = handle.collection();
    let aliases = collection::aliases(&handle.client)?;
    let names = aliases.iter().filter(|(_, leads_to)| leads_to == here).map(|(alias, _)| alias.as_str());
    for name in names.chain([here]).filter(|name| *name != handle.options.collection) {
        let ours = collection::gallery_collection_name(name);
        if collection::look(&handle.client, &ours)?.is_some()
            && let of_name = meta::read_of(&handle.client, &ours)?
            && of_name.collection.as_deref().is_none_or(|collection| collection == here)
        {
            let why = format!(
                "it is a gallery already, adopted by the name {name:?}: write collection = {name:?}, or take that gallery out first"
            );
            return Err(Error::conflict(handle.name(), why));
        }
    }
    Ok(())
}

/// Fails where there are points that cannot be items. Their ids sort first of all UUIDs.
fn expect_ids(handle: &Handle) -> Result<()> {
    let from_first =
        json!({"offset": "00000000-0000-0000-0000-000000000000", "limit": 1, "with_payload": false});
    let path = format!("/collections/{}/points/scroll", handle.collection());
    let answer = handle.client.ask("POST", &path, &from_first)?;
    let first = &answer["points"][0]["id"];
    if first.is_null() || key_of(first).is_some() {
        return Ok(());
    }
    let why = "ids that are numbers, or UUIDs whose first half is not zero: others would be taken for numbers; give these points other ids";
    let value = format!("points with other ids, such as {}", first.as_str().unwrap_or_default());
    Err(Error::option(handle.name(), value, why))
}

/// Takes over the tags that an earlier gallery left on the points, where the state beside the points was
/// lost: its newest revision, and the slots of its spaces. A space that is made in a vector of that gallery
/// gets the natives there ([`spaces::create`]).
fn take_over_tags(handle: &Handle, facts: &Facts) -> Result<()> {
    let newest = handle.client.largest(handle.collection(), REVISION, &handle.tag([]))?;
    if let Some(newest) = newest.as_ref().and_then(Point::revision) {
        meta::give_after(handle, newest)?;
    }
    let slot = |field: &String| field.strip_prefix("rehang_tag.s")?.strip_suffix(".p")?.parse::<u32>().ok();
    if let Some(last) = facts.indexes.iter().filter_map(slot).max() {
        meta::change(handle, |meta| {
            meta.slots = meta.slots.max(last);
            Ok(())
        })?;
    }
    Ok(())
}

/// Takes out the indexes that an adoption made before it was refused.
fn give_up_fields(handle: &Handle, facts: &Facts) -> Result<()> {
    let is_new = |field: &str| !facts.indexes.iter().any(|indexed| indexed == field);
    FIELDS.iter().filter(|(field, _)| is_new(field)).try_for_each(|(field, _)| handle.drop_index(field))
}

/// Builds a filter for points that have a tag of a gallery.
fn is_tagged() -> Value {
    all_of([json!({"key": REVISION, "range": {"gte": 1}}), none_of([is_empty(NO_SOURCE)])])
}

/// Fails where the application has payload fields or a vector of its own under the gallery's names.
fn take_possession(handle: &Handle, facts: &Facts) -> Result<()> {
    let mut theirs =
        vec![(REVISION, none_of([is_empty(REVISION), is(REVISION, NEW_OLD_VECTOR), is_tagged()]))];
    if !facts.limits.wants_indexes {
        theirs.push((TAG, json!({"must_not": [is_empty(TAG)], "must": [is_empty(NO_SOURCE)]})));
    }
    let is_there = facts.has_sparse_witness || facts.vectors.iter().any(|(name, ..)| name == WITNESS);
    let may_be_ours = facts.has_sparse_witness || facts.has_witness;
    // Where the state beside the points is lost, the points still have tags.
    if is_there && (!may_be_ours || handle.client.count(handle.collection(), &is_tagged())? == 0) {
        give_up_fields(handle, facts)?;
        let why = format!(
            "the collection has a vector {WITNESS:?} of the application's, whose name a gallery needs for its own; make it anew by another name"
        );
        return Err(Error::conflict(handle.name(), why));
    }
    for (field, filter) in theirs {
        let count = handle.client.count(handle.collection(), &filter)?;
        if count > 0 {
            give_up_fields(handle, facts)?;
            let why = format!(
                "{count} points have a payload field {field:?} of the application's, whose name a gallery needs for its own; give that \
                 field another name"
            );
            return Err(Error::conflict(handle.name(), why));
        }
    }
    Ok(())
}

pub(crate) fn open(
    address: &QdrantAddress,
    options: &CollectionOptions,
    old: Option<&str>,
) -> Result<Handle> {
    let (handle, meta) = look_up_gallery(address, options, old)?;
    let not_yet =
        || Error::not_found("gallery", &options.collection, handle.client.name()).advise(Remedy::AdoptTable);
    expect_options(&meta.and_then(|meta| meta.options).ok_or_else(not_yet)?, options)?;
    // A gallery that is not whole yet opens too, so that it can be released.
    Ok(handle)
}

/// Looks at the server and the collection. Returns the handle on what may be a gallery there, with its
/// state where there is one.
pub(crate) fn look_up_gallery(
    address: &QdrantAddress,
    options: &CollectionOptions,
    old: Option<&str>,
) -> Result<(Handle, Option<Meta>)> {
    options.check()?;
    let mut client = Client::new(address)?;
    collection::expect_server(&client)?;
    let alias = collection::aliases(&client)?.into_iter().find(|(alias, _)| *alias == options.collection);
    let leads_to = alias.map_or_else(|| options.collection.clone(), |(_, leads_to)| leads_to);
    let ours = collection::gallery_collection_name(&options.collection);
    let meta = collection::look(&client, &ours)?.map(|_| meta::read_of(&client, &ours)).transpose()?;
    let made_of = meta.as_ref().and_then(|meta| meta.collection.clone());
    let collection = made_of.unwrap_or_else(|| leads_to.clone());
    let facts = collection::facts(&client, &collection)?;
    // The application may drop its old vector once the gallery has no space of it any more.
    if meta.as_ref().is_none_or(|meta| meta.options.is_none()) {
        facts.expect_vector(options)?;
    }
    let limits = facts.limits;
    client.page_max = client.page_max.min(limits.query);
    let handle = Handle {
        client,
        limits,
        options: options.clone(),
        moved: (leads_to != collection).then_some(leads_to),
        collection,
        ours,
        old: old.map(str::to_owned).filter(|_| options.vector.is_some()),
        clock: Arc::new(SystemLeaseClock),
        tokens: Tokens::new(),
        drawn: Mutex::default(),
        is_indexed: AtomicBool::new(false),
    };
    Ok((handle, meta))
}

/// Fails where a gallery is opened with other options than it was made with: other fields would make other
/// items of the same points.
fn expect_options(stored_options: &CollectionOptions, options: &CollectionOptions) -> Result<()> {
    if stored_options == options {
        return Ok(());
    }
    let words = |options: &CollectionOptions| serde_json::to_string(options).unwrap_or_default();
    Err(Error::conflict(
        format!("the gallery in collection {}", options.collection),
        format!(
            "it was made with {}, and not with {}; configure it as it was, or release it and make it anew",
            words(stored_options),
            words(options)
        ),
    ))
}
