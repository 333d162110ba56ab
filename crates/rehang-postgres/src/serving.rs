//! Functions that an application calls from its own SQL: `rehang.serving`, `rehang.models`, `rehang.search`
//! and `rehang.write`, and the view of what serves.
//!
//! They follow a switch and a rollback by themselves. They read the handicap of adapted vectors from the
//! document `upgrade`, which the upgrade writes; without the document there is none. They apply it as
//! `rehang_upgrade::Gallery::search` does.

use rehang_core::{Distance, NORMALISED_TOLERANCE};

use crate::guard::{EQUALS, SEARCH_PATH};
use crate::handle::Handle;
use crate::nearest::{BY_LOOK_UPS, SpaceVectors, candidates, index_settings};
use crate::pgvector::Pgvector;
use crate::schema::{SpaceRow, column_type, function_comment, is_named, operator, stored_as_halfvec};
use crate::table::{literal, quoted};
use crate::{bridge, fused, map, matrices};

/// Functions that an application calls, and those that these need. They run with the rights of whoever
/// calls them, who may be the owner of the gallery. So they name what they call in full, or see the
/// names of the server alone.
const FUNCTIONS: &str = include_str!("sql/serving.sql");

/// Returns the statements that make the tables which the functions read besides those of every gallery.
pub(crate) fn tables(pgvector: &Pgvector) -> String {
    [bridge::TABLE, map::TABLE, &matrices::table(pgvector)].concat()
}

/// Rows of an index that a walk meets at most, unless somebody has set `hnsw.max_scan_tuples`.
const WALKED_MAX: u32 = 20_000;

/// Returns the statements that make the functions, with pgvector's type by its full name. A search reads the
/// index by the rules of [`index_settings`] and [`candidates`], as the library's own does. Settings of a
/// function are set back when it ends.
///
/// `rehang.nearest` gives the `k` nearest vectors of a space among some more, in no order, with a handicap
/// added to the distance of adapted ones. It is one walk through the index, nearest first. The walk ends
/// where `k` of what it met are nearer with their handicap than everything that is still to come is without:
/// mostly soon. Where it does not end within the first candidates, vectors that are not adapted may be
/// brought to the front from far off. If these are few, as at the beginning of a backfill, they are compared
/// one by one. Adapted vectors need nothing of the kind, as the handicap puts them back. The function takes
/// texts of SQL, and runs with the rights of its caller.
pub(crate) fn functions(pgvector: &Pgvector) -> String {
    let path = format!("SET search_path = {SEARCH_PATH}");
    let set = |(name, value)| format!(" SET {name} = {value}");
    let by_look_ups: String = BY_LOOK_UPS.into_iter().map(set).collect();
    let of_index = index_settings(pgvector.has_iterative_scan());
    let by_index: String = std::iter::once(("hnsw.ef_search", "100")).chain(of_index).map(set).collect();
    // A setting of pgvector is known once its library is loaded.
    let vector = pgvector.vector();
    let load = format!("DO $rehang$ BEGIN PERFORM '[1]'::{vector}; END $rehang$;");
    let functions =
        [FUNCTIONS, matrices::FUNCTIONS, bridge::FUNCTIONS, map::FUNCTIONS, fused::FUNCTIONS].concat();
    let functions = with_distances(&fused::with_numbers(functions))
        .replace(" VECTOR", &format!(" {vector}"))
        .replace("::VECTOR", &format!("::{vector}"))
        .replace("NAMED_PGVECTOR", &literal(&pgvector.schema))
        .replace("PGVECTOR", &pgvector.schema)
        .replace("HANDICAP", &handicap("s.name", "g.number"))
        .replace("CANDIDATES", &candidates("k"))
        .replace("WALKED_MAX", &WALKED_MAX.to_string())
        .replace("EPSILON", &f32::EPSILON.to_string())
        .replace("STORED_AS_HALFVEC", &stored_as_halfvec("s.dimension"))
        .replace("NORMALISED_TOLERANCE", &NORMALISED_TOLERANCE.to_string())
        .replace("ROWS 100 AS $rehang$", &format!("ROWS 100 {path}{by_index} AS $rehang$"))
        .replace("STABLE AS $rehang$\nDECLARE", &format!("STABLE {path}{by_look_ups} AS $rehang$\nDECLARE"))
        .replace("IMMUTABLE AS $rehang$", &format!("IMMUTABLE {path} AS $rehang$"))
        .replace(
            "RETURNS boolean LANGUAGE plpgsql AS",
            &format!("RETURNS boolean LANGUAGE plpgsql {path} AS"),
        );
    let (one_query, by_models) = (
        &*format!("search(regclass, {vector}, int)"),
        &*format!("search(regclass, text[], {vector}[], int)"),
    );
    let comments = [
        (
            "serving",
            "the name of the model that a query of a table, where it is one alone, is embedded by now",
        ),
        ("models", "the names of the models that a query of a table is embedded by now"),
        (
            "way",
            "where searches of a table go, and what they need: what rehang.models and rehang.search read",
        ),
        ("place", "how SQL reaches the vectors of a space, and orders and measures them by a query"),
        ("nearest", "what rehang.search and the library look the nearest vectors of a space up by"),
        (one_query, "the nearest items of a table to a query that was embedded by rehang.serving(table)"),
        (
            by_models,
            "the nearest items of a table to a query that was embedded by each of rehang.models(table)",
        ),
        ("bridged", "the query for the old space, of one by each model, over the bridge that is in use"),
        ("mapped", "what the layers of a fingerprint make of a vector"),
        ("expanded", "what the kernels of a fingerprint make of a vector"),
        ("rounded", "numbers in single precision"),
        ("adapted", "what the map of an upgrade makes of an old vector: what the triggers call"),
        ("fused", "the nearest items by both models, native ones by the new one alone"),
        ("fuse", "the distance of an item that both models have seen"),
        ("along", "what increasing numbers are mapped onto, linear between them"),
        (
            "write",
            "gives an item, in the transaction that wrote its row, its vector by the model of a space; false where there is no such item",
        ),
    ];
    let comments = comments.map(|(name, what)| function_comment(&format!("rehang.{name}"), what)).concat();
    load + &functions + &comments
}

