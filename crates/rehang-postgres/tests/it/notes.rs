//! The table that most tests make a gallery of.

use rehang_postgres::TableOptions;

/// Its texts and old vectors.
pub(crate) fn options() -> TableOptions {
    TableOptions {
        table: "notes".into(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    }
}

/// The same, with labels.
pub(crate) fn labelled() -> TableOptions {
    TableOptions { label: Some("topic".into()), ..options() }
}
