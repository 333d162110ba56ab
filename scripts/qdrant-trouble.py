"""An upgrade in Qdrant while the server has trouble: a cluster whose shards move or are made more and fewer and whose nodes die, and snapshots that are restored.

    python3 scripts/qdrant-trouble.py --rehang PROGRAM --qdrant PROGRAM [--points 4000] [--seconds 120] [--only cluster,resharding,both,points,state,flags]

`cluster`: three nodes, six shards, one replica each; two workers and an application write while shards are moved and nodes are killed. `resharding`: the same while shards are added and taken away. `both`, `points`, `state`: both collections, the
application's alone or ours alone are set back to a snapshot. In the end every point has the application's payload and the new model's vector of its text, or it fails. `flags`: why our witness is a dense vector: a server that died between two
files of a flush finds out which vectors points have that are written afterwards. It needs numpy and requests.
"""

import itertools
import pathlib
import random
import shutil
import tempfile
import threading
import time

import numpy as np
import requests
from qdrant_server import WIDTHS, Server, configure, parser, run, serve, vectors

CHANGED = 1_000_000


class Application:
    """Upserts and deletes points, and knows what has to be there."""

    def __init__(self, server, points):
        self.server, self.there, self.stopped, self.writes, self.retries = server, {}, threading.Event(), 0, 0
        for first in range(0, points, 500):
            self.put({number: number for number in range(first, min(first + 500, points))})
        self.next = points

    def put(self, numbers):
        rows = vectors(list(numbers.values()), "old").tolist()
        points = [{"id": one, "vector": {"embedding": row}, "payload": self.payload(number)} for (one, number), row in zip(numbers.items(), rows)]
        self.send("PUT", "/collections/docs/points?wait=true", {"points": points})
        self.there |= numbers

    @staticmethod
    def payload(number):
        return {"body": f"text {number}", "more": {"kept": number % 7}}

    def send(self, method, path, body):
        while True:
            try:
                return self.server.ask(method, path, body)
            except requests.RequestException:
                # As an application does that wants its write to be there.
                self.retries += 1
                time.sleep(0.5)

    def go_on(self, seed):
        draw = random.Random(seed)
        while not self.stopped.is_set():
            kind = draw.random()
            if kind < 0.5:
                self.put({self.next: self.next})
                self.next += 1
            elif kind < 0.9:
                one = draw.choice(list(self.there))
                self.put({one: self.there[one] + CHANGED})
            else:
                one = draw.choice(list(self.there))
                self.send("POST", "/collections/docs/points/delete?wait=true", {"points": [one]})
                del self.there[one]
            self.writes += 1
            time.sleep(0.03)

    def check(self):
        """Fails where a point is not as it has to be."""
        found, offset = {}, None
        while True:
            page = self.send("POST", "/collections/docs/points/scroll", {"limit": 1000, "offset": offset, "with_payload": True, "with_vector": ["large"]})
            found |= {point["id"]: point for point in page["points"]}
            offset = page["next_page_offset"]
            if offset is None:
                break
        wrong = []
        for one in found.keys() | self.there.keys():
            point, number = found.get(one), self.there.get(one)
            if point is None or number is None:
                wrong.append(f"{one}: " + ("lost" if point is None else "came back"))
                continue
            ours = {field: value for field, value in point["payload"].items() if not field.startswith("rehang")}
            if ours != self.payload(number):
                wrong.append(f"{one}: payload {ours}")
            vector = (point["vector"] or {}).get("large")
            if vector is None or np.dot(vector, vectors([number], "new")[0]) < 0.9999:
                wrong.append(f"{one}: " + ("no vector" if vector is None else "the vector of another text"))
        if wrong:
            raise SystemExit(f"{len(wrong)} of {len(self.there)} points are wrong: {wrong[:5]}")
        print(f"  {len(found)} points are right after {self.writes} writes, {self.retries} of them sent again", flush=True)


def go(rehang, folder, server, *lines):
    for line in lines:
        code, said = run(rehang, line, folder, server)
        if code != 0:
            raise SystemExit(f"{line} ended with {code}:\n{said[-1500:]}")
    return said