/// Fills in what the functions ask of the distance of a space `s`: its operator, the distance that the number
/// of that operator stands for, and whether a vector has no direction where the distance needs one.
fn with_distances(functions: &str) -> String {
    let [others @ .., last] = Distance::ALL;
    let names =
        others.map(|distance| format!("WHEN '{distance}' THEN '{}' ", operator(distance).name)).concat();
    let roots = Distance::ALL.into_iter().filter(|distance| operator(*distance).is_root);
    let squares: String =
        roots.map(|distance| format!("WHEN '{distance}' THEN format('((%s) ^ 2)', ordered) ")).collect();
    let directed = Distance::ALL.into_iter().filter(|distance| !distance.heeds_lengths());
    let zeros: Vec<String> = directed
        .map(|distance| format!("s.distance = '{distance}' AND PGVECTOR.vector_norm(value) = 0"))
        .collect();
    functions
        .replace(
            "OPERATOR_OF_DISTANCE",
            &format!("CASE s.distance {names}ELSE '{}' END", operator(last).name),
        )
        .replace("MEASURED_BY_DISTANCE", &format!("CASE s.distance {squares}ELSE ordered END"))
        .replace("HAS_NO_DIRECTION", &zeros.join(" OR "))
}

/// Returns the handicap of adapted vectors in a space of a gallery, as SQL; the space and the gallery are SQL
/// too. Every name is in full, since the view is read with the caller's names.
fn handicap(space: &str, gallery: &str) -> String {
    let field = |path: &str| format!("pg_catalog.jsonb_extract_path_text(d.text::pg_catalog.jsonb, {path})");
    format!(
        "coalesce((SELECT CASE WHEN {space} {EQUALS} {} THEN {}::pg_catalog.float8 WHEN {space} {EQUALS} {} THEN {}::pg_catalog.float8 END
        FROM rehang.document AS d WHERE d.gallery {EQUALS} {gallery} AND d.name {EQUALS} 'upgrade'), 0)",
        field("'new', 'model'"),
        field("'handicap'"),
        field("'old', 'model'"),
        field("'old_handicap'")
    )
}

