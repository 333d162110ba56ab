            DELETE FROM rehang.state_{n} WHERE item = this;
            IF NOT FOUND AND older THEN
                INSERT INTO rehang.state_{n} (item, revision, provenance, sourced) VALUES (this, 0, 'lacking', false)
                    ON CONFLICT (item) DO UPDATE SET revision = 0;
                DELETE FROM rehang.state_{n} WHERE item = this;
            END IF;
