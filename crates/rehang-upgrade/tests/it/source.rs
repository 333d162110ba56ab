//! Tests of searches by texts and images: at every stage of an upgrade each query is embedded by the models
//! that the stage needs, and by no others.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rehang_core::{Error, ErrorKind, Matrix, Party, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Reads, Spent};
use rehang_store::{Filter, Index, Store};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    Limits, Query, QueryEncoders, Search, SearchAnswer, SearchQueries, Searched, Serving, Unobserved, finish,
    rollback, search, start, switch,
};

use crate::common::hooked::Hooked;
use crate::common::{D_NEW, D_OLD, TestEncoder, World, fill, gallery, id, new_model, number, old_model};

/// Encoder whose model is a function of the source.
struct Model {
    space: Space,
    embed: fn(&str) -> Vec<f32>,
    reads: Reads,
    failure: Option<ItemFailure>,
    /// Sources that the model was given.
    read: Arc<Mutex<Vec<String>>>,
}

impl Encoder for Model {
    fn space(&self) -> &Space {
        &self.space
    }

    fn reads(&self) -> Reads {
        self.reads
    }

    fn batch_max(&self) -> usize {
        2
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        self.read.lock().unwrap().extend(inputs.iter().map(|input| input.source.to_owned()));
        let failed = |_: &Input<'_>| self.failure.clone();
        Ok(inputs
            .iter()
            .map(|input| failed(input).map_or_else(|| Ok((self.embed)(input.source)), Err))
            .collect())
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }
}

/// Encoders of both models, and names of the models that were asked for.
#[derive(Default)]
struct Models(Mutex<Vec<String>>);

fn model(space: &Space) -> Model {
    let embed = if space.name == "old-model" { old_model } else { new_model };
    Model { space: space.clone(), embed, reads: Reads::Anything, failure: None, read: Arc::default() }
}

impl Models {
    fn open(&self, space: &Space) -> Arc<dyn Encoder> {
        self.0.lock().unwrap().push(space.name.clone());
        Arc::new(model(space))
    }

