"""`rehang fit` at the widths of today's models, in turns with scikit-learn's `RidgeCV` and SciPy's `orthogonal_procrustes`.

    python run.py REHANG [--methods ridge,procrustes] [--sizes 400x384x768,…] [--sets DIR] [--repeats N] [--raw] [--no-compare]

REHANG is the program, built with `--release`. Needs scikit-learn and SciPy. Ours is a whole fit from files to a file: σ², handicap,
geometry, comparison with doing nothing. Theirs is the call alone, on arrays: twelve penalties, exact leave-one-out. Each side has a
process of its own for every fit. Both maps are asked about pairs that neither has seen; it is an error where ours is worse.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = "400x384x768,2000x384x768,400x1536x1536,2000x1536x3072"
SETS = ["toy_digits", "img_omniglot", "img_caltech101", "text_banking77", "text_clinc150"]
# Pairs that maps are asked about.
ASKED = 500
# By how much of the new vectors' variance our map may be worse. Penalties of the two sides lie on different grids.
WORSE = 0.01
RIVALS = {"ridge": "RidgeCV", "procrustes": "orthogonal_procrustes"}


def synthetic(pairs: int, d_old: int, d_new: int, raw: bool):
    """Topics, whose vectors have spectra as text models' have, seen by two models: each in axes of its own, bent, with noise."""
    import numpy as np

    random = np.random.default_rng(pairs + d_old + d_new)
    latent, count = 256, pairs + ASKED
    spectrum = (1.0 + np.arange(latent)) ** -0.5
    topics = random.standard_normal((40, latent))
    of = random.integers(0, 40, count)
    meaning = (topics[of] + 0.8 * random.standard_normal((count, latent))) * spectrum

    def model(width: int, noise: float):
        axes = random.standard_normal((latent, width)) / np.sqrt(latent)
        bent = np.tanh(meaning @ (random.standard_normal((latent, latent)) / np.sqrt(latent)))
        rows = (meaning + 0.5 * bent) @ axes + noise * random.standard_normal((count, width)) * 0.05
        if not raw:
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows.astype(np.float32)

    old, new = model(d_old, 2.0), model(d_new, 1.0)
    return (old[:pairs], new[:pairs]), (old[pairs:], new[pairs:])


def real(folder: Path):
    """The pairs of a set and the items of known classes that are measured."""
    import numpy as np

    if (folder / "role.npy").exists():
        role, old, new = (np.load(folder / f"{name}.npy") for name in ("role", "old", "new"))
        return (old[role == 0], new[role == 0]), (old[role == 1], new[role == 1])
    part = lambda name: tuple(np.load(folder / f"{name}_{side}.npy") for side in ("old", "new"))  # noqa: E731
    return part("train"), part("seen")


def rival(folder: Path, method: str) -> None:
    """In a process of its own: fits, and says seconds, processor seconds and outputs for what is asked."""
    import numpy as np

    old, new, asked = (np.load(folder / f"{name}.npy") for name in ("old", "new", "asked_old"))
    if method == "ridge":
        from sklearn.linear_model import RidgeCV

        began, began_cpu = time.perf_counter(), time.process_time()
        map_ = RidgeCV(alphas=np.logspace(-4, 2, 12) * len(old) * old.var(axis=0).mean()).fit(old, new)
        taken = time.perf_counter() - began, time.process_time() - began_cpu
        outputs = map_.predict(asked)
    else:
        from scipy.linalg import orthogonal_procrustes

        began, began_cpu = time.perf_counter(), time.process_time()
        width = max(old.shape[1], new.shape[1])
        pad = lambda rows: np.pad(rows, ((0, 0), (0, width - rows.shape[1])))  # noqa: E731
        mean_old, mean_new = old.mean(axis=0), new.mean(axis=0)
        rotation, trace = orthogonal_procrustes(pad(old - mean_old), pad(new - mean_new))
        taken = time.perf_counter() - began, time.process_time() - began_cpu
        rotated = (pad(old - mean_old) @ rotation)[:, : new.shape[1]]
        scale = trace / float((rotated.astype(np.float64) ** 2).sum())
        outputs = scale * (pad(asked - mean_old) @ rotation)[:, : new.shape[1]] + mean_new
    np.save(folder / "theirs.npy", outputs.astype(np.float32))
    print(json.dumps(taken))


