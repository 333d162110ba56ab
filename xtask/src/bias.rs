//! `cargo xtask bias [FOLDER]`: the bias study of `docs/results.md`, after FastFill §5.3 and appendix F.
//!
//! The old model saw every training image of three alphabets and one image a class of three others; the new model saw all
//! of both. The gap is the difference in top-1 between the favoured and the neglected alphabets. A good order closes it
//! early, because it re-embeds first what the old model knew badly. Three seeds; everything is trained here.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use rehang::adapter;
use rehang::curve::{CurveInput, CurveOptions, Relevance, curve};
use rehang::files::AtomicFile;
use rehang::order::{OrderInput, Policy, order};
use rehang::statistics::mean_sd;
use rehang::study::true_errors;
use rehang::{Distance, Error, Pairs, Progress, Result};
use rehang_train::compatible::{HeadForm, Method, TrainingParameters, TrainingSet, train};
use rehang_train::encoder::{Architecture, Encoder};
use rehang_train::examples::{
    Allocation, AllocationKind, AllocationParameters, Augmentation, ClassLists, Examples, ExamplesSource,
};
use rehang_train::{FitParameters, NetworkOptions, fit_adapter};

const TABLE: &str = "bench/runs/bias/bias.md";
const SEEDS: u64 = 3;
/// Of the six alphabets that both models see, in the order of the alphabet, these are the favoured ones.
const FAVOURED: usize = 3;
const ADAPTERS: [rehang_train::Method; 2] =
    [rehang_train::Method::Procrustes, rehang_train::Method::FastfillReference];
const ORDERS: [Policy; 5] =
    [Policy::Random, Policy::Sigma, Policy::Entropy, Policy::Coverage, Policy::Oracle];

/// One adapter in one order with one seed.
struct Line {
    adapter: &'static str,
    order: &'static str,
    /// The gap in points: old model alone, at the switch, of the new model alone.
    gaps: [f64; 3],
    /// Percent re-embedded from which on the gap stays at or below the new model's.
    closed: f64,
    /// Percent of the neglected among the first 10, 25 and 50 percent of the order.
    shares: [f64; 3],
    area: f64,
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
    let favoured: Vec<&str> = names.iter().copied().take(FAVOURED).collect();
    let mut lines = Vec::new();
    for seed in 0..SEEDS {
        lines.extend(one_seed(&examples, &alphabets, &favoured, seed)?);
        println!("seed {seed} done");
    }
    let text = table(&lines, &favoured, &names);
    if let Some(folder) = Path::new(TABLE).parent() {
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    }
    let mut file = AtomicFile::create(TABLE)?;
    file.put(text.as_bytes())?;
    file.commit()?;
    println!("{text}");
    Ok(())
}

/// The alphabet of every class.
fn alphabets(path: &Path) -> Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Classes {
        classes: Vec<String>,
    }
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    let read: Classes = serde_json::from_str(&text).map_err(|error| Error::corrupt(path.display(), error))?;
    Ok(read.classes.iter().map(|name| name.split('/').next().unwrap_or_default().to_owned()).collect())
}

