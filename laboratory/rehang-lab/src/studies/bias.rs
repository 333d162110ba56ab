//! `cargo lab study bias [FOLDER]`: the bias study of `laboratory/docs/results.md`, after FastFill §5.3 and
//! appendix F.
//!
//! The old model saw every class of three alphabets and every tenth class of three others; the new model saw
//! all classes of both. The gap is the difference in top-1 between the favoured and the neglected alphabets.
//! A good order closes it early, because it re-embeds first what the old model knew badly. Some alphabets are
//! harder than others, so each study is made twice, with favour and neglect exchanged, and the gap is the
//! mean of both: what remains is made by the training set. Three seeds; everything is trained here.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use rehang_core::adapter::true_errors;
use rehang_core::curve::{CurveInput, CurveOptions, Relevance, TOP1, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::mean_sd;
use rehang_core::{Distance, Error, Pairs, Progress, Result, adapter};
use rehang_fit::{FitParameters, NetworkOptions, fit_adapter};
use rehang_train::compatible::{HeadForm, TrainingMethod, TrainingParameters, TrainingSet, train};
use rehang_train::encoder::{EncoderArchitecture, TrainedEncoder};
use rehang_train::examples::{
    Allocation, AllocationKind, AllocationParameters, Augmentation, ClassLists, Examples, ExamplesSource,
};
use serde::{Deserialize, Serialize};

const TABLE: &str = "laboratory/bench/runs/bias/bias.md";
const GAPS: &str = "laboratory/bench/runs/bias/gaps.jsonl";
const SEEDS: u64 = 3;
/// Number of alphabets in one group, of the six that both models see, in the order of the alphabet.
const FAVOURED: usize = 3;
const ADAPTERS: [rehang_fit::Method; 2] =
    [rehang_fit::Method::Procrustes, rehang_fit::Method::FastfillReference];
const ORDERS: [Policy; 5] =
    [Policy::Random, Policy::Sigma, Policy::Entropy, Policy::Coverage, Policy::Oracle];

/// Number of classes of the neglected alphabets of which the old model saw one (FastFill: 50 identities
/// against 500).
const ONE_CLASS_OF: usize = 10;
/// Percentages re-embedded at which the gap is shown.
const SHOWN: [usize; 5] = [0, 10, 25, 50, 100];
/// The gap counts as closed where it is this many points or less above the new model's.
const CLOSE: f64 = 1.0;

/// Result of one adapter in one order with one seed and one choice of favoured alphabets.
struct Line {
    adapter: &'static str,
    order: &'static str,
    /// Gap of the old model alone, in points.
    today: f64,
    /// Gap in points at 0, 1, …, 100 percent re-embedded.
    gaps: Vec<f64>,
    /// Percent of the neglected among the first 10, 25 and 50 percent of the order, less their share of the
    /// gallery.
    shares: [f64; 3],
    area: f64,
}

/// Mean gap of an adapter in an order, in points: of the old model alone, and at 0, 1, …, 100 percent
/// re-embedded.
#[derive(Serialize, Deserialize)]
pub struct Gaps {
    pub adapter: String,
    pub order: String,
    pub today: f64,
    #[serde(rename = "gaps")]
    pub along: Vec<f64>,
}

/// Trains, fits, measures, writes the table.
pub fn run(folder: &str) -> Result<()> {
    let folder = Path::new(folder).join("img_omniglot");
    let examples = Examples::read(&ExamplesSource::Arrays {
        images: folder.join("raw_u8_28.npy"),
        labels: folder.join("raw_label.npy"),
        layout: None,
        size: None,
        scale: None,
        invert: false,
    })?;
    let alphabets = alphabets(&folder.join("classes.json"))?;
    let names: BTreeSet<&str> = alphabets[..160].iter().map(String::as_str).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let mut lines = Vec::new();
    for seed in 0..SEEDS {
        lines.extend(one_seed(&examples, &alphabets, &names, seed)?);
        println!("seed {seed} done");
    }
    let text = table(&lines, &names);
    crate::studies::records::write(TABLE, &text)?;
    crate::studies::records::write(GAPS, &crate::studies::records::lines(&gaps(&lines))?)?;
    println!("{text}");
    Ok(())
}

/// Reads the alphabet of every class.
fn alphabets(path: &Path) -> Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Classes {
        classes: Vec<String>,
    }
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    let read: Classes = serde_json::from_str(&text).map_err(|error| Error::corrupt(path.display(), error))?;
    Ok(read.classes.iter().map(|name| name.split('/').next().unwrap_or_default().to_owned()).collect())
}

