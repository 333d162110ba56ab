"""What breaks FastFill's recipe on text vectors of length 1: one part of its loss changed at a time.

    python text.py REHANG FOLDER [SET…] [--epochs N] [--seeds N]

REHANG is the program built with `--release`, FOLDER the real sets. Each row is a fit on the set's training pairs and the area of mAP of the seen test part, in random order
with plain distances, mean over seeds. *Mean* is the squared error's mean over coordinates (the authors' code), *sum* d times as heavy (FastFill (3) as printed).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

ROWS = [
    ("do nothing", ["--method", "do-nothing"], [None]),
    ("l2", ["--method", "fct"], ["mean", "sum"]),
    ("l2+disc", ["--method", "fastfill", "--loss", "both", "--uncertainty", "off"], ["mean", "sum"]),
    ("l2+uncert.", ["--method", "fct", "--uncertainty", "joint"], ["mean", "sum"]),
    ("l2+disc+uncert.", ["--method", "fastfill-reference"], ["mean", "sum"]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rehang")
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="*", default=["text_banking77", "text_clinc150"])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()

    def run(*arguments: str) -> str:
        return subprocess.run([asked.rehang, *arguments], check=True, capture_output=True, text=True).stdout

    print("| set | loss | squared error | area of mAP, random order | at the switch |")
    print("|---|---|---|--:|--:|")
    for name in asked.sets:
        place = asked.folder / name
        head = ["--head-weight", f"{place}/head_new_weight.npy", "--head-bias", f"{place}/head_new_bias.npy"]
        with tempfile.TemporaryDirectory() as temporary:
            adapter, adapted, order = (f"{temporary}/{part}" for part in ("a.safetensors", "h.npy", "order.npy"))
            seen = np.load(place / "role.npy") == 1
            for part in ("old", "new", "label"):
                np.save(f"{temporary}/{part}.npy", np.load(place / f"{part}.npy")[seen])
            for label, options, units in ROWS:
                for unit in units:
                    areas, starts = [], []
                    for seed in range(asked.seeds if unit else 1):
                        files = ["--old", f"{place}/old.npy", "--new", f"{place}/new.npy", "--rows", f"{place}/role.npy=0", "--labels", f"{place}/label.npy"]
                        more = ["--squared", unit, "--seed", str(seed), *head] if unit else []
                        more += ["--epochs", str(asked.epochs)] if unit and asked.epochs else []
                        run("fit", *files, *options, *more, "--no-compare", "-o", adapter)
                        run("transform", adapter, f"{temporary}/old.npy", "-o", adapted)
                        items = json.loads(run("order", "--policy", "random", "--adapted", adapted, "-o", order, "--json"))
                        assert items
                        measured = json.loads(run("curve", "--new", f"{temporary}/new.npy", "--adapted", adapted, "--order", order,
                                                  "--labels", f"{temporary}/label.npy", "--distance", "cosine", "--bootstrap", "0", "--json"))
                        areas.append(measured["area"]["map"])
                        starts.append(measured["start"]["map"])
                    print(f"| {name} | {label} | {unit or '–'} | {statistics.mean(areas):.1f} | {statistics.mean(starts):.1f} |", flush=True)


if __name__ == "__main__":
    main()
