"""What the trigger's own adapting costs an application: the same INSERTs with the map kept and without.

    PYTHON bench/adapts/run.py REHANG ADDRESS [WIDTHS…]

ADDRESS is that of a server with pgvector, as a superuser; it gets a database of its own, `rehang_adapts`. Needs numpy and psycopg.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import psycopg

ITEMS, ROWS = 2000, 1000


def text(vector):
    return "[" + ",".join(repr(float(value)) for value in vector) + "]"


def fresh(address):
    parts = urlsplit(address)
    with psycopg.connect(address, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS rehang_adapts WITH (FORCE)")
        server.execute("CREATE DATABASE rehang_adapts")
    return urlunsplit(parts._replace(path="/rehang_adapts"))


def measure(rehang, address, old_width, new_width):
    address = fresh(address)
    random = np.random.default_rng(7)
    old = random.normal(size=(ITEMS + ROWS, old_width)).astype("f4")
    turn = random.normal(size=(old_width, new_width)).astype("f4") / old_width**0.5
    new = old @ turn + 0.1 * random.normal(size=(len(old), new_width)).astype("f4")
    with tempfile.TemporaryDirectory() as name, psycopg.connect(address, autocommit=True) as db:
        folder = Path(name)
        db.execute("CREATE EXTENSION vector")
        db.execute(f"CREATE TABLE docs (id int PRIMARY KEY, content text, embedding vector({old_width}))")

        def copy(first, last):
            with db.cursor() as cursor, cursor.copy("COPY docs FROM STDIN") as rows:
                for row in range(first, last):
                    rows.write_row((row, f"text {row}", text(old[row])))

        copy(0, ITEMS)
        np.save(folder / "new.npy", new)
        (folder / "ids.txt").write_text("".join(f"{row}\n" for row in range(len(new))))

        def run(*arguments):
            environment = dict(os.environ, DATABASE_URL=address)
            subprocess.run([rehang, *arguments], cwd=folder, env=environment, check=True, capture_output=True)

        run("init", "--table", "docs", "--old-name", "small", "--source", "content", "--new-name", "large", "--new-dimension", str(new_width))
        with open(folder / "rehang.toml", "a") as file:
            file.write('\n[encoder]\nkind = "table"\nvectors = "new.npy"\nids = "ids.txt"\n')
        run("gallery", "adopt")
        run("upgrade", "pairs", "--items", "400", "--worth", "0")
        run("upgrade", "fit", "--method", "ridge")
        run("upgrade", "start")
        values = "".join(f"({row}, 'text {row}', '{text(old[row])}')," for row in range(ITEMS, ITEMS + ROWS))[:-1]

        def singly():
            for row in range(ITEMS, ITEMS + ROWS):
                db.execute("INSERT INTO docs VALUES (%s, %s, %s::vector)", [row, f"text {row}", text(old[row])])

        ways = {
            "one INSERT": lambda: db.execute(f"INSERT INTO docs VALUES {values}"),
            "COPY": lambda: copy(ITEMS, ITEMS + ROWS),
            f"{ROWS} INSERTs": singly,
        }

        def per_row(way):
            began = time.perf_counter()
            way()
            took = time.perf_counter() - began
            adapted = "SELECT count(*) FROM rehang.state_2 AS s JOIN rehang.item_1 AS i ON i.key = s.item WHERE i.id::int >= %s AND s.provenance = 'adapted'"
            count = db.execute(adapted, [ITEMS]).fetchone()[0]
            db.execute("DELETE FROM docs WHERE id >= %s", [ITEMS])
            return 1000 * took / ROWS, count

        for index in ["without an index", "with an index"]:
            if index == "with an index":
                db.execute("CREATE INDEX ON rehang.vector_2 USING hnsw (value vector_cosine_ops)")
            run("upgrade", "start")
            singly()
            db.execute("DELETE FROM docs WHERE id >= %s", [ITEMS])
            with_map = {name: per_row(way) for name, way in ways.items()}
            db.execute("DELETE FROM rehang.map")
            for name, way in ways.items():
                (kept, adapted), (left, none) = with_map[name], per_row(way)
                assert (adapted, none) == (ROWS, 0), (adapted, none)
                print(f"{old_width} to {new_width}, {index}, {name}: {left:.2f} ms a row without, {kept:.2f} ms with", flush=True)


if __name__ == "__main__":
    rehang, address = os.path.abspath(sys.argv[1]), sys.argv[2]
    widths = sys.argv[3:] or ["384x384", "384x1024", "1536x1536"]
    for pair in widths:
        measure(rehang, address, *map(int, pair.split("x")))
