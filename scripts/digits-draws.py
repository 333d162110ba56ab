"""The digits with two other classes that no pair knew, for `cargo lab study regret`.

    python3 scripts/digits-draws.py ../shared/data/toy_digits target/digits 56 69 78

Makes a set `digits_56` of classes 5 and 6, and so on: old.npy, new.npy and label.npy as they are, and role.npy, in which the rows of other
classes are dealt out to pairs and test part by chance, in the set's own shares. The old model knows classes 0 to 4. It needs numpy.
"""

import pathlib
import shutil
import sys

import numpy as np

source, target = map(pathlib.Path, sys.argv[1:3])
label, role = np.load(source / "label.npy"), np.load(source / "role.npy")
share = (role == 0).sum() / (role < 2).sum()
for classes in sys.argv[3:]:
    dealt = (np.random.default_rng(int(classes)).random(len(label)) >= share).astype(role.dtype)
    dealt[np.isin(label, [int(one) for one in classes])] = 2
    folder = target / f"digits_{classes}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ["old.npy", "new.npy", "label.npy"]:
        shutil.copy(source / name, folder / name)
    np.save(folder / "role.npy", dealt)
