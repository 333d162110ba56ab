
CREATE OR REPLACE FUNCTION rehang.adapted(gallery int, given real[], OUT space int, OUT value real[], OUT sigma2 real) LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    m rehang.map;
    dimension int;
    made float8[];
    made_length float8;
    wanted float8;
    below int;
    up_to int;
BEGIN
    SELECT one.* INTO m FROM rehang.map AS one WHERE one.gallery = adapted.gallery AND one.width = cardinality(given);
    SELECT s.dimension INTO dimension FROM rehang.space AS s WHERE s.number = m.space AND s.epoch = m.epoch;
    IF dimension IS NULL OR m.from_direction AND PGVECTOR.vector_norm(given::VECTOR) = 0 THEN
        RETURN;
    END IF;
    made := CASE WHEN m.gamma IS NULL THEN rehang.mapped(gallery, m.fingerprint, m.layers, m.scales, given::VECTOR)
        ELSE rehang.expanded(gallery, m.fingerprint, m.layers, m.scales, m.gamma, given::VECTOR) END;
    made_length := (SELECT sqrt(sum(n.value ^ 2)) FROM unnest(made) AS n(value));
    IF cardinality(made) <> dimension OR made_length = 0 THEN
        RETURN;
    END IF;
    wanted := CASE WHEN m.has_length_one THEN 1 ELSE made_length END;
    IF m.raw_lengths IS NOT NULL THEN
        SELECT count(*) FILTER (WHERE r.length < made_length::real), count(*) INTO below, up_to
            FROM unnest(m.raw_lengths) AS r(length) WHERE r.length <= made_length::real;
        wanted := CASE WHEN below < up_to THEN (m.lengths[below + 1]::float8 + m.lengths[up_to]) / 2
            WHEN below = 0 OR below = cardinality(m.lengths) THEN m.lengths[greatest(below, 1)]
            ELSE m.lengths[below] + (made_length::real - m.raw_lengths[below]::float8) / (m.raw_lengths[below + 1]::float8 - m.raw_lengths[below])
                * (m.lengths[below + 1]::float8 - m.lengths[below]) END;
    END IF;
    -- The largest number of half precision, in which wide vectors are kept.
    IF (SELECT bool_and(abs(n.value) * wanted < 65504 * made_length) FROM unnest(made) AS n(value)) AND wanted > 0 THEN
        space := m.space;
        value := rehang.rounded(ARRAY(SELECT n.value * (wanted / made_length) FROM unnest(made) WITH ORDINALITY AS n(value, at) ORDER BY n.at));
        sigma2 := m.sigma2;
    END IF;
END
$rehang$;
