INSERT INTO rehang.state_{n} AS s (item, revision, source_revision, provenance, sourced, sigma2, band, score)
         VALUES (this, now, with_source, {provenance}, has_source, {sigma2}, {band}, {score})
         ON CONFLICT (item) DO UPDATE SET revision = now, sourced = EXCLUDED.sourced,
             source_revision = with_source, failed = keeps AND s.failed AND EXCLUDED.provenance IN ('lacking', 'adapted'),
             provenance = CASE WHEN {stays} THEN s.provenance ELSE EXCLUDED.provenance END,
             sigma2 = CASE WHEN {stays} THEN s.sigma2 ELSE EXCLUDED.sigma2 END, band = CASE WHEN {stays} THEN s.band ELSE EXCLUDED.band END,
             score = CASE WHEN {stays} THEN s.score ELSE EXCLUDED.score END, squared_error = CASE WHEN {stays} THEN s.squared_error END,
             change = CASE WHEN {stays} THEN s.change ELSE 0 END;
