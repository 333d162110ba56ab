//! What an application calls from its own SQL: `rehang.serving`, `rehang.search` and `rehang.write`, and the view of what serves.
//!
//! They follow a switch and a rollback by themselves. The handicap of adapted vectors is read from the document `upgrade`, which the
//! upgrade writes; without one there is none. It is applied as `rehang_upgrade::Gallery::search` applies it.

use rehang::NORMALISED_TOLERANCE;

use crate::handle::Handle;
use crate::nearest::{SpaceVectors, candidates, index_settings};
use crate::schema::{SpaceRow, stored_as_halfvec};
use crate::table::{literal, quoted};

/// The functions. They run with the rights of whoever calls them.
pub(crate) const FUNCTIONS: &str = r#"
CREATE OR REPLACE FUNCTION rehang.serving(gallery regclass) RETURNS text LANGUAGE sql STABLE AS $rehang$
    SELECT g.serving FROM rehang.gallery AS g WHERE g.relation = $1;
$rehang$;
COMMENT ON FUNCTION rehang.serving IS 'rehang: the name of the model that queries of a table are embedded by now';

CREATE OR REPLACE FUNCTION rehang.search(gallery regclass, query VECTOR, k int DEFAULT 10)
RETURNS TABLE (id text, distance real, provenance text) LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    g rehang.gallery;
    s rehang.space;
    handicap float8;
    vectors text;
    ordered text;
    measured text;
    half text;
    near text;
BEGIN
    SELECT * INTO g FROM rehang.gallery AS one WHERE one.relation = search.gallery;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rehang: table % is no gallery', search.gallery;
    END IF;
    SELECT * INTO s FROM rehang.space AS one WHERE one.gallery = g.number AND one.name = g.serving;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rehang: the gallery % has no space that serves', search.gallery;
    END IF;
    IF vector_dims(query) <> s.dimension THEN
        RAISE EXCEPTION 'rehang: the query has % coordinates, and the model "%" serves, whose vectors have %: embed the query with that model',
            vector_dims(query), s.name, s.dimension;
    END IF;
    handicap := HANDICAP;
    PERFORM set_config('hnsw.ef_search', CANDIDATES, true);
    IF s.in_column IS NULL THEN
        vectors := format('rehang.vector_%s AS v JOIN rehang.state_%s AS s ON s.item = v.item JOIN rehang.item_%s AS i ON i.key = v.item',
            s.number, s.number, g.number);
        ordered := 'v.value';
        half := CASE WHEN STORED_AS_HALFVEC THEN '::halfvec' ELSE '' END;
    ELSE
        vectors := format('%s AS t JOIN rehang.item_%s AS i ON %s JOIN rehang.state_%s AS s ON s.item = i.key',
            g.relation::regclass, g.number, g.joined, s.number);
        ordered := format('t.%I', s.in_column);
        half := CASE WHEN (SELECT format_type(a.atttypid, NULL) LIKE '%halfvec' FROM pg_attribute AS a
            WHERE a.attrelid = g.relation AND a.attname = s.in_column) THEN '::halfvec' ELSE '' END;
    END IF;
    ordered := format('%s %s $1%s', ordered, CASE s.distance WHEN 'l2' THEN '<->' WHEN 'cosine' THEN '<=>' ELSE '<#>' END, half);
    measured := CASE s.distance WHEN 'l2' THEN format('((%s) ^ 2)', ordered) ELSE format('coalesce(nullif((%s), ''NaN''), 1)', ordered) END;
    IF handicap = 0 THEN
        near := format('SELECT i.id, i.key, %1$s AS distance, s.provenance FROM %2$s WHERE s.provenance <> ''lacking'' ORDER BY %3$s LIMIT $2',
            measured, vectors, ordered);
    ELSE
        -- The nearest adapted ones and the nearest others: the handicap may bring any of either to the front.
        near := format(
            '(SELECT i.id, i.key, %1$s AS distance, s.provenance FROM %2$s WHERE s.provenance IN (''old'', ''native'') ORDER BY %3$s LIMIT $2)
            UNION ALL
            (SELECT i.id, i.key, %1$s + $3 AS distance, s.provenance FROM %2$s WHERE s.provenance = ''adapted'' ORDER BY %3$s LIMIT $2)',
            measured, vectors, ordered);
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT near.id, near.distance::real, near.provenance FROM (%s) AS near ORDER BY near.distance, near.key LIMIT $2', near)
        USING query, k, handicap;
END
$rehang$;
COMMENT ON FUNCTION rehang.search IS 'rehang: the nearest items of a table to a query that was embedded by rehang.serving(table)';

CREATE OR REPLACE FUNCTION rehang.write(gallery regclass, id text, value VECTOR, space text) RETURNS boolean LANGUAGE plpgsql AS $rehang$
DECLARE
    g rehang.gallery;
    s rehang.space;
    this bigint;
    half text;
