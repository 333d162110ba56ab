
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
        OPERATOR_OF_DISTANCE, query) || coalesce('::' || NAMED_PGVECTOR || '.' || half, '');
    measured := MEASURED_BY_DISTANCE;
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
    OUT bridge text, OUT share float8, OUT fusion jsonb, OUT needs_both boolean, OUT old_handicap float8) LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    upgrade jsonb;
BEGIN
    SELECT g.number, s.name, s.dimension, d.text::jsonb INTO way.number, way.serving, way.width, upgrade
        FROM rehang.gallery AS g LEFT JOIN rehang.space AS s ON s.gallery = g.number AND s.name = g.serving
        LEFT JOIN rehang.document AS d ON d.gallery = g.number AND d.name = 'upgrade' WHERE g.relation = way.gallery;
    IF upgrade #>> '{old,model}' = way.serving THEN
        SELECT b.fingerprint, b.share, b.model, b.width INTO way.bridge, way.share, way.other, way.other_width
            FROM rehang.bridge AS b WHERE b.gallery = way.number AND b.fingerprint = upgrade #>> '{bridge,fingerprint}';
    ELSIF upgrade #>> '{new,model}' = way.serving AND upgrade ->> 'phase' <> 'finished' AND upgrade ->> 'serving' <> 'mixed'
        AND jsonb_typeof(upgrade -> 'fusion') = 'object' THEN
        SELECT s.name, s.dimension INTO way.other, way.other_width
            FROM rehang.space AS s WHERE s.gallery = way.number AND s.name = upgrade #>> '{old,model}';
        way.fusion := upgrade -> 'fusion';
        way.needs_both := upgrade ->> 'serving' = 'fused';
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
    IF query IS NULL AND NOT is_bridged OR other IS NULL AND way.needs_both THEN
        RAISE EXCEPTION 'rehang: a search of % as it serves now takes a query by the model "%", which is not given: embed the query with each model of rehang.models(%)',
            search.gallery, CASE WHEN query IS NULL THEN way.serving ELSE way.other END, quote_literal(search.gallery);
    END IF;
    IF NOT is_bridged AND (way.fusion IS NULL OR other IS NULL) THEN
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
    IF HAS_NO_DIRECTION THEN
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
