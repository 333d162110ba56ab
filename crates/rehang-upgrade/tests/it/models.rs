//! Tests of a comparison of several models on one sample, held against nDCG by sorting.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use rehang_core::{Distance, FindingCode, Matrix, Progress};
use rehang_upgrade::{CheaperBy, JudgedBy, ModelCompared, ModelsCompared, ModelsInput, compare_models};
use serde_json::json;

const ITEMS: usize = 60;
const CLASSES: usize = 6;
const LANGUAGES: [&str; 2] = ["da", "sv"];

/// Returns vectors of a model that sees each item's class with so much noise.
fn model(width: usize, noise: f32) -> Matrix {
    let mut state = 9_u32;
    Matrix::from_fn(ITEMS, width, |row, column| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let random = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
        f32::from(row % CLASSES == column) + noise * random
    })
}

fn language(row: usize) -> Option<&'static str> {
    // Some items have no language.
    (!row.is_multiple_of(5)).then(|| LANGUAGES[usize::from(row.is_multiple_of(3))])
}

/// Makes a folder with documents, some without a label, and tables of the models: name, keys, vectors.
fn folder(models: &[(&str, &str, Matrix)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs_err::write(folder.path().join(name), text).unwrap();
    let (mut items, mut ids, mut file) = (String::new(), String::new(), String::new());
    for row in 0..ITEMS {
        let label = (row < 50).then(|| format!("class {}", row % CLASSES));
        let item = json!({"id": format!("i{row}"), "source": "a text", "label": label, "payload": {"language": language(row)}});
        writeln!(items, "{item}").unwrap();
        writeln!(ids, "i{row}").unwrap();
    }
    for (name, keys, vectors) in models {
        rehang_files::write_matrix(folder.path().join(format!("{name}.npy")), vectors, None).unwrap();
        writeln!(file, "[[model]]\nname = \"{name}\"\ndistance = \"cosine\"\n{keys}\n[model.encoder]\nkind = \"table\"\nvectors = \"{name}.npy\"\nids = \"ids.txt\"\n").unwrap();
    }
    write("items.jsonl", &items);
    write("ids.txt", &ids);
    write("models.toml", &file);
    folder
}

fn input(folder: &Path) -> ModelsInput {
    ModelsInput::new(folder.join("models.toml"), folder.join("items.jsonl"))
}

fn compare(input: &ModelsInput) -> ModelsCompared {
    compare_models(input, &Progress::default()).unwrap()
}

/// Returns nDCG@10 of every document that has a label, in percent, by sorting.
fn twin(vectors: &Matrix) -> BTreeMap<usize, f64> {
    let discounted = |right: &mut dyn Iterator<Item = bool>| -> f64 {
        (2..=11).zip(right).filter(|(_, right)| *right).map(|(place, _)| 1.0 / f64::from(place).log2()).sum()
    };
    let ndcg = |query: usize| {
        let mut ranked: Vec<(f64, bool)> = (0..vectors.rows())
            .filter(|&item| item != query)
            .map(|item| {
                let is_right = item < 50 && item % CLASSES == query % CLASSES;
                (Distance::Cosine.between(vectors.row(query), vectors.row(item)), is_right)
            })
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = ranked.iter().filter(|one| one.1).count();
        100.0 * discounted(&mut ranked.iter().map(|one| one.1))
            / discounted(&mut std::iter::repeat_n(true, all))
    };
    (0..50).map(|query| (query, ndcg(query))).collect()
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn is_near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6, "{a} against {b}");
}

fn score(model: &ModelCompared) -> f64 {
    model.measured.as_ref().unwrap().score.estimate
}

