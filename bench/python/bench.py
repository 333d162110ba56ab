"""rehang's calls beside those of NumPy, SciPy, scikit-learn, ONNX Runtime and PyTorch, in turns; medians, and the answers compared. Peak memory.

    python bench.py [REPEATS]

What is not installed is left out, and said.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import rehang

warnings.simplefilter("ignore", rehang.FindingWarning)
PAIRS, OLD, NEW, GALLERY = 4000, 256, 384, 200_000


def measure(title: str, repeats: int, contenders: dict[str, Callable[[], Any]], limit: float, floor: str | None = None) -> None:
    """Runs all in turns; the first is ours, and every other answer but that of the floor, which is another one, is held against its.

    Ratios are medians of those of a turn, so that what else the machine does falls on both sides.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    answers = {}
    for _ in range(repeats):
        for name, call in contenders.items():
            began = time.perf_counter()
            answers[name] = call()
            times[name].append(time.perf_counter() - began)
    ours = next(iter(contenders))
    print(f"\n{title}")
    for name, taken in times.items():
        said = "another answer"
        if name != floor:
            apart = relative(answers[ours], answers[name])
            assert apart <= limit, (title, name, apart)
            said = f"answers apart by {apart:.1e}"
        ratio = statistics.median(theirs / own for theirs, own in zip(taken, times[ours], strict=True))
        print(f"  {name:<30} {1000 * statistics.median(taken):10.2f} ms   {ratio:6.2f} of ours   {said}", flush=True)


def memory(adapter: rehang.Adapter, gallery: np.ndarray) -> None:
    """What a call takes beside what goes in and comes out, at its peak."""
    if sys.platform != "linux":
        print("\npeak memory is read as Linux gives it: left out")
        return

    def resident(name: str) -> int:
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))

    adapter.transform(gallery[:20_000], force=True, progress=False)
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = resident("VmRSS")
    tracemalloc.start()
    adapted = adapter.transform(gallery, force=True, progress=False)
    of_python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    beside = resident("VmHWM") - before - adapted.nbytes
    print(f"\npeak memory of transform of {len(gallery)} × {gallery.shape[1]} numbers of type {gallery.dtype}")
    print(f"  {gallery.nbytes >> 20} MiB in, {adapted.nbytes >> 20} MiB out; at the peak {beside / 2**20:.1f} MiB resident beside them, {of_python / 2**20:.1f} MiB by tracemalloc")
    # A hidden copy would be half of what goes in, or all that comes out.
    assert max(beside, of_python) < gallery.nbytes / 4, (beside, of_python)


def relative(a: Any, b: Any) -> float:
    """The largest difference, as a part of the largest number."""
    a, b = np.asarray(a), np.asarray(b)
    return float(np.abs(a - b).max() / np.abs(a).max())


def main() -> None:
    """Runs everything."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    rng = np.random.default_rng(0)
    old = rng.normal(size=(PAIRS, OLD)).astype(np.float32)
    turn = np.linalg.qr(rng.normal(size=(NEW, NEW)))[0][:OLD].astype(np.float32)
    new = (old @ turn + 0.3 * rng.normal(size=(PAIRS, NEW))).astype(np.float32)
    labels = rng.integers(0, 100, PAIRS)
    gallery = rng.normal(size=(GALLERY, OLD)).astype(np.float32)
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, NumPy {np.__version__}, rehang {rehang.__version__}")

    def applied(method: str, **options: Any) -> Any:
        return rehang.fit(old, new, method=method, progress=False, **options).transform(old, force=True, progress=False)

    adapter = rehang.fit(old, new, method="ridge", progress=False)
    lone = rehang.fit(old, new, method="ridge", uncertainty="off", progress=False)
    memory(adapter, gallery.astype(np.float64))
    contenders: dict[str, Callable[[], Any]] = {"rehang, without σ²": lambda: lone.transform(gallery, force=True, progress=False)}
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(lone.to_onnx(), providers=["CPUExecutionProvider"])
        contenders[f"ONNX Runtime {onnxruntime.__version__}"] = lambda: session.run(["vector"], {"old": gallery})[0]
    if importlib.util.find_spec("torch"):
        import torch

        module, rows = lone.to_torch(), torch.from_numpy(gallery)
        with torch.no_grad():
            contenders[f"PyTorch {torch.__version__}"] = lambda: module(rows)[0].numpy()
    contenders["rehang, with σ²"] = lambda: adapter.transform(gallery, force=True, progress=False)
    weight = np.linalg.lstsq(old, new, rcond=None)[0].astype(np.float32)
    contenders["NumPy, gallery @ weight"] = lambda: gallery @ weight
    measure(f"transform of {GALLERY} × {OLD} → {NEW}", repeats, contenders, 1e-5, floor="NumPy, gallery @ weight")

    few = gallery[:1]
    measure("overhead: transform of one row, without σ²", 50 * repeats, {"rehang": lambda: lone.transform(few, force=True, progress=False)}, 0.0)

    adapted = adapter.transform(old, force=True, progress=False)
    order = rng.permutation(PAIRS)
    points = np.linspace(0, PAIRS, 11).astype(int)

    def twin() -> np.ndarray:
        values = []
        for done in points:
            now = adapted.copy()
            now[order[:done]] = new[order[:done]]
            distances = (now**2).sum(1)[None] - 2 * new @ now.T
            np.fill_diagonal(distances, np.inf)
            values.append(100 * (labels[distances.argmin(1)] == labels).mean())
        return np.array(values)

    measure(
        f"top-1 of {PAIRS} items: ours at every one of {PAIRS + 1} fractions (with mAP and flips), NumPy at {len(points)}",
        max(repeats // 3, 1),
        {"rehang.curve": lambda: rehang.curve(new, adapted, order, labels=labels, bootstrap=0, progress=False).points("top1")[points], "NumPy": twin},
        1e-3,
    )

    if importlib.util.find_spec("scipy") and importlib.util.find_spec("sklearn"):
        from scipy.linalg import orthogonal_procrustes
        from sklearn.linear_model import RidgeCV

        padded = np.pad(old, ((0, 0), (0, NEW - OLD)))
        measure(
            "procrustes: SciPy's turn alone; ours with σ², handicap, and its comparison with five other maps on held-out pairs",
            max(repeats // 3, 1),
            {
                "rehang.fit": lambda: applied("procrustes"),
                "rehang.fit, the map alone": lambda: applied("procrustes", compare=False, uncertainty="off"),
                "SciPy": lambda: (padded - padded.mean(0)) @ orthogonal_procrustes(padded - padded.mean(0), new - new.mean(0))[0] + new.mean(0),
            },
            0.05,
        )
        measure(
            "ridge: scikit-learn's RidgeCV alone; ours with σ², handicap, and its comparison with five other maps on held-out pairs",
            max(repeats // 3, 1),
            {
                "rehang.fit": lambda: applied("ridge"),
                "rehang.fit, the map alone": lambda: applied("ridge", compare=False, uncertainty="off"),
                "scikit-learn": lambda: RidgeCV(np.logspace(-3, 4, 8)).fit(old, new).predict(old),
            },
            0.05,
        )


if __name__ == "__main__":
    main()
