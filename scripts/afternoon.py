"""The afternoon: an upgrade as an operator lives it, from an application's table to the release, while that application searches and writes.

    python3 scripts/afternoon.py --rehang target/release/rehang --data ../shared/data --cache CACHE --out OUT [--texts 40000] [--seed 0]

The gallery is a table of PostgreSQL (a server of its own) with an HNSW index on its old vectors, texts and vectors are those of beside.py. Both models are services of
20 ms a request. The application asks 20 searches a second (nine of ten by `rehang.search` with queries of both models, one by SQL of its own on the old column) and
makes 10 writes a second (--writes): rows that come, that change (in one statement, or the text first and its old vector later), that go; every 20 s it writes 100 rows anew
(DELETE and INSERT of the same ids in one transaction). It knows the old model alone until after `finish`. A probe looks 20 times a second for every row
that was written in what searches go to.

The way: init, adopt, doctor, pairs, fit, report, plan, start, switch; two followers at a limited rate; a refit by hand half-way; rollback and switch; finish; release.
`pairs`, `start` and `release` are killed (signal 9) once, the followers --kills times, each at a random moment, and begun again.

The truth beside each forecast is mAP by label of the gallery's own items (the item itself left out), by brute force: new vectors are the model's own, adapted ones are read
from the gallery, and which items are native is what the gallery said in that moment. The two ends are of the whole gallery, the way between of the items that were never changed.

Writes OUT/afternoon.json and OUT/afternoon.md, prints the latter, and exits 1 where something does not hold: a search that failed, a row that was lost, a native vector that is
not the model's (1e-6), an exit code, a text that was paid for twice but for batches in hand at a death. `--texts 2000 --writes 2 --seconds 40 --kills 2
--within 10s` tries it out in some minutes: of 2,000 rows, 10 writes a second change a tenth in half a minute.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import beside
import numpy as np
from beside import DEPTH

BATCH = 64


class Afternoon:
    def __init__(self, asked):
        self.asked, self.out = asked, asked.out
        shutil.rmtree(asked.out, ignore_errors=True)
        self.folder = asked.out / "upgrade"
        self.folder.mkdir(parents=True)
        self.machine = beside.machine()
        self.queries = 500
        spare = max(1500, asked.texts // 2)
        self.texts, self.labels, self.old, self.new = beside.prepare(asked.data, asked.cache, asked.texts + spare + self.queries)
        rows = dict(zip(self.texts, self.new))
        self.service = beside.Service(asked.out / "new.log", rows, asked.latency)
        self.old_service = beside.Service(asked.out / "old.log", dict(zip(self.texts, self.old)), asked.latency)
        self.server = beside.Server()
        self.url = self.server.database("afternoon")
        self.table = self.server.connect(self.url)
        beside.fill(self.table, self.texts[: asked.texts], self.labels, self.old)
        self.environment = {**os.environ, "DATABASE_URL": self.url, "NO_COLOR": "1"}
        self.chance = random.Random(asked.seed)
        self.steps, self.deaths, self.snapshots, self.forecasts, self.broken = [], [], [], [], []
        self.followers, self.adapted = [], {}
        beside.Application.writes_a_second = asked.writes
        self.application = beside.Application(self.server, self.url, self.texts, self.labels, self.old, self.new, asked.texts, self.queries, asked.seed)

    # What is done.

    def rehang(self, *words):
        return subprocess.run([self.asked.rehang, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def step(self, *words, stage=None, kill_after=None, may=(0,)):
        """One command, as long as it takes; or killed after so many seconds, which is a row of its own."""
        if stage:
            self.application.stage = stage
        began, paid = time.time(), self.paid()
        child = subprocess.Popen([self.asked.rehang, *words], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
        killed = False
        try:
            said = child.communicate(timeout=kill_after)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            said, killed = child.communicate()[0], True
            self.deaths.append({"of": " ".join(words[:2]), "at": time.time()})
        seconds, lines = time.time() - began, said.strip().splitlines()
        name = "rehang " + " ".join(words)
        self.steps.append({"step": name, "seconds": round(seconds, 1), "exit": "killed" if killed else child.returncode, "paid": self.paid() - paid, "last": lines[-1] if lines else ""})
        (self.out / f"{len(self.steps):02}-{words[1]}.txt").write_text(said)
        print(f"{seconds:7.1f} s  [{self.steps[-1]['exit']}] {name}: {self.steps[-1]['last'][:140]}", flush=True)
        if not killed and child.returncode not in may:
            self.broken.append(f"{name}: exit code {child.returncode}: {said[-500:]}")
        return said

    def follow(self):
        output = open(self.out / f"follower-{len(self.followers)}.txt", "w")
        words = ["upgrade", "run", "--follow", "--no-refit", "--batch", str(BATCH), "--rate", f"{self.rate}/s"]
        self.followers.append(subprocess.Popen([self.asked.rehang, *words], cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))

    def kill_a_follower(self):
        living = [one for one in self.followers if one.poll() is None]
        if len(living) < 2:
            self.broken.append(f"of two followers {len(living)} are alive: {[one.poll() for one in self.followers]}")
        child = self.chance.choice(living)
        child.kill()
        child.wait()
        self.deaths.append({"of": "a follower", "at": time.time()})
        print(f"           a follower is killed at {100 * self.native():.0f} % native", flush=True)
        time.sleep(self.chance.uniform(0, 5))
        self.follow()

    def status(self):
        return json.loads(self.rehang("upgrade", "status", "--json").stdout)

    def native(self):
        counts = self.status()["counts"]
        return counts["native"] / counts["items"]

    def paid(self):
        return sum(1 for _ in open(self.service.log))

    def wait_until(self, share, limit=1800):
        began = time.time()
        while self.native() < share:
            time.sleep(0.5)
            if time.time() - began > limit:
                self.broken.append(f"{share} native was not reached in {limit} s")
                return

    def snapshot(self, when, map_name, read=False):
        """Which items are native now; with `read`, also the adapted vectors of all others, as the gallery has them."""
        import pgvector.psycopg

        with self.server.connect(self.url) as table:
            pgvector.psycopg.register_vector(table)
            cursor = table.cursor(binary=True)
            number = cursor.execute("SELECT number FROM rehang.gallery WHERE name = 'docs'").fetchone()[0]
            what = "id, provenance, handicap" + (", serving_vector" if read else "")
            rows = cursor.execute(f"SELECT {what} FROM rehang.serving_{number} WHERE id <= %s", [self.asked.texts]).fetchall()
        native = np.zeros(self.asked.texts, bool)
        native[[one[0] - 1 for one in rows if one[1] == "native"]] = True
        if read:
            vectors, handicap = np.zeros((self.asked.texts, beside.DIMENSION), "f4"), 0.0
            for one, provenance, moved, vector in rows:
                if provenance == "adapted" and vector is not None:
                    vectors[one - 1] = vector.to_numpy()
                    handicap = moved
            known = vectors.any(1)
            vectors[known] = beside.unit(vectors[known])
            self.adapted[map_name] = (vectors, known | native, handicap)
        self.snapshots.append({"when": when, "map": map_name, "native": native, "share": len(rows) and sum(one[1] == "native" for one in rows) / len(rows)})

    def forecast(self, when):
        said = json.loads(self.rehang("upgrade", "plan", "--json").stdout).get("forecast")
        if not said:
            self.broken.append(f"there is no forecast {when}")
            return
        with self.application.writing:
            gallery = list(self.application.rows.values())
        self.forecasts.append({"when": when, "texts": gallery, **said})

    def search_by_text(self):
        done = self.rehang("search", "--text", self.texts[-1], "-k", str(DEPTH), "--json")
        hits = json.loads(done.stdout)["results"][0] if done.returncode == 0 else []
        if len(hits) != DEPTH:
            self.broken.append(f"rehang search --text found {len(hits)}: {done.stderr[-300:]}")

    def go(self):
        asked, application = self.asked, self.application
        self.rate = max(20, round(asked.texts / asked.seconds))
        time.sleep(5)
        self.step("init", "--table", "docs", "--old-name", "l3", "--source", "body", "--label", "label", "--new-name", "l6", "--new-dimension", str(beside.DIMENSION))
        with open(self.folder / "rehang.toml", "a") as file:
            for name, service in [("encoder", self.service), ("old.encoder", self.old_service)]:
                file.write(f'\n[{name}]\nkind = "http"\nurl = "{service.url}"\nmodel = "{name}"\nrevision = "1"\nbatch = {BATCH}\n')
        self.step("gallery", "adopt")
        application.adopted, application.stage = True, "adopted"
        self.step("doctor", "--config", "rehang.toml")
        pairs = ["--items", str(min(2000, asked.texts // 4))]
        self.step("upgrade", "pairs", *pairs, kill_after=self.chance.uniform(0.3, 3))
        self.step("upgrade", "pairs", *pairs)
        self.step("upgrade", "fit", *(["--within", asked.within] if asked.within else []))
        self.step("upgrade", "report")
        self.step("upgrade", "plan")
        self.forecast("before the switch")
        self.search_by_text()
        self.step("upgrade", "start", kill_after=self.chance.uniform(0.3, 1 + asked.texts / 4000), stage="start")
        self.step("upgrade", "start", may=(0, 1))  # 1: a warning, as that the trigger does not adapt by this map.
        self.step("upgrade", "switch", "--anyway", stage="switched", may=(0, 1))  # 1: rows wait to be found.
        self.snapshot("at the switch", "first", read=True)
        self.search_by_text()
        self.follow()
        self.follow()
        for kill in range(asked.kills):
            time.sleep(self.chance.uniform(0.5, 1.5) * asked.seconds / (2 * asked.kills + 1))
            self.kill_a_follower()
        self.wait_until(0.4)
        self.snapshot("before the refit", "first")
        self.step("upgrade", "refit")
        self.forecast("after the refit")
        self.snapshot("after the refit", "second", read=True)
        self.step("upgrade", "rollback", stage="rolled back")
        time.sleep(10)
        self.search_by_text()
        self.step("upgrade", "switch", "--anyway", stage="switched again", may=(0, 1))
        self.kill_a_follower()
        self.wait_until(0.75)
        self.snapshot("on the way", "second")
        self.wait_until(0.995)
        self.snapshot("all but the last", "second")
        self.step("upgrade", "finish", "--anyway", stage="finished")
        time.sleep(15)
        # The application is deployed anew: it writes by the new model from now on.
        with application.writing:
            application.knows_new, application.stage = True, "new writer"
        time.sleep(3)
        self.step("upgrade", "run")
        self.step("doctor", "--config", "rehang.toml")
        self.search_by_text()
        self.step("gallery", "release", kill_after=self.chance.uniform(0.3, 1 + asked.texts / 4000), stage="release")
        for _ in range(5):
            self.step("gallery", "release")
            if self.steps[-1]["exit"] == 0:
                break
        application.stage = "released"
        time.sleep(5)
        began = time.time()
        for child in self.followers:
            try:
                code = child.wait(timeout=30)
                if code not in (0, -signal.SIGKILL):
                    self.broken.append(f"a follower ended with {code}: {pathlib.Path(self.out / f'follower-{self.followers.index(child)}.txt').read_text()[-500:]}")
            except subprocess.TimeoutExpired:
                self.broken.append("a follower is there 30 s after the release")
                child.kill()
        self.steps.append({"step": "the followers end after the release", "seconds": round(time.time() - began, 1), "exit": 0, "paid": 0, "last": ""})
        application.end()

    # What is said of it.

    def check(self):
        """Every row is there with its text, and every new vector is the model's of that text."""
        import pgvector.psycopg

        application = self.application
        pgvector.psycopg.register_vector(self.table)
        rows = self.table.cursor(binary=True).execute("SELECT id, body, embedding_l6 FROM docs").fetchall()
        there = {one: body for one, body, _ in rows}
        number = {text: at for at, text in enumerate(self.texts)}
        expected = {one: self.texts[text] for one, text in application.rows.items()}
        missing = [(one, body, vector) for one, body, vector in rows if vector is None]
        off = [float(np.abs(vector.to_numpy() - self.new[number[body]]).max()) for _, body, vector in rows if vector is not None]
        asked, repeated = self.service.asked(), self.service.again()
        paid, distinct, requests = len(asked), len({text for _, _, text in asked}), len({request for _, request, _ in asked})
        times = [one["at"] for one in self.deaths] + [float("inf")]
        for at, death in enumerate(self.deaths):
            death["texts_again"] = sum(death["at"] - 1 <= one < times[at + 1] - 1 for one in repeated)
            near = [seconds for _, began, seconds in application.waits if death["at"] - 1 < began < death["at"] + 15]
            death["longest_wait"] = round(max(near, default=0.0), 2)
        most = BATCH * len(self.deaths)
        self.result = {
            "rows": len(rows), "rows_expected": len(expected), "rows_wrong": sum(there.get(one) != body for one, body in expected.items()) + len(there.keys() - expected.keys()),
            "rows_without_a_new_vector": len(missing), "natives_off": sum(one > 1e-6 for one in off), "greatest_difference": max(off),
            "texts_paid": paid, "distinct_texts_paid": distinct, "requests": requests, "compared_texts": paid - distinct - len(repeated), "paid_again": len(repeated), "paid_again_at_most": most,
            "failed_searches": application.failed, "failed_writes": application.failed_writes, "found_though_gone": application.ghosts, "never_found": len(application.waiting),
        }
        for name in ["rows_wrong", "rows_without_a_new_vector", "natives_off", "never_found"]:
            if self.result[name]:
                self.broken.append(f"{name}: {self.result[name]}")
        for name in ["failed_searches", "failed_writes", "found_though_gone"]:
            if self.result[name]:
                self.broken.append(f"{name}: {collections.Counter(map(str, self.result[name])).most_common(3)}")
        if self.result["paid_again"] > most:
            self.broken.append(f"{self.result['paid_again']} texts were paid again, and {len(self.deaths)} deaths explain {most}")

    def truth(self):
        """mAP by label, forecast and true: the ends over the whole gallery, the way between by items that the application never touched. Items of no class ask, too, as in the
        forecast.
        """
        count = self.asked.texts
        usable = np.array([at + 1 not in self.application.touched for at in range(count)])
        for _, known, _ in self.adapted.values():
            usable &= known
        rows = np.flatnonzero(usable)
        old, new, labels = self.old[rows], self.new[rows], self.labels[rows]
        asked = np.random.default_rng(1).permutation(len(rows))[:2000]

        def measured(queries, gallery, handicap=None):
            return beside.map_by_label(queries[asked], labels[asked], asked, gallery, labels, handicap)

        # The ends of each forecast, over the very gallery that it was made of.
        for said in self.forecasts:
            texts = np.array(said.pop("texts"))
            queries = np.random.default_rng(2).permutation(len(texts))[:2000]
            for name, rows_of in [("true_nothing", self.old[texts]), ("true_end", self.new[texts])]:
                said[name] = beside.map_by_label(rows_of[queries], self.labels[texts[queries]], queries, rows_of, self.labels[texts])
        table = []
        for one in self.snapshots:
            adapted, _, handicap = self.adapted[one["map"]]
            native = one["native"][rows]
            gallery = np.where(native[:, None], new, adapted[rows])
            true = measured(new, gallery, np.where(native, 0, handicap).astype("f4"))
            line = {"when": one["when"], "native": one["share"], "true": true}
            for said in self.forecasts:
                points = [(0.0, said["start"])] + [tuple(point) for point in said["curve_at"]]
                line[said["when"]] = float(np.interp(one["share"], *zip(*points)))
                line["range " + said["when"]] = [float(np.interp(one["share"], [point[0] for point in said["ranges"]], [point[end] for point in said["ranges"]])) for end in (1, 2)]
            table.append(line)
        self.result["quality"] = {"forecasts": self.forecasts, "way": table, "items": len(rows), "queries": len(asked)}

    def told(self):
        application, result = self.application, self.result
        result |= {"machine": self.machine, "load_at_the_end": beside.machine()["load"], "versions": self.server.versions, "texts": self.asked.texts, "steps": self.steps, "deaths": self.deaths, "broken": self.broken}
        lines = ["| step | seconds | exit code | texts paid |", "|---|--:|--:|--:|"]
        lines += [f"| {one['step']} | {one['seconds']} | {one['exit']} | {one['paid']} |" for one in self.steps]
        lines += ["", "| stage | searches | failed | median, p99, longest (ms) | writes: median, p99, longest (ms) | rows that came: found after, median, p99, longest (s) | at most not found at once |", "|---|--:|--:|---|---|---|--:|"]

        def three(values, scale=1, digits=0):
            return ", ".join(f"{scale * float(np.percentile(values, q)):.{digits}f}" for q in (50, 99, 100)) if values else ""

        stages = []
        for name in application.searches:
            stage = {
                "stage": name, "searches": application.searches[name], "failed": sum(one == name for one, _ in application.failed),
                "latency": three([seconds for one, kind, seconds in application.latencies if one == name and kind != "sql"], 1000),
                "writes": three([seconds for one, kind, seconds in application.write_waits if one == name and kind not in ("nightly", "late change")], 1000),
                "found": three([seconds for one, _, seconds in application.waits if one == name], 1, 2), "most": application.most[name], "asked_twice": application.twice[name],
            }
            stages.append(stage)
            lines.append("| " + " | ".join(str(stage[key]) for key in ["stage", "searches", "failed", "latency", "writes", "found", "most"]) + " |")
        result["stages"] = stages
        result["writes"] = dict(application.writes)
        lines += ["", "| killed | texts paid again | the longest wait of a row written about then (s) |", "|---|--:|--:|"]
        lines += [f"| {one['of']} | {one['texts_again']} | {one['longest_wait']} |" for one in self.deaths]
        quality = result.get("quality")
        if quality:
            whens = [one["when"] for one in self.forecasts]
            lines += ["", "| mAP by label, percent | native | true | " + " | ".join(f"forecast {one}" for one in whens) + " |", "|---|--:|--:|" + "--:|" * len(whens)]
            for at, one in enumerate(self.forecasts):
                cells = ["" for _ in whens]
                cells[at] = f"{one['do_nothing']:.1f}"
                lines.append(f"| doing nothing, {one['when']} | | {one['true_nothing']:.1f} | " + " | ".join(cells) + " |")
            for one in quality["way"]:
                cells = [f"{one[when]:.1f} ({one['range ' + when][0]:.1f} to {one['range ' + when][1]:.1f})" for when in whens]
                lines.append(f"| {one['when']} | {100 * one['native']:.1f} % | {one['true']:.1f} | " + " | ".join(cells) + " |")
            for at, one in enumerate(self.forecasts):
                cells = ["" for _ in whens]
                cells[at] = f"{one['curve_at'][-1][1]:.1f} ({one['ranges'][-1][1]:.1f} to {one['ranges'][-1][2]:.1f})"
                lines.append(f"| everything native, {one['when']} | 100 % | {one['true_end']:.1f} | " + " | ".join(cells) + " |")
        lines += ["", "| at the end | |", "|---|--:|"]
        for name in ["rows", "rows_expected", "rows_wrong", "rows_without_a_new_vector", "natives_off", "greatest_difference", "texts_paid", "distinct_texts_paid", "requests", "compared_texts", "paid_again", "paid_again_at_most", "never_found"]:
            value = result[name]
            lines.append(f"| {name.replace('_', ' ')} | {value if isinstance(value, int) else f'{value:.1e}'} |")
        lines += ["", "Writes: " + ", ".join(f"{count} {kind}" for kind, count in application.writes.items()) + "."]
        lines += ["", "Broken: " + ("nothing." if not self.broken else "")] + [f"- {one}" for one in self.broken]
        (self.out / "afternoon.md").write_text("\n".join(lines) + "\n")
        (self.out / "afternoon.json").write_text(json.dumps(result, indent=1, default=str))
        print("\n".join(lines), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["--rehang", "--out", "--cache", "--data"]:
        parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve(), required=True)
    for name, value in [("--texts", 40_000), ("--kills", 4), ("--seed", 0), ("--seconds", 240), ("--writes", 10)]:
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--within", help="what `fit` is given, as in 20s")
    afternoon = Afternoon(parser.parse_args())
    try:
        afternoon.go()
        afternoon.check()
        afternoon.truth()
        afternoon.told()
    finally:
        for child in afternoon.followers:
            if child.poll() is None:
                child.kill()
        afternoon.application.ending.set()
        afternoon.service.end()
        afternoon.old_service.end()
        afternoon.server.end()
    raise SystemExit(1 if afternoon.broken else 0)


if __name__ == "__main__":
    main()
