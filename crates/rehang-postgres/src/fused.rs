//! Fused searches by an application's own SQL: what `rehang_upgrade` does with two spaces of any store, as
//! functions of the server.
//!
//! `rehang.fuse` is [`rehang_core::Fusion::distance`]. `rehang.fused` reads candidates of both spaces until the
//! answer is proven exact, by the same rules and to the same depths as `Gallery::search`. A search is one
//! statement, so all that it reads is of one moment.

use rehang_core::Fusion;

/// Fills the numbers into a text of functions. `NUMBERS(name)` becomes a read of an array of the record's
/// fusion, in single precision. The library's own numbers replace their names: those at the ends of a table
/// of quantiles, and how deep candidates are read.
pub(crate) fn with_numbers(functions: String) -> String {
    let functions = ["spreads", "old", "adapted", "both"].into_iter().fold(functions, |functions, name| {
        let numbers = format!(
            "ARRAY(SELECT q.value::real::float8 FROM jsonb_array_elements_text(fusion -> '{name}') WITH ORDINALITY AS q(value, at) ORDER BY q.at)"
        );
        functions.replace(&format!("NUMBERS({name})"), &numbers)
    });
    let of_library = [
        ("FUSED_END", Fusion::END),
        ("FUSED_PER_HIT", Fusion::CANDIDATES_PER_HIT),
        ("FUSED_MIN", Fusion::CANDIDATES_MIN),
        ("FUSED_FURTHER", Fusion::FURTHER),
        ("FUSED_MAX", Fusion::CANDIDATES_MAX),
    ];
    of_library
        .into_iter()
        .fold(functions, |functions, (name, value)| functions.replace(name, &value.to_string()))
}

/// Functions of fused searches. Where few items are not native, all of these are judged and no
/// candidates are looked for.
pub(crate) const FUNCTIONS: &str = include_str!("sql/fused.sql");