def called(command: list[str]) -> tuple[float, float, float, str]:
    """Seconds, processor seconds and peak memory (MB) of a process, and what it printed."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read().decode()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{said}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, said


def error(outputs, wanted, is_normalised: bool) -> float:
    """Squared error as a part of the variance, both sides on the sphere where the new space is there."""
    import numpy as np

    if is_normalised:
        outputs = outputs / np.maximum(np.linalg.norm(outputs, axis=1, keepdims=True), 1e-12)
    return float(((outputs - wanted) ** 2).sum() / ((wanted - wanted.mean(axis=0)) ** 2).sum())


def compared(program: str, method: str, name: str, data, repeats: int, more: list[str]) -> str:
    import numpy as np

    (old, new), (asked_old, asked_new) = data
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for file, rows in (("old", old), ("new", new), ("asked_old", asked_old)):
            np.save(folder / f"{file}.npy", rows.astype(np.float32))
        adapter, adapted = str(folder / "adapter.rehang"), str(folder / "ours.npy")
        files = ["--old", str(folder / "old.npy"), "--new", str(folder / "new.npy")]
        # Lengths are left as they are, as theirs are, where they are free.
        fit = [program, "fit", *files, "--method", method, "-o", adapter, *more]
        ours, theirs = [], []
        for _ in range(repeats):
            ours.append(called(fit)[:3])
            if method in RIVALS:
                said = called([sys.executable, __file__, "--rival", str(folder), method])[3]
                theirs.append(json.loads(said.splitlines()[-1]))
        called([program, "transform", adapter, str(folder / "asked_old.npy"), "-o", adapted, "--force"])
        is_normalised = bool(np.allclose(np.linalg.norm(new, axis=1), 1.0, atol=1e-3))
        errors = [error(np.load(adapted), asked_new, is_normalised)]
        median = lambda runs, at: statistics.median(run[at] for run in runs)  # noqa: E731
        wall, cpu, memory = (median(ours, at) for at in range(3))
        line = f"| {name} | {method} | {wall:.2f} ({cpu:.2f}) | {memory:.0f} |"
        if not theirs:
            return f"{line} – | – | {errors[0]:.3f} |"
        errors.append(error(np.load(folder / "theirs.npy"), asked_new, is_normalised))
        # Outputs of raw spaces have the lengths that serve searches best, so their squared error is another question.
        assert not is_normalised or errors[0] <= errors[1] + WORSE, (name, method, errors)
        ratio = statistics.median(own[0] / other[0] for own, other in zip(ours, theirs, strict=True))
        cpu_ratio = statistics.median(own[1] / other[1] for own, other in zip(ours, theirs, strict=True))
        return (
            f"{line} {median(theirs, 0):.2f} ({median(theirs, 1):.2f}) | {ratio:.1f} ({cpu_ratio:.1f}) | "
            f"{errors[0]:.3f} / {errors[1]:.3f} |"
        )


def main() -> None:
    if sys.argv[1:2] == ["--rival"]:
        return rival(Path(sys.argv[2]), sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rehang")
    parser.add_argument("--methods", default="ridge,procrustes")
    parser.add_argument("--sizes", default=SIZES, help="PAIRSxOLDxNEW, separated by commas; '' for none")
    parser.add_argument("--sets", type=Path, help="the folder of the real sets, which are fitted too")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--raw", action="store_true", help="vectors of other lengths than 1")
    parser.add_argument("--no-compare", action="store_true", help="the named method alone")
    asked = parser.parse_args()
    more = ["--no-compare"] if asked.no_compare else []
    print("| pairs | method | ours, s (processor) | MB | theirs, s (processor) | ratio (processor) | error, ours / theirs |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for size in filter(None, asked.sizes.split(",")):
        pairs, d_old, d_new = map(int, size.split("x"))
        data = synthetic(pairs, d_old, d_new, asked.raw)
        for method in asked.methods.split(","):
            name = f"{pairs:,}, {d_old:,} → {d_new:,}"
            print(compared(asked.rehang, method, name, data, asked.repeats, more), flush=True)
    for name in SETS if asked.sets else []:
        data = real(asked.sets / name)
        for method in asked.methods.split(","):
            shape = f"{name}: {len(data[0][0]):,}, {data[0][0].shape[1]} → {data[0][1].shape[1]}"
            print(compared(asked.rehang, method, shape, data, asked.repeats, more), flush=True)


if __name__ == "__main__":
    main()
