
DO $rehang$ DECLARE ours regprocedure; BEGIN
    FOR ours IN SELECT oid FROM pg_proc WHERE pronamespace = 'rehang'::regnamespace
        AND proname IN ('serving', 'models', 'way', 'place', 'search', 'nearest', 'mapped', 'expanded', 'rounded', 'bridged', 'adapted', 'fused', 'fuse', 'along', 'write') LOOP
        EXECUTE format('DROP FUNCTION %s', ours);
    END LOOP;
END $rehang$;
DROP TABLE IF EXISTS rehang.matrix_row, rehang.bridge, rehang.map, rehang.document, rehang.space, rehang.gallery;
DROP SEQUENCE IF EXISTS rehang.revision;
DROP SCHEMA rehang;
