
    WITH made AS (SELECT conbin::text AS tree FROM pg_constraint WHERE conrelid = to_regclass('pg_temp.this') AND conname = 'of_its_row'),
        called AS (SELECT DISTINCT found[1]::oid AS id FROM made, regexp_matches(made.tree, ':(?:funcid|opfuncid) (\d+)', 'g') AS found)
    SELECT p.oid::regprocedure::text FROM called JOIN pg_proc AS p ON p.oid = called.id
    WHERE p.provolatile = 'v' OR p.provolatile = 's' AND CASE
        WHEN EXISTS (SELECT 1 FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = p.oid AND deptype = 'e') THEN false
        WHEN p.pronamespace <> 'pg_catalog'::regnamespace OR p.pronargs = 0 THEN true
        ELSE p.proname = 'age' AND p.pronargs = 1 OR p.proname ~
            '^(current_|has_|pg_|to_reg|table_to_|schema_to_|database_to_|query_to_|cursor_to_|obj_|shobj_|col_|row_security_|txid_|ts_rewrite)' END
    UNION ALL SELECT 'CURRENT_DATE, CURRENT_USER or one of their kind' FROM made WHERE tree LIKE '%{SQLVALUEFUNCTION%'
    LIMIT 1