fn one_seed(examples: &Examples, alphabets: &[String], names: &[&str], seed: u64) -> Result<Vec<Line>> {
    let progress = Progress::default();
    let all = vec!["0..160".to_owned()];
    let lists = ClassLists { old: all.clone(), new: all, unseen: None };
    let drawn = AllocationParameters { seed, test: 0.3, ..AllocationParameters::of_classes(lists) };
    debug_assert_eq!(drawn.kind, AllocationKind::Classes);
    let allocation = Allocation::draw(examples, &drawn)?;
    // Names of classes are their numbers in the data, so a name is the place in the list of alphabets.
    let number = |row: usize| -> usize {
        let name = &examples.classes[examples.labels[row] as usize];
        name.parse().unwrap_or(examples.labels[row] as usize)
    };
    let trained = |model: &str,
                   width: usize,
                   outputs: usize,
                   epochs: usize,
                   rows: &[usize]|
     -> Result<TrainedEncoder> {
        let architecture = EncoderArchitecture::CnnSmall { width, outputs };
        let parameters = TrainingParameters {
            head: HeadForm::NormalisedSoftmax { scale: 16.0 },
            augmentation: Augmentation { crop_padding: 3, ..Augmentation::default() },
            epochs,
            seed,
            ..TrainingParameters::new(model, architecture, TrainingMethod::Plain {})
        };
        Ok(train(TrainingSet { examples, rows, old_rows: None }, None, &parameters, &progress)?.encoder)
    };
    let new = trained("new", 32, 128, 20, &allocation.new)?;
    let embed =
        |encoder: &TrainedEncoder, rows: &[usize]| encoder.embed(&examples.select(rows).inputs, &progress);
    let labels = |rows: &[usize]| -> Vec<i64> {
        rows.iter()
            .map(|&row| {
                let name = &examples.classes[examples.labels[row] as usize];
                new.classes.iter().position(|class| class == name).map_or(-1, |class| class as i64)
            })
            .collect()
    };
    let test = &allocation.test;
    let (new_rows, new_test) = (embed(&new, &allocation.new)?, embed(&new, test)?);
    let test_labels = labels(test);
    let mut lines = Vec::new();
    for favoured in [&names[..FAVOURED], &names[FAVOURED..]] {
        let is_favoured = |row: usize| favoured.contains(&alphabets[number(row)].as_str());
        let is_known = |row: usize| is_favoured(row) || number(row).is_multiple_of(ONE_CLASS_OF);
        let old_rows: Vec<usize> = allocation.new.iter().copied().filter(|&row| is_known(row)).collect();
        let old = trained("old", 16, 64, 15, &old_rows)?;
        let pairs =
            Pairs::new(embed(&old, &allocation.new)?, new_rows.clone(), Some(labels(&allocation.new)), None)?;
        let old_test = embed(&old, test)?;
        let groups: Vec<i64> = test.iter().map(|&row| i64::from(!is_favoured(row))).collect();
        let percent = |neglected: usize, of: usize| 100.0 * neglected as f64 / of as f64;
        let neglected = percent(groups.iter().filter(|&&group| group == 1).count(), test.len());
        let measure = |native: &rehang_core::Matrix, adapted: &rehang_core::Matrix, order: &[usize]| {
            let relevance = Relevance::Labels { gallery: &test_labels, queries: None };
            let input = CurveInput::new(native, adapted, order, relevance, Distance::Cosine);
            let input = CurveInput { groups: Some(&groups), ..input };
            curve(&input, &CurveOptions::default(), &progress)
        };
        let gap = |curve: &rehang_core::curve::Curve, cut: usize| {
            let top1 = |group: usize| curve.groups[group].top1.values()[cut];
            top1(0) - top1(1)
        };
        let in_place: Vec<usize> = (0..test.len()).collect();
        let today = gap(&measure(old_test.matrix(), old_test.matrix(), &in_place)?, 0);
        for method in ADAPTERS {
            let fit = FitParameters { method, seed, compare: false, ..FitParameters::default() };
            let fitted = fit_adapter(&pairs, Some(&new.head), &fit, &NetworkOptions::default(), &progress)?;
            let adapted = adapter::apply(&fitted.adapter, &old_test, None, &progress)?;
            let sigma: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
            let errors = true_errors(new_test.matrix(), adapted.vectors.matrix());
            for policy in ORDERS {
                let input = OrderInput {
                    items: test.len(),
                    sigma: Some(&sigma),
                    squared_errors: Some(&errors),
                    classified: Some((&new.head, adapted.vectors.matrix())),
                    vectors: Some(adapted.vectors.matrix()),
                    seed,
                    ..OrderInput::default()
                };
                let permutation = order(policy, &input)?.permutation;
                let curve = measure(new_test.matrix(), adapted.vectors.matrix(), &permutation)?;
                let share = |first: usize| {
                    let first = &permutation[..permutation.len() * first / 100];
                    percent(first.iter().filter(|&&item| groups[item] == 1).count(), first.len()) - neglected
                };
                lines.push(Line {
                    adapter: method.name(),
                    order: policy.name(),
                    today,
                    gaps: (0..=100).map(|at| gap(&curve, permutation.len() * at / 100)).collect(),
                    shares: [share(10), share(25), share(50)],
                    area: curve.lines[TOP1].area(),
                });
            }
        }
    }
    Ok(lines)
}