    /// Returns the models that were asked for since the last call.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

const TEXTS: [&str; 3] = ["source 3 version 0", "a cat", "a dog"];

fn texts() -> Vec<Query> {
    TEXTS.map(|text| Query::Text(text.into())).to_vec()
}

/// Embeds the queries of [`texts`] by hand, by both models.
fn by_hand() -> (Matrix, Matrix) {
    let rows = |model: fn(&str) -> Vec<f32>, columns| {
        Matrix::from_fn(TEXTS.len(), columns, |row, column| model(TEXTS[row])[column])
    };
    (rows(old_model, D_OLD), rows(new_model, D_NEW))
}

/// Makes a gallery of 60 items in an upgrade that has begun.
fn begun() -> (MemoryStore, World) {
    let (store, mut world) = (MemoryStore::new(), World::new());
    world.adapter.handicap = 0.25;
    fill(&store, 60);
    start(&store, &world.setup(), &Unobserved).unwrap();
    (store, world)
}

fn backfilled(store: &MemoryStore, world: &World, budget: u64) {
    let limits = Limits { budget: Some(budget), ..Limits::default() };
    world.backfill(store, &TestEncoder::new(), limits).unwrap();
}

/// Searches by texts, and checks that their vectors find the same. Returns the answers, and the models that
/// these took.
fn found(store: &MemoryStore, before: bool) -> (SearchAnswer, Option<SearchAnswer>, Vec<String>) {
    let (gallery, models) = (gallery(store), Models::default());
    let (old, new) = by_hand();
    let filter = Filter::default();
    let given = [("old-model", &old), ("new-model", &new)];
    let encoders = |space: &Space| Ok(models.open(space));
    let (answer, before) = gallery.search_source(&texts(), &encoders, 5, &filter, before).unwrap();
    assert_eq!(answer, gallery.search(&given, 5, &filter).unwrap());
    (answer, before, models.asked())
}

#[test]
fn every_stage_asks_for_the_models_it_needs() {
    let (store, world) = begun();
    let (answer, before, asked) = found(&store, false);
    assert_eq!(
        (answer.spaces, before, asked),
        (vec!["old-model".to_owned()], None, vec!["old-model".into()])
    );
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    backfilled(&store, &world, 20);
    let (answer, _, asked) = found(&store, false);
    assert_eq!(asked, ["new-model"]);
    assert_eq!(answer.found[0][0].id, id(3));
    rollback(&store, &world.setup(), &Unobserved).unwrap();
    assert_eq!(found(&store, false).2, ["old-model"]);
    switch(&store, &world.setup(), Serving::Fused, &Unobserved).unwrap();
    assert_eq!(found(&store, false).2, ["old-model", "new-model"]);
    switch(&store, &world.setup(), Serving::Either, &Unobserved).unwrap();
    assert_eq!(found(&store, false).2, ["old-model", "new-model"]);
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
    assert_eq!(found(&store, false).2, ["new-model"]);
}

/// Searches that come with both queries are fused then, and those that come with the new one alone mixed.
#[test]
fn where_searches_go_either_way_the_old_query_may_be_missing() {
    let (store, world) = begun();
    let (old, new) = by_hand();
    let gallery = gallery(&store);
    let filter = Filter::default();
    let by_both = [("old-model", &old), ("new-model", &new)];
    let by_new = [("new-model", &new)];
    let mut answers = Vec::new();
    for serving in [Serving::Mixed, Serving::Fused, Serving::Either] {
        switch(&store, &world.setup(), serving, &Unobserved).unwrap();
        answers.push((gallery.search(&by_new, 5, &filter), gallery.search(&by_both, 5, &filter).unwrap()));
    }
    let [(mixed, _), (refused, fused), (by_new_alone, by_both)] = answers.try_into().unwrap();
    assert!(refused.unwrap_err().to_string().contains("old-model"));
    assert_eq!(by_new_alone.unwrap(), mixed.unwrap());
    assert_eq!(by_both, fused);
    assert_eq!(fused.spaces, ["old-model", "new-model"]);
    // Nor need there be an encoder of the old model.
    let models = Models::default();
    let new_alone = |space: &Space| {
        if space.name == "old-model" {
            return Err(rehang_core::Error::missing("[old.encoder]", "queries"));
        }
        Ok(models.open(space))
    };
    let (answer, _) = gallery.search_source(&texts(), &new_alone, 5, &filter, false).unwrap();
    assert_eq!((answer.spaces, models.asked()), (vec!["new-model".to_owned()], vec!["new-model".to_owned()]));
}

#[test]
fn what_the_old_model_would_have_answered_stands_beside_it() {
    let (store, world) = begun();
    let old_search = |filter: &Filter| store.search("old-model", &by_hand().0, 5, filter).unwrap();
    let everything = old_search(&Filter::default());
    for serving in [Serving::Mixed, Serving::Fused] {
        switch(&store, &world.setup(), serving, &Unobserved).unwrap();
        let (_, before, asked) = found(&store, true);
        assert_eq!(before.unwrap().found, everything);
        assert_eq!(asked, ["old-model", "new-model"], "each model once");
    }
    // Provenances are those of the space that serves, and the old space knows no adapted vectors.
    let filter = Filter { provenances: vec![Provenance::Adapted], ..Filter::default() };
    let open = |space: &Space| Ok(Models::default().open(space));
    let (_, before) = gallery(&store).search_source(&texts(), &open, 5, &filter, true).unwrap();
    assert_eq!(before.unwrap().found, everything);
    let filter = Filter { labels: vec!["3".into()], ..Filter::default() };
    let (_, before) = gallery(&store).search_source(&texts(), &open, 5, &filter, true).unwrap();
    assert_eq!(before.unwrap().found, old_search(&filter));

    // A finished upgrade is refused before anything is embedded.
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
    let models = Models::default();
    let open = |space: &Space| Ok(models.open(space));
    let asked = gallery(&store).search_source(&texts(), &open, 5, &Filter::default(), true);
    assert!(asked.unwrap_err().to_string().contains("finished"));
    let never = MemoryStore::new();
    fill(&never, 3);
    let asked = gallery(&never).search_source(&texts(), &open, 5, &Filter::default(), true);
    assert!(asked.unwrap_err().to_string().contains("upgrade"));
    assert_eq!(models.asked(), [""; 0]);
}

#[test]
fn a_switch_while_queries_are_embedded_only_takes_the_other_model_too() {
    let (store, world) = begun();
    let models = Models::default();
    let open = |space: &Space| {
        if space.name == "old-model" {
            switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        }
        Ok(models.open(space))
    };
    let (answer, _) = gallery(&store).search_source(&texts(), &open, 5, &Filter::default(), false).unwrap();
    assert_eq!(answer.spaces, ["new-model"]);
    assert_eq!(models.asked(), ["old-model", "new-model"]);
}

/// A search by texts reads where searches go before its queries are embedded and after, and after a fused
/// search once more. It reads everything else once.
#[test]
fn a_search_by_texts_reads_nothing_twice() {
    let (store, world) = begun();
    let calls = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&calls);
    let hooked = Hooked::new(&store, move |_, call| {
        heard.lock().unwrap().push(call.to_owned());
        Ok(())
    });
    let (gallery, models) = (gallery(&hooked), Models::default());
    let open = |space: &Space| Ok(models.open(space));
    let calls_of_search = || {
        let answers = gallery.search_source(&texts(), &open, 5, &Filter::default(), false).unwrap();
        Searched::new(&hooked, 5, answers, true).unwrap();
        std::mem::take(&mut *calls.lock().unwrap())
    };
    assert_eq!(
        calls_of_search(),
        ["serving_and_document", "spaces", "serving_and_document", "search", "get"]
    );
    switch(&store, &world.setup(), Serving::Fused, &Unobserved).unwrap();
    let fused_calls = calls_of_search();
    let times = |name: &str| fused_calls.iter().filter(|call| *call == name).count();
    assert_eq!((times("serving_and_document"), times("spaces"), times("get")), (3, 1, 1));
    assert_eq!(models.asked(), ["old-model", "old-model", "new-model"]);
}

