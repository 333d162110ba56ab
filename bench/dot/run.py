"""Inner products of vectors of different lengths: how many of the true nearest a graph of an embedded gallery finds.

    PYTHON bench/dot/run.py target/release/rehang [--settings] [--kinds 64x64 …]

25,000 vectors whose lengths differ by a factor of ten, 200 queries; brute force is the truth. A line is the coordinates, the dimensions
that they lie in, the processor's seconds of the build, and the share of the true nearest k that is found, k by k, beside the milliseconds of a
search. `--settings` needs the Python package `usearch`, the library behind the graph: it builds the same lifted graph by hand, with
other settings.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import tempfile
import time

import numpy as np

ITEMS, QUERIES = 25_000, 200
KS = [10, 100, 500, 5_000]


def data(d, inner):
    random = np.random.default_rng(0)
    rows = random.standard_normal((ITEMS + QUERIES, inner)) @ random.standard_normal((inner, d))
    rows += 0.1 * random.standard_normal(rows.shape)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows *= 10.0 ** random.uniform(-0.5, 0.5, (len(rows), 1))
    return rows[:ITEMS].astype(np.float32), rows[ITEMS:].astype(np.float32)


def share(found, truth, k):
    return np.mean([len(set(truth[query, :k]) & set(found[query][:k])) / k for query in range(len(truth))])


def of_rehang(rehang, items, queries, truth):
    with tempfile.TemporaryDirectory() as folder:
        def run(*arguments):
            done = subprocess.run([rehang, *arguments, "--json"], cwd=folder, capture_output=True, text=True)
            assert done.returncode in (0, 1), done.stderr
            return json.loads(done.stdout)

        np.save(f"{folder}/items.npy", items)
        np.save(f"{folder}/queries.npy", queries)
        pathlib.Path(folder, "items.jsonl").write_text("".join(f'{{"id": "{row}"}}\n' for row in range(ITEMS)))
        run("gallery", "import", "--gallery", "G.db", "--space", "m", "--vectors", "items.npy", "--items", "items.jsonl", "--distance", "dot")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("gallery", "index", "--gallery", "G.db", "--space", "m")
        after, cells = resource.getrusage(resource.RUSAGE_CHILDREN), []
        built = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        for k in KS:
            started = time.time()
            hits = run("search", "--gallery", "G.db", "--vectors", "queries.npy", "-k", str(k))["results"]
            took = 1000 * (time.time() - started) / QUERIES
            cells.append(f"{share([[int(hit['id']) for hit in of] for of in hits], truth, k):.4f} ({took:.1f} ms)")
        return built, cells


def of_settings(items, queries, truth, connectivity, added, looked_at):
    from usearch.index import Index

    squares = (items**2).sum(1, keepdims=True)
    lifted = np.hstack([items, np.sqrt(np.maximum(squares.max() - squares, 0))])
    asked = np.hstack([queries, np.zeros((QUERIES, 1), np.float32)])
    index = Index(ndim=lifted.shape[1], metric="l2sq", connectivity=connectivity, expansion_add=added)
    started = time.process_time()
    index.add(np.arange(ITEMS), lifted.astype(np.float32), threads=1)
    built, cells = time.process_time() - started, []
    for k in KS[:3]:
        started = time.time()
        found = index.search(asked, max(looked_at, 2 * k), threads=1).keys
        took = 1000 * (time.time() - started) / QUERIES
        cells.append(f"{share(found, truth, k):.4f} ({took:.1f} ms)")
    return built, cells


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rehang", help="the binary")
    arguments.add_argument("--settings", action="store_true")
    arguments.add_argument("--kinds", nargs="*", default=["64x12", "64x64", "128x24"], help="coordinates, and what they lie in")
    arguments = arguments.parse_args()
    rehang = str(pathlib.Path(arguments.rehang).absolute())
    print(f"| coordinates | in | graph | build | {' | '.join(f'k = {k}' for k in KS)} |")
    for d, inner in [map(int, kind.split("x")) for kind in arguments.kinds]:
        items, queries = data(d, inner)
        truth = np.argsort(-(queries @ items.T), axis=1)
        rows = [("rehang", of_rehang(rehang, items, queries, truth))]
        if arguments.settings:
            for setting in [(16, 128, 1024), (16, 128, 4096), (16, 512, 1024), (32, 256, 1024), (32, 512, 1024)]:
                name = "usearch, connectivity {}, {} added by, {} looked at".format(*setting)
                rows.append((name, of_settings(items, queries, truth, *setting)))
        for name, (built, cells) in rows:
            print(f"| {d} | {inner} | {name} | {built:.0f} s | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
