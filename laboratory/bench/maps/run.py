"""Maps beyond the product's, each measured before it is kept: λ-orthogonality, relational losses, one map a cluster, a fit without pairs.

    python run.py DATA OUT [--sets SET …] [--seeds 0 1 2] [--device cuda] [--only PART …]
    python run.py --table OUT…

DATA holds the real sets. All vectors are at length 1 and compared by cosine, in random order, without a handicap. A line of OUT is a map of one set and seed: area and start of mAP and top-1
on the seen and the unseen part. A seed draws 2,000 training pairs (all of fewer), so that maps that learn are measured on other pairs each time. What a map's settings are chosen by is a fifth
of these pairs' classes, left out: no map sees a test part.

`--table` prints, for each family, the mean gain over the product's kernel ridge by set and part, and its standard error over sets, parts and seeds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sets

Rows = Any
Map = Callable[[Rows], Rows]
PAIRS, EPOCHS = 2000, 100
BASE = "kernel-ridge"


def unit(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows, dim=1)


# --- what is measured ---------------------------------------------------------------------------------------------------------


def measured(new: Rows, adapted: Rows, labels: Rows, seed: int) -> dict[str, Any]:
    """Area, start and end of mAP and top-1, in random order."""
    import rehang

    order = np.random.default_rng(seed).permutation(len(new))
    curve = rehang.curve(new, adapted, order, labels=labels, distance="cosine", bootstrap=0, progress=False)
    return {metric: [curve.area[metric], float(curve.points(metric)[0]), float(curve.points(metric)[-1])] for metric in ("map", "top1")}


def agreement(map_: Map, old: Rows, new: Rows, labels: Rows) -> float:
    """What settings are chosen by: mAP of new queries among adapted vectors of held-out pairs, each leaving itself out."""
    cosines = sets.unit(new) @ sets.unit(map_(old)).T
    np.fill_diagonal(cosines, -np.inf)
    ranked = np.argsort(-cosines, axis=1)[:, :-1]
    hit = labels[ranked] == labels[:, None]
    have = hit.any(axis=1)
    precision = np.cumsum(hit, axis=1) / np.arange(1, hit.shape[1] + 1)
    return float(100 * ((precision * hit).sum(axis=1)[have] / hit.sum(axis=1)[have]).mean())


# --- maps by closed forms -----------------------------------------------------------------------------------------------------


class Ridge:
    """`(x − x̄) W + ȳ`; rows may have weights; the penalty, a part of the mean variance of a coordinate, by leave-one-out."""

    PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)

    def __init__(self, x: Rows, y: Rows, centre: bool = True) -> None:
        x, y = x.astype(np.float64), y.astype(np.float64)
        self.mx = x.mean(axis=0)
        self.my = y.mean(axis=0) if centre else np.zeros(y.shape[1])
        xc, yc = x - self.mx, y - self.my
        values, axes = np.linalg.eigh(xc.T @ xc)
        values = np.maximum(values, 0)
        scores = xc @ axes
        level, best = max(values.mean(), 1e-30), None
        for penalty in self.PENALTIES:
            inverse = 1 / (values + penalty * level)
            fitted = scores @ ((scores.T @ yc) * inverse[:, None])
            leverage = (scores**2 * inverse).sum(axis=1) + (1 / len(x) if centre else 0)
            error = float((((yc - fitted) / np.maximum(1 - leverage, 1e-9)[:, None]) ** 2).sum())
            if best is None or error < best:
                best, self.weight = error, axes @ ((scores.T @ yc) * inverse[:, None])
        self.left_out_error, self.nothing = best, float((yc**2).sum())

    def __call__(self, x: Rows) -> Rows:
        return ((x - self.mx) @ self.weight + self.my).astype(np.float32)


def k_means(x: Rows, k: int, seed: int, rounds: int = 50) -> Rows:
    """Centres `[k, d]`; an empty cluster takes the row that is farthest from its centre."""
    rng = np.random.default_rng(seed)
    centres = x[rng.choice(len(x), k, replace=False)].astype(np.float64)
    for _ in range(rounds):
        apart = squared(x, centres)
        of = apart.argmin(axis=1)
        for cluster in range(k):
            rows = of == cluster
            centres[cluster] = x[rows].mean(axis=0) if rows.any() else x[apart.min(axis=1).argmax()]
    return centres


def squared(a: Rows, b: Rows) -> Rows:
    return np.maximum((a.astype(np.float64) ** 2).sum(1)[:, None] + (b.astype(np.float64) ** 2).sum(1)[None] - 2 * a.astype(np.float64) @ b.T, 0)


def map_a_cluster(x: Rows, y: Rows, k: int, seed: int) -> Map:
    """A ridge of its own for each cluster of old vectors, the nearest centre's; a cluster of fewer rows than coordinates has the ridge of all."""
    whole, centres = Ridge(x, y), k_means(x, k, seed)
    of = squared(x, centres).argmin(axis=1)
    maps = [Ridge(x[of == c], y[of == c]) if (of == c).sum() >= 30 else whole for c in range(k)]

    def call(rows: Rows) -> Rows:
        nearest = squared(rows, centres).argmin(axis=1)
        out = np.empty((len(rows), y.shape[1]), np.float32)
        for c in range(k):
            out[nearest == c] = maps[c](rows[nearest == c])
        return out

    return call


