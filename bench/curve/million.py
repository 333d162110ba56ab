"""`rehang report --gallery` of a large gallery: how long a forecast takes, and what memory.

    python bench/curve/million.py REHANG [ITEMS [WIDTH [HELD_OUT]]]     1,000,000, 768 and 500

Classes around 2,000 centres; the new vectors are the old ones turned, with a little noise. What is forecast is not looked at here
(`cargo xtask forecast` does that), only that it is of all items. Needs numpy and some ten gigabytes of disk and memory.
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


def make(folder: Path, items: int, width: int, held_out: int) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)  # noqa: E731
    centres = random.standard_normal((CLASSES, width)).astype(np.float32)
    labels = random.integers(0, CLASSES, items)
    old = np.lib.format.open_memmap(folder / "gallery.npy", mode="w+", dtype=np.float32, shape=(items, width))
    for first in range(0, items, 50_000):
        rows = slice(first, min(first + 50_000, items))
        noise = random.standard_normal((rows.stop - first, width), dtype=np.float32)
        old[rows] = unit(centres[labels[rows]] + 1.2 * noise)
    np.save(folder / "labels.npy", labels)
    turn = np.linalg.qr(random.standard_normal((width, width)))[0].astype(np.float32)
    chosen = random.permutation(items)[: PAIRS + held_out]
    for name, of in (("pairs", chosen[:PAIRS]), ("held", chosen[PAIRS:])):
        rows = old[np.sort(of)]
        np.save(folder / f"{name}_old.npy", rows)
        noise = 0.02 * random.standard_normal(rows.shape, dtype=np.float32)
        np.save(folder / f"{name}_new.npy", unit(rows @ turn + noise))


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
        gallery = json.loads(report.read_text())["gallery"]
        assert (gallery["items"], gallery["held_out"]) == (items, held_out), gallery
        print(
            f"{items:,} items × {width}, {held_out} held out: {time.perf_counter() - began:.0f} s, "
            f"{usage.ru_utime + usage.ru_stime:.0f} processor seconds, {usage.ru_maxrss / 1e6:.1f} GB"
        )


if __name__ == "__main__":
    main()
