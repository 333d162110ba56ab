//! An encoder of one's own, and an upgrade with it by library calls alone: no configuration, and no file but
//! the gallery's.
//!
//! `cargo run -p rehang-examples --bin own_encoder`

use std::sync::atomic::{AtomicU64, Ordering};

use rehang::encode::{Answer, Encoder, Input, ItemFailure, Spent};
use rehang::fit::{FitParameters, Method, NetworkOptions, fit_adapter};
use rehang::sqlite::SqliteStore;
use rehang::store::{ItemWrite, Ledger, NewVector};
use rehang::upgrade::{
    BackfillScope, BackfillSetup, Ending, Limits, OrderSettings, Serving, SystemClock, Unobserved,
    UpgradeSetup, backfill, finish, start, switch,
};
use rehang::{Distance, Error, Matrix, Pairs, Progress, Provenance, Result, Space, Vectors};

/// Texts as counts of their letters, in as many dimensions as the space has. A real one calls a model here.
struct Letters {
    space: Space,
    /// Number of texts that it was given, which is what it costs.
    items: AtomicU64,
}

impl Letters {
    fn new(name: &str, dimension: usize) -> Self {
        Self { space: Space::new(name, dimension, Distance::L2, false), items: AtomicU64::default() }
    }

    fn vector(&self, text: &str) -> Vec<f32> {
        let mut vector = vec![0.0; self.space.dimension];
        for letter in text.bytes() {
            vector[usize::from(letter) % self.space.dimension] += 1.0;
        }
        vector
    }
}

impl Encoder for Letters {
    fn space(&self) -> &Space {
        &self.space
    }

    fn batch_max(&self) -> usize {
        32
    }

    /// An item that cannot be embedded fails by itself; an error here would end the whole run.
    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        self.items.fetch_add(inputs.len() as u64, Ordering::Relaxed);
        let answer = |input: &Input<'_>| match input.source.trim() {
            "" => Err(ItemFailure::Permanent("no text".into())),
            text => Ok(self.vector(text)),
        };
        Ok(inputs.iter().map(answer).collect())
    }

    /// Names the model, so that a run knows another model from this one without embedding anything.
    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(Some(format!("letters, {} wide, version 1", self.space.dimension)))
    }

    fn spent(&self) -> Spent {
        Spent { items: self.items.load(Ordering::Relaxed), ..Spent::default() }
    }
}

fn main() -> Result<()> {
    let (old, new) = (Letters::new("narrow", 12), Letters::new("wide", 20));
    let folder = tempfile::tempdir().map_err(|error| Error::io("make", "a folder", &error))?;
    let store = SqliteStore::create(folder.path().join("gallery.db"))?;
    store.create_space(&old.space, Provenance::Old)?;
    let texts: Vec<String> =
        (0u32..300).map(|number| format!("{:b} and {}", number, number * number)).collect();
    let write = |(number, text): (usize, &String)| {
        let vector = NewVector::from_model("narrow", old.vector(text), Provenance::Old);
        ItemWrite::new(format!("item {number}"), Some(text.clone()), vec![vector])
    };
    let mut writes: Vec<ItemWrite> = texts.iter().enumerate().map(write).collect();
    writes.push(ItemWrite { source: Some(" ".into()), ..write((300, &texts[0])) });
    store.put(&writes)?;

    // The map from old vectors to the new space, learned on items that both have embedded.
    let vectors = |model: &Letters| {
        let rows = texts[..200].iter().flat_map(|text| model.vector(text)).collect();
        Vectors::new(model.space.clone(), Matrix::new(model.space.dimension, rows)?, "vectors of pairs")
    };
    let parameters = FitParameters { method: Method::Ridge, compare: false, ..FitParameters::default() };
    let pairs = Pairs::new(vectors(&old)?, vectors(&new)?, None, None)?;
    let fitted = fit_adapter(&pairs, None, &parameters, &NetworkOptions::default(), &Progress::default())?;

    let (adapter, order) = (&fitted.adapter, OrderSettings::default());
    let setup = UpgradeSetup { old: &old.space, new: &new.space, adapter: Some(adapter), order };
    assert_eq!(start(&store, &setup, &Unobserved)?.adapted, 301);
    switch(&store, &setup, Serving::Mixed, &Unobserved)?;
    let (scope, limits, clock) =
        (BackfillScope::Gallery(Some(adapter)), Limits::default(), &SystemClock::start());
    let run = BackfillSetup { store: &store, encoder: &new, scope, limits, clock, worker: "this process" };
    let summary = backfill(&run, &Unobserved)?;
    assert_eq!((summary.ending, summary.native, summary.done.failed), (Ending::NothingLeft, 300, 1));
    // One is refused by the encoder and stays adapted: without a yes to that, nothing is dropped.
    assert!(finish(&store, &setup, false, &Unobserved).is_err());
    assert_eq!(finish(&store, &setup, true, &Unobserved)?.counts.native, 300);
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
