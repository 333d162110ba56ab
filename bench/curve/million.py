"""`rehang report --gallery` of a large gallery: how long a forecast takes, and what memory.

    python bench/curve/million.py REHANG [ITEMS [WIDTH [HELD_OUT]]]     1,000,000, 768 and 500

Classes around 2,000 centres; the old vectors are the new ones turned, with more noise. All new vectors are made too, so the truth is known: 500 other items ask the gallery, adapted, in part native at random and native, and what they
find is shown beside the forecast. It fails where the forecast's range is farther than twice their standard error from it. Needs numpy and some fifteen gigabytes of disk and memory at a million × 768.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS = 2_000
CLASSES = 2_000
ASKED = 500
# Of a vector beside its centre, and of the old model beside the new one.
NOISE, MORE = 1.2, 0.8
SHARES = [0.0, 0.1, 0.25, 0.5, 1.0]


def make(folder: Path, items: int, width: int, held_out: int) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)  # noqa: E731
    centres = random.standard_normal((CLASSES, width)).astype(np.float32)
    labels = random.integers(0, CLASSES, items)
    old, new = (np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=(items, width)) for name in ("gallery", "new"))
    turn = np.linalg.qr(random.standard_normal((width, width)))[0].astype(np.float32)
    for first in range(0, items, 50_000):
        rows = slice(first, min(first + 50_000, items))
        seen = centres[labels[rows]] + NOISE * random.standard_normal((rows.stop - first, width), dtype=np.float32)
        new[rows] = unit(seen)
        old[rows] = unit((seen + MORE * random.standard_normal(seen.shape, dtype=np.float32)) @ turn)
    np.save(folder / "labels.npy", labels)
    chosen = random.permutation(items)[: PAIRS + held_out + ASKED]
    np.save(folder / "asked.npy", chosen[PAIRS + held_out :])
    for name, of in (("pairs", chosen[:PAIRS]), ("held", chosen[PAIRS : PAIRS + held_out])):
        np.save(folder / f"{name}_old.npy", old[np.sort(of)])
        np.save(folder / f"{name}_new.npy", new[np.sort(of)])


def truth(folder: Path, shares: list[float]) -> dict[str, list[tuple[float, float]]]:
    """By metric, at every share of native items (−1: doing nothing): what the asked items find, percent, and its standard error."""
    import numpy as np

    old, new, adapted = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("gallery", "new", "adapted"))
    labels, asked = np.load(folder / "labels.npy"), np.load(folder / "asked.npy")
    place = np.random.default_rng(1).permutation(len(new)) / len(new)
    found: dict[str, list[list[float]]] = {"map": [[] for _ in shares], "top1": [[] for _ in shares]}
    for block in np.array_split(asked, max(1, len(asked) // 25)):
        products = {}
        for name, (queries, vectors) in {"old": (old, old), "adapted": (new, adapted), "new": (new, new)}.items():
            made = np.empty((len(block), len(new)), dtype=np.float32)
            for first in range(0, len(new), 50_000):
                rows = np.asarray(vectors[first : first + 50_000])
                lengths = np.linalg.norm(rows, axis=1)
                made[:, first : first + 50_000] = queries[block] @ rows.T / lengths
            products[name] = made
        for at, share in enumerate(shares):
            near = products["old"] if share < 0 else np.where(place < share, products["new"], products["adapted"])
            for query, item in enumerate(block):
                values = near[query].copy()
                values[item] = -np.inf
                right = labels == labels[item]
                right[item] = False
                ordered = np.sort(values)
                ranks = np.sort(len(values) - np.searchsorted(ordered, values[right], side="right") + 1)
                found["map"][at].append(100 * float((np.arange(1, len(ranks) + 1) / ranks).mean()))
                found["top1"][at].append(100.0 * float(ranks[0] == 1))
    return {metric: [(float(np.mean(of)), float(np.std(of) / len(of) ** 0.5)) for of in values] for metric, values in found.items()}


def main() -> None:
    if sys.argv[1] == "--make":
        return make(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    program, *numbers = sys.argv[1:]
    items, width, held_out = (int(text) for text in (numbers + ["1000000", "768", "500"][len(numbers) :]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = lambda name: str(folder / f"{name}.npy")  # noqa: E731
        # In a process of its own: a child's peak memory begins with its parent's.
        subprocess.run([sys.executable, __file__, "--make", place, str(items), str(width), str(held_out)], check=True)
        adapter, report = str(folder / "a.safetensors"), folder / "r.json"
        pairs = ["--old", file("pairs_old"), "--new", file("pairs_new"), "--distance", "cosine"]
        subprocess.run([program, "fit", *pairs, "--method", "ridge", "--no-compare", "-o", adapter], check=True, capture_output=True)
        held = ["--old", file("held_old"), "--new", file("held_new"), "--gallery", file("gallery"), "--gallery-labels", file("labels")]
        began = time.perf_counter()
        process = subprocess.Popen(
            [program, "report", adapter, *held, "--orders", "random", "--force", "-o", str(report)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, "the report failed"
        said = json.loads(report.read_text())
        gallery = said["gallery"]
        assert (gallery["items"], gallery["held_out"]) == (items, held_out), gallery
        print(
            f"{items:,} items × {width}, {held_out} held out: {time.perf_counter() - began:.0f} s, "
            f"{usage.ru_utime + usage.ru_stime:.0f} processor seconds, {usage.ru_maxrss / 1e6:.1f} GB"
        )
        subprocess.run([program, "transform", adapter, file("gallery"), "-o", file("adapted"), "--force"], check=True, capture_output=True)
        curve, known = said["curves"][0], truth(folder, [-1.0, *SHARES])
        beyond = []
        print("| metric | native | forecast | truth |\n|---|---|---|---|")
        for metric, values in known.items():
            line = curve["metrics"][metric]
            places = [round(share * (len(curve["fractions"]) - 1)) for share in SHARES]
            forecast = [(said["do_nothing"][metric],) * 3]
            forecast += [(line["values"][place], line["band"]["low"][place], line["band"]["high"][place]) for place in places]
            for share, (value, low, high), (true, error) in zip(["do nothing", *SHARES], forecast, values, strict=True):
                print(f"| {metric} | {share} | {value:.1f} ({low:.1f}–{high:.1f}) | {true:.1f} ± {error:.1f} |")
                if not low - 2 * error <= true <= high + 2 * error:
                    beyond.append((metric, share))
        assert not beyond, f"the truth is beyond the forecast: {beyond}"


if __name__ == "__main__":
    main()
