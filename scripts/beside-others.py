"""rehang beside vecshift and EmbedFlow: the same texts, models, service, server and application, one tool after another on the same machine.

    python3 scripts/beside-others.py --rehang target/release/rehang --data ../shared/data --cache CACHE --out OUT \
        [--vecshift VENV] [--embedflow VENV] [--texts 20000] [--only mapped,plain,vecshift,embedflow] [--seed 0]

A table of PostgreSQL with an HNSW index, texts and vectors of beside.py, a service of 20 ms a request in batches of 128, an application with 20 searches and 20 writes a
second (rows that come, change and go). VENV are virtual environments in which `pip install vecshift` and `pip install "embedflow[pgvector]"` have been made; a tool that
is not given is left out, and the table says so.

Each tool embeds to 25, 50, 75 and 100 %, is killed (signal 9) twice on the way at a random moment and begun again, switches, rolls back where it can, switches again; the application
is deployed anew two seconds after the last switch and writes by the new model from then on. rehang then finishes and releases the table. nDCG@10 by label is
what the application's own searches find of --queries queries that are in no table and that it does not ask itself; seconds and processor seconds are those of the tool's commands, without this script's measuring.

Writes OUT/beside-others.json and .md, and prints the latter. The answers of rehang have to be right (exit code 1 otherwise); those of others are told as they are.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import sqlite3
import subprocess
import threading
import time

import beside
import numpy as np
from beside import DEPTH, as_text

BATCH = 128


class Application(beside.Application):
    """The application beside every tool. `by_new`: its searches and its writes are of the new model."""

    writes_a_second, by_sql, nights = 20, 0.0, False
    kinds = {"insert": 45, "change": 25, "delete": 15, "label": 15}
    by_new, column, way = False, "embedding", None

    def __init__(self, *of):
        self.way.application = self
        super().__init__(*of)

    def answer(self, table, query, kind=None):
        return self.way.find(table, query), False

    def plain(self, table, query, column=None, new=None):
        vector = (self.new if (self.by_new if new is None else new) else self.old)[query]
        rows = table.execute(f"SELECT id FROM docs ORDER BY {column or self.column} <=> %s::vector LIMIT %s", [as_text(vector), DEPTH]).fetchall()
        return [row[0] for row in rows]

    def put(self, table, one, text, statement):
        self.way.put(table, one, text, statement)

    def look(self):
        pass


class Way:
    """One tool's way. `seconds` and `processor` are of its commands; `compared` texts of each request are asked for again to compare the service with itself."""

    compared = 0

    def __init__(self, asked, server, data, name):
        self.asked, self.server, self.name = asked, server, name
        self.texts, self.labels, self.old, self.new = data
        self.folder = asked.out / name
        self.folder.mkdir(parents=True)
        self.service = beside.Service(self.folder / "new.log", dict(zip(self.texts, self.new)), asked.latency)
        self.url = server.database(name)
        self.table = server.connect(self.url)
        beside.fill(self.table, self.texts[: asked.texts], self.labels, self.old)
        self.environment = {**os.environ, "NO_COLOR": "1", "DATABASE_URL": self.url, "VECSHIFT_DSN": self.url}
        self.chance = random.Random(asked.seed)
        self.seconds = self.processor = self.database = 0.0
        self.result = {"way": name, "ndcg": {}, "commands": [], "notes": [], "size_before": self.size()}
        self.kills, self.broken = 0, []
        application = type("ApplicationOfThis", (Application,), {"way": self, "measured": asked.queries})
        application(server, self.url, *data, asked.texts, 2 * asked.queries, asked.seed)
        # What the application alone takes of the server.
        before, began = server.processor(), time.time()
        time.sleep(10)
        self.result["database_of_the_application"] = (server.processor() - before) / (time.time() - began)

    def size(self):
        return self.table.execute("SELECT pg_database_size(current_database()) / 1e6").fetchone()[0]

    def find(self, table, query):
        return self.application.plain(table, query)

    def put(self, table, one, text, statement):
        application = self.application
        vector = as_text((self.new if application.by_new else self.old)[text])
        table.execute(statement.format(application.column), {"id": one, "body": self.texts[text], "label": int(self.labels[text]), "vector": vector})

    def command(self, *words, kill=0, may=(0,)):
        """One command of the tool; with `kill`, one that is killed so many times, each time after a random number of texts, and then made again."""
        began, paid, database = time.time(), self.service.log.stat().st_size, self.server.processor()
        with open(self.folder / "said.txt", "a") as said:
            print("\n$", *words, file=said, flush=True)
            at, killed = said.tell(), False
            child = subprocess.Popen([str(one) for one in words], cwd=self.folder, env=self.environment, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            enough = paid + self.chance.uniform(0.02, 0.2) * self.asked.texts * 60 if kill else float("inf")
            while True:
                pid, code, used = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                if self.service.log.stat().st_size > enough:
                    child.kill()
                    enough = float("inf")
                    self.kills, killed = self.kills + 1, True
                time.sleep(0.01)
        child.returncode = os.waitstatus_to_exitcode(code)
        seconds = time.time() - began
        self.seconds += seconds
        self.processor += used.ru_utime + used.ru_stime
        self.database += self.server.processor() - database
        name = " ".join([pathlib.Path(words[0]).name, *map(str, words[1:])])
        self.result["commands"].append({"command": name, "seconds": round(seconds, 1), "exit": child.returncode})
        print(f"{seconds:7.1f} s  [{child.returncode}] {name}", flush=True)
        if child.returncode not in may and not killed:
            text = (self.folder / "said.txt").read_text()[at:][-600:]
            self.broken.append(f"`{name}` ended with {child.returncode}")
            self.result["notes"].append(f"`{name}` ended with {child.returncode}: {text}")
            print(text, flush=True)
        if killed:
            return self.command(*words, kill=kill - 1, may=may)
        return seconds

    def measure(self, share, find=None):
        """nDCG@10 of what the application's searches find now."""
        queries = range(len(self.texts) - self.asked.queries, len(self.texts))
        found, find = [], find or self.find
        with self.server.connect(self.url) as table:
            for query in queries:
                if self.labels[query] >= 0:
                    ids = find(table, query)
                    labels = dict(table.execute("SELECT id, label FROM docs WHERE id = ANY(%s)", [ids]).fetchall())
                    found.append((query, [labels.get(one) for one in ids]))
            count = dict(table.execute("SELECT label, count(*) FROM docs GROUP BY 1").fetchall())
        value = beside.ndcg([labels for _, labels in found], [self.labels[query] for query, _ in found], lambda one: count[one])
        self.result["ndcg"][share] = value
        print(f"           nDCG@10 at {share}: {value:.1f}", flush=True)

    def interleaved(self, when, first, second):
        """Medians of two searches, in milliseconds, in turns. A search that takes more than what is measured gives its own time."""
        spent = ([], [])
        with self.server.connect(self.url) as table:
            for turn in range(300):
                query = len(self.texts) - 1 - turn % self.asked.queries
                for times, search in zip(spent, (first, second)):
                    began = time.perf_counter()
                    own = search(table, query)
                    times.append(1000 * (own if isinstance(own, float) else time.perf_counter() - began))
        self.result.setdefault("latency", {})[when] = [float(np.median(one)) for one in spent]

    def deploy(self):
        """The application by the new model, two seconds after the switch."""
        time.sleep(2)
        with self.application.writing:
            self.application.by_new = True

    def vectors(self):
        """id → new vector, as the tool leaves them."""
        import pgvector.psycopg

        with self.server.connect(self.url) as table:
            pgvector.psycopg.register_vector(table)
            rows = table.cursor(binary=True).execute(f"SELECT id, {self.application.column} FROM docs").fetchall()
        return {one: None if vector is None else vector.to_numpy() for one, vector in rows}

    def end(self):
        application = self.application
        time.sleep(5)
        application.end()
        time.sleep(5)
        there, vectors = dict(self.table.execute("SELECT id, body FROM docs").fetchall()), self.vectors()
        number = {text: at for at, text in enumerate(self.texts)}
        stale = missing = 0
        for one, body in there.items():
            vector = vectors.get(one)
            if vector is None:
                missing += 1
            elif np.abs(vector - self.new[number[body]]).max() > 1e-3:
                stale += 1
        asked = self.service.asked()
        lost = sum(there.get(one) != self.texts[text] for one, text in application.rows.items())
        self.result |= {
            "seconds": self.seconds, "processor": self.processor, "database": self.database, "stale": stale, "missing": missing, "lost": lost, "rows": len(there),
            "paid": len(asked), "distinct": len({text for _, _, text in asked}), "paid_again": len(self.service.again(self.compared)), "kills": self.kills, "size_after": self.size(), "failed_searches": len(application.failed),
            "failed_search": collections.Counter(text for _, text in application.failed).most_common(2), "failed_writes": len(application.failed_writes), "searches": sum(application.searches.values()),
            "writes": sum(application.writes.values()), "load": beside.machine()["load"],
        }
        for child in getattr(self, "children", []):
            child.kill()
        self.service.end()
        self.table.close()
        with self.server.connect() as table:
            table.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        return self.result


class Rehang(Way):
    compared, adopted = 1, False

    def find(self, table, query):
        import psycopg

        if not self.adopted:
            return self.application.plain(table, query)
        try:
            both = [as_text(self.old[query]), as_text(self.new[query])]
            return [row[0] for row in table.execute("SELECT id::bigint FROM rehang.search('docs', ARRAY['l3', 'l6'], %s::vector[], %s)", [both, DEPTH]).fetchall()]
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
            return self.application.plain(table, query, "embedding_l6", True)  # It was released in this moment.

    def put(self, table, one, text, statement):
        import psycopg

        values = {"id": one, "body": self.texts[text], "label": int(self.labels[text]), "vector": None}
        if not self.application.by_new:
            return super().put(table, one, text, statement)
        try:
            with table.transaction():
                table.execute(statement.format("embedding"), values)
                table.execute("SELECT rehang.write('docs', %s, %s::vector, 'l6')", [str(one), as_text(self.new[text])])
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
            table.execute(statement.format("embedding_l6"), values | {"vector": as_text(self.new[text])})

    def likewise(self, table, query):
        """Plain SQL that compares as many candidates as `rehang.search` and is sent both queries."""
        with table.transaction():
            table.execute("SET LOCAL hnsw.ef_search = 100")
            began = time.perf_counter()
            both = [as_text(self.old[query]), as_text(self.new[query])]
            table.execute("SELECT id FROM docs ORDER BY embedding <=> (%s::vector[])[1] LIMIT %s", [both, DEPTH]).fetchall()
            return time.perf_counter() - began

    def go(self):
        rehang, way, application = self.asked.rehang, "--" + self.name, self.application
        # The metric of the table, by the application's own searches before anything is begun.
        self.measure("before")
        self.command(rehang, "init", "--table", "docs", "--old-name", "l3", "--source", "body", "--label", "label", "--new-name", "l6", "--new-dimension", beside.DIMENSION)
        with open(self.folder / "rehang.toml", "a") as file:
            file.write(f'\n[encoder]\nkind = "http"\nurl = "{self.service.url}"\nmodel = "l6"\nrevision = "1"\nbatch = {BATCH}\n')
        self.command(rehang, "gallery", "adopt")
        self.adopted = True
        auto = [rehang, "upgrade", "auto", "--yes", way, "--batch", BATCH]
        # Exit code 1: rows that the application wrote in the last moment wait to be embedded.
        if self.name == "mapped":
            auto += ["--within", self.asked.within] if self.asked.within else []
            auto += ["--no-refit"] if self.asked.no_refit else []
            self.command(*auto, "--until", "1%", may=(0, 1))
            self.result["seconds_to_the_switch"] = self.seconds
            self.measure(0)
            self.interleaved("at the switch", self.find, lambda table, query: application.plain(table, query, "embedding", False))
            for share in (25, 50, 75):
                self.command(*auto, "--until", f"{share}%", kill=int(share != 25), may=(0, 1))
                self.measure(share)
            self.command(*auto, may=(0, 1))
        else:
            self.measure(0)
            self.command(*auto, kill=2, may=(0, 1))
            self.result["notes"].append("until the switch, at the end, searches find what they found before.")
        self.result.setdefault("seconds_to_the_switch", self.seconds)
        self.measure(100)
        self.interleaved("all native", self.find, lambda table, query: application.plain(table, query, "embedding", False))
        self.interleaved("all native, plain SQL with its candidates and queries", self.find, self.likewise)
        self.result["rollback"] = self.command(rehang, "upgrade", "rollback")
        self.command(rehang, "upgrade", "switch", "--anyway", may=(0, 1))
        self.seconds -= self.result["rollback"] + self.result["commands"][-1]["seconds"]
        self.deploy()
        self.command(rehang, "upgrade", "run", "--batch", BATCH)
        self.command(rehang, "upgrade", "finish")
        self.command(rehang, "gallery", "release")
        self.adopted, application.column = False, "embedding_l6"
        self.measure("released")
        self.interleaved(
            "released", lambda table, query: application.plain(table, query, "embedding_l6", True), lambda table, query: application.plain(table, query, "embedding", False)
        )


class Vecshift(Way):
    def go(self):
        tool, application = self.asked.vecshift / "bin/vecshift", self.application
        self.measure("before")
        model = f"compat/l6,url={self.service.url}/v1,dims={beside.DIMENSION},price=0,batch={BATCH}"
        self.command(tool, "init", "--table", "public.docs", "--model", model)
        self.command(tool, "plan", may=(0, 1))
        self.measure(0)
        for share in (25, 50, 75):
            self.command(tool, "apply", "--yes", "--until", share, kill=int(share != 25), may=(0, 3))  # 3: as much as was asked for.
            self.measure(share)
        self.command(tool, "apply", "--yes")
        self.command(tool, "cutover", "--yes")
        self.result["seconds_to_the_switch"] = self.seconds
        self.result["rollback"] = self.command(tool, "rollback", "--yes")
        self.command(tool, "cutover", "--yes")
        self.seconds -= self.result["rollback"] + self.result["commands"][-1]["seconds"]
        self.deploy()
        self.measure(100)


class EmbedFlow(Way):
    """Its library, in a process that answers the application's searches."""

    session = None

    def opened(self, folder, service, *words):
        script = pathlib.Path(__file__).with_name("embedflow-session.py")
        with open(self.folder / "said.txt", "a") as said:
            session = subprocess.Popen(
                [str(self.asked.embedflow / "bin/python"), str(script), self.url, service.url, str(self.folder / "queries.npz"), str(folder), *words],
                cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip
        if not session.stdout.readline():
            raise RuntimeError((self.folder / "said.txt").read_text()[-800:])
        return session

    def begin(self):
        began = time.time()
        self.session = self.opened(self.folder, self.service)
        self.children = [self.session]
        self.seconds += time.time() - began

    def answered(self, session, words):
        session.stdin.write(json.dumps(words) + "\n")
        session.stdin.flush()
        told = json.loads(session.stdout.readline() or '{"error": "the session is gone"}')
        if "error" in told:
            raise RuntimeError(told["error"])
        return told

    def ask(self, **words):
        with self.turn:
            return self.answered(self.session, words)

    def find(self, table, query):
        return self.ask(query=self.texts[query])["ids"] if self.session else self.application.plain(table, query)

    def measure_still(self, share):
        """On a copy of its cache, which the measuring does not fill behind the back of what is measured next."""
        place = self.folder / f"still-{share}"
        (place / "cache").mkdir(parents=True)
        for file in (self.folder / "cache").glob("*.sqlite3"):
            with contextlib.closing(sqlite3.connect(file)) as now, contextlib.closing(sqlite3.connect(place / "cache" / file.name)) as copy:
                now.backup(copy)
        # What measuring asks for is not the tool's to pay.
        service = beside.Service(place / "new.log", dict(zip(self.texts, self.new)), self.asked.latency)
        session = self.opened(place, service, "still")
        self.result.setdefault("cached", {})[share] = self.answered(session, {})["cached"]
        self.measure(share, lambda table, query: self.answered(session, {"query": self.texts[query]})["ids"])
        session.kill()
        service.end()
        shutil.rmtree(place)

    def used(self):
        """Processor seconds of the session until now."""
        fields = pathlib.Path(f"/proc/{self.session.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        self.processor += self.used()
        with self.turn:
            self.session.kill()
            self.session.wait()
            self.begin()
        self.kills += 1

    def go(self):
        asked = self.asked
        self.turn = threading.Lock()
        queries = slice(len(self.texts) - 2 * asked.queries, None)
        np.savez(self.folder / "queries.npz", texts=np.array(self.texts[queries]), old=self.old[queries], new=self.new[queries])
        self.measure("before")
        with self.turn:
            self.begin()
        self.measure_still(0)
        # As it offers no order and no share, it is given its documents a quarter at a time.
        ids = [row[0] for row in self.table.execute("SELECT id FROM docs ORDER BY id").fetchall()]
        for share in (25, 50, 75, 100):
            if share == 100:
                ids = [row[0] for row in self.table.execute("SELECT id FROM docs ORDER BY id").fetchall()]
            part = ids[: len(ids) * share // 100]
            began, database = time.time(), self.server.processor()
            self.ask(warm=part)
            killed, cached, moved = share not in (50, 75), -1, time.time()
            enough = self.ask()["cached"] + self.chance.uniform(0.02, 0.2) * len(ids)
            while True:
                now = self.ask()["cached"]
                if now > cached:
                    cached, moved = now, time.time()
                if not killed and cached >= enough:
                    killed = True
                    self.kill()
                    self.ask(warm=part)
                if cached >= len(part) or time.time() - moved > 20:
                    break
                time.sleep(0.05)
            # What never comes (rows that are gone) is not waited for in the times.
            self.seconds += moved - began
            self.database += self.server.processor() - database
            self.result["commands"].append({"command": f"prewarm of {share} %", "seconds": round(moved - began, 1), "exit": 0})
            print(f"{moved - began:7.1f} s  embedflow {share} %: {cached} of {len(part)}", flush=True)
            self.measure_still(share)
        self.result["notes"].append("It has no switch: its searches go on asking the old index for candidates, and the application goes on writing old vectors.")
        self.result["notes"].append("It fills as it is searched, also while this script measures: its seconds are those that were waited for, and less than the whole way took.")

    def vectors(self):
        self.processor += self.used()
        ids = [row[0] for row in self.table.execute("SELECT id FROM docs ORDER BY id").fetchall()]
        vectors = {}
        for first in range(0, len(ids), 2000):
            part = self.ask(vectors=ids[first : first + 2000])["vectors"]
            vectors |= {int(one): np.array(vector, "f4") for one, vector in part.items()}
        self.result["cache_mb"] = sum(file.stat().st_size for file in (self.folder / "cache").rglob("*") if file.is_file()) / 1e6
        self.session.kill()
        return vectors


WAYS = {"mapped": Rehang, "plain": Rehang, "vecshift": Vecshift, "embedflow": EmbedFlow}
TITLES = {"mapped": "rehang, mapped", "plain": "rehang, plain", "vecshift": "vecshift", "embedflow": "EmbedFlow"}


def told(asked, results, nothing, everything, machine, versions, left_out):
    def row(name, of):
        cells = []
        for one in results:
            try:
                cells.append(str(of(one)))
            except (KeyError, TypeError):
                cells.append("–")
        return f"| {name} | " + " | ".join(cells) + " |"

    lines = ["| | " + " | ".join(TITLES[one["way"]] + (f" {versions[one['way']]}" if one["way"] in versions else "") for one in results) + " |", "|---|" + "--:|" * len(results)]
    lines += [
        row("the whole way, seconds of its commands", lambda one: f"{one['seconds']:.0f}"),
        row("until the new model's queries serve, seconds of its commands", lambda one: f"{one['seconds_to_the_switch']:.0f}"),
        row("processor seconds of the tool", lambda one: f"{one['processor']:.1f}"),
        row("processor seconds of the database meanwhile", lambda one: f"{one['database']:.1f}"),
        row("the application's own before, a second", lambda one: f"{one['database_of_the_application']:.2f}"),
        row("nDCG@10 before", lambda one: f"{one['ndcg']['before']:.1f}"),
    ]
    lines += [row(f"at {share} % native", lambda one, share=share: f"{one['ndcg'][share]:.1f}") for share in (0, 25, 50, 75, 100)]
    lines += [
        row("rows with a wrong new vector at the end", lambda one: one["stale"]),
        row("rows without a new vector at the end", lambda one: one["missing"]),
        row("rows lost or with another text", lambda one: one["lost"]),
        row("texts paid, distinct ones", lambda one: f"{one['paid']}, {one['distinct']}"),
        row("texts paid again (kills)", lambda one: f"{one['paid_again']} ({one['kills']})"),
        row("failed searches of", lambda one: f"{one['failed_searches']} of {one['searches']}"),
        row("failed writes of", lambda one: f"{one['failed_writes']} of {one['writes']}"),
        row("database before, MB", lambda one: f"{one['size_before']:.0f}"),
        row("database after, MB", lambda one: f"{one['size_after']:.0f}"),
        row("rollback, seconds", lambda one: f"{one['rollback']:.1f}"),
    ]
    lines += ["", f"By brute force over the table as it was: doing nothing {nothing:.1f}, the new model on everything {everything:.1f}."]
    times = [(one, when, pair) for one in results for when, pair in one.get("latency", {}).items()]
    if times:
        lines += ["", "| search, median in ms, in turns | first | plain SQL on the old column |", "|---|--:|--:|"]
        for one, when, (first, second) in times:
            what = "plain SQL on the new column" if when == "released" else "`rehang.search`, both queries"
            lines.append(f"| {TITLES[one['way']]}, {when}: {what} | {first:.2f} | {second:.2f} |")
    lines += [""] + [f"- {TITLES[one]} is left out: {why}" for one, why in left_out.items()]
    lines += [f"- {TITLES[one['way']]}: {note}" for one in results for note in one["notes"]]
    text = "\n".join(lines).rstrip() + "\n"
    (asked.out / "beside-others.md").write_text(text)
    (asked.out / "beside-others.json").write_text(json.dumps({"machine": machine, "texts": asked.texts, "nothing": nothing, "everything": everything, "ways": results}, indent=1, default=str))
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["--rehang", "--out", "--cache", "--data"]:
        parser.add_argument(name, type=lambda path: pathlib.Path(path).absolute(), required=True)
    for name in ["--vecshift", "--embedflow"]:
        parser.add_argument(name, type=lambda path: pathlib.Path(path).absolute())
    for name, value in [("--texts", 20_000), ("--queries", 300), ("--seed", 0)]:
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--within", help="what rehang's fit is given, as in 20s")
    parser.add_argument("--no-refit", action="store_true", help="the map of rehang stays the first one")
    parser.add_argument("--only", default=",".join(WAYS))
    asked = parser.parse_args()
    shutil.rmtree(asked.out, ignore_errors=True)
    asked.out.mkdir(parents=True)
    machine = beside.machine()
    spare = max(1500, asked.texts // 2)
    data = beside.prepare(asked.data, asked.cache, asked.texts + spare + 2 * asked.queries)
    texts, labels, old, new = data
    first, queries = slice(asked.texts), [at for at in range(len(texts) - asked.queries, len(texts)) if labels[at] >= 0]
    count = collections.Counter(labels[first].tolist())

    def exact(rows):
        best = np.argsort(-(rows[queries] @ rows[first].T), axis=1, kind="stable")[:, :DEPTH]
        return beside.ndcg(labels[best].tolist(), labels[queries].tolist(), lambda one: count[one])

    nothing, everything = exact(old), exact(new)
    server = beside.Server()
    results, left_out, versions, broken = [], {}, {}, []
    try:
        for name in asked.only.split(","):
            tool = getattr(asked, name, None)
            if name in ("vecshift", "embedflow"):
                if not tool or not (tool / "bin/python").exists():
                    left_out[name] = "no virtual environment was given that has it"
                    continue
                versions[name] = subprocess.run([tool / "bin/python", "-c", f"import importlib.metadata as m; print(m.version('{name}'))"], capture_output=True, text=True).stdout.strip()
            print(f"── {TITLES[name]}", flush=True)
            way = WAYS[name](asked, server, data, name)
            try:
                way.go()
            except Exception as error:
                way.result["notes"].append(f"it ended with {type(error).__name__}: {error}")
                print(way.result["notes"][-1], flush=True)
                if name in ("mapped", "plain"):
                    broken.append(way.result["notes"][-1])
            results.append(way.end())
            if name in ("mapped", "plain"):
                broken += way.broken
            told(asked, results, nothing, everything, machine, versions, left_out)
            if name in ("mapped", "plain"):
                broken += [f"{name}: {key}: {results[-1][key]}" for key in ("stale", "missing", "lost", "failed_searches", "failed_writes") if results[-1][key]]
    finally:
        server.end()
    print(told(asked, results, nothing, everything, machine, versions, left_out))
    print("\n".join(["", *broken]) if broken else "Of rehang nothing is wrong.")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
