
DO $rehang$ DECLARE given record; BEGIN
    FOR given IN
        SELECT format('REVOKE %s ON TABLE %s', a.privilege_type, c.oid::regclass) AS taken, a.grantee
            FROM pg_class AS c, aclexplode(c.relacl) AS a
            WHERE c.relnamespace = 'rehang'::regnamespace AND c.relkind = 'r' AND a.grantee <> c.relowner
                AND (a.privilege_type IN ('TRIGGER', 'REFERENCES') OR c.relname ~ '^paid_[0-9]+$')
        UNION ALL SELECT format('REVOKE ALL ON FUNCTION %s', p.oid::regprocedure), a.grantee
            FROM pg_proc AS p, aclexplode(p.proacl) AS a
            WHERE p.pronamespace = 'rehang'::regnamespace AND p.proname ~ '^(changed|moved)_[0-9]+$' AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('%s FROM %s CASCADE', given.taken, CASE WHEN given.grantee = 0 THEN 'PUBLIC' ELSE given.grantee::regrole::text END);
    END LOOP;
END $rehang$;
