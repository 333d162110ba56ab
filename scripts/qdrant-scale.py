"""What each verb of an upgrade takes in a large collection of Qdrant: seconds, requests, memory of the server.

    python3 scripts/qdrant-scale.py --rehang PROGRAM --qdrant PROGRAM [--points 1000000] [--until release] [--payload 200]

A server of its own, points of 8 coordinates with a text and so many characters more, a new model of 16, and a service that answers at once. Verbs are those of the command
line, one after the other; `--until VERB` ends after that one. In the end every point has what a search needs, or it fails. It needs numpy and requests.
"""

import argparse
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import requests

WIDTHS = {"old": 8, "new": 16}
LATENT = 12
MAPS = {name: np.random.default_rng(at).normal(size=(width, LATENT)) for at, (name, width) in enumerate(WIDTHS.items())}
PAGE = 500


def vectors(numbers, model):
    """What a model makes of the texts with these numbers, of length 1."""
    angles = np.outer(np.asarray(numbers, dtype=float) + 1, np.sqrt(np.arange(2, 2 + LATENT)))
    rows = np.sin(angles) @ MAPS[model].T
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).round(6)


class Service(BaseHTTPRequestHandler):
    """Answers with the new model's vectors."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        rows = vectors([int(text.split()[1]) for text in texts], "new").tolist()
        answer = {"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)], "usage": {"total_tokens": len(texts)}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server:
    def __init__(self, program, folder):
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, grpc = free.getsockname()[1], other.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        options = {"STORAGE__STORAGE_PATH": folder / "storage", "STORAGE__SNAPSHOTS_PATH": folder / "snapshots", "SERVICE__HOST": "127.0.0.1",
                   "SERVICE__HTTP_PORT": port, "SERVICE__GRPC_PORT": grpc, "TELEMETRY_DISABLED": "true", "LOG_LEVEL": "WARN"}
        environment = dict(os.environ, **{f"QDRANT__{name}": str(value) for name, value in options.items()})
        self.program = subprocess.Popen([program], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.session = requests.Session()
        self.session.trust_env = False
        for _ in range(600):
            try:
                if self.session.get(self.url + "/readyz", timeout=2).ok:
                    return
            except requests.RequestException:
                time.sleep(0.1)
        raise SystemExit("the server did not start")

    def ask(self, method, path, body=None):
        answer = self.session.request(method, self.url + path, json=body, timeout=600)
        answer.raise_for_status()
        return answer.json()["result"]

    def asked(self):
        """Requests so far, without those for these numbers."""
        lines = self.session.get(self.url + "/metrics", timeout=60).text.splitlines()
        return sum(int(line.split()[-1]) for line in lines if line.startswith("rest_responses_total") and "/metrics" not in line)

    def memory(self):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.program.pid}/status").read_text())[1]) // 1024

    def until_green(self):
        began = time.time()
        while self.ask("GET", "/collections/docs")["status"] != "green":
            time.sleep(0.2)
        return time.time() - began

    def end(self):
        self.program.terminate()
        self.program.wait(60)


def fill(server, points, payload):
    vector = {"embedding": {"size": WIDTHS["old"], "distance": "Cosine"}}
    server.ask("PUT", "/collections/docs", {"vectors": vector})
    rest = "x" * payload
    for first in range(0, points, PAGE):
        numbers = range(first, min(first + PAGE, points))
        rows = vectors(numbers, "old").tolist()
        batch = [{"id": number, "vector": {"embedding": row}, "payload": {"body": f"text {number}", "rest": rest}} for number, row in zip(numbers, rows)]
        server.ask("PUT", f"/collections/docs/points?wait={str(first + PAGE >= points).lower()}", {"points": batch})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehang", required=True)
    parser.add_argument("--qdrant", required=True)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--payload", type=int, default=200)
    parser.add_argument("--until", default="release")
    asked = parser.parse_args()
    service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        server = Server(asked.qdrant, folder)
        try:
            began = time.time()
            fill(server, asked.points, asked.payload)
            filled = time.time() - began
            server.until_green()
            print(f"{asked.points} points: {asked.points / filled:.0f} a second by plain upserts, {server.memory()} MB of the server", flush=True)
            (folder / "rehang.toml").write_text(f"""[gallery]
kind = "qdrant"
url_env = "QDRANT_URL"
collection = "docs"
source = "body"
vector = "embedding"
[old]
name = "small"
dimension = {WIDTHS["old"]}
distance = "cosine"
[new]
name = "large"
dimension = {WIDTHS["new"]}
distance = "cosine"
[encoder]
kind = "http"
url = "http://127.0.0.1:{service.server_address[1]}"
model = "m"
batch = 64
revision = "1"
""")
            verbs = [("adopt", "gallery adopt"), ("pairs", "upgrade pairs --items 500"), ("fit", "upgrade fit --method ridge"), ("start", "upgrade start"),
                     ("switch", "upgrade switch --anyway"), ("status", "upgrade status"), ("run of 640", "upgrade run --budget 640 --no-refit"),
                     ("run of 640 again", "upgrade run --budget 640 --no-refit"), ("doctor", "doctor"), ("finish", "upgrade finish --anyway"),
                     ("release", "gallery release --yes --with-adapted")]
            for name, line in verbs:
                before, began = server.asked(), time.time()
                done = subprocess.run([asked.rehang, *line.split()], cwd=folder, env=dict(os.environ, QDRANT_URL=server.url, NO_COLOR="1"), capture_output=True, text=True)
                took = time.time() - began
                count = server.asked() - before
                waited = server.until_green()
                print(f"{name}: {took:.2f} s, {count} requests, {server.memory()} MB; green after {waited:.1f} s more", flush=True)
                if done.returncode not in ((0, 1) if name == "doctor" else (0,)):
                    raise SystemExit(f"{line} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
                if name == asked.until:
                    break
            if asked.until == "release":
                count = server.ask("POST", "/collections/docs/points/count", {"exact": True, "filter": {"must": [{"has_vector": "large"}], "must_not": [{"is_null": {"key": "body"}}]}})
                if count["count"] != asked.points:
                    raise SystemExit(f"{count['count']} of {asked.points} points have a vector of the new model")
        finally:
            server.end()
            service.shutdown()


if __name__ == "__main__":
    main()
