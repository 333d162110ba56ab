"""A live upgrade of real texts beside its forecast: what was told before the switch, and what searches of the gallery then gave.

    python3 scripts/live-forecast.py --rehang target/release/rehang --texts ../shared/data/text_clinc150 --old-model L3.onnx --new-model L6.onnx \
        --tokenizer tokenizer.json --out target/live [--pairs 1000]

TEXTS holds texts.jsonl, one {"text": …, "label": …} a line. Both models run in ONNX Runtime, the new one behind a service of OpenAI's protocol. The gallery is
imported, pairs are drawn, the map is fitted, the forecast is written, a bridge is built; then the gallery is switched and re-embedded step by step. At every step all its
vectors are exported as searches see them, and numpy ranks them for every item that has become native by the end: mAP by label with the new model's query, without
the item itself. The bridge is measured on the untouched gallery, by queries
of both models. Writes OUT/report.json (the forecast) and OUT/truth.json (what was measured), and prints both as a table.

It needs numpy, onnxruntime and tokenizers.
"""

import argparse
import json
import pathlib
import runpy
import shutil
import subprocess
import sys

import numpy as np

SHARES = [0.1, 0.25, 0.5, 0.75, 1.0]
BATCH = 64
one_command = runpy.run_path(str(pathlib.Path(__file__).with_name("one-command.py")))


def mean_average_precision(queries, gallery, labels, farther):
    """In percent: every item's query among all others by cosine distance, adapted items `farther`; items without a companion are left out."""
    total, counted = 0.0, 0
    for first in range(0, len(gallery), 500):
        rows = np.arange(first, min(first + 500, len(gallery)))
        distances = 1.0 - queries[rows] @ gallery.T + farther
        distances[np.arange(len(rows)), rows] = np.inf
        order = np.argsort(distances, axis=1, kind="stable")[:, :-1]
        right = labels[order] == labels[rows][:, None]
        found = np.cumsum(right, axis=1)
        has = found[:, -1] > 0
        precision = (found / np.arange(1, len(gallery)) * right).sum(axis=1)[has] / found[has, -1]
        total, counted = total + precision.sum(), counted + len(precision)
    return 100 * total / counted


def bridged(path, old, new):
    """Queries for the old gallery, by numpy from the bridge's file: unit((1 − a) q_old + a unit(W unit(q_new) + b))."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    told = header.pop("__metadata__")
    assert "length" in told["input"].replace("Length", "length"), told["input"]
    part = {name: np.frombuffer(data[slice(*of["data_offsets"])], "<f4").reshape(of["shape"]) for name, of in header.items()}
    turned = new / np.linalg.norm(new, axis=1, keepdims=True) @ part["weight"].T + part["bias"]
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    mixed = (1.0 - float(told["share"])) * old + float(told["share"]) * turned
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["rehang", "texts", "old-model", "new-model", "tokenizer", "out"]:
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=1000)
    asked = parser.parse_args()
    rehang, place = asked.rehang.resolve(), asked.out.resolve()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)

    known = {}
    for line in (asked.texts / "texts.jsonl").open():
        one = json.loads(line)
        known.setdefault(one["text"], one["label"])
    texts, labels = list(known), np.array(list(known.values()))
    old = one_command["embedder"](asked.old_model, str(asked.tokenizer))
    vectors = np.concatenate([old(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]).astype("f4")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(place / "old.npy", vectors)
    with (place / "items.jsonl").open("w") as file:
        for at, text in enumerate(texts):
            file.write(json.dumps({"id": f"t{at}", "source": text, "label": int(labels[at])}) + "\n")
    address = one_command["serve"](place / "asked.jsonl", one_command["embedder"](asked.new_model, str(asked.tokenizer)))

    def run(*arguments):
        done = subprocess.run([rehang, *arguments], cwd=place, capture_output=True, text=True)
        if done.returncode == 2:
            sys.exit(f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        print("$ rehang", *arguments, flush=True)
        print(done.stdout, flush=True)
        return done.stdout

    run("gallery", "import", "--gallery", "G.db", "--space", "old", "--vectors", "old.npy", "--items", "items.jsonl")
    run("init", "--gallery", "G.db", "--new-name", "new", "--new-dimension", "384")
    with (place / "rehang.toml").open("a") as file:
        file.write(f'\n[encoder]\nkind = "http"\nurl = "{address}"\nmodel = "new"\nbatch = {BATCH}\n')
        file.write('concurrency = 1\nnormalise = true\nrevision = "1"\n')
    run("upgrade", "pairs", "--items", str(asked.pairs))
    run("upgrade", "fit")
    run("upgrade", "report")
    report = json.loads(max((place / "rehang.upgrade").glob("report*.json"), key=lambda path: path.stat().st_mtime).read_text())
    (place / "report.json").write_text(json.dumps(report))
    series = report["curves"][report["headline"]]
    handicap = series["handicap"]
    run("upgrade", "bridge")
    bridges = list((place / "rehang.upgrade").glob("bridge-*.safetensors"))
    run("upgrade", "start")
    run("upgrade", "switch", "--anyway")

    stages = []

    def exported(name):
        run("gallery", "export", "--config", "rehang.toml", "--space", "new", "--vectors", f"{name}.npy", "--provenance", f"{name}.txt", "--ids", "ids.txt")
        assert (place / "ids.txt").read_text().split() == [f"t{at}" for at in range(len(texts))]
        stages.append((np.load(place / f"{name}.npy"), np.array((place / f"{name}.txt").read_text().split())))

    exported("switch")
    for share in (share for share in SHARES if share > (stages[0][1] == "native").mean()):
        run("upgrade", "run", "--until", str(share))
        exported(f"s{share}")
    queries = stages[-1][0]
    assert (stages[-1][1] == "native").all()
    truth = []
    for gallery, provenance in stages:
        native = provenance == "native"
        farther = np.where(native, 0.0, handicap).astype("f4")
        unit = gallery / np.linalg.norm(gallery, axis=1, keepdims=True)
        truth.append([float(native.mean()), mean_average_precision(queries, unit, labels, farther)])
    nothing = mean_average_precision(vectors, vectors, labels, 0.0)
    over = mean_average_precision(bridged(bridges[0], vectors, queries), vectors, labels, 0.0) if bridges else None
    (place / "truth.json").write_text(json.dumps({"do_nothing": nothing, "bridge": over, "points": truth}))

    curve, shares = series["metrics"]["map"], series["fractions"]
    print("| mAP, % | forecast | truth |")
    print("|---|--:|--:|")
    print(f"| do nothing | {report['do_nothing']['map']:.1f} | {nothing:.1f} |")
    if over:
        print(f"| bridge | – | {over:.1f} |")
    inside = []
    for share, value in truth:
        told, low, high = (np.interp(share, shares, line) for line in (curve["values"], curve["band"]["low"], curve["band"]["high"]))
        inside.append(low <= value <= high)
        print(f"| {100 * share:.1f} % native | {told:.1f} ({low:.1f}–{high:.1f}) | {value:.1f} |")
    assert abs(report["do_nothing"]["map"] - nothing) < 0.05, "doing nothing is computed"
    asked_for = sum(1 for _ in (place / "asked.jsonl").open())
    print(f"{sum(inside)} of {len(inside)} in their ranges; {len(texts)} texts, {asked_for} were asked of the service.")


if __name__ == "__main__":
    main()
