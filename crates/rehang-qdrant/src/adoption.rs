//! Making a gallery of an application's collection, and opening one: what the server and the collection need, and every point as an item.

use std::sync::Arc;

use rehang::{Error, Remedy, Result};
use rehang_store::{Looked, SystemLeaseClock};
use serde_json::{Value, json};

use crate::address::QdrantAddress;
use crate::client::Client;
use crate::collection::{self, CollectionOptions, Facts};
use crate::handle::Handle;
use crate::payload::REVISION;
use crate::scroll::With;
use crate::tokens::Tokens;
use crate::{items, meta};

/// Fields of ours that filters ask for, with the kind of their index.
const FIELDS: [(&str, &str); 2] = [(REVISION, "integer"), ("rehang_tag.n", "bool")];
/// The same of the leases.
const FIELDS_OF_A_LEASE: [(&str, &str); 2] = [("slot", "integer"), ("worker", "keyword")];

pub(crate) fn inspect(address: &QdrantAddress, options: &CollectionOptions) -> Result<Looked> {
    options.check()?;
    let client = Client::new(address)?;
    collection::expect_server(&client)?;
    let Facts { vectors, .. } = collection::facts(&client, options)?;
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
    let vectors = vectors.into_iter().map(|(name, ..)| name).collect();
    Ok(Looked { dimension, id: Vec::new(), texts, vectors })
}

pub(crate) fn adopt(
    address: &QdrantAddress,
    options: &CollectionOptions,
    old: Option<&str>,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<Handle> {
    let handle = connect(address, options, old)?;
    let total = handle.facts()?.points;
    if collection::look(&handle.client, &handle.ours)?.is_none() {
        let made =
            handle.client.ask("PUT", &format!("/collections/{}", handle.ours), &json!({"vectors": {}}));
        // Of two that adopt at once, or of a request that was sent twice, one comes second.
        if let Err(error) = made
            && collection::look(&handle.client, &handle.ours)?.is_none()
        {
            return Err(error);
        }
    }
    for (field, kind) in FIELDS_OF_A_LEASE {
        handle.index(&handle.ours, field, kind)?;
    }
    meta::change(&handle, |meta| {
        match &meta.options {
            Some(known) => expect_options(known, options)?,
            None => meta.options = Some(options.clone()),
        }
        Ok(())
    })?;
    for (field, kind) in FIELDS {
        handle.index(handle.collection(), field, kind)?;
    }
    let unlisted = items::tag_new_points(&handle, &mut |done| advance(done, total.max(done)))?;
    if unlisted > 0 {
        let why =
            "ids that are numbers, or UUIDs whose first half is not zero: others would be taken for numbers";
        return Err(Error::option(handle.name(), format!("{unlisted} points with other ids"), why));
    }
    meta::change(&handle, |meta| {
        meta.is_listed = true;
        Ok(())
    })?;
    Ok(handle)
}

pub(crate) fn open(
    address: &QdrantAddress,
    options: &CollectionOptions,
    old: Option<&str>,
) -> Result<Handle> {
    let handle = connect(address, options, old)?;
    let not_yet =
        || Error::not_found("gallery", &options.collection, handle.client.name()).advise(Remedy::AdoptTable);
    if collection::look(&handle.client, &handle.ours)?.is_none() {
        return Err(not_yet());
    }
    let meta = meta::read_any(&handle)?;
    expect_options(meta.options.as_ref().ok_or_else(not_yet)?, options)?;
    if !meta.is_listed && !meta.is_leaving() {
        let what = format!("the gallery in collection {}", options.collection);
        return Err(Error::wrong_phase(what, "not whole yet").advise(Remedy::AdoptTable));
    }
    Ok(handle)
}

/// Looks at the server and the collection, and gives the handle on what may be a gallery there.
pub(crate) fn connect(
    address: &QdrantAddress,
    options: &CollectionOptions,
    old: Option<&str>,
) -> Result<Handle> {
    options.check()?;
    let client = Client::new(address)?;
    collection::expect_server(&client)?;
    collection::facts(&client, options)?;
    Ok(Handle {
        client,
        options: options.clone(),
        ours: options.ours(),
        old: old.map(str::to_owned).filter(|_| options.vector.is_some()),
        clock: Arc::new(SystemLeaseClock),
        tokens: Tokens::new(),
    })
}

/// A gallery is what it was made as: other fields would make other items of the same points.
fn expect_options(known: &CollectionOptions, options: &CollectionOptions) -> Result<()> {
    if known == options {
        return Ok(());
    }
    let words = |options: &CollectionOptions| serde_json::to_string(options).unwrap_or_default();
    Err(Error::conflict(
        format!("the gallery in collection {}", options.collection),
        format!(
            "it was made with {}, and not with {}; configure it as it was, or release it and make it anew",
            words(known),
            words(options)
        ),
    ))
}
