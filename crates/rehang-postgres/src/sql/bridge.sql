
CREATE OR REPLACE FUNCTION rehang.bridged(gallery int, fingerprint text, old_query VECTOR, new_query VECTOR) RETURNS VECTOR LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    b rehang.bridge;
    old_length float8 := coalesce(PGVECTOR.vector_norm(old_query), 0);
    new_length float8 := PGVECTOR.vector_norm(new_query);
    turned float8[];
    mixed float8[];
    length float8;
BEGIN
    SELECT * INTO b FROM rehang.bridge AS one WHERE one.gallery = bridged.gallery AND one.fingerprint = bridged.fingerprint;
    turned := rehang.mapped(gallery, fingerprint, 1, b.scales, new_query);
    -- A query without a direction is turned into none.
    length := CASE WHEN new_length > 0 THEN (SELECT sqrt(sum(g.value ^ 2)) FROM unnest(turned) AS g(value)) ELSE 0 END;
    turned := ARRAY(SELECT coalesce(g.value / nullif(length, 0), 0) FROM unnest(turned) WITH ORDINALITY AS g(value, at) ORDER BY g.at);
    mixed := ARRAY(SELECT (1 - b.share) * coalesce(m.own / nullif(old_length, 0), 0) + b.share * m.turned
        FROM unnest(old_query::real[], turned) WITH ORDINALITY AS m(own, turned, at) ORDER BY m.at);
    length := (SELECT sqrt(sum(m.value ^ 2)) FROM unnest(mixed) AS m(value));
    -- What is left of two that cancel is rounding, and no direction.
    IF length > EPSILON THEN
        length := CASE WHEN old_length > 0 THEN old_length ELSE b.length END / length;
        turned := ARRAY(SELECT m.value * length FROM unnest(mixed) WITH ORDINALITY AS m(value, at) ORDER BY m.at);
    ELSIF old_length > 0 THEN
        RETURN old_query;
    END IF;
    RETURN rehang.rounded(turned)::VECTOR;
END
$rehang$;
