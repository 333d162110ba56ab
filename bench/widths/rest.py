"""What follows a fit, at the widths of today's models: applying, the exact curve, a report, an adapter's size, stores.

    python rest.py REHANG [--widths 384,768,1536,3072] [--only apply,curve,…] [--repeats N]
                   [--store PROGRAM [--vectors N]] [--server PROGRAM --address ADDRESS [--rows N]]

REHANG is the program, built with `--release`; PROGRAM is what `bench/program.sh rehang-sqlite store` prints, or
`bench/program.sh rehang-upgrade bench_server --features postgres` for an empty database with the extension `vector`. Needs numpy, onnxruntime. Rivals are a process
of their own for every run, in turns with ours, from files to files as ours. It is an error where answers differ.

Cells are medians: seconds (processor seconds), and with a rival ours, theirs, and the ratio of processor seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from run import called, synthetic

PAIRS = 2_000
APPLIED = 50_000
CURVE = 10_000
HELD = 2_000
CLASSES = 100
METHODS = ["ridge", "kernel-ridge", "residual-mlp"]


def onnx(folder: Path, _: int) -> None:
    """The exported adapter in ONNX Runtime, from a file to a file, in batches."""
    import numpy as np
    import onnxruntime

    old = np.load(folder / "many.npy", mmap_mode="r")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(folder / "a.onnx"), options, providers=["CPUExecutionProvider"])
    vectors, sigma = np.empty((len(old), session.get_outputs()[0].shape[1]), np.float32), np.empty(len(old), np.float32)
    for first in range(0, len(old), 2_048):
        rows = slice(first, first + 2_048)
        vectors[rows], sigma[rows] = (
            part.reshape(vectors[rows].shape if at == 0 else -1)
            for at, part in enumerate(session.run(None, {session.get_inputs()[0].name: old[rows]}))
        )
    np.save(folder / "theirs.npy", vectors)
    np.save(folder / "theirs_sigma.npy", sigma)


def two_ends(folder: Path, _: int) -> None:
    """Top-1 and mAP in percent with numpy, of the gallery that is adapted and of the native one: two of the curve's n + 1 points."""
    import numpy as np

    new, adapted, labels = (np.load(folder / f"{name}.npy") for name in ("native", "adapted", "labels"))
    for gallery in (adapted, new):
        top1, precision = [], []
        squares = (gallery**2).sum(axis=1)
        for first in range(0, len(new), 1_000):
            rows = np.arange(first, min(first + 1_000, len(new)))
            distances = squares - 2.0 * (new[rows] @ gallery.T)
            distances[np.arange(len(rows)), rows] = np.inf
            order = np.argsort(distances, axis=1)[:, :-1]
            right = labels[order] == labels[rows][:, None]
            top1.append(right[:, 0])
            found = np.cumsum(right, axis=1)
            precision.append((found / np.arange(1, len(new)) * right).sum(axis=1) / found[:, -1])
        print(json.dumps([100 * float(np.concatenate(top1).mean()), 100 * float(np.concatenate(precision).mean())]))


def in_turns(ours: list[str], theirs: list[str] | None, repeats: int):
    """Medians of seconds and processor seconds of both sides, ours' peak memory in MB, and what the last of both printed."""
    runs: list[list[tuple[float, float, float, str]]] = [[], []]
    for _ in range(repeats):
        runs[0].append(called(ours))
        if theirs:
            runs[1].append(called(theirs))
    median = lambda side, at: statistics.median(run[at] for run in runs[side])  # noqa: E731
    text = f"{median(0, 0):.2f} ({median(0, 1):.2f}) s"
    if theirs:
        ratio = statistics.median(own[1] / other[1] for own, other in zip(*runs, strict=True))
        text += f", {median(1, 0):.2f} ({median(1, 1):.2f}) s, {ratio:.2f}"
    return text, median(0, 2), [side[-1][3] for side in runs if side]


