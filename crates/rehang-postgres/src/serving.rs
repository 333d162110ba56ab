//! Functions that an application calls from its own SQL: `rehang.serving`, `rehang.models`, `rehang.search`
//! and `rehang.write`, and the view of what serves.
//!
//! They follow a switch and a rollback by themselves. They read the handicap of adapted vectors from the
//! document `upgrade`, which the upgrade writes; without the document there is none. They apply it as
//! `rehang_upgrade::Gallery::search` does.

use rehang_core::NORMALISED_TOLERANCE;

use crate::guard::{EQUALS, SEARCH_PATH};
use crate::handle::Handle;
use crate::nearest::{BY_LOOK_UPS, SpaceVectors, candidates, index_settings};
use crate::pgvector::Pgvector;
use crate::schema::{SpaceRow, column_type, function_comment, is_named, stored_as_halfvec};
use crate::table::{literal, quoted};
use crate::{bridge, fused, map, matrices};

/// Functions that an application calls, and those that these need. They run with the rights of whoever
/// calls them, who may be the owner of the gallery. So they name what they call in full, or see the
/// names of the server alone.
const FUNCTIONS: &str = r#"
CREATE OR REPLACE FUNCTION rehang.serving(gallery regclass) RETURNS text LANGUAGE sql STABLE AS $rehang$
    SELECT g.serving FROM rehang.gallery AS g WHERE g.relation OPERATOR(pg_catalog.=) $1;
$rehang$;

CREATE OR REPLACE FUNCTION rehang.nearest(vectors text, states text, measured text, ordered text, query VECTOR, k int, handicap float8, condition text,
    labels text[] DEFAULT NULL, fields text[] DEFAULT NULL, contents jsonb[] DEFAULT NULL)
RETURNS TABLE (item bigint, distance float8, provenance text) LANGUAGE plpgsql STABLE ROWS 100 AS $rehang$
DECLARE
    front int := CANDIDATES;
    rows_of text := format('SELECT s.item, %s, s.provenance FROM %s WHERE s.provenance <> ''lacking'' AND %s', measured, vectors, coalesce(condition, 'true'));
    others_of text := format('SELECT s.item FROM %s AS s WHERE s.provenance IN (''old'', ''native'')', states);
    -- Nothing is nearer than anything else to a query without a direction.
    is_blind boolean := PGVECTOR.vector_norm(query) = 0;
    walk refcursor;
    raw float8;
    far float8[];
    seen bigint[] := '{}';
    adapted int := 0;
    others int := 0;
    settled int := 0;
    walked int := 0;
    few bigint;
    few_max bigint;
    has_others boolean := false;
    is_over boolean;
BEGIN
    PERFORM set_config('hnsw.ef_search', front::text, true);
    IF handicap = 0 THEN
        FOR item, distance, provenance IN EXECUTE format('%s ORDER BY %s LIMIT $2', rows_of, ordered) USING query, k, labels, fields, contents LOOP
            IF distance <> 'NaN' OR is_blind THEN
                distance := coalesce(nullif(distance, 'NaN'), 1);
                RETURN NEXT;
            END IF;
        END LOOP;
        RETURN;
    END IF;
    OPEN walk FOR EXECUTE format('%s ORDER BY %s', rows_of, ordered) USING query, k, labels, fields, contents;
    LOOP
        FETCH walk INTO item, raw, provenance;
        is_over := NOT FOUND OR (raw = 'NaN' AND NOT is_blind);
        IF NOT is_over THEN
            walked := walked + 1;
            raw := coalesce(nullif(raw, 'NaN'), 1);
            IF provenance <> 'adapted' THEN
                IF NOT has_others THEN
                    others := others + 1;
                    seen[others] := item;
                    distance := raw;
                    RETURN NEXT;
                END IF;
            ELSIF adapted < k THEN
                adapted := adapted + 1;
                distance := raw + handicap;
                far[adapted] := distance;
                RETURN NEXT;
            END IF;
            -- What is still to come is no nearer than this row.
            WHILE settled < adapted AND far[settled + 1] <= raw LOOP
                settled := settled + 1;
            END LOOP;
            EXIT WHEN others + settled >= k;
        END IF;
        -- The handicap may bring what is farther off to the front. Where few are not adapted, all of them are compared: so many as cost what
        -- the walk to the k-th of them would.
        IF NOT has_others AND (is_over OR walked = front) THEN
            few_max := 4 * least(front::bigint * k / (others + 1), WALKED_MAX);
            EXECUTE format('SELECT count(*) FROM (%s LIMIT $1) AS few', others_of) INTO few USING few_max + 1;
            has_others := few <= few_max;
            IF has_others THEN
                FOR item, distance, provenance IN EXECUTE
                    format('WITH few AS MATERIALIZED (%s LIMIT $6) %s AND s.item <> ALL ($7) AND s.item IN (SELECT few.item FROM few)', others_of, rows_of)
                    USING query, k, labels, fields, contents, few_max, seen LOOP
                    IF distance <> 'NaN' OR is_blind THEN
                        distance := coalesce(nullif(distance, 'NaN'), 1);
                        RETURN NEXT;
                    END IF;
                END LOOP;
            END IF;
        END IF;
        EXIT WHEN is_over OR (has_others AND adapted >= k);
    END LOOP;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.place(space int, query text, OUT vectors text, OUT ordered text, OUT measured text) LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    g rehang.gallery;
    s rehang.space;
    half text;
    was text;
    now text;
    held text;
