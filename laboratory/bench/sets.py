"""The real sets that studies in Python read: `train` pairs, the `seen` and `unseen` parts, and the new model's head."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("train", "seen", "unseen")
LABELLED = ("toy_digits", "img_omniglot", "img_caltech101", "text_clinc150", "text_banking77")


def load(folder: Path | str, name: str) -> dict[str, dict[str, Any]]:
    """Part → `old [n, d_old]`, `new [n, d_new]` and `label [n]`; vectors that are kept in half precision come back in single."""
    place = Path(folder) / name
    whole = (place / "role.npy").exists()
    role = np.load(place / "role.npy") if whole else None
    parts: dict[str, dict[str, Any]] = {}
    for number, part in enumerate(PARTS):
        if whole:
            parts[part] = {what: np.load(place / f"{what}.npy")[role == number] for what in ("old", "new", "label")}
        else:
            parts[part] = {what: np.load(place / f"{part}_{what}.npy") for what in ("old", "new", "label")}
        for what in ("old", "new"):
            parts[part][what] = np.ascontiguousarray(parts[part][what], dtype=np.float32)
    return parts


def head(folder: Path | str, name: str) -> tuple[Any, Any]:
    """Weight `[classes, d_new]` and bias `[classes]` of the new model."""
    place = Path(folder) / name
    return np.load(place / "head_new_weight.npy"), np.load(place / "head_new_bias.npy")


def unit(rows: Any) -> Any:
    """Rows at length 1; a zero row stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def kernel_ridge(train: dict[str, Any], count: int, rng: Any, seed: int) -> tuple[Any, Any]:
    """A kernel ridge of `count` random training pairs (all of fewer), with its handicap, and the rows of these pairs."""
    import rehang

    rows = rng.permutation(len(train["old"]))[:count]
    old, new = (unit(train[what][rows]) for what in ("old", "new"))
    return rehang.fit(old, new, labels=train["label"][rows], method="kernel-ridge", distance="cosine", seed=seed, progress=False), rows


def parser(about: str | None, chosen: list[str]) -> argparse.ArgumentParser:
    """What every study of these sets is asked: where they lie, where its lines go, which sets and seeds; or `--table` of lines that are there."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("data", type=Path, nargs="?")
    made.add_argument("out", type=Path, nargs="?")
    made.add_argument("--sets", nargs="*", default=chosen)
    made.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    made.add_argument("--table", type=Path, nargs="*")
    return made
