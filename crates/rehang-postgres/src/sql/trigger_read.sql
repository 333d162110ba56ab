        BEGIN
            IF NOT called THEN
                RAISE EXCEPTION USING ERRCODE = 'undefined_column';
            END IF;
{by_name}        EXCEPTION WHEN OTHERS THEN
            -- No value of the row goes into what is told: roles may read that which do not see the row.
            GET STACKED DIAGNOSTICS said = MESSAGE_TEXT;
            said := pg_catalog.concat(SQLSTATE, CASE WHEN SQLSTATE LIKE '42%' THEN pg_catalog.concat(' ', said) END);
            -- Out of a dump the columns have other numbers.
            names := (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(CASE WHEN {this_table} <> {oid} THEN a.attname::text
                    ELSE coalesce({names}::pg_catalog.jsonb ->> {number}::text, pg_catalog.concat('new ', a.attname)) END), ', ' ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped);
            BEGIN
                {in_full}
                said := NULL;
            EXCEPTION WHEN OTHERS THEN
                BEGIN
                    {without_source}
                EXCEPTION WHEN OTHERS THEN
                    {key_alone}
                END;
            END;
        END;
