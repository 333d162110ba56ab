"""What breaks FastFill's recipe where new vectors have length 1: one part of its loss changed at a time.

    python recipe.py DATA OUT [--sets SET …] [--seeds 0 1 2] [--epochs 80] [--device cuda]
    python recipe.py --table OUT…

DATA holds the real sets. Each line of OUT is one fit by `rehang.torch.fit_adapter` on the training pairs of a set, at the authors' size. `--table` prints means over
seeds: areas of mAP in random order with plain distances (L2, and cosine in brackets), mAP at the switch, the squared error beside the variance of the new vectors, and the mean length
of what the map gives beside that of the new vectors.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sets

UNCERTAIN = {"psi": True}
ROWS: dict[str, dict[str, Any]] = {
    "l2": {},
    "l2, d times the weight": {"squared": "sum"},
    "l2+disc": {"head": True},
    "l2+disc, d times the weight": {"head": True, "squared": "sum"},
    "l2+disc, head sees length 1": {"head": True, "on_sphere": True},
    "l2+uncert.": UNCERTAIN,
    "l2+uncert., d times the weight": {**UNCERTAIN, "squared": "sum"},
    "l2+uncert., s within ±4": {**UNCERTAIN, "bound": 4.0},
    "l2+uncert., 10 epochs of warm-up": {**UNCERTAIN, "warm_up": 10},
    "l2+uncert., 40 epochs of warm-up": {**UNCERTAIN, "warm_up": 40},
    "l2+uncert., 10 epochs of warm-up and s within ±4": {**UNCERTAIN, "warm_up": 10, "bound": 4.0},
    "l2+disc+uncert.": {**UNCERTAIN, "head": True},
    "l2+disc+uncert., d times the weight": {**UNCERTAIN, "head": True, "squared": "sum"},
    "l2+disc+uncert., s within ±4": {**UNCERTAIN, "head": True, "bound": 4.0},
    "l2+disc+uncert., 10 epochs of warm-up": {**UNCERTAIN, "head": True, "warm_up": 10},
    "l2+disc+uncert., head sees length 1": {**UNCERTAIN, "head": True, "on_sphere": True},
    "l2+disc+uncert., error over the variance": {**UNCERTAIN, "head": True, "squared": "variance"},
    "all of these": {**UNCERTAIN, "head": True, "squared": "variance", "on_sphere": True, "bound": 4.0, "warm_up": 10},
}


def one(data: dict[str, dict[str, Any]], head: tuple[Any, Any], row: dict[str, Any], seed: int, epochs: int, device: str) -> dict[str, Any]:
    import torch

    import rehang
    import rehang.torch as rt

    train = data["train"]
    options = {key: row[key] for key in ("squared", "on_sphere", "bound") if key in row}
    if options.get("squared") == "variance":
        options["variance"] = float(train["new"].astype(np.float64).var(axis=0).sum())
    frozen = rt.Head.frozen(torch.from_numpy(head[0]), torch.from_numpy(head[1])) if row.get("head") else None
    psi = bool(row.get("psi"))
    began = time.monotonic()
    adapter = rt.fit_adapter(
        train["old"], train["new"], labels=train["label"] if row.get("head") else None, method="fastfill-reference" if psi else "fct",
        loss=rt.FastFill(head=frozen, **options), epochs=epochs, uncertainty_warm_up=row.get("warm_up", 0), device=device, seed=seed, progress=False,
    )  # fmt: skip
    said: dict[str, Any] = {"fit_s": round(time.monotonic() - began, 1)}
    for part in ("seen", "unseen"):
        old, new, labels = (data[part][what] for what in ("old", "new", "label"))
        adapted, sigma2 = adapter.transform(old, return_sigma=True, force=True)
        apart = (adapted.astype(np.float64) - new) ** 2
        said[part] = {
            "error": float(apart.sum(axis=1).mean() / new.astype(np.float64).var(axis=0).sum()),
            "length": float(np.linalg.norm(adapted, axis=1).mean()),
            "length_new": float(np.linalg.norm(new, axis=1).mean()),
            "log_sigma2": [float(part) for part in np.quantile(np.log(sigma2), [0.05, 0.5, 0.95])],
        }
        order = np.random.default_rng(seed).permutation(len(new))
        for distance in ("l2", "cosine"):
            curve = rehang.curve(new, adapted, order, labels=labels, distance=distance, bootstrap=0, progress=False)
            said[part][distance] = {
                metric: [curve.area[metric], float(curve.points(metric)[0]), float(curve.points(metric)[-1])] for metric in ("map", "top1")
            }
    return said


def table(files: list[Path]) -> None:
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    print("| set | loss | seen: area | at the switch | unseen: area | at the switch | error | length | log σ² |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in dict.fromkeys(line["set"] for line in lines):
        for row in ROWS:
            tried = [line for line in lines if line["set"] == name and line["row"] == row]
            of = [line for line in tried if "failed" not in line]
            if not of:
                if tried:
                    print(f"| {name} | {row} | {tried[0]['failed'].split(';')[0]} | | | | | | |")
                continue

            def mean(*path: Any) -> float:
                found = []
                for line in of:
                    for step in path:
                        line = line[step]
                    found.append(line)
                return statistics.mean(found)

            cells = []
            for part in ("seen", "unseen"):
                spread = statistics.stdev(line[part]["l2"]["map"][0] for line in of) if len(of) > 1 else 0.0
                cells.append(f"{mean(part, 'l2', 'map', 0):.1f} ± {spread:.1f} ({mean(part, 'cosine', 'map', 0):.1f})")
                cells.append(f"{mean(part, 'l2', 'map', 1):.1f} ({mean(part, 'cosine', 'map', 1):.1f})")
            cells.append(f"{mean('seen', 'error'):.2f}")
            cells.append(f"{mean('seen', 'length'):.2f} of {mean('seen', 'length_new'):.2f}")
            cells.append(f"{mean('seen', 'log_sigma2', 0):.1f} to {mean('seen', 'log_sigma2', 2):.1f}" if "uncert" in row or row.startswith("all") else "–")
            print(f"| {name} | {row} | {' | '.join(cells)} |")


def main() -> None:
    parser = sets.parser(__doc__, ["text_banking77", "text_clinc150", "img_caltech101"])
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", nargs="*", help="these rows alone")
    asked = parser.parse_args()
    if asked.table:
        table(asked.table)
        return
    import rehang

    warnings.simplefilter("ignore", rehang.FindingWarning)
    with open(asked.out, "a") as out:
        for name in asked.sets:
            data, head = sets.load(asked.data, name), sets.head(asked.data, name)
            for seed in asked.seeds:
                for label, row in ROWS.items():
                    if asked.rows and label not in asked.rows:
                        continue
                    line = {"set": name, "row": label, "seed": seed}
                    try:
                        said = one(data, head, row, seed, asked.epochs, asked.device)
                    except rehang.Error as error:
                        out.write(json.dumps({**line, "failed": str(error)}) + "\n")
                        out.flush()
                        print(name, seed, label, error, flush=True)
                        continue
                    out.write(json.dumps({**line, **said}) + "\n")
                    out.flush()
                    print(name, seed, label, said["fit_s"], f"{said['seen']['l2']['map'][0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
