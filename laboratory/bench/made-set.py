"""A made set of wide vectors, 1,536 → 3,072 coordinates: both spaces are curved images of one latent space, so no linear map is right.

    python laboratory/bench/made-set.py FOLDER      writes FOLDER/made_1536_3072/{old,new,label,role}.npy

40,000 pairs of 160 classes (role 0), 2,000 other items of these (1) and 1,000 items of 40 classes that no pair has (2).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

PAIRS, SEEN, UNSEEN = 40_000, 2_000, 1_000
CLASSES, NEW_CLASSES = 160, 40
LATENT, HIDDEN, OLD, NEW = 64, 192, 1_536, 3_072


def main() -> None:
    folder = Path(sys.argv[1]) / "made_1536_3072"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    labels = np.concatenate([
        rng.integers(0, CLASSES, PAIRS + SEEN), rng.integers(CLASSES, CLASSES + NEW_CLASSES, UNSEEN)
    ]).astype(np.int32)
    centres = rng.normal(size=(CLASSES + NEW_CLASSES, LATENT))
    latent = (centres[labels] + 0.9 * rng.normal(size=(len(labels), LATENT))).astype(np.float32)

    def model(width: int, lost: int, curvature: float, noise: float) -> np.ndarray:
        """Vectors of length 1 of a model that does not see `lost` of the latent coordinates and bends the others."""
        seen = latent[:, : LATENT - lost]
        bent = np.tanh(curvature * seen @ rng.normal(size=(seen.shape[1], HIDDEN)).astype(np.float32) / np.sqrt(seen.shape[1]))
        both = np.concatenate([0.5 * seen, bent], axis=1)
        rows = both @ rng.normal(size=(both.shape[1], width)).astype(np.float32) / np.sqrt(both.shape[1])
        rows += noise * rng.normal(size=rows.shape).astype(np.float32)
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    np.save(folder / "old.npy", model(OLD, 24, 2.0, 0.3))
    np.save(folder / "new.npy", model(NEW, 0, 2.0, 0.1))
    np.save(folder / "label.npy", labels)
    np.save(folder / "role.npy", np.repeat([0, 1, 2], [PAIRS, SEEN, UNSEEN]).astype(np.uint8))


if __name__ == "__main__":
    main()
