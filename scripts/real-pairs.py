"""Pairs of real encoders: the texts of a set embedded by an old and a new model, for `cargo lab study regret`.

    python3 scripts/real-pairs.py --texts ../shared/data/text_banking77 --old-model L3.onnx --tokenizer tokenizer.json \
        (--new-model L6.onnx | --service http://127.0.0.1:8199) --out target/real/banking77_l3_l6

Writes old.npy, new.npy [n, 384] (of length 1, as sentence encoders are served), label.npy and role.npy: as the set's own, but for training texts beyond a random 3,000, which get the
role 3 and are not used. It needs numpy, onnxruntime and tokenizers.
"""

import argparse
import json
import pathlib
import runpy
import urllib.request

import numpy as np

BATCH = 64
PAIRS = 3000
embedder = runpy.run_path(str(pathlib.Path(__file__).with_name("one-command.py")))["embedder"]


def asked(service):
    def embed(texts):
        body = json.dumps({"model": "any", "input": texts}).encode()
        request = urllib.request.Request(service + "/v1/embeddings", body, {"content-type": "application/json"})
        return [one["embedding"] for one in json.load(urllib.request.urlopen(request))["data"]]

    return embed


arguments = argparse.ArgumentParser()
for name in ["texts", "old-model", "tokenizer", "out"]:
    arguments.add_argument("--" + name, type=pathlib.Path, required=True)
new = arguments.add_mutually_exclusive_group(required=True)
new.add_argument("--new-model", type=pathlib.Path)
new.add_argument("--service")
asked_for = arguments.parse_args()

texts = [json.loads(line)["text"] for line in (asked_for.texts / "texts.jsonl").open()]
models = {
    "old": embedder(asked_for.old_model, str(asked_for.tokenizer)),
    "new": asked(asked_for.service)
    if asked_for.service
    else embedder(asked_for.new_model, str(asked_for.tokenizer)),
}
asked_for.out.mkdir(parents=True, exist_ok=True)
for name, embed in models.items():
    rows = [embed(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
    rows = np.concatenate(rows).astype(np.float32)
    np.save(asked_for.out / f"{name}.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
np.save(asked_for.out / "label.npy", np.load(asked_for.texts / "label.npy"))
role = np.load(asked_for.texts / "role.npy")
training = np.random.default_rng(0).permutation(np.flatnonzero(role == 0))
role[training[PAIRS:]] = 3
np.save(asked_for.out / "role.npy", role)