BEGIN = ["gallery adopt", "upgrade pairs --items 300", "upgrade fit --method ridge", "upgrade start", "upgrade switch --anyway"]


def cluster(asked, folder, which):
    nodes = []
    for at in range(3):
        nodes.append(Server(asked.qdrant, folder / f"node{at}", cluster=True, first=nodes[0] if nodes else None))
    try:
        time.sleep(2)
        nodes[0].ask("PUT", "/collections/docs", {"vectors": {"embedding": {"size": WIDTHS["old"], "distance": "Cosine"}}, "shard_number": 6, "replication_factor": 1})
        application = Application(nodes[1], asked.points)
        go(asked.rehang, folder, nodes[0], *BEGIN)
        threads = [threading.Thread(target=application.go_on, args=(1,), daemon=True)]
        ends, over = [], threading.Event()

        def work():
            while not over.is_set():
                ends.append(run(asked.rehang, "upgrade run --budget 150 --no-refit", folder, nodes[0]))
                time.sleep(1)

        threads += [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        did = trouble(asked.seconds, nodes) if which == "cluster" else reshard(asked.seconds, nodes)
        over.set()
        application.stopped.set()
        for thread in threads:
            thread.join()
        codes = [code for code, _ in ends]
        print(f"{which}: {did}; {len(codes)} runs ended with {dict((code, codes.count(code)) for code in set(codes))}", flush=True)
        for said in {said.strip().splitlines()[-1][:160] for code, said in ends if code not in (0, 1)}:
            print("  said:", said)
        time.sleep(5)
        go(asked.rehang, folder, nodes[0], "upgrade run --no-refit", "upgrade run --no-refit")
        application.check()
    finally:
        for node in nodes:
            node.kill()


def trouble(seconds, nodes):
    """Moves shards and kills nodes. Gives how often."""
    draw, began, moved, killed = random.Random(2), time.time(), 0, 0
    while time.time() - began < seconds:
        time.sleep(3)
        try:
            if draw.random() < 0.7:
                moved += move(draw, nodes[0])
            else:
                node = draw.choice(nodes[1:])
                node.kill()
                time.sleep(draw.choice([0.5, 4]))
                node.start()
                killed += 1
        except requests.RequestException:
            pass
    return f"{moved} shards moved, {killed} nodes killed"


def places(node):
    """The node of each shard."""
    told = node.ask("GET", "/collections/docs/cluster")
    return {shard["shard_id"]: shard.get("peer_id", told["peer_id"]) for shard in told["local_shards"] + told["remote_shards"]}


def tell(node, **operation):
    """Has the cluster do something, and waits until no points are on their way, 30 seconds at most."""
    node.ask("POST", "/collections/docs/cluster?timeout=60", operation)
    time.sleep(0.5)
    for _ in range(300):
        if not node.ask("GET", "/collections/docs/cluster")["shard_transfers"]:
            break
        time.sleep(0.1)


def move(draw, node):
    """Moves a shard to another node. Gives how many it moved."""
    shard, peer = draw.choice(list(places(node).items()))
    to = draw.choice([other for other in map(int, node.ask("GET", "/cluster")["peers"]) if other != peer])
    tell(node, move_shard={"shard_id": shard, "from_peer_id": peer, "to_peer_id": to, "method": draw.choice(["stream_records", "snapshot"])})
    return 1


def reshard(seconds, nodes):
    """Adds a shard and takes the last one away, in turn, and breaks every other one off. Gives how often."""
    at, began, done = nodes[0], time.time(), {"up": 0, "down": 0, "aborted": 0}
    by_peer = {node.ask("GET", "/cluster")["peer_id"]: node for node in nodes}
    for turn in itertools.count():
        if time.time() - began >= seconds:
            return f"{done['up']} shards added, {done['down']} taken away, {done['aborted']} of either broken off"
        direction = "up" if turn % 4 < 2 else "down"
        tell(at, start_resharding={"direction": direction, "shard_key": None})
        shards = places(at)
        changed = max(shards)
        others = [shard for shard in shards if shard != changed]
        for other in others:
            source, target = (other, changed) if direction == "up" else (changed, other)
            tell(at, replicate_shard={"shard_id": source, "to_shard_id": target, "from_peer_id": shards[source], "to_peer_id": shards[target], "method": "resharding_stream_records"})
        if turn % 2 == 1:
            tell(at, abort_resharding={})
            done["aborted"] += 1
            continue
        for target in [changed] if direction == "up" else others:
            tell(at, finish_migrating_points={"shard_id": target, "peer_id": shards[target]})
        tell(at, commit_read_hash_ring={})
        tell(at, commit_write_hash_ring={})
        if direction == "up":
            for other in others:
                by_peer[shards[other]].ask("POST", f"/collections/docs/shards/{other}/cleanup?wait=true&timeout=60")
        tell(at, finish_resharding={})
        done[direction] += 1


def snapshot(server, collection):
    return collection, server.ask("POST", f"/collections/{collection}/snapshots?wait=true")["name"]


def restore(server, taken):
    collection, name = taken
    place = pathlib.Path(server.folder / "snapshots" / collection / name).as_uri()
    server.ask("PUT", f"/collections/{collection}/snapshots/recover?wait=true", {"location": place, "priority": "snapshot"})


def snapshots(asked, folder, which):
    server = Server(asked.qdrant, folder / which)
    try:
        server.ask("PUT", "/collections/docs", {"vectors": {"embedding": {"size": WIDTHS["old"], "distance": "Cosine"}}})
        application = Application(server, asked.points)
        go(asked.rehang, folder, server, *BEGIN, "upgrade run --budget 200 --no-refit")
        kept, points, state = dict(application.there), snapshot(server, "docs"), snapshot(server, "rehang_docs")
        application.put({one: one + CHANGED for one in range(50)})
        go(asked.rehang, folder, server, "upgrade run --budget 300 --no-refit")
        if which in ("both", "points"):
            restore(server, points)
            application.there = kept
        if which in ("both", "state"):
            restore(server, state)
        application.put({one: one + 2 * CHANGED for one in range(20)})
        said = go(asked.rehang, folder, server, "upgrade run --no-refit", "upgrade run --no-refit", "doctor --config rehang.toml")
        print(f"{which}: {said.strip().splitlines()[-1]}", flush=True)
        application.check()
    finally:
        server.end()


def flags(asked, folder):
    """Which points lack a vector that they were given, where only the flags of absent vectors had been flushed before."""
    server = Server(asked.qdrant, folder / "flags")
    vectors = {name: {"size": 1, "distance": "Dot"} for name in ("embedding", "dense")}
    server.ask("PUT", "/collections/docs", {"vectors": vectors, "sparse_vectors": {"sparse": {}}, "shard_number": 1, "optimizers_config": {"flush_interval_sec": 1, "default_segment_number": 1}})
    time.sleep(4)
    storage, before = server.folder / "storage", server.folder / "before"
    shutil.copytree(storage, before)

    def put(more):
        points = [{"id": one, "vector": {"embedding": [1.0], **more}} for one in range(10)]
        server.ask("PUT", "/collections/docs/points?wait=true", {"points": points})

    put({})
    time.sleep(4)
    server.kill()
    for flushed in storage.glob("collections/docs/0/segments/*/vector_storage-*/deleted/*"):
        shutil.copy(flushed, before / flushed.relative_to(storage))
    shutil.rmtree(storage)
    before.rename(storage)
    server.start()
    put({"dense": [1.0], "sparse": {"indices": [0], "values": [1.0]}})
    for name in ("dense", "sparse"):
        lacking = server.ask("POST", "/collections/docs/points/count", {"filter": {"must_not": [{"has_vector": name}]}, "exact": True})
        print(f"flags: of 10 points that were given a {name} vector, {lacking['count']} have none", flush=True)
    server.end()


def main():
    arguments = parser(__doc__, 4000)
    arguments.add_argument("--seconds", type=int, default=120)
    arguments.add_argument("--only", default="cluster,resharding,both,points,state,flags")
    asked = arguments.parse_args()
    for which in asked.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            configure(folder, serve())
            if which in ("cluster", "resharding"):
                cluster(asked, folder, which)
            elif which == "flags":
                flags(asked, folder)
            else:
                snapshots(asked, folder, which)


if __name__ == "__main__":
    main()