def residual_a_cluster(x: Rows, y: Rows, k: int, seed: int, base: Map, softness: float) -> Map:
    """A map of all, and in each cluster a ridge of what it leaves, where leave-one-out says that it helps; neighbours share by distance."""
    left = y - base(x)
    centres = k_means(x, k, seed)
    apart = squared(x, centres)
    scale = softness * apart.min(axis=1).mean()
    of = apart.argmin(axis=1)
    maps: list[Ridge | None] = []
    for c in range(k):
        rows = of == c
        ridge = Ridge(x[rows], left[rows]) if rows.sum() >= 30 else None
        maps.append(ridge if ridge is not None and ridge.left_out_error < ridge.nothing else None)

    def call(rows: Rows) -> Rows:
        apart = squared(rows, centres)
        share = np.exp(-(apart - apart.min(axis=1, keepdims=True)) / scale)
        share /= share.sum(axis=1, keepdims=True)
        out = base(rows).astype(np.float64)
        for c, ridge in enumerate(maps):
            if ridge is not None:
                out += share[:, c : c + 1] * ridge(rows)
        return out.astype(np.float32)

    return call


# --- maps that are trained ----------------------------------------------------------------------------------------------------


class Residual(torch.nn.Module):
    """A ridge that is held, and a network of what it leaves, which begins at nothing."""

    def __init__(self, ridge: Ridge, hidden: int, d_old: int, d_new: int) -> None:
        super().__init__()
        self.ridge = torch.nn.Linear(d_old, d_new)
        with torch.no_grad():
            self.ridge.weight.copy_(torch.from_numpy(ridge.weight.T))
            self.ridge.bias.copy_(torch.from_numpy(ridge.my - ridge.mx @ ridge.weight))
        self.ridge.requires_grad_(False)
        self.rest = torch.nn.Sequential(torch.nn.Linear(d_old, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, d_new))
        torch.nn.init.zeros_(self.rest[2].weight)
        torch.nn.init.zeros_(self.rest[2].bias)

    def forward(self, old: torch.Tensor) -> torch.Tensor:
        return self.ridge(old) + self.rest(old)


def mlp(d_old: int, d_new: int, hidden: int = 1024) -> torch.nn.Module:
    """Four layers, as Embedding-Converter has."""
    widths = [d_old, hidden, hidden, hidden]
    layers: list[torch.nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(hidden, d_new))


def relations(adapted: torch.Tensor, new: torch.Tensor, near: int) -> tuple[torch.Tensor, torch.Tensor]:
    """How far cosines of pairs of items are from the new model's: over all pairs of the batch, and over the `near` nearest of each item."""
    adapted, new = unit(adapted), unit(new)
    ours, theirs = adapted @ adapted.T, new @ new.T
    apart = (ours - theirs).abs()
    itself = torch.eye(len(new), dtype=torch.bool, device=new.device)
    nearest = theirs.masked_fill(itself, -2).topk(min(near, len(new) - 1), dim=1).indices
    return apart[~itself].mean(), apart.gather(1, nearest).mean()


def trained(
    network: torch.nn.Module, loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], x: Rows, y: Rows, labels: Rows, seed: int, device: str,
    batch: int = 500, rate: float = 1e-3, more: list[torch.nn.Parameter] | None = None,
) -> Map:  # fmt: skip
    """AdamW with half a cosine; the loss sees `(old, new, labels)` of a batch."""
    network = network.to(device)
    parameters = [part for part in [*network.parameters(), *(more or [])] if part.requires_grad]
    adam = torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-3)
    old, new, of = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), torch.from_numpy(labels.astype(np.int64)).to(device)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(EPOCHS):
        for group in adam.param_groups:
            group["lr"] = rate * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        for rows in torch.randperm(len(old), generator=generator).to(device).split(batch):
            if len(rows) > 1:
                value = loss(old[rows], new[rows], of[rows])
                adam.zero_grad(set_to_none=True)
                value.backward()
                adam.step()

    def call(rows: Rows) -> Rows:
        with torch.no_grad():
            return network(torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(device)).cpu().numpy()

    return call


