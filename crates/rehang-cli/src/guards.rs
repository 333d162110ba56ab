//! What is looked at wherever an adapter meets vectors of both models.

use rehang::adapter::RowOverlap;
use rehang::finding::{Finding, Severity};
use rehang::{Adapter, Matrix, Pairs, Result, Vectors};
use rehang_fit::guards;
use serde_json::{Value, json};

use crate::commands::say;

/// Items that an adapter is looked at on.
const ITEMS_MAX: usize = 2_000;

/// Rows of old vectors that are among the pairs of an adapter; `None` where it does not remember its pairs.
pub fn among_pairs(adapter: &Adapter, old: &Matrix) -> Option<RowOverlap> {
    let sketch = adapter.training.pairs_sketch.as_ref()?;
    (old.columns() == adapter.old.dimension).then(|| sketch.overlap(old))
}

/// An overlap with the pairs as JSON.
pub fn among_pairs_value(overlap: &RowOverlap) -> Value {
    json!({ "rows": overlap.among_pairs(), "of": overlap.rows(), "exact": overlap.is_exact() })
}

/// An overlap with the pairs in words, without a full stop.
pub fn among_pairs_text(overlap: &RowOverlap) -> String {
    let about = if overlap.is_exact() { "" } else { "about " };
    format!(
        "{about}{} of {} old vectors are among the pairs that the adapter was fitted on",
        overlap.among_pairs(),
        overlap.rows()
    )
}

/// Says a finding on stderr.
pub fn say_finding(finding: &Finding) {
    let word = match finding.severity {
        Severity::Note => "Note",
        Severity::Warning => "Warning",
        Severity::Problem => "Problem",
    };
    say(&format!("{word}: {finding}"));
}

/// Findings as JSON, each also as one `message`.
pub fn findings_value(findings: &[Finding]) -> Value {
    let value = |finding: &Finding| {
        let mut value = json!(finding);
        value["message"] = json!(finding.to_string());
        value
    };
    findings.iter().map(value).collect()
}

/// Whether an adapter carries old vectors to their new ones, looked at on some of the rows. Doing nothing is not looked
/// at: it has no direction, and promises nothing.
pub fn adapter_findings(
    adapter: &Adapter,
    old: &Matrix,
    new: &Matrix,
    side: Option<&Matrix>,
) -> Result<Vec<Finding>> {
    if adapter.training.method == "do-nothing" {
        return Ok(Vec::new());
    }
    let step = old.rows().div_ceil(ITEMS_MAX).max(1);
    let rows: Vec<usize> = (0..old.rows().min(new.rows())).step_by(step).collect();
    let side = side.filter(|_| adapter.side_dimension().is_some()).map(|side| side.select(&rows));
    let old = Vectors::new(adapter.old.clone(), old.select(&rows), "old vectors")?;
    let new = Vectors::new(adapter.new.clone(), new.select(&rows), "new vectors")?;
    let pairs = Pairs::new(old, new, None, side)?;
    guards::map_direction(&adapter.map, &adapter.geometry, &pairs)
}
