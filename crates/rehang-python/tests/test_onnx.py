"""Every kind of adapter in ONNX Runtime and in PyTorch, against `transform`: vectors by their largest coordinate, σ² by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")

KINDS: dict[str, dict[str, Any]] = {
    "do-nothing": {"method": "do-nothing"},
    "procrustes": {"method": "procrustes"},
    "ridge": {"method": "ridge"},
    "ridge with a cosine": {"method": "ridge", "distance": "cosine"},
    "low-rank": {"method": "low-rank"},
    "kernel-ridge": {"method": "kernel-ridge"},
    "old vectors of two kinds": {"method": "per-kind", "compare": False},
    "residual-mlp": {"method": "residual-mlp", "epochs": 3},
    "fct": {"method": "fct", "epochs": 2},
    "fastfill": {"method": "fastfill", "epochs": 2},
    "fastfill as published": {"method": "fastfill-reference", "epochs": 2},
    "σ² trained with the map": {"method": "fastfill", "epochs": 2, "uncertainty": "joint"},
    "no σ²": {"method": "ridge", "uncertainty": "off"},
    "vectors of length 1": {"method": "ridge"},
    "side information": {"method": "fct", "epochs": 2},
}


@pytest.fixture(scope="module", params=KINDS)
def case(request: Any, pairs: Any, gallery: Any) -> tuple[rehang.Adapter, list[np.ndarray]]:
    (old, new, labels), (asked, _, _) = pairs, gallery
    name, options = request.param, dict(KINDS[request.param])
    inputs = [np.ascontiguousarray(asked, dtype=np.float32)]
    # A zero row, and one that is a pair.
    inputs[0] = np.concatenate([inputs[0][:600], np.zeros((1, old.shape[1]), dtype=np.float32), old[:1].astype(np.float32)])
    if name == "do-nothing":
        new = old[:, ::-1].copy()
    if name == "old vectors of two kinds":
        old = old.copy()
        for rows in (old, inputs[0]):
            rows[1::2] = rows[1::2, ::-1].copy()
    if name == "vectors of length 1":
        old, new = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (old, new))
        inputs[0] = np.delete(inputs[0], 600, axis=0)
        inputs[0] /= np.linalg.norm(inputs[0], axis=1, keepdims=True)
    if name == "side information":
        rng = np.random.default_rng(1)
        options["side"] = rng.normal(size=(len(old), 4)).astype(np.float32)
        inputs.append(rng.normal(size=(len(inputs[0]), 4)).astype(np.float32))
    return rehang.fit(old, new, labels=labels, **options), inputs


def transformed(adapter: rehang.Adapter, inputs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return adapter.transform(inputs[0], side=inputs[1] if len(inputs) > 1 else None, return_sigma=True, force=True)


def expect_close(made: Any, expected: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, sigma2 = (np.asarray(array) for array in made)
    assert vectors.dtype == sigma2.dtype == np.float32
    assert vectors.shape == expected[0].shape and sigma2.shape == expected[1].shape
    assert np.abs(vectors - expected[0]).max() <= 1e-5 * np.abs(expected[0]).max()
    np.testing.assert_allclose(sigma2, expected[1], rtol=1e-5)


def test_onnx_runtime_gives_the_same(case: Any, tmp_path: Path, rehang_cli: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    adapter, inputs = case
    adapter.save(tmp_path / "a.safetensors")
    rehang_cli("export", "a.safetensors", "-o", "a.onnx")
    data = adapter.to_onnx(tmp_path / "of-python.onnx")
    assert data == (tmp_path / "a.onnx").read_bytes() == (tmp_path / "of-python.onnx").read_bytes()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    made = session.run(None, dict(zip(names, inputs, strict=True)))
    expect_close(made, transformed(adapter, inputs))
    said = session.get_modelmeta().custom_metadata_map
    assert float(said["handicap"]) == adapter.handicap and said["method"] == adapter.method


def test_pytorch_gives_the_same(case: Any) -> None:
    torch = pytest.importorskip("torch")
    adapter, inputs = case
    module = adapter.to_torch()
    with torch.no_grad():
        vectors, sigma2 = module(*(torch.from_numpy(rows) for rows in inputs))
    expected = transformed(adapter, inputs)
    # All anchors are equally near to a zero row that a map scales to length 1. The first ones count, and PyTorch takes any.
    zero = ~inputs[0].any(axis=1)
    sigma2[torch.from_numpy(zero)] = torch.from_numpy(expected[1][zero])
    expect_close((vectors, sigma2), expected)
    assert not list(module.parameters()) and module.state_dict()
    with pytest.raises(TypeError, match="inputs"):
        module()