/// Chooses the type of `serving_vector`, without pgvector's schema. It is `halfvec(n)` where the vectors of
/// all spaces are of that very type, so that the view gives them as they lie and a search of it reads their
/// index. Otherwise it is `vector`, which every vector can be cast to.
///
/// The type changes where a space comes or goes, which may wait for readers of the view, and never by
/// a switch or a rollback.
pub(crate) fn vector_type(handle: &Handle, spaces: &[SpaceRow]) -> String {
    let type_of = |space: &SpaceRow| match &space.in_column {
        None => column_type(space.record.space.dimension),
        Some(_) if handle.table.is_halfvec => {
            handle.table.dimension.map_or_else(|| "vector".to_owned(), |width| format!("halfvec({width})"))
        }
        Some(_) => "vector".to_owned(),
    };
    let mut types: Vec<String> = spaces.iter().map(type_of).collect();
    types.dedup();
    match &types[..] {
        [kind] if kind.starts_with("halfvec") => kind.clone(),
        _ => "vector".to_owned(),
    }
}

/// Names the columns of the view: those of the key, `serving_vector`, `provenance` and `handicap`.
pub(crate) fn view_columns(handle: &Handle) -> Vec<String> {
    let keys = handle.table.key.iter().map(|column| &column.name);
    let ours = ["serving_vector", "provenance", "handicap"].map(|name| {
        let mut name = name.to_owned();
        while handle.table.key.iter().any(|column| column.name == name) {
            name.push('_');
        }
        name
    });
    keys.cloned().chain(ours).collect()
}

/// Returns the statement that makes the view of the vectors of a space, which is the one that serves. Its
/// columns are the key, `serving_vector` of a [type](vector_type), `provenance` and the `handicap` that
/// belongs to its distances.
///
/// The view reads a function, which is written anew when another space serves. The server puts the
/// function's text into the application's query, so that vectors keep their index (except where they are
/// cast). So the text is read with the caller's names, and has its own in full. An application's transaction
/// that has read the view does not hold up a switch. Neither the view nor the function keeps a column from
/// being altered or dropped.
pub(crate) fn view(handle: &Handle, space: &SpaceRow, vector_type: &str) -> String {
    let (g, table) = (handle.number, &handle.table);
    let is_plain = vector_type == "vector";
    let kind = handle.pgvector.named(vector_type);
    let keys = table.key.iter().map(|column| column.kind.as_str());
    let kinds = keys.chain([kind.as_str(), "text", "float8"]);
    let columns: Vec<String> = view_columns(handle)
        .iter()
        .zip(kinds)
        .map(|(name, kind)| format!("{} {kind}", quoted(name)))
        .collect();
    let columns = columns.join(", ");
    let SpaceVectors { from, value, is_halfvec, .. } = SpaceVectors::for_space(handle, space, false);
    // A row of another table would be taken for an item's.
    let is_named =
        space.in_column.as_ref().map_or_else(String::new, |_| format!(" AND {}", is_named(g, table)));
    let value = if is_halfvec && is_plain { format!("{value}::{kind}") } else { value };
    // A function's column has no width. Where the reader of the function gives one, the vectors have the type
    // that their index is over.
    let (returns, read_as) = if is_plain {
        (format!("TABLE ({columns})"), String::new())
    } else {
        ("SETOF record".to_owned(), format!(" AS ours({columns})"))
    };
    format!(
        "CREATE OR REPLACE FUNCTION rehang.serving_{g}()
         RETURNS {returns} LANGUAGE sql STABLE AS $rehang$
             SELECT {}, {value}, s.provenance, CASE WHEN s.provenance {EQUALS} 'adapted' THEN {} ELSE 0 END
             FROM {from} WHERE s.provenance OPERATOR(pg_catalog.<>) 'lacking'{is_named}
         $rehang$;
         {}
         DO $rehang$ BEGIN IF to_regclass('rehang.serving_{g}') IS NULL THEN
             CREATE VIEW rehang.serving_{g} AS SELECT * FROM rehang.serving_{g}(){read_as};
             COMMENT ON VIEW rehang.serving_{g} IS {};
         END IF; END $rehang$;",
        (1..=table.key.len()).map(|at| format!("i.k{at}")).collect::<Vec<_>>().join(", "),
        handicap(&literal(&space.record.space.name), &g.to_string()),
        function_comment(
            &format!("rehang.serving_{g}()"),
            &format!("what the view of the vectors of {} reads", table.options.table)
        ),
        literal(&format!("rehang: the vectors of {} that searches go to", table.options.table))
    )
}

/// Returns the statement that removes the view.
pub(crate) fn drop_view(g: i32) -> String {
    format!("DROP VIEW IF EXISTS rehang.serving_{g}; DROP FUNCTION IF EXISTS rehang.serving_{g}();")
}
