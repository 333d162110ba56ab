"""Evaluation of models from Python, its page and its example, by the program that REHANG_LAB names or that lies on the path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

torch = pytest.importorskip("torch", reason="rehang.torch needs PyTorch, which is not installed here (REHANG_TORCH=1 installs it in .ci/run)")

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
DEMO = REPOSITORY / "demo"
PAGE = REPOSITORY / "laboratory" / "docs" / "torch.md"
# The package's own tests run pages.
sys.path += [str(HERE), str(REPOSITORY / "crates" / "rehang-python" / "tests")]
PROGRAM = os.environ.get("REHANG_LAB") or shutil.which("rehang-lab")
if PROGRAM is None:
    pytest.skip("there is no rehang-lab on the path, and REHANG_LAB names none", allow_module_level=True)

import rehang_lab  # noqa: E402
from test_docs import run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")


def test_models_and_a_dataset_give_what_the_program_prints(tmp_path: Path) -> None:
    old, new = (np.ascontiguousarray(np.load(DEMO / f"{name}.npy"), np.float32) for name in ("old", "new"))
    labels = np.load(DEMO / "label.npy").astype(np.int64)
    both = torch.from_numpy(np.concatenate([old, new], axis=1))
    data = torch.utils.data.TensorDataset(both, torch.from_numpy(labels))
    width = old.shape[1]
    models = {"old": lambda rows: rows[:, :width], "new": lambda rows: rows[:, width:]}
    order = np.random.default_rng(0).permutation(len(old))
    for name, array in (("old", old), ("new", new), ("labels", labels), ("order", order)):
        np.save(tmp_path / f"{name}.npy", array)
    usual = ["--models", "old=old.npy", "new=new.npy", "--labels", "labels.npy", "--distance", "cosine"]

    def same(made: Any, *line: str) -> None:
        done = subprocess.run([PROGRAM, "--json", "evaluate", *line], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        said = json.loads(done.stdout)
        for answer in (made, said):
            for given in [*answer["inputs"], *answer.get("galleries", [])]:
                del given["path"]
        assert made == said

    options: dict[str, Any] = {"distance": "cosine", "device": "cpu", "batch": 300}
    same(rehang_lab.cross(models, data, k=5, **options), "cross", *usual, "-k", "5")
    same(rehang_lab.refresh(models, {"a": order}, data, **options), "refresh", *usual, "--orders", "a=order.npy")
    same(rehang_lab.sequence(models, data, backfilled=[0.5], **options), "sequence", *usual, "--backfilled", "0.5")
    faces = {"faces.csv": "TEMPLATE_ID,SUBJECT_ID\n", "pairs.csv": "", "gallery.csv": "TEMPLATE_ID\n", "probes.csv": "TEMPLATE_ID\n"}
    faces["faces.csv"] += "".join(f"{row},{label}\n" for row, label in enumerate(labels))
    faces["pairs.csv"] += "".join(f"{row},{row + 1}\n" for row in range(1000))
    faces["gallery.csv"] += "".join(f"{row}\n" for row in range(0, 900) if labels[row] < 8)
    faces["probes.csv"] += "".join(f"{row}\n" for row in range(900, 1797))
    for name, text in faces.items():
        (tmp_path / name).write_text(text)
    made = rehang_lab.verification(models, data, metadata=tmp_path / "faces.csv", pairs=tmp_path / "pairs.csv", device="cpu")
    same(made, "verification", *usual[:3], "--metadata", "faces.csv", "--pairs", "pairs.csv")
    made = rehang_lab.identification(
        models, data, metadata=tmp_path / "faces.csv", gallery=[tmp_path / "gallery.csv"], probes=tmp_path / "probes.csv", device="cpu"
    )
    same(made, "identification", *usual[:3], "--metadata", "faces.csv", "--gallery", "gallery.csv", "--probes", "probes.csv")
    with pytest.raises(rehang.OptionError, match="dataset"):
        rehang_lab.cross(models)
    with pytest.raises(rehang.Error, match="rows"):
        rehang_lab.cross({"old": old, "new": new[:-1]}, labels=labels)


def test_the_example_runs_as_it_stands() -> None:
    example = HERE / "compatible.py"
    done = subprocess.run([sys.executable, str(example), "--epochs", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "criterion" in done.stdout and "entropy" in done.stdout


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file in (("old", "old"), ("new", "new"), ("labels", "label")):
        shutil.copy(DEMO / f"{file}.npy", f"{name}.npy")
    run(PAGE, PAGE.read_text(), {}, tolerance=2.0)