def make(folder: Path, width: int) -> None:
    """The files of one width: pairs, items that are no pairs, and many that lie around the pairs."""
    import numpy as np

    def save(name: str, rows) -> None:
        np.save(folder / f"{name}.npy", (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))

    pairs, held = synthetic(PAIRS, width, width, raw=False)
    random = np.random.default_rng(width)
    # Sums of two items that no map has seen, by either model: more different ones than there are.
    places = random.integers(0, len(held[0]), (2, HELD))
    for name, rows, others in zip(("old", "new"), pairs, held, strict=True):
        save(name, rows)
        save(f"held_{name}", others[places[0]] + others[places[1]])
    of = random.integers(0, PAIRS, APPLIED)
    save("many", pairs[0][of] + 0.02 * random.standard_normal((APPLIED, width), np.float32))
    labels = random.integers(0, CLASSES, CURVE)
    centres = random.standard_normal((CLASSES, width)) * 0.5
    for name, noise in (("native", 1.0), ("adapted", 1.6)):
        np.save(folder / f"{name}.npy", (centres[labels] + noise * random.standard_normal((CURVE, width))).astype(np.float32))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "order.npy", random.permutation(CURVE))


def compare(folder: Path, _: int) -> None:
    """Fails where the two sides' adapted vectors or variances differ."""
    import numpy as np

    for own, other in (("ours", "theirs"), ("sigma", "theirs_sigma")):
        own, other = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in (own, other))
        error = float(np.abs(own - other).max() / np.abs(own).max())
        assert error < 1e-3, error


