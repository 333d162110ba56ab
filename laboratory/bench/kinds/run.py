"""Old vectors of two kinds: one map for both, and a map for each with a gate between them that reads the old vector alone.

    python laboratory/bench/kinds/run.py --data ../shared/data --splits 5

2,000 pairs are fitted on, and 500 items of classes that pairs know and 500 of others are measured: squared error as a part of the
variance of the new vectors, of items of the large and of the small kind; mAP and top-1 of new queries over adapted items. `rehang fit`
finds kinds by itself, and brings vectors to length 1. With `--told`, numpy's ridge and kernel ridge (penalty and width chosen by
leave-one-out) stand beside it: one for both kinds, one for each where somebody tells the kinds, and one for each with a gate of two
normal distributions. A line of the table is the set,
what makes the kinds, the share of the small one, the maps, the two errors, and mAP and top-1 of known and of other classes: means and
standard deviations over the splits.

What makes old vectors of two kinds, of the share that is named:

turned       a fixed random rotation
shifted      a rotation, and an offset that all of the kind share
model        another old model's vectors: `mid` of the text sets, principal components of the pixels of img_omniglot
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import sets

PENALTIES = [1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0]
GAMMAS = [0.125, 0.25, 0.5, 1.0]
LAMBDAS = [0.01, 0.03, 0.1, 0.3]


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


class Ridge:
    """`x W + b`, penalty as a part of the mean variance of a coordinate, chosen by leave-one-out."""

    def __init__(self, x, y):
        self.mx, self.my = x.mean(0), y.mean(0)
        xc, yc = x - self.mx, y - self.my
        values, axes = np.linalg.eigh(xc.T @ xc)
        scores = xc @ axes
        level = values.mean()
        best = None
        for penalty in PENALTIES:
            w = (scores.T @ yc) / (values + penalty * level)[:, None]
            leverage = (scores**2 / (values + penalty * level)).sum(1) + 1 / len(x)
            error = (((yc - scores @ w) / (1 - leverage)[:, None]) ** 2).sum()
            if best is None or error < best[0]:
                best = (error, axes @ w)
        self.loo, self.w = best[0] / (yc**2).sum(), best[1]

    def __call__(self, x):
        return (x - self.mx) @ self.w + self.my


def squared(a, b):
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T, 0)


class Kernel:
    """Kernel ridge about the mean, width and penalty chosen by leave-one-out."""

    def __init__(self, x, y):
        self.x, self.my = x, y.mean(0)
        yc = y - self.my
        self.s = ((x - x.mean(0)) ** 2).sum(1).mean()
        d = squared(x, x) / self.s
        best = None
        for gamma in GAMMAS:
            values, axes = np.linalg.eigh(np.exp(-gamma * d))
            turned = axes.T @ yc
            for penalty in LAMBDAS:
                a = axes @ (turned / (values + penalty)[:, None])
                diagonal = (axes**2 / (values + penalty)).sum(1)
                error = ((a / diagonal[:, None]) ** 2).sum()
                if best is None or error < best[0]:
                    best = (error, gamma, a, penalty)
        self.loo, self.gamma, self.a = best[0] / (yc**2).sum(), best[1], best[2]

    def __call__(self, x):
        return np.exp(-self.gamma * squared(x, self.x) / self.s) @ self.a + self.my


class Gaussians:
    """A gate: a normal distribution of either kind, covariances drawn towards their mean diagonal; gives P(small kind)."""

    def __init__(self, x, kind):
        self.of = []
        folds = np.arange(len(x)) % 5
        best = None
        for shrink in [0.01, 0.03, 0.1, 0.3]:
            logit = np.zeros(len(x))
            for f in range(5):
                self.fit(x[folds != f], kind[folds != f], shrink)
                logit[folds == f] = self.logit(x[folds == f])
            # The scale of the logit: a density's tails are too sure.
            for scale in [0.03, 0.1, 0.3, 1.0]:
                loss = np.logaddexp(0, np.where(kind, -logit, logit) * scale).mean()
                if best is None or loss < best[0]:
                    best = (loss, shrink, scale, ((logit > 0) == kind).mean())
        _, shrink, self.scale, self.right = best
        self.fit(x, kind, shrink)

    def fit(self, x, kind, shrink):
        self.of = []
        for which in (kind, ~kind):
            rows = x[which]
            mean = rows.mean(0)
            covariance = np.cov(rows.T, bias=True)
            level = np.trace(covariance) / len(mean)
            covariance = (1 - shrink) * covariance + shrink * level * np.eye(len(mean))
            values, axes = np.linalg.eigh(covariance)
            self.of.append((mean, axes / np.sqrt(values), np.log(values).sum() - 2 * np.log(which.mean())))

    def logit(self, x):
        one, other = [(((x - m) @ w) ** 2).sum(1) + c for m, w, c in self.of]
        return 0.5 * (other - one)

    def __call__(self, x):
        return 1 / (1 + np.exp(-np.clip(self.scale * self.logit(x), -30, 30)))


def retrieval(queries, gallery, labels):
    """mAP and top-1 of every item's new vector over the other items' adapted ones, by cosine, percent."""
    scores = unit(queries) @ unit(gallery).T
    np.fill_diagonal(scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :-1]
    hits = labels[order] == labels[:, None]
    asked = hits.any(1)
    hits = hits[asked]
    precision = hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
    return 100 * ((precision * hits).sum(1) / hits.sum(1)).mean(), 100 * hits[:, 0].mean()


class Fitted:
    """The adapter that `rehang fit` makes of pairs."""

    def __init__(self, rehang, folder, method, x, y, label):
        self.rehang, self.folder = str(pathlib.Path(rehang).absolute()), folder
        for name, rows in [("old", x), ("new", y)]:
            np.save(folder / f"{name}.npy", rows.astype(np.float32))
        np.save(folder / "label.npy", label.astype(np.int64))
        files = ["--old", folder / "old.npy", "--new", folder / "new.npy", "--labels", folder / "label.npy"]
        how = ["--method", method, "-o", folder / "adapter.safetensors", "--json"]
        if method != "auto":
            how.append("--no-compare")
        done = subprocess.run([rehang, "fit", *files, *how], capture_output=True, text=True)
        self.said, self.kept = done.stderr.strip().splitlines()[-1:], None
        if done.returncode in (0, 1):
            shown = subprocess.run([rehang, "inspect", folder / "adapter.safetensors", "--json"], capture_output=True, text=True, check=True)
            self.kept = json.loads(shown.stdout)["training"]["method"]

    def __call__(self, items, kinds):
        np.save(self.folder / "items.npy", items.astype(np.float32))
        (self.folder / "out.npy").unlink(missing_ok=True)
        command = [self.rehang, "transform", "adapter.safetensors", "items.npy", "-o", "out.npy"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)
        return np.load(self.folder / "out.npy").astype(np.float64)


def load(folder, name):
    """Old, new, label, and another old model's vectors where the set has them, of every part."""
    place = pathlib.Path(folder) / name
    parts = {part: [of[what] for what in ("old", "new", "label")] for part, of in sets.load(folder, name).items()}
    if (place / "mid.npy").exists():
        role, mid = np.load(place / "role.npy"), np.load(place / "mid.npy")
        for number, part in enumerate(sets.PARTS):
            parts[part].append(mid[role == number])
    elif (place / "raw_u8_28.npy").exists():
        pixels = np.load(place / "raw_u8_28.npy")
        pixels = pixels.reshape(len(pixels), -1).astype(np.float32) / 255
        index = {part: np.load(place / f"{part}_index.npy") for part in parts}
        known = pixels[index["train"]]
        mean = known.mean(0)
        axes = np.linalg.svd(known - mean, full_matrices=False)[2][: parts["train"][0].shape[1]].T
        for part in parts:
            parts[part].append((pixels[index[part]] - mean) @ axes)
    return parts


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", default="../shared/data")
    arguments.add_argument("--sets", nargs="*", default=["text_banking77", "text_clinc150", "img_omniglot"])
    arguments.add_argument("--ways", nargs="*", default=["turned", "shifted", "model"])
    arguments.add_argument("--shares", nargs="*", type=float, default=[0.5, 0.2, 0.08])
    arguments.add_argument("--pairs", type=int, default=2000)
    arguments.add_argument("--items", type=int, default=500)
    arguments.add_argument("--splits", type=int, default=3)
    arguments.add_argument("--rehang", default="target/quick/rehang", help="the binary")
    arguments.add_argument("--told", action="store_true", help="numpy's maps too, of kinds that somebody tells")
    arguments.add_argument("--methods", nargs="*", default=["kernel-ridge", "per-kind"], help="what it fits, such as auto")
    arguments = arguments.parse_args()
    for name in arguments.sets:
        parts = load(arguments.data, name)
        for way in arguments.ways:
            if way == "model" and len(parts["train"]) < 4:
                continue
            for share in arguments.shares:
                rows = [one(parts, way, share, seed, arguments) for seed in range(arguments.splits)]
                names = [f"rehang fit: {method}" for method in ("kernel-ridge", "per-kind")]
                if all(name in rows[0] for name in names):
                    for row in rows:
                        row["per-kind less kernel-ridge"] = list(np.subtract(row[names[1]], row[names[0]]))
                for method in rows[0]:
                    values = np.array([row[method] for row in rows])
                    mean, sd = values.mean(0), values.std(0, ddof=1) if len(rows) > 1 else values[0] * 0
                    cells = " | ".join(f"{m:.{p}f} ± {s:.{p}f}" for m, s, p in zip(mean, sd, [3, 3, 1, 1, 1, 1]))
                    print(f"| {name} | {way} | {100 * share:.0f} % | {method} | {cells} |", flush=True)


