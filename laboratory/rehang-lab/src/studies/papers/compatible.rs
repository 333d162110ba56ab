//! The tables of RACT, BCT and DMU from studies that train encoders.

use std::collections::BTreeMap;
use std::path::Path;

use rehang_core::comparison::{Comparison, Measure, MethodOutcome, OrderOutcome, Quality};
use rehang_core::{Error, Result};
use rehang_report::comparison_markdown;

use super::table::{markdown, shown, spread, with_paper};
use super::{STUDIES, folder, record};

/// Records of all studies that are there, by name.
pub struct Studies(BTreeMap<&'static str, Comparison>);

/// Row of DMU's tables: the paper's words, the method here (`+ ψ` where the gallery goes through ψ), M(n, n),
/// M(n, o), Δ↑ and Δ↓ on GLDv2-test.
type Row = (&'static str, &'static str, Option<[f64; 4]>);

/// Numbers that the paper prints of BCT and of its own method, in most of its tables.
const BCT_THERE: Option<[f64; 4]> = Some([24.55, 21.12, 11.57, 4.03]);
const OURS_THERE: Option<[f64; 4]> = Some([25.00, 22.56, 19.18, 2.27]);

const BCT: Row = ("φ_n (BCT)", "bct", BCT_THERE);
const DEFAULT: Row = ("rehang's default (`auto`)", "auto", None);
/// Table 1: the oracle, BCT and ours, with both models of one architecture, from ResNet-50 to ResNet-101, of 30
/// to 70 % of the images, and of 30 to 100 % of the classes.
const ONE_THERE: [[f64; 4]; 3] =
    [[25.58, f64::NAN, f64::NAN, f64::NAN], [24.55, 21.12, 11.57, 4.03], [25.00, 22.56, 19.18, 2.27]];
const ARCHITECTURE_THERE: [[f64; 4]; 3] =
    [[27.42, f64::NAN, f64::NAN, f64::NAN], [25.56, 21.68, 14.53, 6.78], [25.92, 22.38, 18.23, 5.47]];
const OPEN_DATA_THERE: [[f64; 4]; 3] =
    [[23.66, f64::NAN, f64::NAN, f64::NAN], [23.47, 20.74, 9.56, 0.80], [23.76, 21.70, 14.63, -0.42]];
const EXTENDED_CLASS_THERE: [[f64; 4]; 3] =
    [[25.58, f64::NAN, f64::NAN, f64::NAN], [25.10, 24.39, 39.13, 1.88], [25.45, 25.01, 42.67, 0.51]];
const TABLE_3: [Row; 6] = [
    ("uniform (BCT)", "dmu, no selection + ψ", BCT_THERE),
    ("least conf.", "dmu, least confidence + ψ", Some([24.88, 22.25, 17.54, 2.74])),
    ("entropy", "dmu + ψ", OURS_THERE),
    ("least conf., sharper: λ = softmax(5·p_y)", "dmu, least confidence, s = 5 + ψ", None),
    ("entropy, sharper: λ = softmax(−Λ)", "dmu, entropy, s = 1 + ψ", None),
    DEFAULT,
];
const TABLE_4: [Row; 6] = [
    BCT,
    ("φ_n (ours), L_SBC", "dmu, no L_FA", Some([24.75, 21.60, 14.10, 3.24])),
    ("φ_n (ours), L_FA", "dmu, no selection + ψ", Some([24.72, 22.42, 18.44, 3.36])),
    ("φ_n (ours), both", "dmu + ψ", OURS_THERE),
    ("φ_n (ours), both, one batch for encoder and ψ", "dmu, one batch + ψ", None),
    DEFAULT,
];
const TABLE_5: [Row; 3] = [
    ("ψ of 512", "dmu, ψ of 512 + ψ", Some([24.78, 22.12, 16.85, 3.13])),
    ("ψ of 1024", "dmu + ψ", OURS_THERE),
    ("ψ of 2048", "dmu, ψ of 2048 + ψ", Some([24.96, 22.77, 20.29, 2.42])),
];
const TABLE_7: [Row; 7] = [
    ("BCT (ArcFace)", "bct", BCT_THERE),
    ("DMU (ArcFace)", "dmu + ψ", OURS_THERE),
    ("BCT (Regression)", "bct (regression)", Some([25.11, 19.96, 5.44, 1.84])),
    ("DMU (Regression)", "dmu (regression) + ψ", Some([25.27, 21.23, 12.15, 1.21])),
    ("BCT (Regression), λ = 10", "bct (regression), λ = 10", None),
    ("DMU (Regression), λ = 10", "dmu (regression), λ = 10 + ψ", None),
    DEFAULT,
];
const TABLE_8: [Row; 6] = [
    ("BCT (CVPR'20)", "bct", BCT_THERE),
    ("FD (CVPR'21) of probabilities", "focal-distillation", Some([25.24, 20.02, 5.76, 1.3])),
    ("FD of probabilities, λ = 0.1", "focal-distillation, λ = 0.1", None),
    ("FD of features", "focal-distillation, features", None),
    ("ours", "dmu + ψ", OURS_THERE),
    DEFAULT,
];

/// Row of RACT's tables of settings: the paper's words, the study, the method in it, and mAP on GLDv2-test at
/// 0, 20, …, 100 % (R50 to R50).
type Setting = (&'static str, &'static str, &'static str, Option<[f64; 6]>);

const SETTINGS: &str = "ract-settings";
/// Numbers that the paper prints of its own settings: in tables 3 to 6, and in table 7, which is open-data.
const RACT_THERE: Option<[f64; 6]> = Some([11.13, 11.88, 12.47, 13.32, 14.37, 15.14]);
const RACT_TABLE_3: [Setting; 4] = [
    ("τ = 0.1", SETTINGS, "temperature 0.1", Some([11.13, 11.44, 11.70, 12.05, 12.57, 13.28])),
    ("τ = 0.08", SETTINGS, "temperature 0.08", Some([11.24, 11.65, 11.96, 12.29, 12.97, 13.73])),
    ("τ = 0.05", SETTINGS, "ract", RACT_THERE),
    ("τ = 0.01", SETTINGS, "temperature 0.01", Some([10.34, 10.07, 10.54, 12.55, 15.12, 15.87])),
];
const RACT_TABLE_4: [Setting; 5] = [
    ("λ = 0.1", SETTINGS, "weight 0.1", Some([10.66, 10.66, 11.28, 12.66, 14.34, 15.64])),
    ("λ = 0.5", SETTINGS, "weight 0.5", Some([10.94, 11.71, 12.24, 13.19, 14.31, 15.07])),
    ("λ = 1", SETTINGS, "ract", RACT_THERE),
    ("λ = 2", SETTINGS, "weight 2", Some([11.10, 11.77, 12.37, 13.16, 13.97, 14.76])),
    ("λ = 5", SETTINGS, "weight 5", Some([11.24, 11.79, 12.17, 12.60, 13.34, 14.32])),
];
const RACT_TABLE_5: [Setting; 3] = [
    ("32 (40)", "ract-batch-32", "ract", Some([10.98, 11.83, 12.51, 13.53, 14.79, 15.77])),
    ("64 (60)", SETTINGS, "ract", Some([11.05, 11.81, 12.53, 13.43, 14.50, 15.34])),
    ("128 (80)", "ract-batch-128", "ract", RACT_THERE),
];
const RACT_TABLE_6: [Setting; 2] = [
    ("w/", SETTINGS, "sampler", Some([11.41, 12.11, 12.65, 13.41, 14.33, 15.08])),
    ("w/o", SETTINGS, "ract", RACT_THERE),
];
const RACT_TABLE_7: [Setting; 3] = [
    ("τ1 = 0.05, τ2 = 0.05", SETTINGS, "ract", Some([10.76, 11.31, 11.66, 12.59, 13.51, 14.09])),
    (
        "τ1 = 0.05, τ2 = 0.1",
        SETTINGS,
        "temperatures 0.05 and 0.1",
        Some([10.64, 11.14, 11.51, 12.53, 13.43, 14.12]),
    ),
    (
        "τ1 = 0.1, τ2 = 0.05",
        SETTINGS,
        "temperatures 0.1 and 0.05",
        Some([10.56, 11.15, 11.52, 12.43, 13.47, 13.89]),
    ),
];
const RACT_FIGURE_14: [Setting; 4] = [
    ("η = 0.2", SETTINGS, "eta 0.2", None),
    ("η = 1", SETTINGS, "eta 1", None),
    ("η = 5", SETTINGS, "eta 5", None),
    ("as one (6)", SETTINGS, "ract", None),
];
const RACT_FIGURE_15: [Setting; 4] = [
    ("vanilla triplet (14)", SETTINGS, "vanilla triplet", None),
    ("triplet (15)", SETTINGS, "triplet", None),
    ("triplet with a sampler (table 8)", SETTINGS, "triplet, sampler", None),
    ("contrastive (6)", SETTINGS, "ract", None),
];
const RACT_FIGURE_18: [Setting; 2] = [("LwF", SETTINGS, "lwf", None), ("RACT", SETTINGS, "ract", None)];

/// Studies in which RACT's figure 6 was tried, each with its words.
const HEADS: [(&str, &str); 5] = [
    ("ract-expansion", "normalised softmax"),
    ("ract-softmax", "softmax"),
    ("ract-digits", "digits, normalised softmax"),
    ("ract-digits-softmax", "digits, softmax"),
    ("ract-digits-softmax-90", "digits, softmax, 90 epochs"),
];

/// Studies of RACT's figures 8 and 11: both models of one architecture.
const ONE_ARCHITECTURE: [(&str, &str); 2] =
    [("ract-one-expansion", "Expansion"), ("ract-one-open-data", "Open-data")];

/// Row of an ablation of BCT's baselines: its words, the study, the method.
type Ablated = (&'static str, &'static str, &'static str);
const WEIGHTS_OF_L2: [Ablated; 5] = [
    ("λ = 0.0002", "bct-l2", "l2, λ = 0.0002"),
    ("λ = 0.002", "bct-l2", "l2, λ = 0.002"),
    ("λ = 0.02", "bct", "l2"),
    ("λ = 0.2", "bct-l2", "l2, λ = 0.2"),
    ("rehang's default (`auto`)", "bct", "auto"),
];
const LWF: [Ablated; 10] = [
    ("T = 2, λ = 1 (table 1)", "bct", "lwf"),
    ("T = 1", "bct-lwf", "lwf, T = 1"),
    ("T = 10", "bct-lwf", "lwf, T = 10"),
    ("λ = 0.1", "bct-lwf", "lwf, λ = 0.1"),
    ("λ = 10", "bct-lwf", "lwf, λ = 10"),
    ("on the added half", "bct-lwf-half", "lwf"),
    ("on the added half, T = 1", "bct-lwf-half", "lwf, T = 1"),
    ("on the added half, λ = 0.1", "bct-lwf-half", "lwf, λ = 0.1"),
    ("BCT on the added half", "bct-lwf-half", "bct"),
    ("rehang's default (`auto`)", "bct", "auto"),
];
const FROM_SOFTMAX: [Ablated; 6] = [
    ("synthesised, λ = 1 (table 3)", "bct-from-softmax", "bct"),
    ("basic", "bct-from-softmax-forms", "bct (basic)"),
    ("distilled", "bct-from-softmax-forms", "bct (distilled)"),
    ("synthesised, λ = 0.1", "bct-from-softmax-forms", "bct, λ = 0.1"),
    ("synthesised, λ = 10", "bct-from-softmax-forms", "bct, λ = 10"),
    ("rehang's default (`auto`)", "bct-from-softmax", "auto"),
];

/// Scenarios of RACT: the study, its name there, and mAP on GLDv2-test at 0 % (table 2): old, vanilla and
/// ours from R50 to R101. The paper has no digits.
const SCENARIOS: [(&str, &str, [f64; 3]); 4] = [
    ("ract-expansion", "Expansion", [9.91, 11.37, 11.40]),
    ("ract-open-data", "Open-data", [9.91, 10.61, 11.05]),
    ("ract-open-class", "Open-class", [11.04, 11.65, 11.90]),
    ("ract-digits", "Expansion, digits", [f64::NAN; 3]),
];

/// Makes the rows of a scenario of DMU's table 1.
fn scenario([oracle, bct, ours]: [[f64; 4]; 3]) -> [Row; 4] {
    [
        ("φ_n (oracle)", "independent", Some(oracle)),
        ("φ_n (BCT)", "bct", Some(bct)),
        ("φ_n (ours)", "dmu + ψ", Some(ours)),
        DEFAULT,
    ]
}

impl Studies {
    /// Reads the records under `root`.
    pub fn read(root: &Path) -> Result<Self> {
        let mut studies = BTreeMap::new();
        for (name, _) in STUDIES {
            let path = root.join(record(name));
            if path.exists() {
                let text = fs_err::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))?;
                let read = serde_json::from_str(&text);
                studies.insert(name, read.map_err(|error| Error::corrupt(path.display(), error))?);
            }
        }
        Ok(Self(studies))
    }

    /// Gives the record of one study.
    pub fn get(&self, name: &str) -> Result<&Comparison> {
        self.0
            .get(name)
            .ok_or_else(|| Error::missing(format!("the record of the study {name}"), "its tables"))
    }

    /// Gives a number of a method on a part of a study, mean ± sd over seeds. `A − B` is the difference of two
    /// methods, seed by seed.
    pub fn number(
        &self,
        study: &str,
        part: &str,
        method: &str,
        quantity: &str,
        measure: Measure,
    ) -> Result<String> {
        let study = self.get(study)?;
        let value = |outcome: &MethodOutcome| -> Result<Option<f64>> {
            let of_order = |name: &str, of: fn(&OrderOutcome) -> Quality| {
                outcome.backfill(name).map(|order| of(order).value(measure))
            };
            Ok(match quantity.split_once(':').unwrap_or((quantity, "")) {
                ("old_old", "") => Some(outcome.old_old.value(measure)),
                ("new_old", "") => Some(outcome.new_old.value(measure)),
                ("new_new", "") => Some(outcome.new_new.value(measure)),
                ("best_best", "") => Some(outcome.best_best.value(measure)),
                ("gain", "") => Some(outcome.new_old.value(measure) - outcome.old_old.value(measure)),
                ("up", "") => outcome.gain_up(measure),
                ("down", "") => outcome.gain_down(measure),
                ("area", order) => of_order(order, |of| of.area),
                ("min", order) => of_order(order, |of| of.min),
                _ => return Err(Error::option("a page of results", quantity, "the name of a quantity")),
            })
        };
        let (method, other) = method.split_once(" − ").map_or((method, None), |(a, b)| (a, Some(b)));
        let mut numbers = Vec::new();
        for outcome in study.outcomes(method, part) {
            let Some(number) = value(outcome)? else { continue };
            let Some(other) = other else {
                numbers.push(number);
                continue;
            };
            let of_seed = study.outcomes(other, part).find(|beside| beside.seed == outcome.seed);
            if let Some(beside) = of_seed.map(value).transpose()?.flatten() {
                numbers.push(number - beside);
            }
        }
        if numbers.is_empty() {
            let number = format!("{quantity} of {method} on {part}");
            return Err(Error::missing(number, "a sentence of a page of results"));
        }
        Ok(spread(&numbers))
    }

    /// Makes a table of one of the three papers.
    pub fn table(&self, paper: &str, name: &str, rest: &[&str]) -> Result<String> {
        match (paper, name, rest) {
            ("setting", study, []) => {
                Ok(self.get(study)?.setting.iter().map(|line| format!("- {line}\n")).collect())
            }
            ("ract", "table-2", []) => self.hot_start(),
            ("ract", "map", [study, part]) => self.along(study, part, |backfill| &backfill.map),
            ("ract", "flips", [study, part]) => {
                self.along(study, part, |backfill| &backfill.negative_flip_rate)
            }
            ("ract", "orders", [part]) => {
                self.orders("Scenario", SCENARIOS.map(|(study, scenario, _)| (study, scenario)), part)
            }
            ("ract", "heads", [part]) => self.orders("Head", HEADS, part),
            ("ract", "one-architecture", [part]) => self.orders("Scenario", ONE_ARCHITECTURE, part),
            ("ract", "others", [part]) => self.others(part),
            ("ract", "table-3", [part]) => self.settings(&RACT_TABLE_3, part),
            ("ract", "table-4", [part]) => self.settings(&RACT_TABLE_4, part),
            ("ract", "table-5", [part]) => self.settings(&RACT_TABLE_5, part),
            ("ract", "table-6", [part]) => self.settings(&RACT_TABLE_6, part),
            ("ract", "table-7", [part]) => self.settings(&RACT_TABLE_7, part),
            ("ract", "figure-14", [part]) => self.settings(&RACT_FIGURE_14, part),
            ("ract", "figure-15", [part]) => self.settings(&RACT_FIGURE_15, part),
            ("ract", "figure-18", [part]) => self.settings(&RACT_FIGURE_18, part),
            ("bct", "table-1", [study, part]) => Ok(bct_1(self.get(study)?, part)),
            ("bct", "table-2", []) => self.bct_2(),
            ("bct", "table-3", [part]) => self.bct_3(part),
            ("bct", "conditions", [part]) => self.conditions(part),
            ("bct", "l2", [part]) => self.ablated("Weight of L2", &WEIGHTS_OF_L2, part),
            ("bct", "lwf", [part]) => self.ablated("LwF", &LWF, part),
            ("bct", "from-softmax", [part]) => self.ablated("BCT from a softmax", &FROM_SOFTMAX, part),
            ("dmu", "table-1", [part]) => self.dmu(&["dmu"], &scenario(ARCHITECTURE_THERE), 18.93, part),
            ("dmu", "one", [part]) => self.dmu(&["dmu-one"], &scenario(ONE_THERE), 18.93, part),
            ("dmu", "handicap", [part]) => self.handicaps(part),
            ("dmu", "open-data", [part]) => {
                self.dmu(&["dmu-open-data"], &scenario(OPEN_DATA_THERE), 18.93, part)
            }
            ("dmu", "extended-class", [part]) => {
                self.dmu(&["dmu-extended-class"], &scenario(EXTENDED_CLASS_THERE), 17.53, part)
            }
            ("dmu", "table-3", [part]) => self.dmu(&["dmu", "dmu-sharp"], &TABLE_3, 18.93, part),
            ("dmu", "table-4", [part]) => self.dmu(&["dmu"], &TABLE_4, 18.93, part),
            ("dmu", "table-5", [part]) => self.dmu(&["dmu"], &TABLE_5, 18.93, part),
            ("dmu", "table-7", [part]) => self.dmu(&["dmu"], &TABLE_7, 18.93, part),
            ("dmu", "table-8", [part]) => self.dmu(&["dmu"], &TABLE_8, 18.93, part),
            _ => Err(Error::option("a page of results", format!("{paper} {name}"), "the name of a table")),
        }
    }

    /// Makes RACT's table 2: mAP at 0 %.
    fn hot_start(&self) -> Result<String> {
        let mut columns = vec!["Model"];
        let mut rows: Vec<Vec<String>> = ["old", "vanilla new", "ours new", "rehang's default (`auto`)"]
            .map(|row| vec![row.to_owned()])
            .into();
        let headings: Vec<String> = SCENARIOS
            .iter()
            .flat_map(|(_, name, _)| [format!("{name}, seen"), format!("{name}, unseen")])
            .collect();
        columns.extend(headings.iter().map(String::as_str));
        for (study, _, paper) in SCENARIOS {
            let study = self.get(study)?;
            for part in ["test", "unseen"] {
                // Only a part of the paper's test landmarks are landmarks of its training, so its numbers
                // stand beside both parts.
                let paper = |row: usize| Some(paper[row]).filter(|paper| paper.is_finite());
                let at_0 = |method: &str| study.over_seeds(method, part, |outcome| Some(outcome.new_old.map));
                let old = study.over_seeds("independent", part, |outcome| Some(outcome.old_old.map));
                rows[0].push(with_paper(old, paper(0)));
                rows[1].push(with_paper(at_0("vanilla"), paper(1)));
                rows[2].push(with_paper(at_0("ract"), paper(2)));
                rows[3].push(with_paper(at_0("auto"), None));
            }
        }
        Ok(markdown(&columns, &rows))
    }

    /// Makes RACT's figures 3 to 5: a metric along a backfill in random order, of vanilla and ours; and of
    /// the product's default in its own order.
    fn along(&self, study: &str, part: &str, of: impl Fn(&OrderOutcome) -> &Vec<f64>) -> Result<String> {
        let study = self.get(study)?;
        let headings: Vec<String> = (0..=10).map(|tenth| format!("{} %", 10 * tenth)).collect();
        let mut columns = vec!["Model"];
        columns.extend(headings.iter().map(String::as_str));
        columns.extend(["lowest", "highest", "mean of 101"]);
        let rows: Vec<Vec<String>> = [
            ("vanilla", "vanilla", "random"),
            ("ours", "ract", "random"),
            ("rehang's default (`auto`, coverage)", "auto", "coverage"),
        ]
        .into_iter()
        .filter(|(_, method, _)| study.outcomes(method, part).next().is_some())
        .map(|(label, method, order)| {
            let cell = |of_line: &dyn Fn(&[f64]) -> f64| {
                let number =
                    study.over_seeds(method, part, |outcome| Some(of_line(of(outcome.backfill(order)?))));
                with_paper(number, None)
            };
            let mut row = vec![label.to_owned()];
            row.extend((0..=10).map(|tenth| cell(&|line| line[10 * tenth])));
            row.push(cell(&|line| line.iter().copied().fold(f64::INFINITY, f64::min)));
            row.push(cell(&|line| line.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
            row.push(cell(&|line| line.iter().sum::<f64>() / line.len() as f64));
            row
        })
        .collect();
        Ok(markdown(&columns, &rows))
    }

    /// Makes the table of a gallery of ψ that is backfilled in random order, with a handicap and without.
    fn handicaps(&self, part: &str) -> Result<String> {
        let study = self.get("dmu-handicap")?;
        let headings: Vec<String> = (0..=10).map(|tenth| format!("{} %", 10 * tenth)).collect();
        let mut columns = vec!["Handicap", "Metric"];
        columns.extend(headings.iter().map(String::as_str));
        columns.push("area");
        let mut rows = Vec::new();
        for (label, method) in [("none", "dmu + ψ"), ("of native vectors", "dmu + ψ, handicap")] {
            for measure in [Measure::Map, Measure::Top1] {
                let cell = |number: &dyn Fn(&OrderOutcome) -> f64| {
                    let numbers =
                        study.over_seeds(method, part, |outcome| Some(number(outcome.backfill("random")?)));
                    shown(numbers)
                };
                let (name, line): (_, fn(&OrderOutcome) -> &Vec<f64>) = match measure {
                    Measure::Map => ("mAP", |of| &of.map),
                    Measure::Top1 => ("top-1", |of| &of.top1),
                };
                let mut row = vec![label.to_owned(), name.to_owned()];
                row.extend((0..=10).map(|tenth| cell(&|of| line(of)[10 * tenth])));
                row.push(cell(&|of| of.area.value(measure)));
                rows.push(row);
            }
        }
        Ok(markdown(&columns, &rows))
    }

    /// Makes RACT's tables of settings: mAP along a backfill in random order, its lowest point, and NFR@1.
    fn settings(&self, rows: &[Setting], part: &str) -> Result<String> {
        let headings: Vec<String> = (0..=5).map(|fifth| format!("{} %", 20 * fifth)).collect();
        let mut columns = vec!["Setting"];
        columns.extend(headings.iter().map(String::as_str));
        columns.extend(["lowest", "NFR@1, mean"]);
        let line = |&(label, study, method, paper): &Setting| -> Result<Vec<String>> {
            let study = self.get(study)?;
            let cell = |number: &dyn Fn(&OrderOutcome) -> f64, paper: Option<f64>| {
                let found =
                    study.over_seeds(method, part, |outcome| Some(number(outcome.backfill("random")?)));
                with_paper(found, paper)
            };
            let mut row = vec![label.to_owned()];
            row.extend((0..=5).map(|fifth| cell(&|of| of.map[20 * fifth], paper.map(|paper| paper[fifth]))));
            row.push(cell(&|of| of.min.map, None));
            row.push(cell(&|of| of.negative_flips, None));
            Ok(row)
        };
        Ok(markdown(&columns, &rows.iter().map(line).collect::<Result<Vec<_>>>()?))
    }

    /// Makes RACT's figure 6: area of mAP, and NFR@1, by order.
    fn orders<const N: usize>(
        &self,
        heading: &str,
        studies: [(&str, &str); N],
        part: &str,
    ) -> Result<String> {
        let orders = ["random", "least-confidence", "margin", "entropy", "coverage"];
        let mut columns = vec![heading, "Model"];
        columns.extend(orders);
        let mut rows = Vec::new();
        for (study, scenario) in studies {
            let study = self.get(study)?;
            for (label, method) in [("vanilla", "vanilla"), ("ours", "ract"), ("rehang's default", "auto")] {
                if study.outcomes(method, part).next().is_none() {
                    continue;
                }
                let mut row = vec![scenario.to_owned(), label.to_owned()];
                row.extend(orders.iter().map(|order| {
                    let cell = |number: &dyn Fn(&OrderOutcome) -> f64| {
                        with_paper(
                            study.over_seeds(method, part, |outcome| Some(number(outcome.backfill(order)?))),
                            None,
                        )
                    };
                    format!("{} / {}", cell(&|of| of.area.map), cell(&|of| of.negative_flips))
                }));
                rows.push(row);
            }
        }
        Ok(markdown(&columns, &rows))
    }

    /// Makes RACT's figures 16 and 17: beside BCT and focal distillation, in random order.
    fn others(&self, part: &str) -> Result<String> {
        let columns = [
            "Scenario",
            "Model",
            "mAP at 0 %",
            "lowest",
            "area",
            "at 100 %",
            "NFR@1, mean",
            "criterion, mAP",
        ];
        let mut rows = Vec::new();
        for (study, scenario, _) in SCENARIOS {
            let study = self.get(study)?;
            for (label, method, order) in [
                ("BCT", "bct", "random"),
                ("FD of features", "focal-distillation, features", "random"),
                ("FD of probabilities", "focal-distillation", "random"),
                ("FD of probabilities, T = 2", "focal-distillation, T = 2", "random"),
                ("ours", "ract", "random"),
                ("ours on top of BCT", "ract-on-bct", "random"),
                ("rehang's default", "auto", "coverage"),
            ] {
                if study.outcomes(method, part).next().is_none() {
                    continue;
                }
                let cell = |number: &dyn Fn(&MethodOutcome) -> Option<f64>| {
                    with_paper(study.over_seeds(method, part, number), None)
                };
                rows.push(vec![
                    scenario.to_owned(),
                    label.to_owned(),
                    cell(&|outcome| Some(outcome.new_old.map)),
                    cell(&|outcome| Some(outcome.backfill(order)?.min.map)),
                    cell(&|outcome| Some(outcome.backfill(order)?.area.map)),
                    cell(&|outcome| Some(outcome.new_new.map)),
                    cell(&|outcome| Some(outcome.backfill(order)?.negative_flips)),
                    seeds_that_meet(study, method, part, Measure::Map),
                ]);
            }
        }
        Ok(markdown(&columns, &rows))
    }

    /// Makes BCT's table 2: what the new model loses.
    fn bct_2(&self) -> Result<String> {
        let study = self.get("bct")?;
        let columns = ["Model", "mAP, seen", "mAP, unseen", "top-1, seen", "top-1, unseen"];
        let row = |label: &str, paper: Option<f64>, of: &dyn Fn(&MethodOutcome) -> Quality, method: &str| {
            let cell = |part: &str, measure: Measure, paper: Option<f64>| {
                with_paper(study.over_seeds(method, part, |outcome| Some(of(outcome).value(measure))), paper)
            };
            vec![
                label.to_owned(),
                cell("test", Measure::Map, paper),
                cell("unseen", Measure::Map, None),
                cell("test", Measure::Top1, None),
                cell("unseen", Measure::Top1, None),
            ]
        };
        let mut rows = vec![row("φ_old", Some(59.34), &|outcome| outcome.old_old, "independent")];
        for (label, method, paper) in [
            ("φ_new-β, basic", "bct (basic)", Some(73.86)),
            ("φ_new-β-kd, distilled", "bct (distilled)", Some(73.56)),
            ("φ_new-β-sys, synthesised", "bct", Some(74.40)),
            ("φ_new*", "independent", Some(76.88)),
            ("φ_new-l2", "l2", None),
            ("φ_new-LwF", "lwf", None),
            ("φ_new-β-sys without a clip of the gradient", "bct, no clip", None),
            ("rehang's default (`auto`) leaves φ_new* as it is", "auto", None),
        ] {
            rows.push(row(label, paper, &|outcome| outcome.new_new, method));
        }
        Ok(markdown(&columns, &rows))
    }

    /// Makes BCT's table 3: other encoders, widths and heads.
    fn bct_3(&self, part: &str) -> Result<String> {
        let study = self.get("bct")?;
        let mut table = vec![lower(study, "(φ_old, φ_old), lower bound", part, 59.34)];
        table.push(compared(
            study,
            "larger new encoder (ResNet-152)",
            "bct, larger",
            part,
            [68.71, 53.42, 9.37],
        ));
        table.push(compared(
            study,
            "wider new vectors, 64 → 128 (128 → 256)",
            "bct, wider",
            part,
            [69.45, 57.63, 10.11],
        ));
        for (name, label, there, paper) in [
            (
                "bct-from-normalised-softmax",
                "old Norm-Softmax, new Cosine Margin",
                64.32,
                [71.16, 54.46, 6.84],
            ),
            ("bct-from-softmax", "old SoftMax, new Cosine Margin", 54.16, [45.46, f64::NAN, f64::NAN]),
        ] {
            let study = self.get(name)?;
            let lower_label = format!("lower bound of: {label}");
            table.push(lower(study, &lower_label, part, there));
            table.push(compared(study, label, "bct", part, paper));
            table.push(compared(study, &format!("{label}: rehang's default"), "auto", part, [f64::NAN; 3]));
        }
        table.extend(upper(study, part));
        Ok(markdown(&COMPARED, &table))
    }

    /// Makes the table of what compatibility is worth, by what the old model saw and by the recipe.
    fn conditions(&self, part: &str) -> Result<String> {
        let columns = [
            "Old model, recipe",
            "M(φ_old, φ_old)",
            "M(φ_new*, φ_new*)",
            "gain: LwF",
            "BCT",
            "rehang's default",
            "gain in top-1: LwF",
            "BCT",
            "rehang's default",
        ];
        let mut rows = Vec::new();
        for (name, label) in [
            ("bct-old-40", "40 classes"),
            ("bct", "80 classes (table 1)"),
            ("bct-old-160", "160 classes"),
            ("bct-arcface", "80 classes, both models by DMU's recipe"),
        ] {
            let study = self.get(name)?;
            let cell = |method: &str, of: &dyn Fn(&MethodOutcome) -> f64| {
                with_paper(study.over_seeds(method, part, |outcome| Some(of(outcome))), None)
            };
            let mut row = vec![label.to_owned()];
            row.push(cell("independent", &|outcome| outcome.old_old.map));
            row.push(cell("independent", &|outcome| outcome.best_best.map));
            for measure in [Measure::Map, Measure::Top1] {
                let gain =
                    |outcome: &MethodOutcome| outcome.new_old.value(measure) - outcome.old_old.value(measure);
                row.extend(["lwf", "bct", "auto"].map(|method| cell(method, &gain)));
            }
            rows.push(row);
        }
        Ok(markdown(&columns, &rows))
    }

    /// Makes the table of a baseline with one setting changed at a time.
    fn ablated(&self, heading: &str, rows: &[Ablated], part: &str) -> Result<String> {
        let columns = [
            heading,
            "M(φ_old, φ_old), mAP",
            "M(φ_new, φ_old), mAP",
            "compatible?",
            "M(φ_new, φ_new), mAP",
            "top-1: M(φ_old, φ_old)",
            "M(φ_new, φ_old)",
            "compatible?",
            "M(φ_new, φ_new)",
        ];
        let row = |&(label, study, method): &Ablated| -> Result<Vec<String>> {
            let study = self.get(study)?;
            let mut row = vec![label.to_owned()];
            for measure in [Measure::Map, Measure::Top1] {
                let cell = |of: fn(&MethodOutcome) -> Quality| {
                    let found = study.over_seeds(method, part, |outcome| Some(of(outcome).value(measure)));
                    with_paper(found, None)
                };
                row.extend([cell(|outcome| outcome.old_old), cell(|outcome| outcome.new_old)]);
                row.extend([seeds_that_meet(study, method, part, measure), cell(|outcome| outcome.new_new)]);
            }
            Ok(row)
        };
        Ok(markdown(&columns, &rows.iter().map(row).collect::<Result<Vec<_>>>()?))
    }

    /// Renders every record as text, with its path, as it is made anew with the pages.
    pub fn rendered(&self) -> Vec<(String, String)> {
        let path = |name: &str| folder(name).join("comparison.md").display().to_string();
        self.0.iter().map(|(name, study)| (path(name), comparison_markdown(study))).collect()
    }

    /// Makes a table of DMU, from studies with the same old and independent models; `there` is M(φ_o, φ_o) in
    /// the paper.
    fn dmu(&self, studies: &[&str], rows: &[Row], there: f64, part: &str) -> Result<String> {
        let studies: Vec<&Comparison> = studies.iter().map(|study| self.get(study)).collect::<Result<_>>()?;
        let study = studies[0];
        let columns = [
            "Method",
            "M(φ_n, φ_n)",
            "M(φ_n, φ_o)",
            "Δ↑",
            "Δ↓",
            "top-1: M(φ_n, φ_n)",
            "M(φ_n, φ_o)",
            "Δ↑",
            "Δ↓",
        ];
        let old =
            |measure| study.over_seeds("independent", part, |outcome| Some(outcome.old_old.value(measure)));
        let mut first = vec!["φ_o".to_owned()];
        for (measure, paper) in [(Measure::Map, Some(there)), (Measure::Top1, None)] {
            first.push(with_paper(old(measure), paper));
            first.extend(["–"; 3].map(String::from));
        }
        let mut table = vec![first];
        for (label, method, paper) in rows {
            let Some(study) = studies.iter().find(|study| study.outcomes(method, part).next().is_some())
            else {
                continue;
            };
            let mut row = vec![(*label).to_owned()];
            for measure in [Measure::Map, Measure::Top1] {
                type Number = fn(&MethodOutcome, Measure) -> Option<f64>;
                let numbers: [Number; 4] = [
                    |outcome, measure| Some(outcome.new_new.value(measure)),
                    |outcome, measure| Some(outcome.new_old.value(measure)),
                    MethodOutcome::gain_up,
                    MethodOutcome::gain_down,
                ];
                for (place, number) in numbers.iter().enumerate() {
                    let paper = paper.filter(|_| measure == Measure::Map).map(|paper| paper[place]);
                    row.push(with_paper(
                        study.over_seeds(method, part, |outcome| number(outcome, measure)),
                        paper.filter(|paper| paper.is_finite()),
                    ));
                }
            }
            table.push(row);
        }
        Ok(markdown(&columns, &table))
    }
}

/// Makes BCT's table 1: the cross search, the criterion and the gains; the paper's figures are those of
/// IJB-C 1:N.
fn bct_1(study: &Comparison, part: &str) -> String {
    let rows = [
        ("(φ_new*, φ_old)", "independent", [0.0, f64::NAN, f64::NAN]),
        ("(φ_new-l2, φ_old)", "l2", [0.50, f64::NAN, f64::NAN]),
        ("(φ_new-LwF, φ_old)", "lwf", [59.27, f64::NAN, f64::NAN]),
        ("(φ_new-β, φ_old), basic", "bct (basic)", [67.23, 44.98, 7.89]),
        ("(φ_new-β-kd, φ_old), distilled", "bct (distilled)", [69.02, 55.11, 9.68]),
        ("(φ_new-β-sys, φ_old), synthesised", "bct", [70.70, 64.77, 11.36]),
        ("rehang's default (`auto`)", "auto", [f64::NAN; 3]),
    ];
    let mut table = vec![lower(study, "(φ_old, φ_old), lower bound", part, 59.34)];
    table.extend(rows.map(|(label, method, paper)| compared(study, label, method, part, paper)));
    table.extend(upper(study, part));
    markdown(&COMPARED, &table)
}

/// Columns of BCT's tables 1 and 3.
const COMPARED: [&str; 8] = [
    "Comparison pair",
    "Search acc. (mAP)",
    "Backward compatible?",
    "Update gain, %",
    "Absolute gain",
    "top-1",
    "compatible in top-1?",
    "Absolute gain",
];

/// Makes a line of BCT's tables 1 and 3.
fn compared(study: &Comparison, label: &str, method: &str, part: &str, paper: [f64; 3]) -> Vec<String> {
    let [accuracy, update, absolute] = paper.map(|paper| Some(paper).filter(|paper| paper.is_finite()));
    let gain = |measure: Measure| {
        study.over_seeds(method, part, |outcome| {
            Some(outcome.new_old.value(measure) - outcome.old_old.value(measure))
        })
    };
    let found =
        |measure: Measure| study.over_seeds(method, part, |outcome| Some(outcome.new_old.value(measure)));
    vec![
        label.to_owned(),
        with_paper(found(Measure::Map), accuracy),
        seeds_that_meet(study, method, part, Measure::Map),
        with_paper(
            study.over_seeds(method, part, |outcome| study.update_gain(outcome, Measure::Map)),
            update,
        ),
        with_paper(gain(Measure::Map), absolute),
        with_paper(found(Measure::Top1), None),
        seeds_that_meet(study, method, part, Measure::Top1),
        with_paper(gain(Measure::Top1), None),
    ]
}

/// Makes the line of doing nothing; `there` is the paper's number.
fn lower(study: &Comparison, label: &str, part: &str, there: f64) -> Vec<String> {
    bound(study, label, part, |outcome| outcome.old_old, Some(there))
}

/// Makes the lines of the independent model once everything is its own, and of the best that any variant of
/// its encoder gives.
fn upper(study: &Comparison, part: &str) -> [Vec<String>; 2] {
    let best = |outcome: &MethodOutcome| {
        let [top1, map] = [Measure::Top1, Measure::Map].map(|measure| study.best_variant(outcome, measure));
        Quality { top1, map }
    };
    [
        bound(study, "(φ_new*, φ_new*), upper bound", part, |outcome| outcome.best_best, Some(76.88)),
        bound(study, "the best variant of a seed, M(new*, new*) of the update gain", part, best, None),
    ]
}

/// Makes the line of a bound, which is compared with nothing.
fn bound(
    study: &Comparison,
    label: &str,
    part: &str,
    of: impl Fn(&MethodOutcome) -> Quality,
    there: Option<f64>,
) -> Vec<String> {
    let cell = |measure, paper| {
        with_paper(study.over_seeds("independent", part, |outcome| Some(of(outcome).value(measure))), paper)
    };
    let dash = || "–".to_owned();
    vec![
        label.to_owned(),
        cell(Measure::Map, there),
        dash(),
        dash(),
        dash(),
        cell(Measure::Top1, None),
        dash(),
        dash(),
    ]
}

/// Says in how many seeds the criterion is met.
fn seeds_that_meet(study: &Comparison, method: &str, part: &str, measure: Measure) -> String {
    let met: Vec<bool> = study.outcomes(method, part).map(|outcome| outcome.criterion_met(measure)).collect();
    match (met.iter().filter(|met| **met).count(), met.len()) {
        (_, 0) => "–".into(),
        (0, _) => "no".into(),
        (some, all) if some == all => "yes".into(),
        (some, all) => format!("{some} of {all}"),
    }
}