#[test]
fn models_have_the_ndcg_that_sorting_gives_by_group_too_and_one_that_fails_hides_none() {
    let [good, fair, poor] = [(8, 0.5), (10, 0.9), (7, 2.0)].map(|(width, noise)| model(width, noise));
    let folder = folder(&[
        ("poor", "dimension = 7", poor.clone()),
        ("narrow", "dimension = 5", good.clone()),
        ("good", "dimension = 8", good.clone()),
        ("fair", "dimension = 10", fair.clone()),
    ]);
    let compared =
        compare(&ModelsInput { group: Some("language".into()), of: Some(1_000_000), ..input(folder.path()) });
    assert_eq!((compared.judged_by, compared.metric.as_str()), (JudgedBy::Labels, "ndcg@10"));
    assert_eq!((compared.documents, compared.queries, compared.counted), (ITEMS, ITEMS, 50));
    let fault = compared.models[1].fault.as_ref().unwrap();
    assert!(fault.contains('8') && fault.contains('5') && compared.models[1].measured.is_none(), "{fault}");
    let best = twin(&good);
    for (place, vectors) in [(0, &poor), (2, &good), (3, &fair)] {
        let (model, twin) = (compared.models[place].measured.as_ref().unwrap(), twin(vectors));
        is_near(model.score.estimate, mean(twin.values().copied()));
        assert!(model.score.low < model.score.estimate && model.score.estimate < model.score.high);
        assert_eq!(model.behind.is_none(), place == 2);
        if let Some(behind) = model.behind {
            is_near(behind.estimate, mean(best.iter().map(|(query, best)| best - twin[query])));
        }
        assert_eq!(model.groups.len(), 2);
        assert!(model.groups[0].queries > model.groups[1].queries);
        for group in &model.groups {
            let own: Vec<f64> = twin
                .iter()
                .filter(|(query, _)| language(**query) == Some(&group.group))
                .map(|(_, value)| *value)
                .collect();
            assert_eq!(group.queries, own.len());
            is_near(group.score.estimate, mean(own));
        }
        let bytes = 1_000_000 * vectors.columns() as u64;
        assert_eq!(model.storage, [("f32", 4 * bytes), ("f16", 2 * bytes)].into());
        assert_eq!((model.cost.tokens, model.cost.money), (None, None));
        assert!(model.latency_ms > 0.0 && model.latency_p95_ms >= model.latency_ms);
        let seconds = 1e6 / model.documents_per_second;
        assert!((model.cost.seconds.unwrap() / seconds - 1.0).abs() < 1e-9);
    }
    let choice = compared.choice.unwrap();
    assert_eq!((choice.name.as_str(), choice.best.as_str(), choice.cheaper_by), ("good", "good", None));
    let encoder: toml::Table = toml::from_str(&choice.encoder).unwrap();
    assert_eq!(encoder["encoder"]["vectors"].as_str(), Some("good.npy"));
    // The poor model is behind beyond chance, in every group alone, too.
    assert!(compared.models[0].measured.as_ref().unwrap().behind.unwrap().low > 0.0);
    assert_eq!(
        compared.findings.iter().map(|finding| &finding.code).collect::<Vec<_>>(),
        [&FindingCode::FewQueries]
    );
}

#[test]
fn what_one_model_has_no_vector_for_is_left_out_for_all_and_too_much_of_it_is_a_failure() {
    let (whole, others) = (model(8, 0.9), model(10, 0.9));
    let [one_less, many_less] = [59, 50].map(|rows| others.select(&(0..rows).collect::<Vec<_>>()));
    let folder = folder(&[
        ("whole", "dimension = 8", whole.clone()),
        ("less", "dimension = 10", one_less),
        ("few", "dimension = 10", many_less),
    ]);
    let path = folder.path().join("models.toml");
    let mut models = fs_err::read_to_string(&path).unwrap();
    for (name, rows) in [("less", 59), ("few", 50)] {
        let ids: String = (0..rows).map(|row| format!("i{row}\n")).collect();
        fs_err::write(folder.path().join(format!("{name}.txt")), ids).unwrap();
        let table = format!("vectors = \"{name}.npy\"\nids = \"");
        models = models.replace(&format!("{table}ids.txt"), &format!("{table}{name}.txt"));
    }
    fs_err::write(&path, models).unwrap();
    let compared = compare(&input(folder.path()));
    assert_eq!((compared.documents, compared.of), (ITEMS - 1, ITEMS as u64));
    assert!(compared.models[2].fault.as_ref().unwrap().contains("10 of 60 documents"), "{compared:?}");
    let codes: Vec<&FindingCode> = compared.findings.iter().map(|finding| &finding.code).collect();
    assert_eq!(codes, [&FindingCode::Refused, &FindingCode::FewQueries]);
    assert!(compared.findings[0].seen.contains("i59"), "{}", compared.findings[0]);
    is_near(
        score(&compared.models[0]),
        mean(twin(&whole.select(&(0..ITEMS - 1).collect::<Vec<_>>())).into_values()),
    );
    assert!((score(&compared.models[0]) - mean(twin(&whole).into_values())).abs() > 1e-3);
}

