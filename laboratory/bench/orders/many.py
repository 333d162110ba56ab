"""What an order needs of a machine where a gallery is large: processor time and memory of a start and of a run, on a SQLite gallery of its own.

    python many.py REHANG FOLDER ITEMS [--width 16] [--no-run]

Vectors are of 1,000 classes in so many coordinates, the new ones turned, with noise. A ridge of 2,000 pairs adapts; the order is coverage. Printed: for the import, the fill and the order of a start (ended
before the search index, which is not the order's), 20,000 items put first by a log, and a run of 2,000 items, what each took and the most memory that it had: what is its own (`RssAnon` of `/proc/PID/status`,
looked at every 20 ms), and together with pages of files that are mapped, which the system takes back when others need them.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

PAIRS, BLOCK, LOG, RUN = 2000, 100_000, 20_000, 2000


def watch(process: int, ended: threading.Event, most: dict[str, int]) -> None:
    """Looks at the memory of a process until it has ended or as much is known of it as is asked; `most` in KiB: its own (RssAnon), and all of it (VmRSS)."""
    while not ended.wait(0.02):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in most:
                most[name] = max(most[name], int(value.split()[0]))


def measured(command: list[str], folder: Path, until: str | None = None) -> str:
    """Runs a command, to its end or to the progress that begins with `until`; gives what it took."""
    began = time.monotonic()
    errors = subprocess.PIPE if until else subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, text=True)
    over, most = threading.Event(), {"RssAnon": 0, "VmRSS": 0}
    watching = threading.Thread(target=watch, args=(process.pid, over, most))
    watching.start()
    for line in process.stderr or ():
        if until and not over.is_set() and line.startswith(until):
            over.set()
            process.send_signal(signal.SIGINT)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    if os.waitstatus_to_exitcode(status) != 0 and not over.is_set():
        sys.exit(f"{' '.join(command)} failed")
    over.set()
    watching.join()
    own, whole = most["RssAnon"] / 1024, most["VmRSS"] / 1024
    return f"{wall:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} processor s, {own:.0f} MiB of its own, {whole:.0f} MiB with files that are mapped"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rehang")
    parser.add_argument("folder", type=Path)
    parser.add_argument("items", type=int)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--no-run", action="store_true", help="end before the run, which makes the search index first")
    asked = parser.parse_args()
    rehang, folder, items, width = asked.rehang, asked.folder, asked.items, asked.width
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, width), dtype=np.float32)
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
    files = {name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (items, width)) for name in ("old", "new")}
    with open(folder / "items.jsonl", "w") as listed:
        for start in range(0, items, BLOCK):
            rows = min(BLOCK, items - start)
            labels = rng.integers(0, len(centres), rows)
            near = centres[labels] + 0.5 * rng.standard_normal((rows, width), dtype=np.float32)
            files["old"][start : start + rows] = near + 0.3 * rng.standard_normal((rows, width), dtype=np.float32)
            files["new"][start : start + rows] = near @ turn
            listed.writelines(f'{{"id":"{start + row}","source":"{start + row}"}}\n' for row in range(rows))
    pairs = rng.choice(items, PAIRS, replace=False)
    for name, rows in files.items():
        np.save(folder / f"pairs-{name}.npy", rows[np.sort(pairs)])
        rows.flush()
    (folder / "log.txt").write_text("".join(f"{item}\n" for item in rng.choice(items, LOG)))
    fit = "fit --method ridge --old pairs-old.npy --new pairs-new.npy --distance cosine -o A.safetensors"
    subprocess.run([rehang, *fit.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (folder / "rehang.toml").write_text(
        '[gallery]\npath = "G.db"\n\n'
        + "".join(f'[{name}]\nname = "{name}"\ndimension = {width}\ndistance = "cosine"\n\n' for name in ("old", "new"))
        + '[adapter]\nfile = "A.safetensors"\n\n[encoder]\nkind = "table"\nvectors = "new.npy"\n'
    )
    load = "gallery import --gallery G.db --space old --vectors old.npy --items items.jsonl"
    print(f"{items:,} items of {width} coordinates", flush=True)
    print("import:", measured([rehang, *load.split()], folder), flush=True)
    print("start:", measured([rehang, "upgrade", "start"], folder, "making the search index"), flush=True)
    print("first:", measured([rehang, "upgrade", "first", "log.txt"], folder), flush=True)
    if asked.no_run:
        return
    print("run:", measured([rehang, "upgrade", "run", "--budget", str(RUN), "--no-refit"], folder), flush=True)
    status = subprocess.run([rehang, "upgrade", "status", "--json"], cwd=folder, check=True, capture_output=True, text=True)
    counts = json.loads(status.stdout)["counts"]
    assert counts["native"] == RUN and counts["adapted"] == items - RUN, counts
    print(counts)


if __name__ == "__main__":
    main()
