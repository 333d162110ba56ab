//! A whole upgrade by library calls alone, as `rehang demo` does it: pairs → fit → report → start, switch,
//! backfill.
//!
//! `cargo run --release -p rehang-demo --example whole_upgrade -- FOLDER`

#![allow(clippy::print_stdout, reason = "an example shows what it made")]

use std::path::{Path, PathBuf};

use rehang_core::curve::Relevance;
use rehang_core::order::Policy;
use rehang_core::report::Report;
use rehang_core::{Adapter, Distance, Head, HeadKind, Pairs, Progress, Result, Vectors};
use rehang_demo::{Live, LiveOptions};
use rehang_evaluate::study::{StudyAdapter, StudyInput, StudyOptions, study};
use rehang_files::{AtomicFile, VectorSource};
use rehang_fit::{FitParameters, NetworkOptions, fit_adapter};

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map_or_else(|| PathBuf::from("whole-upgrade"), PathBuf::from);
    let (report, live) = whole_upgrade(&folder)?;
    println!("{}", rehang_report::markdown(&report));
    println!("{live:#?}");
    Ok(())
}

/// Runs the whole upgrade in a folder that is new, empty or of an earlier demo.
///
/// # Errors
///
/// The errors of the verbs that it calls; a conflict for another folder.
pub fn whole_upgrade(folder: &Path) -> Result<(Report, Live)> {
    rehang_demo::unpack(folder)?;
    let data = Data::read(folder)?;

    // Pairs: the items that both models have embedded, with their labels.
    let (old, new, labels) = data.of_role(0)?;
    let pairs = Pairs::new(old, new, Some(labels), None)?;
    let fitted = fit_adapter(
        &pairs,
        Some(&data.head),
        &FitParameters::default(),
        &NetworkOptions::default(),
        &Progress::default(),
    )?;
    let adapter = fitted.adapter;
    rehang_files::adapter_file::save(&adapter, folder.join("adapter.safetensors"))?;

    // Value of the upgrade, measured on items that the fit never saw.
    let report = measure(&data, &adapter)?;
    AtomicFile::write(folder.join("report.html"), rehang_report::html(&report))?;

    // A gallery is filled, switched and backfilled while threads search and write.
    let live =
        rehang_demo::live(folder, &adapter, &LiveOptions::default(), &|_| Ok(()), &Progress::default())?;
    Ok((report, live))
}

fn measure(data: &Data, adapter: &Adapter) -> Result<Report> {
    let (old, new, labels) = data.of_role(1)?;
    let ground = StudyInput {
        old: &old,
        new: &new,
        side: None,
        queries: None,
        relevance: Some(Relevance::Labels { gallery: &labels, queries: None }),
        labels_are_names: false,
        groups: None,
        head: Some(&data.head),
        gallery: None,
    };
    let contender = StudyAdapter { name: adapter.training.method.clone(), adapter };
    let options = StudyOptions { policies: vec![Policy::Coverage], ..StudyOptions::default() };
    study(&ground, &[contender], &options, &Progress::default())
}

/// The demo's vectors. Role 0 are the pairs, role 1 is the gallery.
struct Data {
    old: rehang_core::Matrix,
    new: rehang_core::Matrix,
    labels: Vec<i64>,
    roles: Vec<i64>,
    head: Head,
}

impl Data {
    fn read(folder: &Path) -> Result<Self> {
        let source = |name: &str| VectorSource::path(folder.join(name));
        let bias = rehang_files::read_f32_column(&source("head_bias.npy"))?;
        Ok(Self {
            old: rehang_files::read_matrix(&source("old.npy"))?,
            new: rehang_files::read_matrix(&source("new.npy"))?,
            labels: rehang_files::read_labels(&source("label.npy"))?,
            roles: rehang_files::read_labels(&source("role.npy"))?,
            head: Head::new(
                rehang_files::read_matrix(&source("head_weight.npy"))?,
                Some(bias),
                HeadKind::Softmax,
            )?,
        })
    }

    fn of_role(&self, role: i64) -> Result<(Vectors, Vectors, Vec<i64>)> {
        let rows: Vec<usize> = (0..self.roles.len()).filter(|&row| self.roles[row] == role).collect();
        Ok((
            Vectors::measured("digits-old", Distance::L2, self.old.select(&rows), "old vectors")?,
            Vectors::measured("digits-new", Distance::L2, self.new.select(&rows), "new vectors")?,
            rows.iter().map(|&row| self.labels[row]).collect(),
        ))
    }
}