def converter(x: Rows, y: Rows, labels: Rows, seed: int, device: str, weight: float, residual: bool) -> Map:
    """Embedding-Converter (ACL 2025): L1, and `weight` times the global and the local relational loss (k = 100)."""
    torch.manual_seed(seed)
    network = Residual(Ridge(x, y), 1024, x.shape[1], y.shape[1]) if residual else mlp(x.shape[1], y.shape[1])

    def loss(old: torch.Tensor, new: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        adapted = network(old)
        value = (adapted - new).abs().sum(dim=1).mean()
        if weight:
            # L1 of vectors of length 1 grows as √d; a difference of cosines does not.
            all_pairs, near = relations(adapted, new, 100)
            value = value + weight * (all_pairs + near) * new.shape[1] ** 0.5
        return value

    return trained(network, loss, x, y, labels, seed, device)


def supervised_contrast(x: Rows, y: Rows, labels: Rows, seed: int, device: str, weight: float) -> Map:
    """The part of λ-orthogonality that leaves native vectors as they are: squared error, and SupCon of h(o) and v as two views."""
    import rehang.torch as rt

    torch.manual_seed(seed)
    network = Residual(Ridge(x, y), 1024, x.shape[1], y.shape[1])
    whole = rt.LambdaOrthogonality(contrast_weight=weight)

    def loss(old: torch.Tensor, new: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        adapted = network(old)
        value = (adapted - new).square().sum(dim=1).mean()
        return value + weight * whole._contrast(torch.cat([unit(adapted), unit(new)]), torch.cat([of, of])).mean() if weight else value

    return trained(network, loss, x, y, labels, seed, device)


def lambda_orthogonal(x: Rows, y: Rows, labels: Rows, seed: int, device: str, threshold: float, square: bool) -> tuple[Map, Map]:
    """As published: F of old vectors and B of new ones, both served; `square` gives B the new space's width, old vectors being filled up with zeros."""
    import rehang.torch as rt

    torch.manual_seed(seed)
    width = y.shape[1] if square else x.shape[1]
    forward = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 1024), torch.nn.GELU(), torch.nn.Linear(1024, width))
    backward = torch.nn.Linear(y.shape[1], width)
    with torch.no_grad():
        torch.nn.init.orthogonal_(backward.weight)
        torch.nn.init.zeros_(backward.bias)
    backward = backward.to(device)
    whole = rt.LambdaOrthogonality(threshold=threshold)

    def loss(old: torch.Tensor, new: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        filled = torch.nn.functional.pad(old, (0, width - old.shape[1]))
        return whole(forward(old), backward(new), filled, backward.weight, of)

    map_ = trained(forward, loss, x, y, labels, seed, device, more=list(backward.parameters()))

    def native(rows: Rows) -> Rows:
        with torch.no_grad():
            return backward(torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(device)).cpu().numpy()

    return map_, native


# --- a fit without pairs ------------------------------------------------------------------------------------------------------


def without_pairs(old: Rows, new: Rows, seed: int, clusters: int, tries: int, rounds: int) -> Map:
    """mini-vec2vec (arXiv 2510.02348): clusters of either space are matched by their cosines to each other (QAP), items by their cosines to matched centres, and a
    rotation is refined on mutual nearest neighbours. `old` and `new` are of different items."""
    from scipy.optimize import quadratic_assignment

    a, b = (sets.unit(rows - rows.mean(axis=0)) for rows in (old, new))
    tied: list[tuple[Rows, Rows]] = []
    for attempt in range(tries):
        of_a, of_b = (sets.unit(k_means(rows, clusters, 1000 * seed + attempt)) for rows in (a, b))
        one, other = of_a @ of_a.T, of_b @ of_b.T
        best = min(
            (
                quadratic_assignment(
                    one, other, options={"maximize": True, "P0": "randomized", "rng": np.random.default_rng(1000 * seed + 31 * attempt + go)}
                )
                for go in range(10)
            ),
            key=lambda found: -found.fun,
        )
        tied.append((of_a, of_b[best.col_ind]))
    anchors_a, anchors_b = (np.concatenate([pair[side] for pair in tied]) for side in (0, 1))
    seen_a, seen_b = (rows - rows.mean(axis=0) for rows in (a @ anchors_a.T, b @ anchors_b.T))
    weight = rotation(a, nearest_mean(sets.unit(seen_a), sets.unit(seen_b), b, 20))
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        rows = rng.choice(len(a), min(len(a), 2000), replace=False)
        fresh = rotation(a[rows], nearest_mean(sets.unit(a[rows] @ weight), b, b, 10))
        weight = 0.5 * weight + 0.5 * fresh
        u, _, v = np.linalg.svd(weight, full_matrices=False)
        weight = u @ v
    mean_a, mean_b = old.mean(axis=0), new.mean(axis=0)
    return lambda rows: (sets.unit(rows - mean_a) @ weight + mean_b).astype(np.float32)


def nearest_mean(query: Rows, among: Rows, values: Rows, k: int) -> Rows:
    nearest = np.argpartition(-(query @ among.T), k, axis=1)[:, :k]
    return values[nearest].mean(axis=1)


def rotation(x: Rows, y: Rows) -> Rows:
    u, _, v = np.linalg.svd(x.T.astype(np.float64) @ y, full_matrices=False)
    return u @ v


# --- the study ----------------------------------------------------------------------------------------------------------------


def study(name: str, data: dict[str, dict[str, Any]], seed: int, device: str, only: list[str] | None, out: Any) -> None:
    import rehang

    train = data["train"]
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(train["old"]))[:PAIRS]
    x, y, labels = sets.unit(train["old"][rows]), sets.unit(train["new"][rows]), train["label"][rows]
    parts = {part: (sets.unit(data[part]["old"]), sets.unit(data[part]["new"]), data[part]["label"]) for part in ("seen", "unseen")}
    classes = rng.permutation(np.unique(labels))
    out_of = np.isin(labels, classes[: max(2, len(classes) // 5)])

    def wanted(family: str) -> bool:
        return not only or family in only

    def record(family: str, label: str, map_: Map, native: Map | None = None, **more: Any) -> None:
        line: dict[str, Any] = {"set": name, "seed": seed, "family": family, "map": label, **more}
        for part, (old, new, of) in parts.items():
            line[part] = measured(new if native is None else sets.unit(native(new)), sets.unit(map_(old)), of, seed)
        out.write(json.dumps(line) + "\n")
        out.flush()
        print(name, seed, family, label, *(f"{line[part]['map'][0]:.1f}" for part in parts), flush=True)

    def chosen(family: str, label: str, options: list[Any], fitted: Callable[[Rows, Rows, Rows, Any], Any]) -> None:
        """The option that held-out classes ask for, then fitted on all pairs."""
        began = time.monotonic()
        scores = {}
        for option in options:
            made = fitted(x[~out_of], y[~out_of], labels[~out_of], option)
            map_, native = made if isinstance(made, tuple) else (made, lambda rows: rows)
            scores[option] = agreement(map_, x[out_of], native(y[out_of]), labels[out_of])
        best = max(scores, key=lambda option: scores[option])
        made = fitted(x, y, labels, best)
        map_, native = made if isinstance(made, tuple) else (made, None)
        record(family, label, map_, native, chosen=best, fit_s=round(time.monotonic() - began, 1))

    def product(method: str, x: Rows, y: Rows, labels: Rows) -> Map:
        adapter = rehang.fit(x, y, labels=labels, method=method, distance="cosine", compare=False, seed=seed, progress=False)
        return lambda rows: adapter.transform(np.ascontiguousarray(rows, np.float32), force=True)

    record("product", BASE, product(BASE, x, y, labels))
    if wanted("product"):
        record("product", "ridge", product("ridge", x, y, labels))
        record("product", "procrustes", product("procrustes", x, y, labels))
        for part, (old, new, of) in parts.items():
            nothing = measured(old, old, of, seed)
            out.write(json.dumps({"set": name, "seed": seed, "family": "nothing", "map": "do nothing", part: nothing}) + "\n")
    if wanted("clusters"):
        for k in (4, 8):
            record("clusters", f"a ridge a cluster, k = {k}", map_a_cluster(x, y, k, seed))
        chosen("clusters", "ridge, and a ridge of its residuals a cluster", [(k, s) for k in (4, 8, 16) for s in (0.3, 1.0)],
               lambda x, y, of, o: residual_a_cluster(x, y, o[0], seed, Ridge(x, y), o[1]))  # fmt: skip
        chosen("clusters", "kernel ridge, and a ridge of its residuals a cluster", [(k, 1.0) for k in (4, 8)],
               lambda x, y, of, o: residual_a_cluster(x, y, o[0], seed, product(BASE, x, y, of), o[1]))  # fmt: skip
    if wanted("relational"):
        for residual in (False, True):
            what = "residual network" if residual else "network of 4 layers"
            record("relational", f"{what}, L1 alone", converter(x, y, labels, seed, device, 0.0, residual))
            record("relational", f"{what}, L1 and relations, 0.1", converter(x, y, labels, seed, device, 0.1, residual))
            chosen("relational", f"{what}, L1 and relations, weight chosen", [0.1, 1.0, 10.0],
                   lambda x, y, of, o, r=residual: converter(x, y, of, seed, device, o, r))  # fmt: skip
    if wanted("orthogonal"):
        for square in (False, True):
            record("orthogonal", f"as published, λ = 12, {'new' if square else 'old'} width", *lambda_orthogonal(x, y, labels, seed, device, 12.0, square))
            chosen("orthogonal", f"as published, λ chosen, {'new' if square else 'old'} width", [0.5, 2.0, 6.0],
                   lambda x, y, of, o, s=square: lambda_orthogonal(x, y, of, seed, device, o, s))  # fmt: skip
    if wanted("control"):
        # Whether what is served natively, B(v), makes the difference, or the map F into it.
        _, native = lambda_orthogonal(x, y, labels, seed, device, 12.0, True)
        record("control", "kernel ridge into the published B(v), λ = 12, new width", product(BASE, x, sets.unit(native(y)), labels), native)
    if wanted("orthogonal"):
        record("orthogonal", "residual network, squared error", supervised_contrast(x, y, labels, seed, device, 0.0))
        chosen("orthogonal", "residual network, squared error and SupCon, weight chosen", [0.01, 0.1, 1.0],
               lambda x, y, of, o: supervised_contrast(x, y, of, seed, device, o))  # fmt: skip
    if wanted("without-pairs"):
        # Of all training items, half are known by old vectors alone and half by new vectors alone.
        rows = rng.permutation(len(train["old"]))
        half = len(rows) // 2
        old, new = sets.unit(train["old"][rows[:half]]), sets.unit(train["new"][rows[half:]])
        record("without-pairs", "20 clusters", without_pairs(old, new, seed, 20, 15, 50), items=half)
        record("without-pairs", "50 clusters, 200 rounds", without_pairs(old, new, seed, 50, 8, 200), items=half)


def table(files: list[Path]) -> None:
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found: dict[tuple[str, str], dict[tuple[str, str, int], dict[str, list[float]]]] = {}
    for line in lines:
        for part in ("seen", "unseen"):
            if part in line:
                found.setdefault((line["family"], line["map"]), {})[line["set"], part, line["seed"]] = line[part]
    base = found["product", BASE]
    nothing = found.get(("nothing", "do nothing"), {})
    places = list(dict.fromkeys((name, part) for name, part, _ in base))
    short = {name: name.split("_", 1)[1] for name, _ in places}
    print("| map | " + " | ".join(f"{short[name]} {part}" for name, part in places) + " | mean area of mAP | top-1 | at the switch: mAP | top-1 | at the end: mAP |")
    print("|---|" + "--:|" * (len(places) + 5))
    for (family, label), of in found.items():
        if family == "nothing":
            continue
        cells = []
        for name, part in places:
            ours = [value["map"][0] - (base[key]["map"][0] if label != BASE else 0) for key, value in of.items() if key[:2] == (name, part)]
            cells.append((f"{statistics.mean(ours):+.1f}" if label != BASE else f"{statistics.mean(ours):.1f}") if ours else "–")
        for metric, place in (("map", 0), ("top1", 0), ("map", 1), ("top1", 1), ("map", 2)):
            ours = [value[metric][place] - (base[key][metric][place] if label != BASE else 0) for key, value in of.items()]
            error = statistics.stdev(ours) / len(ours) ** 0.5 if len(ours) > 1 else 0.0
            cells.append(f"{statistics.mean(ours):+.2f} ± {error:.2f}" if label != BASE else f"{statistics.mean(ours):.1f}")
        print(f"| {label} | {' | '.join(cells)} |")
    if nothing:
        start = [statistics.mean(value["map"][1] for key, value in nothing.items() if key[:2] == place) for place in places]
        print("| doing nothing, mAP at the switch | " + " | ".join(f"{value:.1f}" for value in start) + " | | | | | |")


def main() -> None:
    parser = sets.parser(__doc__, list(sets.LABELLED))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--only", nargs="*", help="product, clusters, relational, orthogonal, control, without-pairs")
    asked = parser.parse_args()
    if asked.table:
        table(asked.table)
        return
    import rehang

    globals()["EPOCHS"] = asked.epochs
    warnings.simplefilter("ignore", rehang.FindingWarning)
    with open(asked.out, "a") as out:
        for name in asked.sets:
            data = sets.load(asked.data, name)
            for seed in asked.seeds:
                study(name, data, seed, asked.device, asked.only, out)


if __name__ == "__main__":
    main()
