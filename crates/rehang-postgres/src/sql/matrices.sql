
CREATE OR REPLACE FUNCTION rehang.mapped(gallery int, fingerprint text, layers int, scales boolean, given VECTOR) RETURNS float8[] LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    length float8 := CASE WHEN scales THEN nullif(PGVECTOR.vector_norm(given), 0) END;
    made float8[];
BEGIN
    FOR one IN 0 .. layers - 1 LOOP
        IF one > 0 THEN
            given := rehang.rounded(made)::VECTOR;
            length := NULL;
        END IF;
        made := ARRAY(SELECT (w.weight OPERATOR(PGVECTOR.<#>) given) / -coalesce(length, 1) + w.bias
            FROM rehang.matrix_row AS w WHERE w.gallery = mapped.gallery AND w.fingerprint = mapped.fingerprint AND w.layer = one ORDER BY w.at);
    END LOOP;
    RETURN made;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.expanded(gallery int, fingerprint text, layers int, scales boolean, gamma float8, given VECTOR) RETURNS float8[] LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    kernels VECTOR;
    made float8[];
BEGIN
    IF scales THEN
        given := PGVECTOR.l2_normalize(given);
    END IF;
    FOR one IN 0 .. layers / 2 - 1 LOOP
        -- Below, a kernel is nothing in single precision, and the server refuses to compute it.
        kernels := ARRAY(SELECT exp(greatest(-gamma * (w.weight OPERATOR(PGVECTOR.<->) given) ^ 2, -80)) - w.bias
            FROM rehang.matrix_row AS w WHERE w.gallery = expanded.gallery AND w.fingerprint = expanded.fingerprint AND w.layer = 2 * one ORDER BY w.at)::VECTOR;
        made := ARRAY(SELECT coalesce(made[w.at], 0) + w.bias - (w.weight OPERATOR(PGVECTOR.<#>) kernels)
            FROM rehang.matrix_row AS w WHERE w.gallery = expanded.gallery AND w.fingerprint = expanded.fingerprint AND w.layer = 2 * one + 1 ORDER BY w.at);
    END LOOP;
    RETURN made;
END
$rehang$;

CREATE OR REPLACE FUNCTION rehang.rounded(numbers float8[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS $rehang$
BEGIN
    RETURN ARRAY(SELECT CASE WHEN abs(n.value) < 1e-37 THEN 0 ELSE n.value END::real FROM unnest(numbers) WITH ORDINALITY AS n(value, at) ORDER BY n.at);
END
$rehang$;
