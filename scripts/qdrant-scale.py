"""What each verb of an upgrade takes in a large collection of Qdrant: seconds, requests, memory of the server.

    python3 scripts/qdrant-scale.py --rehang PROGRAM --qdrant PROGRAM [--points 1000000] [--graphs] [--until release] [--payload 200] [--fill SECONDS]

A server of its own, points of 8 coordinates with a text and so many characters more, a new model of 16, and a service that answers at once. Verbs are those of the command
line, one after the other; `--until VERB` ends after that one. In the end every point has what a search needs, or it fails. `--fill SECONDS` stops the start after that time and
says its rate; the verbs that need a filled gallery are left out then, and the points released with what they have. It needs numpy and requests.
"""

import os
import pathlib
import signal
import subprocess
import tempfile
import time

from qdrant_server import WIDTHS, Server, configure, parser, run, serve, vectors

PAGE = 500


def fill(server, points, payload, has_graphs):
    vector = {"embedding": {"size": WIDTHS["old"], "distance": "Cosine"}}
    # Kilobytes of a segment: a tenth of the default, since these vectors are small.
    optimizers = {"indexing_threshold": 1000 if has_graphs else 0}
    server.ask("PUT", "/collections/docs", {"vectors": vector, "optimizers_config": optimizers})
    rest = "x" * payload
    for first in range(0, points, PAGE):
        numbers = range(first, min(first + PAGE, points))
        rows = vectors(numbers, "old").tolist()
        batch = [{"id": number, "vector": {"embedding": row}, "payload": {"body": f"text {number}", "rest": rest}} for number, row in zip(numbers, rows)]
        server.ask("PUT", f"/collections/docs/points?wait={str(first + PAGE >= points).lower()}", {"points": batch})


def fill_for(seconds, program, folder, server):
    """Starts the upgrade, stops it after a while, and says how many points a second were filled."""
    environment = dict(os.environ, QDRANT_URL=server.url)
    started = subprocess.Popen([program, "upgrade", "start"], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    count = {"exact": True, "filter": {"must": [{"has_vector": "large"}]}}
    while server.ask("POST", "/collections/docs/points/count", count)["count"] < 2_000:
        time.sleep(1)
    before, began = server.ask("POST", "/collections/docs/points/count", count)["count"], time.time()
    time.sleep(seconds)
    filled, took = server.ask("POST", "/collections/docs/points/count", count)["count"] - before, time.time() - began
    started.send_signal(signal.SIGINT)
    started.wait()
    print(f"start fills {filled / took:.0f} points a second ({filled} in {took:.0f} s)", flush=True)
    return 0, ""


def main():
    arguments = parser(__doc__, 1_000_000)
    arguments.add_argument("--payload", type=int, default=200)
    arguments.add_argument("--graphs", action="store_true", help="the server makes graphs of the vectors (HNSW)")
    arguments.add_argument("--until", default="release")
    arguments.add_argument("--fill", type=float, metavar="SECONDS")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        server = Server(asked.qdrant, folder / "server")
        try:
            began = time.time()
            fill(server, asked.points, asked.payload, asked.graphs)
            filled = time.time() - began
            server.until_green()
            print(f"{asked.points} points: {asked.points / filled:.0f} a second by plain upserts, {server.memory()} MB of the server", flush=True)
            configure(folder, serve())
            verbs = [("adopt", "gallery adopt"), ("pairs", "upgrade pairs --items 500"), ("fit", "upgrade fit --method ridge"), ("start", "upgrade start"),
                     ("switch", "upgrade switch --anyway"), ("status", "upgrade status"), ("run of 640", "upgrade run --budget 640 --no-refit"),
                     ("run of 640 again", "upgrade run --budget 640 --no-refit"), ("doctor", "doctor --config rehang.toml"), ("finish", "upgrade finish --anyway"),
                     ("release", "gallery release --yes --with-adapted")]
            if asked.fill:
                needed = {"switch", "run of 640", "run of 640 again", "finish"}
                verbs = [(name, "gallery release --yes --anyway" if name == "release" else line) for name, line in verbs if name not in needed]
            for name, line in verbs:
                before, began = server.asked(), time.time()
                if name == "start" and asked.fill:
                    code, said = fill_for(asked.fill, asked.rehang, folder, server)
                else:
                    code, said = run(asked.rehang, line, folder, server)
                took = time.time() - began
                count = server.asked() - before
                waited = server.until_green()
                print(f"{name}: {took:.2f} s, {count} requests, {server.memory()} MB; green after {waited:.1f} s more", flush=True)
                if code != 0:
                    raise SystemExit(f"{line} ended with {code}:\n{said[-2000:]}")
                if name == asked.until:
                    break
            if asked.until == "release" and not asked.fill:
                count = server.ask("POST", "/collections/docs/points/count", {"exact": True, "filter": {"must": [{"has_vector": "large"}], "must_not": [{"is_null": {"key": "body"}}]}})
                if count["count"] != asked.points:
                    raise SystemExit(f"{count['count']} of {asked.points} points have a vector of the new model")
        finally:
            server.end()


if __name__ == "__main__":
    main()
