    IF TG_WHEN = 'BEFORE' THEN
        IF said IS NULL AND was AND meets THEN
            DELETE FROM rehang.moving_{g} AS m WHERE {of_old};
            INSERT INTO rehang.moving_{g} (xact, {old_names}, {new_names}, id, source, vector)
                VALUES (pg_catalog.pg_current_xact_id(), {old_key}, {new_key}, new_id, old_source, old_vector);
        END IF;
        RETURN NEW;
    END IF;
