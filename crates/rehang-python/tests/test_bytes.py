"""The same inputs give the same bytes as the command line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")

METHODS = {
    "do-nothing": {},
    "procrustes": {},
    "ridge": {},
    "low-rank": {},
    "kernel-ridge": {},
    "residual-mlp": {"epochs": 3},
    "fct": {"epochs": 2},
    "fastfill": {"epochs": 2},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_fit(method: str, pairs: Any, gallery: Any, rehang_cli: Any, tmp_path: Path) -> None:
    old, new, labels = pairs
    if method == "do-nothing":
        new = old[:, ::-1].copy()
    for name, array in (("old", old), ("new", new), ("labels", labels), ("gallery", gallery[0])):
        np.save(tmp_path / f"{name}.npy", array)
    options = METHODS[method]
    flags = [f"--{name}={value}" for name, value in options.items()]
    rehang_cli("fit", "--old=old.npy", "--new=new.npy", "--labels=labels.npy", "--distance=cosine", "--seed=3",
               f"--method={method}", *flags, "-o", "a.safetensors")
    adapter = rehang.fit(old, new, labels=labels, distance="cosine", seed=3, method=method, **options)
    assert adapter.to_bytes() == (tmp_path / "a.safetensors").read_bytes()
    assert adapter.method == method and adapter.old.dimension == old.shape[1]
    # Files in the place of arrays are the same inputs.
    of_files = rehang.fit(str(tmp_path / "old.npy"), tmp_path / "new.npy", labels=str(tmp_path / "labels.npy"),
                          distance="cosine", seed=3, method=method, **options)
    assert of_files.to_bytes() == adapter.to_bytes()

    rehang_cli("transform", "a.safetensors", "gallery.npy", "-o", "adapted.npy", "--sigma=sigma.npy")
    adapted, sigma2 = rehang.load(tmp_path / "a.safetensors").transform(gallery[0], return_sigma=True)
    assert adapted.tobytes() == np.load(tmp_path / "adapted.npy").tobytes()
    assert sigma2.tobytes() == np.load(tmp_path / "sigma.npy").tobytes()


def test_auto_with_its_table(pairs: Any, rehang_cli: Any, tmp_path: Path) -> None:
    old, new, _ = pairs
    np.save(tmp_path / "old.npy", old[:300])
    np.save(tmp_path / "new.npy", new[:300])
    said = rehang_cli("fit", "--old=old.npy", "--new=new.npy", "--networks", "--epochs=1", "-o", "a.safetensors")
    adapter = rehang.fit(old[:300], new[:300], networks=True, epochs=1)
    assert adapter.to_bytes() == (tmp_path / "a.safetensors").read_bytes()
    assert adapter.answer is not None
    for answer in (said, adapter.answer):
        # How long it took, and where it was written, is not the same.
        answer.pop("adapter")
        for row in answer["held_out"]["rows"]:
            row.pop("seconds")
    assert adapter.answer == said


def test_an_order_a_curve_and_a_report(pairs: Any, gallery: Any, rehang_cli: Any, tmp_path: Path) -> None:
    adapter = rehang.fit(pairs[0], pairs[1], labels=pairs[2], method="ridge")
    old, new, labels = gallery
    adapted, sigma = adapter.transform(old, return_sigma=True)
    adapter.save(tmp_path / "a.safetensors")
    files = {"old": old, "new": new, "labels": labels, "adapted": adapted, "errors": sigma}
    for name, array in files.items():
        np.save(tmp_path / f"{name}.npy", array)
    for policy in ("coverage", "sigma", "random", "oracle"):
        flags = ["--new=new.npy"] if policy == "oracle" else []
        rehang_cli("order", f"--policy={policy}", "--adapter=a.safetensors", "--adapted=adapted.npy",
                   "--sigma=errors.npy", "--seed=5", *flags, "-o", f"{policy}.npy")
        made = rehang.order(policy, adapter=adapter, adapted=adapted, sigma=sigma, seed=5,
                            new=new if policy == "oracle" else None)
        assert made.dtype == np.int64
        np.testing.assert_array_equal(made, np.load(tmp_path / f"{policy}.npy"))
    order = np.load(tmp_path / "coverage.npy")
    arguments = ["--new=new.npy", "--adapted=adapted.npy", "--order=coverage.npy", "--labels=labels.npy", "--old=old.npy",
                 "--sigma=errors.npy", "--adapter=a.safetensors", "--bootstrap=50", "--grid=5"]
    said = rehang_cli("curve", *arguments)
    curve = rehang.curve(new, adapted, order, labels=labels, old=old, sigma=sigma, adapter=adapter, bootstrap=50, grid=5)
    for answer in (said, curve.answer):
        for place in answer["inputs"]:
            place.pop("path")
    assert curve.answer == said
    assert curve.area["map"] == said["area"]["map"] and curve.points("map").shape == (len(old) + 1,)
    rehang_cli("report", "a.safetensors", "--old=old.npy", "--new=new.npy", "--labels=labels.npy", "--bootstrap=20",
               "--widths=2,3", "--precision=i8", "-o", "report.json")
    report = rehang.report({"ridge": adapter}, old, new, labels=labels, bootstrap=20, widths=[2, 3], precisions=["i8"])
    assert [(size["width"], size["bytes"]) for size in report.data["sizes"]] == [(2, 8), (3, 12), (2, 2), (3, 3)]
    report.save(tmp_path / "of-python.json")
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in ("of-python.json", "report.json"))
    for data in (ours, theirs):
        data["created_by"].pop("command")
        for place in data["inputs"]:
            place.pop("path")
            place["role"] = place["role"].split(" ")[0]
    assert ours == theirs
    report.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == report.to_html() and "<iframe" in report._repr_html_()


def test_findings_are_warnings(pairs: Any) -> None:
    adapter = rehang.fit(pairs[0], pairs[1], method="ridge")
    adapted = adapter.transform(pairs[0])
    order = rehang.order("random", adapted=adapted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rehang.FindingWarning)
        with pytest.raises(rehang.FindingWarning, match="among the pairs"):
            rehang.curve(pairs[1], adapted, order, old=pairs[0], adapter=adapter, bootstrap=0)
