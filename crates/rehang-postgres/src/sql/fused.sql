
CREATE OR REPLACE FUNCTION rehang.along(knots float8[], onto float8[], value float8) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS $rehang$
DECLARE
    last int := cardinality(knots);
    one int := width_bucket(value, knots);
    other int := one + 1;
BEGIN
    IF one = 0 THEN
        one := 1;
        other := least(last, 1 + FUSED_END);
    ELSIF one = last THEN
        other := greatest(1, last - FUSED_END);
    END IF;
    RETURN onto[one] + (value - knots[one]) * (onto[other] - onto[one]) / (knots[other] - knots[one]);
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.fuse(weight float8, handicap float8, spreads float8[], old_knots float8[], adapted_knots float8[], both_knots float8[],
    old float8, adapted float8) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS $rehang$
DECLARE
    by_new float8 := coalesce(adapted, rehang.along(old_knots, adapted_knots, old));
BEGIN
    -- Where the old vector is gone: adapted distances are the scale of fused ones.
    RETURN handicap + CASE WHEN old IS NULL THEN adapted
        ELSE rehang.along(both_knots, adapted_knots, (1 - weight) * old / spreads[1] + weight * by_new / spreads[2]) END;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.fused(gallery int, fusion jsonb, old_space text, new_space text, old_handicap float8, old_query VECTOR, new_query VECTOR,
    k int) RETURNS TABLE (item bigint, distance float8, provenance text) LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    old_number int := (SELECT s.number FROM rehang.space AS s WHERE s.gallery = fused.gallery AND s.name = old_space);
    new_number int := (SELECT s.number FROM rehang.space AS s WHERE s.gallery = fused.gallery AND s.name = new_space);
    by_old record;
    by_new record;
    depth bigint := greatest(FUSED_PER_HIT * k::bigint, FUSED_MIN);
    depth_max bigint := greatest(depth, FUSED_MAX);
    others text := format('SELECT s.item FROM rehang.state_%s AS s WHERE s.provenance IN (''adapted'', ''lacking'')', new_number);
    are_few boolean;
    candidates text;
    fuse text;
    judge text;
    natives bigint[];
    native_distances float8[];
    items bigint[];
    distances float8[];
    provenances text[];
    bound float8;
BEGIN
    SELECT * INTO by_old FROM rehang.place(old_number, '$1') AS one;
    SELECT * INTO by_new FROM rehang.place(new_number, '$1') AS one;
    -- As if all others were behind them: so a native one is found as fast where natives are rare.
    SELECT array_agg(n.item), array_agg(n.distance) INTO natives, native_distances
        FROM (SELECT near.item, near.distance FROM rehang.nearest(by_new.vectors, format('rehang.state_%s', new_number), by_new.measured, by_new.ordered,
            new_query, k, 'Infinity', NULL) AS near WHERE near.provenance = 'native' ORDER BY near.distance, near.item LIMIT k) AS n;
    fuse := format('rehang.fuse(%L, %L, %L, %L, %L, %L, ', (fusion ->> 'weight')::float8, (fusion ->> 'handicap')::real::float8,
        NUMBERS(spreads), NUMBERS(old), NUMBERS(adapted), NUMBERS(both));
    EXECUTE format('SELECT count(*) <= $1 FROM (%s LIMIT $1 + 1) AS few', others) INTO are_few USING 4 * depth;
    IF are_few THEN
        candidates := format('found AS MATERIALIZED (%s), ends AS (SELECT NULL::float8 AS old, NULL::float8 AS adapted)', others);
    ELSE
        -- What is in no list is in the old space all the same, and so no nearer there than its last. A list that is not full names all that there are.
        candidates := format($candidates$
            by_old AS MATERIALIZED (
                SELECT near.item, near.distance FROM rehang.nearest(%L, %L, %L, %L, $1, $4, $5, NULL) AS near
                ORDER BY near.distance, near.item LIMIT $4),
            by_new AS MATERIALIZED (
                SELECT near.item, near.distance FROM rehang.nearest(%L, %L, %L, %L, $2, $4, 0, 's.provenance = ''adapted''') AS near
                ORDER BY near.distance, near.item LIMIT $4),
            found AS MATERIALIZED (SELECT b.item FROM by_old AS b UNION SELECT b.item FROM by_new AS b),
            ends AS (SELECT (SELECT max(b.distance) FROM by_old AS b HAVING count(*) >= $4) AS old,
                (SELECT max(b.distance) FROM by_new AS b HAVING count(*) >= $4) AS adapted)
        $candidates$, by_old.vectors, format('rehang.state_%s', old_number), by_old.measured, by_old.ordered,
            by_new.vectors, format('rehang.state_%s', new_number), by_new.measured, by_new.ordered);
    END IF;
    judge := format($judge$
        WITH %1$s,
            judged AS MATERIALIZED (
                SELECT f.item, %2$s o.away, n.away) AS distance, coalesce(n.provenance, 'old') AS provenance FROM found AS f
                LEFT JOIN LATERAL (SELECT coalesce(nullif(%3$s, 'NaN'), $6) + CASE s.provenance WHEN 'adapted' THEN $5 ELSE 0 END AS away
                    FROM %4$s WHERE s.item = f.item AND s.provenance <> 'lacking') AS o ON true
                LEFT JOIN LATERAL (SELECT coalesce(nullif(%5$s, 'NaN'), $7) AS away, s.provenance
                    FROM %6$s WHERE s.item = f.item AND s.provenance <> 'lacking') AS n ON true
                WHERE n.provenance IS DISTINCT FROM 'native'),
            best AS MATERIALIZED (
                SELECT * FROM (SELECT * FROM judged AS j WHERE j.distance IS NOT NULL
                    UNION ALL SELECT n.item, n.distance, 'native' FROM unnest($8, $9) AS n(item, distance)) AS j
                ORDER BY j.distance, j.item LIMIT $3)
        SELECT array_agg(b.item ORDER BY b.distance, b.item), array_agg(b.distance ORDER BY b.distance, b.item),
            array_agg(b.provenance ORDER BY b.distance, b.item),
            (SELECT CASE WHEN e.old IS NOT NULL THEN least(%2$s e.old, NULL), CASE WHEN e.adapted IS NOT NULL THEN %2$s e.old, e.adapted) END) END FROM ends AS e)
        FROM best AS b
    $judge$, candidates, fuse, by_old.measured, by_old.vectors, (SELECT one.measured FROM rehang.place(new_number, '$2') AS one), by_new.vectors);
    LOOP
        EXECUTE judge INTO items, distances, provenances, bound USING old_query, new_query, k, least(depth, 2147483647)::int, old_handicap,
            CASE WHEN PGVECTOR.vector_norm(old_query) = 0 THEN 1::float8 END, CASE WHEN PGVECTOR.vector_norm(new_query) = 0 THEN 1::float8 END,
            natives, native_distances;
        EXIT WHEN bound IS NULL OR distances[k] <= bound OR depth >= depth_max;
        depth := FUSED_FURTHER * depth;
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(items, distances, provenances);
END
$rehang$;
