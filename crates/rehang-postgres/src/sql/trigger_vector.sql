    IF made_in = {n} THEN
        BEGIN
        {adapted}        INSERT INTO rehang.vector_{n} (item, value) SELECT this, made FROM rehang.state_{n} AS s
            WHERE s.item = this AND s.provenance = 'adapted' ON CONFLICT (item) DO UPDATE SET value = EXCLUDED.value;
        EXCEPTION WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
            RAISE;
        WHEN OTHERS THEN
            made_in := NULL;
        END;
    END IF;
    IF made_in IS DISTINCT FROM {n} THEN
        {lacking}    END IF;
    IF is_update THEN
        DELETE FROM rehang.vector_{n} AS v WHERE v.item = this
            AND NOT EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item = this AND s.provenance IN ('adapted', 'native'));
{of_source}    END IF;