#[test]
fn a_space_that_is_asked_for_serves_until_the_answer_is_found() {
    for wanted in [None, Some("old-model".to_owned())] {
        let (store, world) = begun();
        let models = Models::default();
        let open = |space: &Space| {
            if space.name == "old-model" {
                switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
            }
            Ok(models.open(space))
        };
        let queries = SearchQueries::Sources { queries: texts(), before: false };
        let asked = Search { queries, space: wanted.clone(), k: 2, filter: Filter::default() };
        let handle: Arc<dyn Store> = Arc::new(store.clone());
        let answer = search(&handle, &asked, &open);
        if wanted.is_none() {
            assert_eq!(answer.unwrap().space, "new-model");
        } else {
            let error = answer.unwrap_err();
            assert!(error.is_conflict() && error.to_string().contains("\"new-model\" serves"), "{error}");
        }
    }
}

#[test]
fn hits_say_what_they_are() {
    let (store, world) = begun();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    let models = Models::default();
    let store: Arc<dyn Store> = Arc::new(store);
    let queries = SearchQueries::Sources { queries: texts(), before: true };
    let wanted = Search { queries, space: None, k: 2, filter: Filter::default() };
    let found = search(&store, &wanted, &|space| Ok(models.open(space))).unwrap();
    let before = &found.before.as_ref().unwrap().found;
    let now = &found.answer.found;
    assert_eq!((now.len(), before.len()), (3, 3));
    for hit in now.iter().chain(before).flatten() {
        let number = number(&hit.id);
        assert_eq!(found.sources[&hit.id], format!("source {number} version 0"));
    }
    assert_eq!(before[0][0].id, id(3));
    assert_eq!((before[0][0].provenance, now[0][0].provenance), (Provenance::Old, Provenance::Adapted));
    let of_another = Search { space: Some("old-model".into()), ..wanted };
    models.asked();
    assert!(search(&store, &of_another, &|space| Ok(models.open(space))).unwrap_err().is_conflict());
    assert_eq!(models.asked(), [""; 0]);
}

