"""The lines of Python that errors give for files that are not read: each is run, and what it writes is read."""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = np.random.default_rng(0).normal(size=(12, 4)).astype("f4")


def lists() -> Any:
    return pa.table({"id": [str(row) for row in range(12)], "vector": [row.tolist() for row in ROWS]})


def lines(path: Path, rows: list[str]) -> None:
    path.write_text("".join(row + "\n" for row in rows))


def read(vectors: str) -> dict[str, Any]:
    return rehang.import_items("g.db", vectors, [{"id": str(row)} for row in range(12)], space="s")


WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.csv": lambda path: np.savetxt(path, ROWS, delimiter=","),
    "a.tsv": lambda path: np.savetxt(path, ROWS, delimiter="\t"),
    "a.jsonl": lambda path: lines(path, [json.dumps({"id": 1, "embedding": row.tolist()}) for row in ROWS]),
    "a.json": lambda path: path.write_text(json.dumps([{"embedding": row.tolist()} for row in ROWS])),
    "a.npz": lambda path: np.savez_compressed(path, vectors=ROWS),
    "a.pkl": lambda path: path.write_bytes(pickle.dumps(ROWS)),
    "a.feather": lambda path: feather.write_feather(lists(), path),
    "a.arrow": lambda path: feather.write_feather(lists(), path),
    "bytes.parquet": lambda path: parquet.write_table(pa.table({"id": list(range(12)), "v": [row.tobytes() for row in ROWS]}), path),
    "texts.parquet": lambda path: parquet.write_table(
        pa.table({"id": list(range(12)), "v": [json.dumps(row.tolist()) for row in ROWS]}), path
    ),
    "columns.parquet": lambda path: parquet.write_table(
        pa.table({"id": list(range(12)), **{f"x{at}": ROWS[:, at] for at in range(4)}}), path
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_line_of_an_error_writes_what_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS[name](tmp_path / name)
    with pytest.raises(rehang.Error) as raised:
        read(name)
    said = re.search(r"by Python: (.*\))|Python writes one: (.*?\))(, or where.*)?$", str(raised.value))
    assert said, raised.value
    exec("import json, pickle, numpy, pyarrow.feather, pyarrow.parquet\n" + (said[1] or said[2]), {})
    made = "vectors.npy" if Path("vectors.npy").exists() else "vectors.parquet"
    assert read(made)["items"] == len(ROWS)
    with closing(sqlite3.connect("g.db")) as database:
        vectors = database.execute("SELECT value FROM vector_1 ORDER BY item").fetchall()
    assert np.allclose([np.frombuffer(vector, "<f4") for (vector,) in vectors], ROWS)


def test_lines_of_vectors_are_read_by_the_second_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "copy.txt", [json.dumps(row.tolist()) for row in ROWS])
    with pytest.raises(rehang.OptionError, match="or where a line is") as raised:
        read("copy.txt")
    exec("import json, numpy\n" + str(raised.value).split("[0.1,0.2,…] ")[1], {})
    assert np.array_equal(np.load("vectors.npy"), ROWS)
