"""What an order needs of a machine where a gallery is large: processor time and memory of a start and of a run, on a SQLite gallery of its own.

    python many.py REHANG FOLDER ITEMS [WIDTH]

Vectors are of 1,000 classes in WIDTH coordinates (16), the new ones turned, with noise. A ridge of 2,000 pairs adapts; the order is coverage. Printed: for the import, the fill and the order of a start (ended
before the search index, which is not the order's), 20,000 items put first by a log, and a run of 2,000 items, what each took and the most memory that it had.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PAIRS, BLOCK, LOG, RUN = 2000, 100_000, 20_000, 2000


def measured(command: list[str], folder: Path, until: str | None = None) -> str:
    """Runs a command, to its end or to the progress that begins with `until`; gives what it took."""
    began = time.monotonic()
    errors = subprocess.PIPE if until else subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, text=True)
    ended = False
    for line in process.stderr or ():
        if until and not ended and line.startswith(until):
            process.send_signal(signal.SIGINT)
            ended = True
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0 and not ended:
        sys.exit(f"{' '.join(command)} failed")
    wall = time.monotonic() - began
    return f"{wall:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} processor s, {usage.ru_maxrss / 1024:.0f} MiB at most"


def main() -> None:
    rehang, folder, items = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    width = int(sys.argv[4]) if len(sys.argv) > 4 else 16
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, width), dtype=np.float32)
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
    files = {name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (items, width)) for name in ("old", "new")}
    with open(folder / "items.jsonl", "w") as listed, open(folder / "ids.txt", "w") as ids:
        for start in range(0, items, BLOCK):
            rows = min(BLOCK, items - start)
            labels = rng.integers(0, len(centres), rows)
            near = centres[labels] + 0.5 * rng.standard_normal((rows, width), dtype=np.float32)
            files["old"][start : start + rows] = near + 0.3 * rng.standard_normal((rows, width), dtype=np.float32)
            files["new"][start : start + rows] = near @ turn
            listed.writelines(f'{{"id":"{start + row}","source":"{start + row}"}}\n' for row in range(rows))
            ids.writelines(f"{start + row}\n" for row in range(rows))
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
        + '[adapter]\nfile = "A.safetensors"\n\n[encoder]\nkind = "table"\nvectors = "new.npy"\nids = "ids.txt"\n'
    )
    load = "gallery import --gallery G.db --space old --vectors old.npy --items items.jsonl"
    print(f"{items:,} items of {width} coordinates", flush=True)
    print("import:", measured([rehang, *load.split()], folder), flush=True)
    print("start:", measured([rehang, "upgrade", "start"], folder, "making the search index"), flush=True)
    print("first:", measured([rehang, "upgrade", "first", "log.txt"], folder), flush=True)
    print("run:", measured([rehang, "upgrade", "run", "--budget", str(RUN), "--no-refit"], folder), flush=True)
    status = subprocess.run([rehang, "upgrade", "status", "--json"], cwd=folder, check=True, capture_output=True, text=True)
    counts = json.loads(status.stdout)["counts"]
    assert counts["native"] == RUN and counts["adapted"] == items - RUN, counts
    print(counts)


if __name__ == "__main__":
    main()