BEGIN
    SELECT * INTO s FROM rehang.space AS one WHERE one.number = place.space;
    SELECT * INTO g FROM rehang.gallery AS one WHERE one.number = s.gallery;
    IF s.in_column IS NULL THEN
        vectors := format('rehang.vector_%s AS v JOIN rehang.state_%s AS s ON s.item = v.item', s.number, s.number);
        ordered := 'v.value';
        half := CASE WHEN STORED_AS_HALFVEC THEN 'halfvec' END;
    ELSE
        -- Columns are found by their numbers, whatever they are called by now. Out of a dump they have other numbers, and their names.
        held := s.in_column;
        FOR was, now IN SELECT c.key, a.attname::text FROM jsonb_each_text(g.columns::jsonb -> 'columns') AS c
                LEFT JOIN pg_attribute AS a ON a.attrelid = g.relation AND a.attnum = c.value::int AND NOT a.attisdropped
                WHERE (g.columns::jsonb ->> 'relation')::oid = g.relation::oid AND a.attname IS DISTINCT FROM c.key LOOP
            IF now IS NULL AND (was = s.in_column OR strpos(g.joined, concat('t."', replace(was, '"', '""'), '"')) > 0) THEN
                RAISE EXCEPTION 'rehang: column "%" of % is gone, which searches of "%" read', was, g.relation::regclass, s.name
                    USING HINT = 'searches can be switched to another space that is filled; if there is none, release the gallery and adopt the table again';
            END IF;
            held := CASE WHEN was = s.in_column THEN now ELSE held END;
            g.joined := replace(g.joined, concat('t."', replace(was, '"', '""'), '"'), concat('t."', replace(now, '"', '""'), '"'));
        END LOOP;
        vectors := format('%s AS t JOIN rehang.item_%s AS i ON %s JOIN rehang.state_%s AS s ON s.item = i.key',
            g.relation::regclass, g.number, g.joined, s.number);
        ordered := format('t.%I', held);
        half := CASE WHEN (SELECT format_type(a.atttypid, NULL) LIKE '%halfvec' FROM pg_attribute AS a
            WHERE a.attrelid = g.relation AND a.attname = held) THEN 'halfvec' END;
    END IF;
    ordered := format('%s OPERATOR(%s.%s) %s', ordered, NAMED_PGVECTOR,
        CASE s.distance WHEN 'l2' THEN '<->' WHEN 'cosine' THEN '<=>' ELSE '<#>' END, query) || coalesce('::' || NAMED_PGVECTOR || '.' || half, '');
    measured := CASE s.distance WHEN 'l2' THEN format('((%s) ^ 2)', ordered) ELSE ordered END;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.search(gallery regclass, query VECTOR, k int DEFAULT 10)
RETURNS TABLE (id text, distance real, provenance text) LANGUAGE plpgsql STABLE ROWS 100 AS $rehang$
DECLARE
    g rehang.gallery;
    s rehang.space;
    handicap float8;
    place record;