def one(parts, way, share, seed, arguments):
    random = np.random.default_rng(seed)
    d = parts["train"][0].shape[1]
    rotation = np.linalg.qr(np.random.default_rng(7).standard_normal((d, d)))[0]
    offset = 0.5 * unit(np.random.default_rng(8).standard_normal((1, d)))
    drawn = {}
    for part, count in [("train", arguments.pairs), ("seen", arguments.items), ("unseen", arguments.items)]:
        old, new, label = parts[part][:3]
        rows = random.permutation(len(old))[:count]
        x, y, label = unit(old[rows].astype(np.float64)), unit(new[rows].astype(np.float64)), label[rows]
        kind = random.random(len(rows)) < share
        if way == "turned":
            x[kind] = x[kind] @ rotation
        elif way == "shifted":
            x[kind] = unit(x[kind] @ rotation + offset)
        else:
            x[kind] = unit(parts[part][3][rows].astype(np.float64))[kind]
        drawn[part] = (x, y, label, kind)
    x, y, label, kind = drawn["train"]
    out = {}

    def measure(method, predict):
        errors, quality = [], []
        for part in ("seen", "unseen"):
            items, native, label, kinds = drawn[part]
            adapted = predict(items, kinds)
            squares = ((adapted - native) ** 2).sum(1)
            variance = ((native - native.mean(0)) ** 2).sum(1)
            errors.append([squares[~kinds].sum() / variance[~kinds].sum(), squares[kinds].sum() / variance[kinds].sum()])
            quality += retrieval(native, adapted, label)
        out[method] = [*np.mean(errors, axis=0), *quality]

    if arguments.told:
        maps = {}
        both = {"ridge": Ridge, "kernel": Kernel}
        for which, fit in both.items():
            maps[f"one {which}"] = fit(x, y)
        own = {which: (fit(x[kind], y[kind]), fit(x[~kind], y[~kind])) for which, fit in both.items()}
        gate = Gaussians(x, kind)
        for method, of in maps.items():
            measure(method, lambda items, kinds, of=of: of(items))
        for which, (small, large) in own.items():
            measure(f"{which} for each, kinds known", lambda items, kinds: np.where(kinds[:, None], small(items), large(items)))

            def gated(items, kinds):
                part = gate(items)[:, None]
                return part * small(items) + (1 - part) * large(items)

            measure(f"{which} for each, told by their covariances", gated)
    for method in arguments.methods:
        with tempfile.TemporaryDirectory() as folder:
            fitted = Fitted(arguments.rehang, pathlib.Path(folder), method, x, y, label)
            if fitted.kept is None:
                print(f"{way}, {100 * share:.0f} %, seed {seed}: {method}: {fitted.said}", file=sys.stderr)
                out[f"rehang fit: {method}"] = [np.nan] * 6
                continue
            if method == "auto":
                print(f"{way}, {100 * share:.0f} %, seed {seed}: auto kept {fitted.kept}", file=sys.stderr)
            measure(f"rehang fit: {method}", fitted)
    return out


if __name__ == "__main__":
    main()
