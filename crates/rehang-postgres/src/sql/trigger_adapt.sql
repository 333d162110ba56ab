    IF new_vector IS NOT NULL AND NOT stale AND NOT (is_update AND {same_vector}) THEN
        BEGIN
            SELECT a.space, a.value, a.sigma2 INTO made_in, made, made_sigma2 FROM rehang.adapted({g}, new_vector) AS a;
        EXCEPTION WHEN OTHERS THEN
            made_in := NULL;
        END;
    END IF;
