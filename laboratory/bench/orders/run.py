"""Which items first: orders beside each other under even and under Zipf loads, with a log of what searches returned and without.

    python run.py DATA OUT [--sets SET …] [--seeds 0 1 2] [--orders random sigma coverage …]
    python run.py --table OUT…

DATA holds the real sets. 2,000 training pairs (all of fewer) fit a kernel ridge with its handicap. Half of each part is a gallery; the other half asks: a quarter asked before the switch, by the old model, and left a
log of the ten ids that each search returned; a quarter asks afterwards and is measured. *Even*: each item asks once. *Zipf*: the classes of a part are asked for by 1/rank, in a random ranking that
log and measured queries share; as many questions as items, with repetitions. A line of OUT is an order of one set, part, load and seed: areas of mAP and top-1.

`--table` prints the mean gain over random order in the area, and where 10 and 25 % are native, with half of the 95 % interval over sets, parts and seeds, and in how many of all sets' parts
and metrics the area is below that of random, sigma or coverage beyond the interval over seeds.

traffic            returned most often by the log first; equal ones as coverage has them
traffic · σ²       times returned and one, times σ²
returned first · σ²   times returned, times σ²; items never returned as coverage has them (`rehang upgrade first`)
traffic, by rank   as traffic, but a place counts 1/rank
traffic, each search once   items that give each search of the log one native answer, most searches first; then coverage
traffic, coverage  coverage, but the items never returned come after all others
traffic, smoothed  what the log's queries would return softly: Σ exp(cos/τ) of old vectors over the log, τ = 0.05
hubness            in how many items' ten nearest adapted vectors it is, most often first: no log needed
hubness · σ²       hubness and one, times σ²
margin of classes · σ²   exp(−m/m̄) σ²: m is by how much an adapted vector is nearer to the mean of the pairs' nearest class than to that of the second one, m̄ its mean
margin of rank 10 · σ²   Σ exp(−|c − b|/τ) σ² over all other items as queries: c is the cosine with one, b what lies between its tenth and eleventh, τ the middle of what lies
                   between its fifth and twentieth
crossings expected   Σ Φ(−|c − b|/s) over the same: how many top tens it may enter or leave, where its error is the same in all directions, s² = σ²/d
on read            no log: the queries of the log are asked along the way, in twenty parts, of what the gallery is by then; each twentieth of the backfill takes what
                   was returned most (an earlier part counts 0.8 of the next), equal ones as coverage has them
on read · σ²       the same, times returned times σ²
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sets

PAIRS, RETURNED, ROUNDS = 2000, 10, 20
SHARES = (0.1, 0.25)
PLAIN = ("random", "sigma", "coverage", "class-mean")


def first(score: Any, ties: Any) -> Any:
    """Largest score first, equal ones in the order `ties`."""
    place = np.empty(len(ties), dtype=np.int64)
    place[ties] = np.arange(len(ties))
    return np.lexsort((place, -np.asarray(score, dtype=np.float64)))


def asks(labels: Any, load: str, popularity: dict[int, float], rng: Any) -> Any:
    """Rows of the queries that are asked."""
    if load == "even":
        return np.arange(len(labels))
    weights = np.array([popularity[int(label)] for label in labels])
    counts = {int(label): (labels == label).sum() for label in np.unique(labels)}
    weights = weights / np.array([counts[int(label)] for label in labels])
    return rng.choice(len(labels), len(labels), p=weights / weights.sum())


def on_read(gallery: dict[str, Any], adapted: Any, weight: Any, ties: Any, asked: Any, handicap: float) -> Any:
    """What searches return is re-embedded next, times its weight; `asked [m, d]` are queries of the new model."""
    seen, new = sets.unit(adapted), gallery["new"]
    native, counts, places = np.zeros(len(seen), dtype=bool), np.zeros(len(seen)), []
    for turn, queries in enumerate(np.array_split(asked, ROUNDS), 1):
        far = np.where(native, 1 - queries @ new.T, 1 - queries @ seen.T + handicap)
        counts = 0.8 * counts + np.bincount(np.argpartition(far, RETURNED, axis=1)[:, :RETURNED].ravel(), minlength=len(seen))
        left = [place for place in first(counts * weight, ties) if not native[place]]
        taken = left[: round(len(seen) * turn / ROUNDS) - len(places)]
        places += taken
        native[taken] = True
    return np.array(places)


def margins(seen: Any, cosines: Any, means: Any, sigma2: Any) -> dict[str, Any]:
    """σ² of adapted vectors `seen [n, d]` of length 1, weighted by how near each is to a border; `cosines [n, n]` are between them, `means [c, d]` of the classes of the pairs."""
    to_classes = np.sort(seen @ means.T, axis=1)
    ahead = to_classes[:, -1] - to_classes[:, -2]
    ranked = -np.sort(-cosines, axis=1)
    gaps = np.abs(cosines - ranked[:, RETURNED - 1 : RETURNED + 1].mean(axis=1, keepdims=True))
    spread = np.median(ranked[:, RETURNED // 2 - 1] - ranked[:, min(2 * RETURNED, len(seen) - 1) - 1])
    # The probability of a normal deviate beyond each gap, from a table: there are n² of them.
    grid = np.linspace(0, 6, 6001)
    beyond = np.array([0.5 * math.erfc(at / 2**0.5) for at in grid])
    deviates = np.minimum(gaps / np.sqrt(np.maximum(sigma2, 1e-12) / seen.shape[1]), grid[-1])
    return {
        "margin of classes · σ²": np.exp(-ahead / ahead.mean()) * sigma2,
        "margin of rank 10 · σ²": np.exp(-gaps / spread).sum(axis=0) * sigma2,
        "crossings expected": np.interp(deviates, grid, beyond).sum(axis=0),
    }


def orders(gallery: dict[str, Any], adapter: Any, means: Any, log: Any, log_old: Any, log_new: Any, seed: int) -> dict[str, Any]:
    """Every order of the gallery; `means` as in `margins`; `log [m, RETURNED]` are places that searches returned, of queries by the old and by the new model."""
    import rehang

    adapted, sigma2 = adapter.transform(gallery["old"], return_sigma=True, force=True)
    made = {policy: rehang.order(policy, adapter=adapter, adapted=adapted, sigma=sigma2, seed=seed) for policy in PLAIN}
    counts = np.bincount(log.ravel(), minlength=len(adapted))
    ranks = np.broadcast_to(1 / np.arange(1, RETURNED + 1), log.shape)
    by_rank = np.bincount(log.ravel(), weights=ranks.ravel(), minlength=len(adapted))
    # A search of the log is served by its first native answer; of what it has left, the item that serves most comes next.
    turns, served = np.zeros(len(adapted)), np.zeros(len(log), dtype=bool)
    for turn in range(len(adapted), 0, -1):
        gains = np.bincount(log[~served].ravel(), weights=ranks[~served].ravel(), minlength=len(adapted)) if not served.all() else None
        if gains is None or gains.max() <= 0:
            break
        turns[gains.argmax()] = turn
        served |= (log == gains.argmax()).any(axis=1)
    seen = sets.unit(adapted)
    cosines = seen @ seen.T
    np.fill_diagonal(cosines, -np.inf)
    hubs = np.bincount(np.argpartition(-cosines, RETURNED, axis=1)[:, :RETURNED].ravel(), minlength=len(adapted))
    soft = np.exp((sets.unit(log_old) @ sets.unit(gallery["old"]).T - 1) / 0.05).sum(axis=0)
    coverage = made["coverage"]
    made |= {
        "traffic": first(counts, coverage),
        "traffic · σ²": first((1 + counts) * sigma2, coverage),
        "returned first · σ²": first(counts * sigma2, coverage),
        "traffic, by rank": first(by_rank, coverage),
        "traffic, each search once": first(turns, coverage),
        "traffic, coverage": first(counts > 0, coverage),
        "traffic, smoothed": first(soft, coverage),
        "hubness": first(hubs, coverage),
        "hubness · σ²": first((1 + hubs) * sigma2, coverage),
    }
    made |= {name: first(score, coverage) for name, score in margins(seen, cosines, means, sigma2).items()}
    asked = log_new[np.random.default_rng(seed).permutation(len(log_new))]
    for name, weight in (("on read", np.ones(len(adapted))), ("on read · σ²", sigma2)):
        made[name] = on_read(gallery, adapted, weight, coverage, asked, adapter.handicap)
    return made


def table(files: list[Path]) -> None:
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    names = list(dict.fromkeys(line["order"] for line in lines))
    by = {(line["load"], line["set"], line["part"], line["seed"], line["order"]): line for line in lines}
    for load in ("even", "zipf"):
        places = [key[1:4] for key in by if key[0] == load and key[4] == "random"]
        groups = list(dict.fromkeys(place[:2] for place in places))
        shares = " | ".join(f"{metric} at {share:.0%}" for share in SHARES for metric in ("mAP", "top-1"))
        print(f"\n**{load} load**, gain over random\n\n| order | mAP | top-1 | {shares} | below random | below sigma | below coverage |")
        print("|---|" + "--:|" * (5 + 2 * len(SHARES)))
        for name in names:

            def gains(metric: str, at: int, rival: str, of: Any = None, name: str = name, load: str = load, places: Any = places) -> list[float]:
                chosen = [place for place in places if of is None or place[:2] == of]
                return [by[load, *place, name][metric][at] - by[load, *place, rival][metric][at] for place in chosen]

            cells = []
            for at in range(1 + len(SHARES)):
                cells += ["{:+.2f} ± {:.2f}".format(*interval(gains(metric, at, "random"))) for metric in ("map", "top1")]
            for rival in ("random", "sigma", "coverage"):
                below = 0
                for group in groups:
                    for metric in ("map", "top1"):
                        mean, half = interval(gains(metric, 0, rival, group))
                        below += mean + half < 0
                cells.append(f"{below} of {2 * len(groups)}")
            print(f"| {name} | {' | '.join(cells)} |")


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval."""
    return statistics.mean(values), 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def main() -> None:
    parser = sets.parser(__doc__, list(sets.LABELLED))
    parser.add_argument("--orders", nargs="*", help="these alone, of the names below; all of them unless given")
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
                adapter, rows = sets.kernel_ridge(data["train"], PAIRS, rng, seed)
                taught, classes_of = sets.unit(data["train"]["new"][rows]), data["train"]["label"][rows]
                means = sets.unit(np.stack([taught[classes_of == label].mean(axis=0) for label in np.unique(classes_of)]))
                for part in ("seen", "unseen"):
                    old, new, labels = sets.unit(data[part]["old"]), sets.unit(data[part]["new"]), data[part]["label"]
                    mixed = rng.permutation(len(old))
                    held, before, after = np.split(mixed, [len(old) // 2, 3 * len(old) // 4])
                    gallery = {"old": old[held], "new": new[held], "labels": labels[held]}
                    classes = rng.permutation(np.unique(labels))
                    popularity = {int(label): 1 / rank for rank, label in enumerate(classes, 1)}
                    adapted = adapter.transform(gallery["old"], force=True)
                    for load in ("even", "zipf"):
                        logged = before[asks(labels[before], load, popularity, rng)]
                        answers = np.argsort(-(old[logged] @ gallery["old"].T), axis=1)[:, :RETURNED]
                        asking = after[asks(labels[after], load, popularity, rng)]
                        for order, places in orders(gallery, adapter, means, answers, old[logged], new[logged], seed).items():
                            if asked.orders and order not in asked.orders:
                                continue
                            curve = rehang.curve(
                                gallery["new"], adapted, places, labels=gallery["labels"], queries=new[asking], query_labels=labels[asking],
                                distance="cosine", handicap=adapter.handicap, bootstrap=0, progress=False,
                            )  # fmt: skip
                            line = {"set": name, "part": part, "seed": seed, "load": load, "order": order, "handicap": adapter.handicap}
                            for metric in ("map", "top1"):
                                points = curve.points(metric)
                                line[metric] = [curve.area[metric], *(float(points[round(share * (len(points) - 1))]) for share in SHARES)]
                            out.write(json.dumps(line) + "\n")
                        out.flush()
                    print(name, seed, part, flush=True)


if __name__ == "__main__":
    main()
