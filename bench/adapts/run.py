"""What the trigger's own adapting costs an application: the same INSERTs with the map kept and without.

    PYTHON bench/adapts/run.py REHANG ADDRESS [WIDTHS…]

WIDTHS is OLDxNEW for a matrix, OLDxNEWxPAIRS for kernel ridge on so many pairs. ADDRESS is that of a server with pgvector, as a superuser; it gets a database of its own, `rehang_adapts`. Needs numpy and psycopg.
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


def measure(rehang, address, old_width, new_width, pairs=None):
    address = fresh(address)
    method = "kernel-ridge" if pairs else "ridge"
    pairs = pairs or 400
    items = max(pairs, ITEMS) + 100
    random = np.random.default_rng(7)
    old = random.normal(size=(items + ROWS, old_width)).astype("f4")
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

        copy(0, items)
        np.save(folder / "new.npy", new)
        (folder / "ids.txt").write_text("".join(f"{row}\n" for row in range(len(new))))

        def run(*arguments):
            environment = dict(os.environ, DATABASE_URL=address)
            subprocess.run([rehang, *arguments], cwd=folder, env=environment, check=True, capture_output=True)

        run("init", "--table", "docs", "--old-name", "small", "--source", "content", "--new-name", "large", "--new-dimension", str(new_width))
        with open(folder / "rehang.toml", "a") as file:
            file.write('\n[encoder]\nkind = "table"\nvectors = "new.npy"\nids = "ids.txt"\n')
        run("gallery", "adopt")
        run("upgrade", "pairs", "--items", str(pairs), "--worth", "0")
        run("upgrade", "fit", "--method", method)
        run("upgrade", "start")
        # What the library made of items, and SQL makes of them.
        pairs_of = """SELECT v.value::vector::real[], (rehang.adapted(1, d.embedding::real[])).value FROM rehang.vector_2 AS v JOIN rehang.state_2 AS s USING (item)
            JOIN rehang.item_1 AS i ON i.key = s.item JOIN docs AS d ON d.id::text = i.id WHERE s.provenance = 'adapted' LIMIT 100"""
        began = time.perf_counter()
        made = db.execute(pairs_of).fetchall()
        took = 1000 * (time.perf_counter() - began) / len(made)
        library, sql = np.array([row[0] for row in made]), np.array([row[1] for row in made])
        gap = (np.linalg.norm(library - sql, axis=1) / np.linalg.norm(library, axis=1)).max()
        numbers = db.execute("SELECT sum(vector_dims(weight)) FROM rehang.matrix_row").fetchone()[0]
        print(f"{old_width} to {new_width}, {method}, {numbers} numbers: the function alone {took:.2f} ms a row, {gap:.1e} from the library", flush=True)
        values = "".join(f"({row}, 'text {row}', '{text(old[row])}')," for row in range(items, items + ROWS))[:-1]

        def singly():
            for row in range(items, items + ROWS):
                db.execute("INSERT INTO docs VALUES (%s, %s, %s::vector)", [row, f"text {row}", text(old[row])])

        ways = {
            "one INSERT": lambda: db.execute(f"INSERT INTO docs VALUES {values}"),
            "COPY": lambda: copy(items, items + ROWS),
            f"{ROWS} INSERTs": singly,
        }

        def per_row(way):
            began = time.perf_counter()
            way()
            took = time.perf_counter() - began
            adapted = "SELECT count(*) FROM rehang.state_2 AS s JOIN rehang.item_1 AS i ON i.key = s.item WHERE i.id::int >= %s AND s.provenance = 'adapted'"
            count = db.execute(adapted, [items]).fetchone()[0]
            db.execute("DELETE FROM docs WHERE id >= %s", [items])
            return 1000 * took / ROWS, count

        for index in ["without an index", "with an index"]:
            if index == "with an index":
                db.execute("CREATE INDEX ON rehang.vector_2 USING hnsw (value vector_cosine_ops)")
            run("upgrade", "start")
            singly()
            db.execute("DELETE FROM docs WHERE id >= %s", [items])
            with_map = {name: per_row(way) for name, way in ways.items()}
            db.execute("DELETE FROM rehang.map")
            for name, way in ways.items():
                (kept, adapted), (left, none) = with_map[name], per_row(way)
                assert (adapted, none) == (ROWS, 0), (adapted, none)
                print(f"{old_width} to {new_width}, {method}, {index}, {name}: {left:.2f} ms a row without, {kept:.2f} ms with", flush=True)


if __name__ == "__main__":
    rehang, address = os.path.abspath(sys.argv[1]), sys.argv[2]
    widths = sys.argv[3:] or ["384x384", "384x1024", "1536x1536"]
    for pair in widths:
        measure(rehang, address, *map(int, pair.split("x")))