BEGIN
    SELECT * INTO g FROM rehang.gallery AS one WHERE one.relation = search.gallery;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rehang: table % is no gallery', search.gallery;
    END IF;
    SELECT * INTO s FROM rehang.space AS one WHERE one.gallery = g.number AND one.name = g.serving;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rehang: the gallery % has no space that serves', search.gallery;
    END IF;
    IF PGVECTOR.vector_dims(query) <> s.dimension THEN
        RAISE EXCEPTION 'rehang: the query has % coordinates, and the model "%" serves, whose vectors have %: embed the query with that model',
            PGVECTOR.vector_dims(query), s.name, s.dimension;
    END IF;
    handicap := HANDICAP;
    SELECT * INTO place FROM rehang.place(s.number, '$1') AS one;
    -- The index has the order already, and one statement costs half of what two functions do.
    IF handicap = 0 THEN
        PERFORM set_config('hnsw.ef_search', CANDIDATES, true);
        RETURN QUERY EXECUTE format(
            'SELECT i.id, coalesce(nullif(best.distance, ''NaN''), 1)::real, best.provenance
             FROM (SELECT s.item, %s AS distance, s.provenance FROM %s WHERE s.provenance <> ''lacking'' ORDER BY %s LIMIT $2) AS best
             JOIN rehang.item_%s AS i ON i.key = best.item WHERE best.distance <> ''NaN'' OR $3
             ORDER BY coalesce(nullif(best.distance, ''NaN''), 1), best.item', place.measured, place.vectors, place.ordered, g.number)
            USING query, k, PGVECTOR.vector_norm(query) = 0;
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT i.id, best.distance::real, best.provenance
         FROM (SELECT * FROM rehang.nearest($1, $2, $3, $4, $5, $6, $7, NULL) AS near ORDER BY near.distance, near.item LIMIT $6) AS best
         JOIN rehang.item_%s AS i ON i.key = best.item ORDER BY best.distance, best.item', g.number)
        USING place.vectors, format('rehang.state_%s', s.number), place.measured, place.ordered, query, k, handicap;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.way(gallery regclass, OUT number int, OUT serving text, OUT width int, OUT other text, OUT other_width int,
    OUT bridge text, OUT share float8, OUT fusion jsonb, OUT old_handicap float8) LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    upgrade jsonb;
BEGIN
    SELECT g.number, s.name, s.dimension, d.text::jsonb INTO way.number, way.serving, way.width, upgrade
        FROM rehang.gallery AS g LEFT JOIN rehang.space AS s ON s.gallery = g.number AND s.name = g.serving
        LEFT JOIN rehang.document AS d ON d.gallery = g.number AND d.name = 'upgrade' WHERE g.relation = way.gallery;
    IF upgrade #>> '{old,model}' = way.serving THEN
        SELECT b.fingerprint, b.share, b.model, b.width INTO way.bridge, way.share, way.other, way.other_width
            FROM rehang.bridge AS b WHERE b.gallery = way.number AND b.fingerprint = upgrade #>> '{bridge,fingerprint}';
    ELSIF upgrade #>> '{new,model}' = way.serving AND upgrade ->> 'phase' <> 'finished' AND upgrade ->> 'serving' IN ('fused', 'merged')
        AND jsonb_typeof(upgrade -> 'fusion') = 'object' THEN
        SELECT s.name, s.dimension INTO way.other, way.other_width
            FROM rehang.space AS s WHERE s.gallery = way.number AND s.name = upgrade #>> '{old,model}';
        way.fusion := upgrade -> 'fusion';
        way.old_handicap := coalesce((upgrade ->> 'old_handicap')::float8, 0);
    END IF;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.models(gallery regclass) RETURNS text[] LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    way record;
BEGIN
    SELECT * INTO way FROM rehang.way(models.gallery) AS one;
    RETURN CASE WHEN way.share = 1 THEN ARRAY[way.other] WHEN way.share < 1 THEN ARRAY[way.serving, way.other]
        WHEN way.fusion IS NOT NULL THEN ARRAY[way.other, way.serving] WHEN way.serving IS NOT NULL THEN ARRAY[way.serving] END;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.search(gallery regclass, models text[], queries VECTOR[], k int)
RETURNS TABLE (id text, distance real, provenance text) LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    way record;
    query VECTOR;
    other VECTOR;
    is_bridged boolean;
    wrong record;
BEGIN
    SELECT * INTO way FROM rehang.way(search.gallery) AS one;
    IF way.number IS NULL THEN
        RAISE EXCEPTION 'rehang: table % is no gallery', search.gallery;
    END IF;
    IF way.serving IS NULL THEN
        RAISE EXCEPTION 'rehang: the gallery % has no space that serves', search.gallery;
    END IF;
    IF coalesce(cardinality(models), 0) <> coalesce(cardinality(queries), 0) OR array_ndims(models) > 1 OR array_ndims(queries) > 1 THEN
        RAISE EXCEPTION 'rehang: there are % models and % queries: name the model of each query, in one list each',
            coalesce(cardinality(models), 0), coalesce(cardinality(queries), 0);
    END IF;
    query := (SELECT given.query FROM unnest(models, queries) AS given(model, query) WHERE given.model = way.serving LIMIT 1);
    other := (SELECT given.query FROM unnest(models, queries) AS given(model, query) WHERE given.model = way.other LIMIT 1);
    is_bridged := way.bridge IS NOT NULL AND other IS NOT NULL AND (query IS NOT NULL OR way.share = 1);
    IF query IS NULL AND NOT is_bridged OR other IS NULL AND way.fusion IS NOT NULL THEN
        RAISE EXCEPTION 'rehang: a search of % as it serves now takes a query by the model "%", which is not given: embed the query with each model of rehang.models(%)',
            search.gallery, CASE WHEN query IS NULL THEN way.serving ELSE way.other END, quote_literal(search.gallery);
    END IF;
    IF NOT is_bridged AND way.fusion IS NULL THEN
        RETURN QUERY SELECT * FROM rehang.search(search.gallery, query, k);
        RETURN;
    END IF;
    FOR wrong IN SELECT * FROM (VALUES (way.serving, PGVECTOR.vector_dims(query), way.width), (way.other, PGVECTOR.vector_dims(other), way.other_width))
            AS asked(model, has, wanted) WHERE asked.has <> asked.wanted LIMIT 1 LOOP
        RAISE EXCEPTION 'rehang: the query by the model "%" has % coordinates, and its vectors have %: embed the query with that model',
            wrong.model, wrong.has, wrong.wanted;
    END LOOP;
    IF is_bridged THEN
        RETURN QUERY SELECT * FROM rehang.search(search.gallery, rehang.bridged(way.number, way.bridge, query, other), k);
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT i.id, best.distance::real, best.provenance FROM rehang.fused($1, $2, $3, $4, $5, $6, $7, $8) AS best
         JOIN rehang.item_%s AS i ON i.key = best.item ORDER BY best.distance, best.item', way.number)
        USING way.number, way.fusion, way.other, way.serving, way.old_handicap, other, query, k;
END
$rehang$;
CREATE OR REPLACE FUNCTION rehang.write(gallery regclass, id text, value VECTOR, space text) RETURNS boolean LANGUAGE plpgsql AS $rehang$
DECLARE
    g rehang.gallery;
    s rehang.space;
    this bigint;
    half text;
    written bigint;
BEGIN
    SELECT * INTO g FROM rehang.gallery AS one WHERE one.relation = write.gallery;
    SELECT * INTO s FROM rehang.space AS one WHERE one.gallery = g.number AND one.name = write.space AND one.listed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rehang: the gallery % has no space "%"', write.gallery, write.space;
    END IF;
    IF s.in_column IS NOT NULL THEN
        RAISE EXCEPTION 'rehang: the vectors of "%" are the column "%" of the table: write that', s.name, s.in_column;
    END IF;
    IF PGVECTOR.vector_dims(value) <> s.dimension THEN
        RAISE EXCEPTION 'rehang: the vector has % coordinates, and those of "%" have %', PGVECTOR.vector_dims(value), s.name, s.dimension;
    END IF;
    IF s.normalised AND abs(PGVECTOR.vector_norm(value) - 1) > NORMALISED_TOLERANCE THEN
        RAISE EXCEPTION 'rehang: the vector has length %, and those of "%" have length 1', PGVECTOR.vector_norm(value), s.name;
    END IF;
    IF s.distance = 'cosine' AND PGVECTOR.vector_norm(value) = 0 THEN
        RAISE EXCEPTION 'rehang: the vector has length 0, and so no direction, which the cosine distance compares';
    END IF;
    half := CASE WHEN STORED_AS_HALFVEC THEN '::' || NAMED_PGVECTOR || '.halfvec' ELSE '' END;
    EXECUTE format('UPDATE rehang.state_%1$s AS s SET provenance = $1, sigma2 = NULL, band = 0, score = NULL, squared_error = NULL, failed = false,
            change = 0 FROM rehang.item_%2$s AS i WHERE i.id = $2 AND s.item = i.key RETURNING s.item', s.number, g.number)
        INTO this USING s.written_as, write.id;
    IF this IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('INSERT INTO rehang.vector_%1$s (item, value) VALUES ($1, $2%2$s) ON CONFLICT (item) DO UPDATE SET value = EXCLUDED.value', s.number, half)
        USING this, value;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written = 0 THEN
        RAISE EXCEPTION 'rehang: a trigger on rehang.vector_% holds vectors back', s.number;
    END IF;
    EXECUTE format('DELETE FROM rehang.failure_%s WHERE item = $1', s.number) USING this;
    EXECUTE format('DELETE FROM rehang.claim_%s WHERE item = $1', s.number) USING this;
    RETURN true;
END
$rehang$;
"#;

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
    let functions = fused::with_numbers(functions)
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
        [one] if one.starts_with("halfvec") => one.clone(),
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
