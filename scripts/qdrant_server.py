"""What qdrant-scale.py and qdrant-trouble.py share: servers of Qdrant of their own, points of 8 coordinates, a service that answers at once with a new model's 16, and a configuration.

It needs numpy and requests.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import requests

WIDTHS = {"old": 8, "new": 16}
LATENT = 12
MAPS = {name: np.random.default_rng(at).normal(size=(width, LATENT)) for at, (name, width) in enumerate(WIDTHS.items())}


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


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """One that joins the cluster of `first` where that is given; with `cluster`, it begins one."""

    def __init__(self, program, folder, cluster=False, first=None):
        self.name, self.peers, self.folder = program, port(), pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.ports = port(), port()
        self.url = f"http://127.0.0.1:{self.ports[0]}"
        self.arguments = ["--uri", f"http://127.0.0.1:{self.peers}"] if cluster or first else []
        if first:
            self.arguments += ["--bootstrap", f"http://127.0.0.1:{first.peers}"]
        self.session = requests.Session()
        self.session.trust_env = False
        self.start()

    def start(self):
        folder, (port, grpc) = self.folder, self.ports
        options = {"STORAGE__STORAGE_PATH": folder / "storage", "STORAGE__SNAPSHOTS_PATH": folder / "snapshots", "SERVICE__HOST": "127.0.0.1",
                   "SERVICE__HTTP_PORT": port, "SERVICE__GRPC_PORT": grpc, "TELEMETRY_DISABLED": "true", "LOG_LEVEL": "WARN"}
        environment = dict(os.environ, **{f"QDRANT__{name}": str(value) for name, value in options.items()})
        if self.arguments:
            environment |= {"QDRANT__CLUSTER__ENABLED": "true", "QDRANT__CLUSTER__P2P__PORT": str(self.peers), "QDRANT__CLUSTER__RESHARDING_ENABLED": "true"}
        self.program = subprocess.Popen([self.name, *self.arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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

    def kill(self):
        self.program.send_signal(signal.SIGKILL)
        self.program.wait()

    def end(self):
        self.program.terminate()
        self.program.wait(60)


def parser(text, points):
    """Arguments that both scripts take."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rehang", required=True)
    made.add_argument("--qdrant", required=True)
    made.add_argument("--points", type=int, default=points)
    return made


def serve():
    """The address of the new model's service."""
    service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{service.server_address[1]}"


def configure(folder, service):
    (pathlib.Path(folder) / "rehang.toml").write_text(f"""[gallery]
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
url = "{service}"
model = "m"
batch = 64
revision = "1"
""")


def run(program, line, folder, server):
    """A command of rehang: its exit code and what it said."""
    environment = dict(os.environ, QDRANT_URL=server.url, NO_COLOR="1")
    process = subprocess.Popen([program, *line.split()], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = process.communicate(timeout=3600)[0]
    return process.returncode, said
