CREATE OR REPLACE FUNCTION rehang.changed_{g}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {search_path}{settings} AS $rehang$
#variable_conflict use_column
DECLARE
    this bigint;
    now bigint;
    has_source boolean;
    is_update boolean := TG_OP = 'UPDATE';
    was boolean := false;
    renamed boolean := false;
    keeps boolean := false;
    with_source bigint;
    stale boolean := false;
    made_in int;
    made pg_catalog.float4[];
    made_sigma2 pg_catalog.float4;
    meets boolean;
    old_id text;
    new_id text;
    old_source text COLLATE pg_catalog."C";
    new_source text COLLATE pg_catalog."C";
    names text;
    said text;
    called boolean;
{variables}    older boolean := pg_catalog.current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
BEGIN
    -- By number, which every snapshot sees. Out of a dump the table has another one. A table that was restored alone has our triggers and no
    -- gallery: its writes are none of ours, and none of them fails.
{whole_table}    IF {is_other} THEN
{detached}        RETURN NULL;
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
{truncated}        RETURN NULL;
    END IF;
    -- A column may have taken the name of another.
    called := {this_table} <> {oid} OR NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = {oid} AND ({is_renamed}));
    IF TG_OP <> 'INSERT' THEN
{read_old}    END IF;
    IF TG_OP <> 'DELETE' THEN
{read_new}    END IF;
{before_move}    IF said IS NOT NULL THEN
        -- Once: the doctor tells it. By a name of the transaction's own, so that nobody's write waits for another's.
        INSERT INTO rehang.document (gallery, name, version, text)
            SELECT {g}, pg_catalog.concat('{unread}', pg_catalog.pg_current_xact_id()), 1, pg_catalog.concat(pg_catalog.now(), ': ', said)
            WHERE NOT EXISTS (SELECT 1 FROM rehang.document AS there WHERE there.gallery = {g} AND pg_catalog.starts_with(there.name, '{unread}'))
            ON CONFLICT DO NOTHING;
        IF TG_OP = 'DELETE' THEN
            was := coalesce(was, true);
        ELSIF meets IS NULL OR (is_update AND was IS NULL) THEN
            RETURN NULL;
        END IF;
    END IF;
{moved}{stale}    -- Another key is another name of the same item, which keeps what is known of it.
    IF is_update AND was AND NOT ({same_key}) AND meets THEN
        UPDATE rehang.item_{g} AS i SET id = new_id, {set_key} WHERE {of_old}
            AND NOT EXISTS (SELECT 1 FROM rehang.item_{g} WHERE {of_new});
        renamed := FOUND;
    END IF;
    IF TG_OP = 'DELETE' OR (is_update AND was AND NOT (({same_key} OR renamed) AND meets)) THEN
        DELETE FROM rehang.item_{g} WHERE {of_old} RETURNING key INTO this;
        -- A snapshot from before the item was listed does not see it: the server says so here, and the transaction is made again.
        IF this IS NULL AND was AND older THEN
            INSERT INTO rehang.item_{g} (id, {key_names}, revision, sourced) VALUES (old_id, {old_key}, 0, false)
                ON CONFLICT ({key_names}) DO UPDATE SET revision = 0;
            DELETE FROM rehang.item_{g} WHERE {of_old};
        END IF;
        IF this IS NOT NULL THEN
{gone}            NULL;
        END IF;
        was := false;
    END IF;
    is_update := is_update AND was;
    IF TG_OP = 'DELETE' OR NOT meets THEN
        RETURN NULL;
    END IF;
    IF is_update AND {same} THEN
        RETURN NULL;
    END IF;
    now := {next_revision};
    has_source := new_source IS NOT NULL;
    -- What was made from the source alone stays with it.
    keeps := is_update AND has_source AND {same_source};
    INSERT INTO rehang.item_{g} AS i (id, {key_names}, revision, sourced{hash_names}) VALUES (new_id, {new_key}, now, has_source{hashes})
         ON CONFLICT ({key_names}) DO UPDATE SET revision = now, sourced = EXCLUDED.sourced,{hash_updates}
             source_revision = CASE WHEN keeps THEN {source_revision} END RETURNING i.key, i.source_revision INTO this, with_source;
{adapt}{came}    RETURN NULL;
END
$rehang$;
REVOKE ALL ON FUNCTION rehang.changed_{g}() FROM PUBLIC;
