//! A gallery inside an application: it puts notes into it, searches them, and goes on doing both while the
//! model is replaced.
//!
//! `cargo run -p rehang-examples --bin embedded_gallery`

use std::path::Path;

use rehang::encode::Function;
use rehang::fit::Method;
use rehang::sqlite::SqliteStore;
use rehang::store::{Filter, ItemWrite, Ledger, NewVector};
use rehang::upgrade::{
    Configuration, Gallery, Location, PairsFiles, PairsOptions, RunOptions, Unobserved, Upgrade,
};
use rehang::{Distance, Matrix, Progress, Provenance, Result, Space};

/// Stands for a model: the triples of letters of a text, each in a direction that depends on the model.
fn embed(model: usize, dimension: usize, texts: &[&str]) -> Matrix {
    let mut rows = Matrix::zeros(texts.len(), dimension);
    for (row, text) in texts.iter().enumerate() {
        for triple in text.as_bytes().windows(3) {
            let known = triple.iter().fold(model, |hash, &letter| hash * 31 + usize::from(letter));
            rows.row_mut(row)[known * known % 7919 % dimension] += 1.0;
        }
    }
    rows.normalise_rows();
    rows
}

/// Application that owns its gallery, and may share it between threads.
struct Notes {
    gallery: Gallery,
}

impl Notes {
    /// Puts a note. The application embeds with the old model until the old space is gone. After the switch,
    /// the gallery adapts what it is given.
    fn put(&self, id: &str, text: &str) -> Result<()> {
        let vector = embed(1, 24, &[text]).into_data();
        let vectors = vec![NewVector::from_model("first", vector, Provenance::Old)];
        self.gallery.put(&[ItemWrite::new(id, Some(text.into()), vectors)]).map(drop)
    }

    /// Finds the nearest note. Queries of both models make the same call right at every stage.
    fn nearest(&self, text: &str) -> Result<String> {
        let (old, new) = (embed(1, 24, &[text]), embed(2, 32, &[text]));
        let answer = self.gallery.search(&[("first", &old), ("second", &new)], 1, &Filter::default())?;
        Ok(answer.found[0][0].id.clone())
    }
}

fn run(folder: &Path) -> Result<()> {
    let store = SqliteStore::create(folder.join("gallery.db"))?;
    store.create_space(&Space::new("first", 24, Distance::Cosine, false), Provenance::Old)?;
    let mut notes = Notes { gallery: Gallery::new(std::sync::Arc::new(store)) };
    let (things, places) =
        (["kettle", "ladder", "violin", "anchor"], ["attic", "garden", "harbour", "cellar"]);
    for number in 0..400 {
        let (thing, place) = (things[number % 4], places[number / 4 % 4]);
        notes.put(&format!("note {number}"), &format!("{number}: the {thing} is in the {place}"))?;
    }
    assert_eq!(notes.nearest("17: the ladder is in the attic")?, "note 17");

    // The new model embeds a sample, and a map from old vectors to its space is learned on it.
    let space = |name, dimension| Space::new(name, dimension, Distance::Cosine, false);
    let location = Location::file(folder.join("gallery.db"));
    let upgrade = Upgrade::new(Configuration::new(location, space("first", 24), space("second", 32))?)?;
    let encoder =
        Function::new(&upgrade.new_space()?, 64, false, Some("second, version 1".into()), |texts| {
            Ok(embed(2, 32, texts))
        });
    upgrade.pairs(&PairsOptions::default(), &PairsFiles::default(), Some(&encoder), &Unobserved)?;
    upgrade.fit(Method::Ridge, None, &Progress::default())?;
    upgrade.start(&Unobserved)?;

    // From here on the application's own writes are adapted as they come; the run makes them native like all
    // others.
    notes.gallery = upgrade.gallery();
    upgrade.switch(None, true)?;
    notes.put("late", "the telescope is on the roof")?;

    let run = upgrade.run(&RunOptions::default(), Some(&encoder), &Unobserved)?;
    assert!(run.is_complete() && run.summary.native == 401, "{run:?}");
    upgrade.finish(false, &Unobserved)?;
    assert_eq!(notes.nearest("17: the ladder is in the attic")?, "note 17");
    assert_eq!(notes.nearest("the telescope is on the roof")?, "late");
    Ok(())
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder for the gallery can be made");
    run(folder.path())
}

#[test]
fn it_runs() {
    main().unwrap();
}