/// Returns the error of a search with the old model changed.
fn refused(query: Query, change: impl Fn(&mut Model)) -> Error {
    let (store, _) = begun();
    let open = |space: &Space| {
        let mut model = model(space);
        change(&mut model);
        Ok(Arc::new(model) as Arc<dyn Encoder>)
    };
    gallery(&store).search_source(&[query], &open, 5, &Filter::default(), false).unwrap_err()
}

#[test]
fn what_cannot_be_embedded_says_which_query_and_why() {
    let cat = || Query::Text("a cat".into());
    let file = tempfile::NamedTempFile::new().unwrap();
    let image = || Query::Image(file.path().to_owned());
    let said = |error: Error, words: [&str; 2]| {
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    for empty in ["", " \n"] {
        said(refused(Query::Text(empty.into()), |_| {}), ["texts", "a word"]);
    }
    said(refused(Query::Image(PathBuf::from("no-such.png")), |_| {}), ["open", "no-such.png"]);
    said(refused(cat(), |model| model.reads = Reads::Images), ["a cat", "image"]);
    said(refused(image(), |model| model.reads = Reads::Texts), ["images", "a text"]);
    let permanent = |model: &mut Model| model.failure = Some(ItemFailure::Permanent("too long".into()));
    for query in [cat(), image()] {
        let error = refused(query, permanent);
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "the caller may ask for another");
        assert_eq!(error.party(), None);
        said(error, ["cannot be", "expected one that its encoder takes: too long"]);
    }
    for failure in [ItemFailure::Temporary("busy".into()), ItemFailure::Untried("busy".into())] {
        let error = refused(cat(), |model| model.failure = Some(failure.clone()));
        assert!(error.is_retryable() && error.party() == Some(Party::Encoder));
        said(error, ["a cat", "busy"]);
    }
    let another = |model: &mut Model| model.space.name = "third-model".into();
    said(refused(cat(), another), ["old-model", "third-model"]);
    // A model may give vectors of another width than it says.
    let wide = refused(cat(), |model| model.embed = new_model);
    assert!(wide.is_mismatch() && wide.party() == Some(Party::Encoder));
    said(wide, ["a cat", "4"]);
}

#[test]
fn a_caller_without_the_model_says_so_itself() {
    let (store, _) = begun();
    let open: &QueryEncoders<'_> = &|space| Err(Error::missing("an encoder", &space.name));
    let said = gallery(&store).search_source(&texts(), open, 5, &Filter::default(), false);
    assert!(said.unwrap_err().to_string().contains("old-model needs an encoder"));
}

/// An image is named by its whole path: a program runs in a folder of its own.
#[test]
fn images_are_given_as_whole_paths() {
    let (store, _) = begun();
    let read = Arc::<Mutex<Vec<String>>>::default();
    let open = |space: &Space| -> Result<Arc<dyn Encoder>> {
        Ok(Arc::new(Model { read: Arc::clone(&read), reads: Reads::Images, ..model(space) }))
    };
    // Tests run in the folder of the crate.
    let image = Query::Image(PathBuf::from("Cargo.toml"));
    gallery(&store).search_source(&[image], &open, 5, &Filter::default(), false).unwrap();
    let expected = fs_err::canonicalize("Cargo.toml").unwrap().display().to_string();
    assert_eq!(*read.lock().unwrap(), [expected]);
}