BEGIN
    SELECT * INTO g FROM rehang.gallery AS one WHERE one.relation = write.gallery;
    SELECT * INTO s FROM rehang.space AS one WHERE one.gallery = g.number AND one.name = write.space AND one.listed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rehang: the gallery % has no space "%"', write.gallery, write.space;
    END IF;
    IF s.in_column IS NOT NULL THEN
        RAISE EXCEPTION 'rehang: the vectors of "%" are the column "%" of the table: write that', s.name, s.in_column;
    END IF;
    IF vector_dims(value) <> s.dimension THEN
        RAISE EXCEPTION 'rehang: the vector has % coordinates, and those of "%" have %', vector_dims(value), s.name, s.dimension;
    END IF;
    IF s.normalised AND abs(vector_norm(value) - 1) > NORMALISED_TOLERANCE THEN
        RAISE EXCEPTION 'rehang: the vector has length %, and those of "%" have length 1', vector_norm(value), s.name;
    END IF;
    half := CASE WHEN STORED_AS_HALFVEC THEN '::halfvec' ELSE '' END;
    EXECUTE format('UPDATE rehang.state_%1$s AS s SET provenance = $1, sigma2 = NULL, band = 0, score = NULL, squared_error = NULL, failed = false,
            change = nextval(''rehang.revision'') FROM rehang.item_%2$s AS i WHERE i.id = $2 AND s.item = i.key RETURNING s.item', s.number, g.number)
        INTO this USING s.written_as, write.id;
    IF this IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('INSERT INTO rehang.vector_%1$s (item, value) VALUES ($1, $2%2$s) ON CONFLICT (item) DO UPDATE SET value = EXCLUDED.value', s.number, half)
        USING this, value;
    EXECUTE format('DELETE FROM rehang.failure_%s WHERE item = $1', s.number) USING this;
    EXECUTE format('DELETE FROM rehang.claim_%s WHERE item = $1', s.number) USING this;
    RETURN true;
END
$rehang$;
COMMENT ON FUNCTION rehang.write IS 'rehang: gives an item, in the transaction that wrote its row, its vector by the model of a space; false where there is no such item';
"#;

/// The functions, with pgvector's type by its full name. A search reads the index by the rules of [`index_settings`] and [`candidates`], as
/// the library's own does; what the function sets is set back when it ends.
pub(crate) fn functions(schema: &str, has_iterative_scan: bool) -> String {
    let path = format!("SET search_path = pg_catalog, {schema}, pg_temp");
    let by_index: String = std::iter::once(("hnsw.ef_search", "100"))
        .chain(index_settings(has_iterative_scan))
        .map(|(name, value)| format!(" SET {name} = {value}"))
        .collect();
    // A setting of pgvector is known once its library is loaded.
    let load = format!("DO $rehang$ BEGIN PERFORM '[1]'::{schema}.vector; END $rehang$;");
    let functions = FUNCTIONS
        .replace("query VECTOR", &format!("query {schema}.vector"))
        .replace("value VECTOR", &format!("value {schema}.vector"))
        .replace("HANDICAP", &handicap("s.name", "g.number"))
        .replace("CANDIDATES", &candidates("k"))
        .replace("STORED_AS_HALFVEC", &stored_as_halfvec("s.dimension"))
        .replace("NORMALISED_TOLERANCE", &NORMALISED_TOLERANCE.to_string())
        .replace("STABLE AS $rehang$\nDECLARE", &format!("STABLE {path}{by_index} AS $rehang$\nDECLARE"))
        .replace(
            "RETURNS boolean LANGUAGE plpgsql AS",
            &format!("RETURNS boolean LANGUAGE plpgsql {path} AS"),
        );
    load + &functions
}

/// The handicap of adapted vectors in a space of a gallery, both as SQL.
fn handicap(space: &str, gallery: &str) -> String {
    format!(
        "coalesce((SELECT CASE {space} WHEN d.text::jsonb #>> '{{new,model}}' THEN (d.text::jsonb ->> 'handicap')::float8
            WHEN d.text::jsonb #>> '{{old,model}}' THEN (d.text::jsonb ->> 'old_handicap')::float8 END
        FROM rehang.document AS d WHERE d.gallery = {gallery} AND d.name = 'upgrade'), 0)"
    )
}

/// The view of the vectors of a space, which is the one that serves: the key, `serving_vector`, `provenance` and the `handicap` that
/// belongs to its distances.
///
/// It reads a function, which is written anew when another space serves. The server puts the function's text into the application's
/// query, so that vectors keep their index (but those of type `halfvec`, which are cast). An application's transaction that has read
/// the view does not hold up a switch, and neither the view nor the function keeps a column from being altered or dropped.
pub(crate) fn view(handle: &Handle, space: &SpaceRow) -> String {
    let (g, table, vector) = (handle.number, &handle.table, &handle.vector_type);
    let ours = ["serving_vector", "provenance", "handicap"].map(|name| {
        let mut name = name.to_owned();
        while table.key.iter().any(|column| column.name == name) {
            name.push('_');
        }
        quoted(&name)
    });
    let keys: String =
        table.key.iter().map(|column| format!("{} {}, ", quoted(&column.name), column.kind)).collect();
    let SpaceVectors { from, value, kind, .. } = SpaceVectors::of(handle, space, false);
    let value = if kind == "halfvec" { format!("{value}::{vector}") } else { value };
    format!(
        "CREATE OR REPLACE FUNCTION rehang.serving_{g}()
         RETURNS TABLE ({keys}{} {vector}, {} text, {} float8) LANGUAGE sql STABLE AS $rehang$
             SELECT {}, {value}, s.provenance, CASE WHEN s.provenance = 'adapted' THEN {} ELSE 0 END
             FROM {from} WHERE s.provenance <> 'lacking'
         $rehang$;
         DO $rehang$ BEGIN IF to_regclass('rehang.serving_{g}') IS NULL THEN
             CREATE VIEW rehang.serving_{g} AS SELECT * FROM rehang.serving_{g}();
             COMMENT ON VIEW rehang.serving_{g} IS {};
         END IF; END $rehang$;",
        ours[0],
        ours[1],
        ours[2],
        (1..=table.key.len()).map(|at| format!("i.k{at}")).collect::<Vec<_>>().join(", "),
        handicap(&literal(&space.record.space.name), &g.to_string()),
        literal(&format!("rehang: the vectors of {} that searches go to", table.options.table))
    )
}

/// Takes the view away.
pub(crate) fn drop_view(g: i32) -> String {
    format!("DROP VIEW IF EXISTS rehang.serving_{g}; DROP FUNCTION IF EXISTS rehang.serving_{g}();")
}