fn one_seed(examples: &Examples, alphabets: &[String], favoured: &[&str], seed: u64) -> Result<Vec<Line>> {
    let progress = Progress::default();
    let all = vec!["0..160".to_owned()];
    let lists = ClassLists { old: all.clone(), new: all, unseen: None };
    let drawn = AllocationParameters { seed, test: 0.3, ..AllocationParameters::of_classes(lists) };
    debug_assert_eq!(drawn.kind, AllocationKind::Classes);
    let allocation = Allocation::draw(examples, &drawn)?;
    // The names of classes are their numbers in the data, so a label is the place in the list of alphabets.
    let number = |row: usize| -> usize {
        let name = &examples.classes[examples.labels[row] as usize];
        name.parse().unwrap_or(examples.labels[row] as usize)
    };
    let is_favoured = |row: usize| favoured.contains(&alphabets[number(row)].as_str());
    let mut seen = BTreeSet::new();
    let old_rows: Vec<usize> =
        allocation.new.iter().copied().filter(|&row| is_favoured(row) || seen.insert(number(row))).collect();

    let trained =
        |model: &str, width: usize, outputs: usize, epochs: usize, rows: &[usize]| -> Result<Encoder> {
            let architecture = Architecture::CnnSmall { width, outputs };
            let parameters = TrainingParameters {
                head: HeadForm::NormalisedSoftmax { scale: 16.0 },
                augmentation: Augmentation { crop_padding: 3, ..Augmentation::default() },
                epochs,
                seed,
                ..TrainingParameters::new(model, architecture, Method::Plain {})
            };
            Ok(train(TrainingSet { examples, rows }, None, &parameters, &progress)?.encoder)
        };
    let old = trained("old", 16, 64, 15, &old_rows)?;
    let new = trained("new", 32, 128, 20, &allocation.new)?;
    let embed = |encoder: &Encoder, rows: &[usize]| {
        encoder.embed(&examples.select(rows).inputs, rehang_train::fit::Device::Cpu, &progress)
    };
    let labels = |rows: &[usize]| -> Vec<i64> {
        rows.iter()
            .map(|&row| {
                let name = &examples.classes[examples.labels[row] as usize];
                new.classes.iter().position(|class| class == name).map_or(-1, |class| class as i64)
            })
            .collect()
    };
    let pairs = Pairs::new(
        embed(&old, &allocation.new)?,
        embed(&new, &allocation.new)?,
        Some(labels(&allocation.new)),
        None,
    )?;
    let test = &allocation.test;
    let (old_test, new_test, test_labels) = (embed(&old, test)?, embed(&new, test)?, labels(test));
    let groups: Vec<i64> = test.iter().map(|&row| i64::from(!is_favoured(row))).collect();
    let neglected = groups.iter().filter(|&&group| group == 1).count() as f64;

    let measure = |native: &rehang::Matrix, adapted: &rehang::Matrix, order: &[usize]| {
        let input = CurveInput {
            native,
            adapted,
            order,
            queries: None,
            relevance: Relevance::Labels { gallery: &test_labels, queries: None },
            distance: Distance::Cosine,
            groups: Some(&groups),
            do_nothing: None,
        };
        curve(&input, &CurveOptions::default(), &progress)
    };
    let in_place: Vec<usize> = (0..test.len()).collect();
    let gap = |curve: &rehang::curve::Curve, cut: usize| {
        let top1 = |group: usize| curve.groups[group].top1.values()[cut];
        top1(0) - top1(1)
    };
    let today = gap(&measure(old_test.matrix(), old_test.matrix(), &in_place)?, 0);
    let mut lines = Vec::new();
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
            let n = permutation.len();
            let whole = gap(&curve, n);
            let closed =
                (0..=n).rev().take_while(|&cut| gap(&curve, cut) <= whole + 1e-9).last().unwrap_or(n);
            let share = |percent: usize| {
                let first = &permutation[..n * percent / 100];
                100.0 * first.iter().filter(|&&item| groups[item] == 1).count() as f64 / first.len() as f64
            };
            lines.push(Line {
                adapter: method.name(),
                order: policy.name(),
                gaps: [today, gap(&curve, 0), whole],
                closed: 100.0 * closed as f64 / n as f64,
                shares: [share(10), share(25), share(50)],
                area: curve.top1.area(),
            });
        }
    }
    println!("seed {seed}: {:.1} % of the gallery are neglected", 100.0 * neglected / test.len() as f64);
    Ok(lines)
}

fn table(lines: &[Line], favoured: &[&str], names: &BTreeSet<&str>) -> String {
    let rest: Vec<&str> = names.iter().copied().filter(|name| !favoured.contains(name)).collect();
    let mut text = format!(
        "The old model saw every training image of {} and one image a class of {}; the new model saw all of both. The gap \
         is top-1 of the favoured alphabets less that of the neglected ones, on held-out images; mean ± sd over {SEEDS} \
         seeds.\n\n| adapter | order | gap of the old model | gap at the switch | gap of the new model | the gap stays at \
         the new model's from (% re-embedded) | neglected among the first 10 / 25 / 50 % | area of top-1 |\n\
         |---|---|--:|--:|--:|--:|--:|--:|\n",
        favoured.join(", "),
        rest.join(", "),
    );
    let spread = |values: Vec<f64>| {
        mean_sd(&values).map_or("–".into(), |spread| format!("{:.1} ± {:.1}", spread.mean, spread.sd))
    };
    for adapter in ADAPTERS {
        for policy in ORDERS {
            let here: Vec<&Line> = lines
                .iter()
                .filter(|line| line.adapter == adapter.name() && line.order == policy.name())
                .collect();
            let of = |number: &dyn Fn(&Line) -> f64| spread(here.iter().map(|line| number(line)).collect());
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} / {} / {} | {} |",
                adapter.name(),
                policy.name(),
                of(&|line| line.gaps[0]),
                of(&|line| line.gaps[1]),
                of(&|line| line.gaps[2]),
                of(&|line| line.closed),
                of(&|line| line.shares[0]),
                of(&|line| line.shares[1]),
                of(&|line| line.shares[2]),
                of(&|line| line.area),
            );
        }
    }
    text
}