class Width:
    """One width: its files and its measures."""

    def __init__(self, asked: argparse.Namespace, width: int, folder: Path) -> None:
        self.asked, self.width, self.folder = asked, width, folder
        self.rehang = asked.rehang
        # Arrays are made and compared in processes of their own: a child's peak memory begins with its parent's.
        called(self.apart("make"))

    def file(self, name: str) -> str:
        return str(self.folder / f"{name}.npy")

    def apart(self, name: str) -> list[str]:
        return [sys.executable, __file__, "--apart", name, str(self.folder), str(self.width)]

    def fit(self, method: str, *more: str) -> tuple[str, Path]:
        path = self.folder / f"{method}.safetensors"
        files = ["--old", self.file("old"), "--new", self.file("new"), "--distance", "cosine"]
        # The first fit is the one that is measured; others only make the file.
        command = [self.rehang, "fit", *files, "--method", method, "--no-compare", "-o", str(path), "--json", *more]
        text, memory, said = in_turns(command, None, 1)
        self.said = said[0]
        return f"{text}, {memory:.0f} MB", path

    def measures(self) -> dict[str, Callable[[], str]]:
        found: dict[str, Callable[[], str]] = {}
        for method in METHODS:
            found[f"fit {method}, {PAIRS:,} pairs, alone"] = lambda method=method: self.fit(method)[0]
        for method in METHODS:
            found[f"apply {method} to {APPLIED:,}; ONNX Runtime"] = lambda method=method: self.apply(method)
        found["size of ridge's adapter, f32 and f16, and what f16 moves"] = self.sizes
        found[f"curve of {CURVE:,} at all points; numpy at two"] = self.curve
        found["report of ridge on 2,000 items"] = self.report
        if self.asked.store:
            found[f"SQLite, {self.asked.vectors:,} vectors"] = self.store
        if self.asked.server:
            found[f"PostgreSQL, {self.asked.rows:,} rows: bare COPY, ours, rows/s"] = self.server
        only = self.asked.only
        return {name: run for name, run in found.items() if not only or any(name.startswith(part) for part in only)}

    def apply(self, method: str) -> str:
        path = self.folder / f"{method}.safetensors"
        if not path.exists():
            self.fit(method)
        called([self.rehang, "export", str(path), "-o", str(self.folder / "a.onnx")])
        ours = [self.rehang, "transform", str(path), self.file("many"), "-o", self.file("ours"), "--sigma", self.file("sigma"), "--force"]
        text, memory, _ = in_turns(ours, self.apart("onnx"), self.asked.repeats)
        called(self.apart("compare"))
        return f"{text}, {memory:.0f} MB"

    def sizes(self) -> str:
        whole = self.fit("ridge")[1].stat().st_size
        half = self.fit("ridge", "--precision", "f16")[1].stat().st_size
        lines = [line for line in self.said.splitlines() if line.startswith("{")]
        findings = json.loads(lines[-1])["findings"]
        percent = next(dict(of["evidence"])["percent_of_error"] for of in findings if of["code"] == "rounded-adapter")
        self.fit("ridge")
        return f"{whole / 1e6:.1f} MB, {half / 1e6:.1f} MB, {percent:.1e} % of the error"

    def curve(self) -> str:
        files = [part for name in ("adapted", "order", "labels") for part in (f"--{name}", self.file(name))]
        ours = [self.rehang, "curve", "--new", self.file("native"), *files, "--bootstrap", "0", "--json"]
        text, memory, said = in_turns(ours, self.apart("two_ends"), self.asked.repeats)
        measured = json.loads(said[0].splitlines()[-1])
        for point, line in zip(("start", "end"), said[1].splitlines()[-2:], strict=True):
            for metric, value in zip(("top1", "map"), json.loads(line), strict=True):
                assert abs(measured[point][metric] - value) < 0.02, (point, metric, measured[point], value)
        return f"{text}, {memory:.0f} MB"

    def report(self) -> str:
        path = self.folder / "ridge.safetensors"
        if not path.exists():
            self.fit("ridge")
        files = ["--old", self.file("held_old"), "--new", self.file("held_new"), "--force"]
        text, memory, _ = in_turns([self.rehang, "report", str(path), *files, "-o", str(self.folder / "r.json")], None, self.asked.repeats)
        return f"{text}, {memory:.0f} MB"

    def store(self) -> str:
        folder = self.folder / "store"
        folder.mkdir()
        said = called([self.asked.store, str(self.asked.vectors), str(folder), str(self.width)])[3]
        cells = []
        for line, name in (("put items", "put"), ("write adapted vectors in batches of 4096", "fill"), ("build and save the graph", "graph"),
                           ("build the graph: usearch alone", "usearch's"), ("search: embedded store", "search"),
                           ("search: usearch alone", "usearch's"), ("resident memory", "memory")):
            at = next(row for row in said.splitlines() if row.startswith(line))
            cells.append(f"{name} {' '.join(at[52:].split())}")
        return "<br>".join(cells)

    def server(self) -> str:
        environment = {**os.environ, "WIDTHS": f"{max(self.width // 2, 384)}x{self.width}"}
        command = [self.asked.server, self.asked.address, str(self.asked.rows), "fill"]
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        bare, ours, ratio = re.search(r"medians: bare (\d+), ours (\d+) rows/s, ratio ([\d.]+)", said).groups()
        return f"{bare}, {ours}, {ratio}"


def main() -> None:
    if sys.argv[1:2] == ["--apart"]:
        name, folder, width = sys.argv[2:]
        return {of.__name__: of for of in (make, compare, onnx, two_ends)}[name](Path(folder), int(width))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rehang")
    parser.add_argument("--widths", default="384,768,1536,3072")
    parser.add_argument("--only", default="", help="beginnings of the names of measures, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", help="the program of `rehang-sqlite`'s bench `store`")
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--server", help="the program of `rehang-upgrade`'s bench `bench_server`")
    parser.add_argument("--address", help="an empty database with pgvector")
    parser.add_argument("--rows", type=int, default=20_000)
    asked = parser.parse_args()
    asked.only = [part for part in asked.only.split(",") if part]
    print("| what | width | measured |\n|---|--:|---|")
    for width in map(int, asked.widths.split(",")):
        with tempfile.TemporaryDirectory() as place:
            for name, run in Width(asked, width, Path(place)).measures().items():
                began = time.monotonic()
                print(f"| {name} | {width:,} | {run()} |", flush=True)
                print(f"{name} {width}: {time.monotonic() - began:.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