/// Gives the gaps of every adapter in every order, for the picture: to two decimals.
fn gaps(lines: &[Line]) -> Vec<Gaps> {
    let rounded = |value: f64| (100.0 * value).round() / 100.0;
    let pairs =
        ADAPTERS.iter().flat_map(|adapter| ORDERS.iter().map(move |order| (adapter.name(), order.name())));
    pairs
        .map(|(adapter, order)| {
            let here: Vec<&Line> =
                lines.iter().filter(|line| line.adapter == adapter && line.order == order).collect();
            let mean = |of: &dyn Fn(&Line) -> f64| {
                rounded(here.iter().map(|line| of(line)).sum::<f64>() / here.len() as f64)
            };
            let along = (0..=100).map(|at| mean(&|line| line.gaps[at])).collect();
            Gaps { adapter: adapter.into(), order: order.into(), today: mean(&|line| line.today), along }
        })
        .collect()
}

/// Finds the first percentage from which on the mean gap stays close to that of the new model.
fn closed(lines: &[&Line]) -> usize {
    let mean = |at: usize| lines.iter().map(|line| line.gaps[at]).sum::<f64>() / lines.len() as f64;
    (0..=100).rev().take_while(|&at| mean(at) <= mean(100) + CLOSE).last().unwrap_or(100)
}

fn table(lines: &[Line], names: &[&str]) -> String {
    let mut text = format!(
        "Two groups of alphabets: {} and {}. The old model saw every class of one group and every tenth class of the other, \
         the new model all classes of both. The gap is top-1 of the favoured group less that of the neglected one, on held-out \
         images, in points; each study is made with either group favoured, so that the new model's own gap, which is that of \
         harder and easier alphabets, is 0 in the mean. Mean ± sd over {SEEDS} seeds, each the mean of both choices. Closed: \
         the percentage re-embedded from which on the mean gap is at most {CLOSE} point above the new model's.\n\n\
         | adapter | order | old model | {} | closed from, % | neglected among the first 10 / 25 / 50 %, points above their \
         share | area of top-1 |\n|---|---|--:|{}--:|--:|--:|\n",
        names[..FAVOURED].join(", "),
        names[FAVOURED..].join(", "),
        SHOWN.map(|at| if at == 0 { "at the switch".into() } else { format!("{at} %") }).join(" | "),
        "--:|".repeat(SHOWN.len()),
    );
    // A seed has one line for either group favoured.
    let spread = |values: Vec<f64>| {
        let half = values.len() / 2;
        let of_seed: Vec<f64> =
            (0..half).map(|seed| f64::midpoint(values[2 * seed], values[2 * seed + 1])).collect();
        mean_sd(&of_seed).map_or("–".into(), |spread| format!("{:.1} ± {:.1}", spread.mean, spread.sd))
    };
    for adapter in ADAPTERS {
        for policy in ORDERS {
            let here: Vec<&Line> = lines
                .iter()
                .filter(|line| line.adapter == adapter.name() && line.order == policy.name())
                .collect();
            let spread_of =
                |number: &dyn Fn(&Line) -> f64| spread(here.iter().map(|line| number(line)).collect());
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} / {} / {} | {} |",
                adapter.name(),
                policy.name(),
                spread_of(&|line| line.today),
                SHOWN.map(|at| spread_of(&|line| line.gaps[at])).join(" | "),
                closed(&here),
                spread_of(&|line| line.shares[0]),
                spread_of(&|line| line.shares[1]),
                spread_of(&|line| line.shares[2]),
                spread_of(&|line| line.area),
            );
        }
    }
    text
}
