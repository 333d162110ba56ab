    -- The library says which item it is writing with all its vectors. An application that says so leaves its own row for a run.
    IF new_vector IS NOT NULL AND NOT stale AND NOT (is_update AND {same_vector})
        AND pg_catalog.current_setting('{written}', true) IS DISTINCT FROM pg_catalog.concat({g}, ' ', new_id) THEN
        BEGIN
            SELECT a.space, a.value, a.sigma2 INTO made_in, made, made_sigma2 FROM rehang.adapted({g}, new_vector) AS a;
        EXCEPTION WHEN OTHERS THEN
            made_in := NULL;
        END;
    END IF;
