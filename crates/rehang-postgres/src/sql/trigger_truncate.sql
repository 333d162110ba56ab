        IF TG_RELID <> whole THEN
            -- One partition: the items of its rows go. There are none where the whole is truncated.
            BEGIN
                IF EXISTS (SELECT 1 FROM rehang.item_{g}) THEN
                    EXECUTE pg_catalog.format({delete_items}, TG_RELID::pg_catalog.regclass) INTO these;
{of_spaces}                END IF;
            EXCEPTION WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
                RAISE;
            WHEN OTHERS THEN
                INSERT INTO rehang.document (gallery, name, version, text)
                    SELECT {g}, pg_catalog.concat('{unread}', pg_catalog.pg_current_xact_id()), 1,
                        pg_catalog.concat(pg_catalog.now(), ': ', SQLSTATE, ' at the TRUNCATE of ', TG_RELID::pg_catalog.regclass)
                    WHERE NOT EXISTS (SELECT 1 FROM rehang.document AS there WHERE there.gallery = {g} AND pg_catalog.starts_with(there.name, '{unread}'))
                    ON CONFLICT DO NOTHING;
            END;
            RETURN NULL;
        END IF;