#[test]
fn of_level_models_the_cheaper_is_chosen_by_price_only_where_each_has_one() {
    let (good, poor) = (model(8, 0.5), model(7, 2.0));
    let padded = "dimension = 16\nmodel_dimension = 8";
    let choice = |prices: [&str; 2]| {
        let folder = folder(&[
            ("padded", &format!("{padded}\n{}", prices[0]), good.clone()),
            ("plain", &format!("dimension = 8\n{}", prices[1]), good.clone()),
            ("poor", "dimension = 7\nprice_per_hour = 1e-9", poor.clone()),
        ]);
        let compared = compare(&input(folder.path()));
        let level = compared.models[1].measured.as_ref().unwrap().behind.unwrap();
        assert_eq!((level.low, level.estimate, level.high), (0.0, 0.0, 0.0), "zeros change no answer");
        let choice = compared.choice.unwrap();
        assert_eq!(
            (choice.best.as_str(), &choice.level[..]),
            ("padded", &["padded".into(), "plain".into()][..])
        );
        (choice.name, choice.cheaper_by.unwrap(), choice.dimension, choice.model_dimension)
    };
    let plain = ("plain".to_owned(), CheaperBy::Storage, 8, None);
    assert_eq!(choice(["", ""]), plain);
    assert_eq!(choice(["price_per_hour = 1.0", ""]), plain);
    let prices = ["price_per_hour = 1e-6", "price_per_hour = 1e6"];
    assert_eq!(choice(prices), ("padded".to_owned(), CheaperBy::Price, 16, Some(8)));
}

#[test]
fn without_a_judgement_there_is_agreement_with_the_first_model_and_no_choice() {
    let (first, second) = (model(8, 0.5), model(10, 0.9));
    let folder =
        folder(&[("first", "dimension = 8", first.clone()), ("second", "dimension = 10", second.clone())]);
    // Labels that split the metric into groups judge nothing.
    let compared = compare(&ModelsInput { group: Some("label".into()), ..input(folder.path()) });
    assert_eq!((compared.judged_by, compared.metric.as_str()), (JudgedBy::FirstModel, "agreement@10"));
    assert!(compared.choice.is_none());
    let nearest = |vectors: &Matrix, query: usize| {
        let mut items: Vec<usize> = (0..ITEMS).filter(|&item| item != query).collect();
        let far = |item: usize| Distance::Cosine.between(vectors.row(query), vectors.row(item));
        items.sort_by(|&a, &b| far(a).total_cmp(&far(b)));
        items[..10].to_vec()
    };
    let shared = |query: usize| {
        let wanted = nearest(&first, query);
        10.0 * nearest(&second, query).iter().filter(|item| wanted.contains(item)).count() as f64
    };
    assert_eq!(score(&compared.models[0]), 100.0);
    is_near(score(&compared.models[1]), mean((0..ITEMS).map(shared)));
    assert_eq!(compared.models[1].measured.as_ref().unwrap().groups.len(), CLASSES);
}

#[test]
fn a_sample_is_the_same_for_the_same_seed_and_what_says_nothing_is_refused() {
    let folder = folder(&[("good", "dimension = 8", model(8, 0.5))]);
    let compared_with_seed = |seed| compare(&ModelsInput { sample: 30, seed, ..input(folder.path()) });
    let (once, again, other) = (compared_with_seed(1), compared_with_seed(1), compared_with_seed(2));
    assert_eq!((once.documents, once.of), (30, ITEMS as u64));
    assert_eq!(score(&once.models[0]), score(&again.models[0]));
    assert_ne!(score(&once.models[0]), score(&other.models[0]));
    let refused = |input: ModelsInput| compare_models(&input, &Progress::default()).unwrap_err().to_string();
    let error = refused(ModelsInput { group: Some("langage".into()), ..input(folder.path()) });
    assert!(error.contains("langage"), "{error}");
    assert!(refused(ModelsInput { sample: 0, ..input(folder.path()) }).contains("sample"));
    let models = fs_err::read_to_string(folder.path().join("models.toml")).unwrap();
    for (text, said) in [
        (models.repeat(2), "good"),
        (String::new(), "[[model]]"),
        (models.replace("dimension", "dimensions"), "dimensions"),
        (models.replace("dimension = 8", ""), "dimension"),
        (models.replace("dimension = 8", "dimension = 8\nprice_per_hour = -1.0"), "price_per_hour"),
    ] {
        fs_err::write(folder.path().join("models.toml"), text).unwrap();
        let error = refused(input(folder.path()));
        assert!(error.contains(said) && error.contains("models.toml"), "{error}");
    }
}
