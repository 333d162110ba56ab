"""One command on real encoders: `rehang upgrade auto --yes`, killed -9 at random moments, from an imported gallery to everything native.

    python3 scripts/one-command.py --rehang target/release/rehang --texts texts.jsonl --old-model L3.onnx --tokenizer tokenizer.json \
        (--new-model L6.onnx | --service http://127.0.0.1:8199 --service-model NAME) [--kills 50] [--items N] [--seed 0] [--longest SECONDS]

`texts.jsonl` has one {"text": …} a line. The old model and, with --new-model, the new one run in ONNX Runtime; with --service the new
model is any service that speaks OpenAI's protocol. Either stands behind a log of its own: every text that it is asked for is a line, written
before it is embedded. In the end the log must hold every item once, but for those in hand at a death. Prints one JSON object.

It needs numpy, onnxruntime and tokenizers.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BATCH = 16


def embedder(model, tokenizer):
    """Texts to vectors [n, d]: the output that is one vector a text, or the mean of its tokens' states."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(tokenizer)
    tokens.enable_truncation(128)
    tokens.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    inputs = [one.name for one in session.get_inputs()]

    def embed(texts):
        read = tokens.encode_batch(texts)
        ids = np.array([one.ids for one in read])
        mask = np.array([one.attention_mask for one in read])
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        outputs = session.run(None, {name: feeds[name] for name in inputs})
        flat = [one for one, of in zip(outputs, session.get_outputs()) if len(of.shape) == 2 and of.shape[1] == 384]
        if flat:
            return flat[0]
        states = next(one for one in outputs if one.ndim == 3 and one.shape[2] == 384)
        return (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)

    return embed


def serve(log, embed=None, forward=None):
    """A service of OpenAI's protocol with a log: its own model, or another service behind it."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            texts = json.loads(body)["input"]
            with lock, open(log, "a") as file:
                file.writelines(json.dumps(text) + "\n" for text in texts)
            if forward:
                request = urllib.request.Request(
                    forward + "/v1/embeddings", body, {"content-type": "application/json"}
                )
                answer = urllib.request.urlopen(request).read()
            else:
                with lock:
                    vectors = embed(texts)
                data = [{"index": at, "embedding": row.tolist()} for at, row in enumerate(vectors)]
                answer = json.dumps({"data": data}).encode()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                pass  # The process that asked was killed.

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["--rehang", "--texts", "--old-model", "--tokenizer"]:
        parser.add_argument(name, required=True)
    for name in ["--new-model", "--service", "--service-model"]:
        parser.add_argument(name)
    # A fit that takes longer than the longest wait would be all that is ever killed.
    parser.add_argument("--method", default="kernel-ridge")
    for name, value in [("--kills", 50), ("--items", 0), ("--seed", 0), ("--longest", 8)]:
        parser.add_argument(name, type=int, default=value)
    asked = parser.parse_args()
    import numpy as np

    rehang = os.path.abspath(asked.rehang)
    folder = tempfile.mkdtemp(prefix="one-command-")
    texts = list(dict.fromkeys(json.loads(line)["text"] for line in open(asked.texts)))
    if asked.items:
        texts = texts[: asked.items]
    old = embedder(asked.old_model, asked.tokenizer)
    vectors = np.concatenate([old(texts[at : at + 64]) for at in range(0, len(texts), 64)])
    np.save(f"{folder}/old.npy", vectors.astype("f4"))
    with open(f"{folder}/items.jsonl", "w") as file:
        file.writelines(json.dumps({"id": f"t{at}", "source": text}) + "\n" for at, text in enumerate(texts))

    log = f"{folder}/asked.jsonl"
    embed = embedder(asked.new_model, asked.tokenizer) if asked.new_model else None
    address = serve(log, embed, asked.service)

    def run(*arguments, **more):
        return subprocess.run([rehang, *arguments], cwd=folder, capture_output=True, text=True, **more)

    def finish(*arguments):
        done = run(*arguments)
        if done.returncode != 0:
            sys.exit(f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    finish("gallery", "import", "--gallery", "G.db", "--space", "old", "--vectors", "old.npy", "--items", "items.jsonl")
    width = len((embed or (lambda _: [json.loads(urllib.request.urlopen(urllib.request.Request(
        asked.service + "/v1/embeddings", json.dumps({"input": ["a"]}).encode(),
        {"content-type": "application/json"})).read())["data"][0]["embedding"]]))(["a"])[0])
    finish("init", "--gallery", "G.db", "--new-name", "new", "--new-dimension", str(width))
    with open(f"{folder}/rehang.toml", "a") as file:
        file.write(f'\n[encoder]\nkind = "http"\nurl = "{address}"\nmodel = "{asked.service_model or "new"}"\n')
        file.write(f'batch = {BATCH}\nconcurrency = 1\nnormalise = true\nrevision = "1"\n')
    text = open(f"{folder}/rehang.toml").read().replace("[run]\n", f"[run]\nbatch = {BATCH}\nlease = 2\n", 1)
    open(f"{folder}/rehang.toml", "w").write(text)

    chance = random.Random(asked.seed)
    auto = ["upgrade", "auto", "--yes", "--items", "500", "--method", asked.method]
    killed, died_at, began = 0, Counter(), time.time()
    while killed < asked.kills:
        child = subprocess.Popen([rehang, *auto], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Most right after they began; some in the middle of a fit or of the backfill.
        time.sleep(chance.uniform(0.0, asked.longest if killed % 2 == 1 else 0.5))
        if child.poll() is not None:
            break
        child.kill()
        child.wait()
        killed += 1
        status = run("upgrade", "status", "--json")
        place = json.loads(status.stdout)["next"] if status.returncode == 0 else {"step": "begin"}
        died_at[place.get("step") or place["halt"]["why"]] += 1
        state = run("doctor", "--gallery", "G.db")
        if state.returncode != 0:
            sys.exit(f"after kill {killed}: {state.stdout}")
    last = run(*auto)
    status = json.loads(finish("upgrade", "status", "--json"))
    counts = Counter(line for line in open(log))
    again = sum(counts.values()) - len(counts)
    report = {
        "items": len(texts),
        "kills": killed,
        "died_before_the_end_of": dict(died_at),
        "native": status["counts"]["native"],
        "serving": status["serving"],
        "asked_of_the_encoder": sum(counts.values()),
        "embedded_again": again,
        "batch": BATCH,
        "allowed": killed * BATCH,
        "seconds": round(time.time() - began, 1),
        "exit": last.returncode,
    }
    print(json.dumps(report, indent=1))
    good = report["native"] == len(texts) and again <= report["allowed"] and report["serving"] == "new"
    shutil.rmtree(folder)
    sys.exit(0 if good and last.returncode == 0 else 1)


if __name__ == "__main__":
    main()
