"""Whether σ² of each item makes searches of a half-filled gallery better: in the handicap, and in the weight of a fused search.

    python sigma.py DATA OUT [--sets SET …] [--seeds 0 1 2]
    python sigma.py --table OUT…

As in run.py 2,000 pairs fit a kernel ridge with its handicap c, a half of each part is the gallery, and the other half asks (even load). One thing changes at a time. A line of OUT is one way of serving in one order: the means of
mAP and top-1 over seven shares of native items. `--table` prints what each gains over the product's way, with half of the 95 % interval over sets, parts and seeds.

half σ²     mixed searches: c/2 + c/2 · σ²/mean in the place of c
all σ²      mixed searches: c · σ²/mean
k = 0.12    fused searches: the weight of the adapted distance is w − k z(log σ²), from 0.2 to 1, in the place of w
k = 0.25
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sets
from run import PAIRS, interval

SHARES = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9)
ORDERS = ("random", "coverage", "sigma")
WEIGHT, QUERIES = 0.8, 600
RIVALS = {"half σ²": "mixed", "all σ²": "mixed", "k = 0.12": "fused", "k = 0.25": "fused"}


def quality(distances: Any, right: Any) -> tuple[float, float]:
    """mAP and top-1 of `distances [m, n]`, percent."""
    found = np.take_along_axis(right, np.argsort(distances, axis=1, kind="stable"), axis=1)
    precision = found.cumsum(axis=1) / np.arange(1, found.shape[1] + 1)
    some = found.any(axis=1)
    mean = (precision * found).sum(axis=1)[some] / found.sum(axis=1)[some]
    return 100 * float(mean.mean()), 100 * float(found[some, 0].mean())


def ways(old: Any, adapted: Any, sigma2: Any, handicap: float) -> dict[str, Any]:
    """Of every way of serving, the distances `[m, n]` of what is not native."""
    relative = sigma2 / sigma2.mean()
    made = {
        "mixed": adapted + handicap,
        "half σ²": adapted + handicap * (0.5 + 0.5 * relative),
        "all σ²": adapted + handicap * relative,
    }
    logs = np.log(np.maximum(sigma2, 1e-12))
    z = (logs - logs.mean()) / max(float(logs.std()), 1e-12)
    target = np.sort(adapted.ravel())
    for name, k in (("fused", 0.0), ("k = 0.12", 0.12), ("k = 0.25", 0.25)):
        weight = np.clip(WEIGHT - k * z, 0.2, 1)
        both = (1 - weight) * old / old.std() + weight * adapted / adapted.std()
        # The distances that adapted vectors have, in the order of both together.
        made[name] = np.interp(both, np.sort(both.ravel()), target) + handicap
    return made


def table(files: list[Path]) -> None:
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    by = {(line["order"], line["set"], line["part"], line["seed"], line["way"]): line for line in lines}
    print("| order | way | over | mAP | top-1 |\n|---|---|---|--:|--:|")
    for order in ORDERS:
        places = [key[1:4] for key in by if key[0] == order and key[4] == "mixed"]
        for way, rival in {"fused": "mixed", **RIVALS}.items():
            cells = []
            for metric in ("map", "top1"):
                gains = [by[order, *place, way][metric] - by[order, *place, rival][metric] for place in places]
                cells.append("{:+.2f} ± {:.2f}".format(*interval(gains)))
            print(f"| {order} | {way} | {rival} | {' | '.join(cells)} |")


def main() -> None:
    parser = sets.parser(__doc__, list(sets.LABELLED))
    asked = parser.parse_args()
    if asked.table:
        table(asked.table)
        return
    import rehang

    warnings.simplefilter("ignore", rehang.FindingWarning)
    with open(asked.out, "a") as out:
        for name in asked.sets:
            data = sets.load(asked.data, name)
            for seed in asked.seeds:
                rng = np.random.default_rng(seed)
                adapter, _ = sets.kernel_ridge(data["train"], PAIRS, rng, seed)
                for part in ("seen", "unseen"):
                    old, new, labels = sets.unit(data[part]["old"]), sets.unit(data[part]["new"]), data[part]["label"]
                    held, asking = np.array_split(rng.permutation(len(old)), 2)
                    asking = asking[:QUERIES]
                    adapted, sigma2 = adapter.transform(old[held], return_sigma=True, force=True)
                    right = labels[asking][:, None] == labels[held]
                    native = 1 - new[asking] @ new[held].T
                    far = ways(1 - old[asking] @ old[held].T, 1 - new[asking] @ sets.unit(adapted).T, sigma2, adapter.handicap)
                    for order in ORDERS:
                        places = rehang.order(order, adapter=adapter, adapted=adapted, sigma=sigma2, seed=seed)
                        for way, distances in far.items():
                            seen = []
                            for share in SHARES:
                                here = distances.copy()
                                done = places[: round(share * len(places))]
                                here[:, done] = native[:, done]
                                seen.append(quality(here, right))
                            means = [statistics.mean(values) for values in zip(*seen, strict=True)]
                            out.write(json.dumps({"set": name, "part": part, "seed": seed, "order": order, "way": way, "map": means[0], "top1": means[1]}) + "\n")
                        out.flush()
                print(name, seed, flush=True)


if __name__ == "__main__":
    main()
