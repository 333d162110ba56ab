"""Which pairs to draw: uniform samples against stratified ones, on galleries whose new vectors are all known.

    python3 scripts/samples.py ../shared/data [SET …] [--seeds 8]

A map (kernel ridge) is fitted on a sample of a set's training pairs and serves the two test parts, which no sample touches: mAP by label over
the whole backfill in the default order, in percent, mean of both parts. Strata are the labels, or as many clusters of the old vectors as a
tenth of the sample; each gets its share, to the item. `one a cluster`: as many clusters as pairs. Prints each kind's difference from uniform
samples of the same seeds, with its standard error. It needs rehang, numpy and scikit-learn.
"""

import argparse
import pathlib
import warnings

import numpy as np
import rehang
from sklearn.cluster import MiniBatchKMeans

SETS = ["toy_digits", "img_omniglot", "img_caltech101", "text_clinc150", "text_banking77"]
SIZES = [250, 500, 1000, 2000]


def read(folder):
    """Old vectors, new vectors and labels of the training pairs and of both test parts."""
    if folder.name.startswith("img_"):
        names = ["train", "seen", "unseen"]
        return [[np.load(folder / f"{part}_{kind}.npy") for kind in ["old", "new", "label"]] for part in names]
    old, new, label, role = (np.load(folder / f"{kind}.npy") for kind in ["old", "new", "label", "role"])
    return [[rows[role == part] for rows in [old, new, label]] for part in range(3)]


def shares(strata, count, random):
    """Every stratum's share of `count` items, in random order inside each: every so-many-th item of all strata in a row."""
    row = random.permutation(len(strata))
    row = row[np.argsort(strata[row], kind="stable")]
    return row[((np.arange(count) + random.random()) * len(row) / count).astype(int)]


def clusters(old, count, random):
    means = MiniBatchKMeans(count, random_state=int(random.integers(1 << 30)), n_init=1, batch_size=2048)
    return means.fit_predict(old)


def one_each(strata, count, random):
    """One item of every stratum; where there are fewer, others for the rest."""
    row = random.permutation(len(strata))
    first = np.unique(strata[row], return_index=True)[1]
    return np.concatenate([row[first], np.delete(row, first)])[:count]


KINDS = {
    "uniform": lambda old, label, count, random: random.permutation(len(old))[:count],
    "by label": lambda old, label, count, random: shares(label, count, random),
    "by cluster": lambda old, label, count, random: shares(clusters(old, count // 10, random), count, random),
    "one a cluster": lambda old, label, count, random: one_each(clusters(old, count, random), count, random),
}


def served(adapter, parts):
    areas = []
    for old, new, label in parts:
        adapted = adapter.transform(old, force=True, progress=False)
        order = rehang.order(adapter=adapter, adapted=adapted)
        curve = rehang.curve(new, adapted, order, labels=label, adapter=adapter, bootstrap=0, progress=False)
        areas.append(curve.answer["area"]["map"])
    return np.mean(areas)


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("sets", nargs="*")
parser.add_argument("--seeds", type=int, default=8)
arguments = parser.parse_args()
warnings.simplefilter("ignore")
print("| set | pairs | uniform | " + " | ".join(list(KINDS)[1:]) + " |")
print("|---|--:|--:|" + "--:|" * (len(KINDS) - 1))
apart = {kind: [] for kind in KINDS}
for name in arguments.sets or SETS:
    (old, new, label), *parts = read(arguments.folder / name)
    for size in (size for size in SIZES if size <= len(old) * 0.6):
        areas = {kind: [] for kind in KINDS}
        for seed in range(arguments.seeds):
            for kind, draw in KINDS.items():
                rows = np.sort(draw(old, label, size, np.random.default_rng(seed)))
                adapter = rehang.fit(old[rows], new[rows], method="kernel-ridge", compare=False, progress=False)
                areas[kind].append(served(adapter, parts))
        cells = [f"{np.mean(areas['uniform']):.1f}"]
        for kind in list(KINDS)[1:]:
            difference = np.subtract(areas[kind], areas["uniform"])
            apart[kind].append(difference.mean())
            cells.append(f"{difference.mean():+.2f} ± {difference.std(ddof=1) / len(difference) ** 0.5:.2f}")
        print(f"| {name} | {size} | " + " | ".join(cells) + " |", flush=True)
means = [
    f"{kind} {np.mean(found):+.2f} ± {np.std(found, ddof=1) / len(found) ** 0.5:.2f}"
    for kind, found in apart.items()
    if kind != "uniform"
]
print("\nMean over all rows: " + ", ".join(means))
