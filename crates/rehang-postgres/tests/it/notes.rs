//! Options for the table `notes`, which most tests make a gallery of.

use rehang_postgres::TableOptions;

/// Returns the options with its texts and old vectors.
pub(crate) fn options() -> TableOptions {
    TableOptions {
        table: "notes".into(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    }
}

/// Returns the options with its texts, old vectors and labels.
pub(crate) fn labelled() -> TableOptions {
    TableOptions { label: Some("topic".into()), ..options() }
}
