    IF is_update AND NOT ({same_key}) THEN
        DELETE FROM rehang.moving_{g} AS m WHERE m.xact = pg_catalog.pg_current_xact_id() AND {old};
    ELSIF TG_OP = 'DELETE' AND was THEN
        -- A row that moves to another partition is deleted here and inserted there, by one statement, which is over: it is there already.
        SELECT m.* INTO moving FROM rehang.moving_{g} AS m WHERE m.xact = pg_catalog.pg_current_xact_id() AND {old} LIMIT 1;
        IF FOUND THEN
            IF called THEN
                BEGIN
                    EXECUTE pg_catalog.format({arrived}, whole::pg_catalog.regclass) INTO renamed USING {moving_key}, moving.source;
                EXCEPTION WHEN OTHERS THEN
                    renamed := false;
                END;
            END IF;
            IF renamed THEN
                UPDATE rehang.item_{g} AS i SET id = moving.id, {set_key} WHERE {of_old}
                    AND NOT EXISTS (SELECT 1 FROM rehang.item_{g} WHERE {of_new});
                renamed := FOUND;
            END IF;
            UPDATE rehang.moving_{g} AS m SET has_gone = true, is_kept = renamed WHERE m.xact = pg_catalog.pg_current_xact_id() AND {old};
            IF renamed THEN
                RETURN NULL;
            END IF;
        END IF;
    ELSIF TG_OP = 'INSERT' THEN
        DELETE FROM rehang.moving_{g} AS m WHERE m.xact = pg_catalog.pg_current_xact_id() AND m.has_gone AND {new} RETURNING m.* INTO moving;
        IF FOUND THEN
            -- As by an update in place: of another key, and where its source is another one too, of all content.
            is_update := true;
            was := moving.is_kept;
            old_source := moving.source;
            old_vector := moving.vector;
            IF was THEN
                old_id := new_id;
                {old_is_new}
            END IF;
        END IF;
    END IF;
