"""Adapters that PyTorch fits, and transforms on a device: beside rehang's own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

torch = pytest.importorskip("torch", reason="rehang.torch needs PyTorch, which is not installed here (REHANG_TORCH=1 installs it in .ci/run)")

import rehang.torch as rt  # noqa: E402
from rehang.torch._fit import scheduled_rate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SMALL = {"hidden": 48, "batch": 128, "device": "cpu"}


@pytest.fixture(scope="module")
def arrays(pairs: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    old, new, labels = pairs
    return np.ascontiguousarray(old, np.float32), np.ascontiguousarray(new, np.float32), labels.astype(np.int64)


@pytest.fixture(scope="module")
def fitted(arrays: Any) -> rehang.Adapter:
    return rt.fit_adapter(*arrays[:2], epochs=6, method="fastfill-reference", freeze_statistics_from=4, **SMALL)


def expect_equal(adapter: rehang.Adapter, old: np.ndarray, made: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, sigma2 = adapter.transform(old, return_sigma=True, force=True)
    assert np.abs(made[0] - vectors).max() <= 1e-5 * np.abs(vectors).max()
    assert np.abs(made[1] / sigma2 - 1).max() <= 1e-5


@pytest.mark.parametrize("method", ["fct", "fastfill-reference"])
@pytest.mark.parametrize("geometry", ["raw", "sphere"])
def test_a_fit_learns_and_its_file_serves_every_verb(method: Any, geometry: Any, arrays: Any, gallery: Any, tmp_path: Path) -> None:
    old, new, labels = arrays
    head = rt.Head.frozen(torch.from_numpy(np.stack([new[labels == label].mean(axis=0) for label in range(10)])))
    adapter = rt.fit_adapter(
        old, new, labels=labels, method=method, head=head, geometry=geometry, epochs=8, distance="cosine", new_model="v2", handicap=0.01, **SMALL
    )
    history = adapter.answer["history"]
    assert len(history) == 8 and history[-1] < 0.9 * history[0]
    adapter.save(tmp_path / "a.safetensors")
    again = rehang.load(tmp_path / "a.safetensors")
    assert again.to_bytes() == adapter.to_bytes()
    assert (again.method, again.new.model, again.new.distance, again.handicap) == (method, "v2", "cosine", 0.01)
    assert again.training["pairs"] == len(old) and again.training["hyper_parameters"]["hidden"] == "48"
    items = np.ascontiguousarray(gallery[0], np.float32)
    expect_equal(again, items, tuple(part.numpy() for part in again.to_torch()(torch.from_numpy(items))))
    rehang.report(again, gallery[0], gallery[1], labels=gallery[2], random_orders=1, bootstrap=0).save(tmp_path / "report.html")
    assert "v2" in (tmp_path / "report.html").read_text()
    line = [sys.executable, "-m", "rehang", "--json", "inspect", str(tmp_path / "a.safetensors")]
    said = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert said["geometry"] == geometry and said["uncertainty"] == ("constant" if method == "fct" else "linear")
    # Where it has seen the rows, transform says so: the adapter remembers its pairs.
    np.save(tmp_path / "old.npy", old)
    line = [sys.executable, "-m", "rehang", "--json", "transform", str(tmp_path / "a.safetensors"), str(tmp_path / "old.npy"), "-o", str(tmp_path / "n.npy")]
    said = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert said["among_pairs"] is not None


def test_the_mean_squared_error_is_the_variance_of_a_map_without_psi(arrays: Any) -> None:
    old, new, _ = arrays
    adapter = rt.fit_adapter(old, new, epochs=2, **SMALL)
    vectors, sigma2 = adapter.transform(old, return_sigma=True)
    error = float(((vectors - new).astype(np.float64) ** 2).sum(axis=1).mean())
    assert np.allclose(sigma2, error, rtol=1e-5)


def test_side_information_and_loaders(arrays: Any) -> None:
    old, new, labels = arrays
    side = np.random.default_rng(0).standard_normal((len(old), 3), dtype=np.float32)
    adapter = rt.fit_adapter(old, new, side=side, epochs=2, **SMALL)
    assert adapter.side_dimension == 3
    made = adapter.to_torch()(torch.from_numpy(old), torch.from_numpy(side))
    assert np.abs(made[0].numpy() - adapter.transform(old, side=side)).max() < 1e-4
    data = torch.utils.data.TensorDataset(torch.from_numpy(old), torch.from_numpy(new), torch.from_numpy(labels))
    loaded = rt.fit_adapter(torch.utils.data.DataLoader(data, batch_size=100, shuffle=True), epochs=3, hidden=48, device="cpu")
    assert loaded.training["pairs"] == len(old) and loaded.answer["history"][-1] < loaded.answer["history"][0]


def test_a_fit_is_the_same_again_and_half_precision_learns(arrays: Any) -> None:
    old, new, _ = arrays
    first, second = (rt.fit_adapter(old, new, epochs=2, seed=3, **SMALL) for _ in range(2))
    assert first.to_bytes() == second.to_bytes()
    half = rt.fit_adapter(old, new, epochs=4, dtype=torch.bfloat16, **SMALL)
    assert half.answer["history"][-1] < half.answer["history"][0]


def test_in_the_warm_up_the_map_learns_as_without_uncertainty(arrays: Any) -> None:
    old, new, _ = arrays
    loss = rt.FastFill(loss_weight=1.0)
    plain = rt.fit_adapter(old, new, epochs=4, seed=3, **SMALL)
    warm, joint = (
        rt.fit_adapter(old, new, method="fastfill-reference", loss=loss, epochs=4, seed=3, uncertainty_warm_up=epochs, **SMALL) for epochs in (4, 0)
    )
    # ψ follows: its σ² differ by item, and the map is the one that FCT makes.
    vectors, sigma2 = warm.transform(old[:200], return_sigma=True)
    expected = plain.transform(old[:200])
    assert np.abs(vectors - expected).max() <= 1e-5 * np.abs(expected).max()
    assert sigma2.std() > 0
    assert np.abs(joint.transform(old[:200]) - expected).max() > 1e-3 * np.abs(expected).max()


def test_the_schedule_is_the_published_one() -> None:
    rate = lambda epoch: scheduled_rate(5e-4, epoch, 80, 5)  # noqa: E731
    assert abs(rate(0) - 1e-4) < 1e-12 and rate(4) == rate(5) == 5e-4
    assert abs((rate(42) + rate(43)) / 2 - 2.5e-4) < 1e-8 and rate(79) < 3e-7


def test_the_forward_adaptive_head_becomes_an_adapter(arrays: Any) -> None:
    old, new, _ = arrays
    psi = rt.ForwardHead(old.shape[1], new.shape[1], hidden=32)
    for _ in range(3):
        psi(torch.from_numpy(old))
    adapter = rt.to_adapter(psi.eval(), old, new)
    with torch.no_grad():
        expected = psi(torch.from_numpy(old)).numpy()
    assert np.abs(adapter.transform(old) - expected).max() < 1e-4
    with pytest.raises(rehang.OptionError, match="Tanh"):
        rt.to_adapter(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh()), old, new)


def test_what_does_not_fit_is_refused_before_anything_is_learned(arrays: Any) -> None:
    old, new, labels = arrays
    with pytest.raises(rehang.MismatchError, match="new"):
        rt.fit_adapter(old, new[:-1])
    with pytest.raises(rehang.OptionError, match="reduction"):
        rt.fit_adapter(old, new, loss=rt.FastFill(reduction="sum"), **SMALL)
    with pytest.raises(rehang.OptionError, match="method"):
        rt.fit_adapter(old, new, method="ridge")
    broken = old.copy()
    broken[7, 2] = np.nan
    with pytest.raises(rehang.OptionError, match="old: row 7"):
        rt.fit_adapter(broken, new)
    with pytest.raises(rehang.Error, match="learning_rate"):
        rt.fit_adapter(old, new, learning_rate=1e30, epochs=3, **SMALL)


# Transforms


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, ">f4"])
def test_rows_in_memory(device: str, kind: Any, fitted: rehang.Adapter, gallery: Any) -> None:
    old = gallery[0].astype(kind)
    made = rt.transform(fitted, old, device=device, batch=100)
    assert made.rows == len(old) and made.vectors.dtype == np.float32
    expect_equal(fitted, old.astype(np.float32), (made.vectors, made.sigma2))
    assert abs(made.mean_variance / made.sigma2.mean() - 1) < 1e-4
    out, sigma = torch.empty(len(old), fitted.new.dimension, dtype=torch.float16), np.empty(len(old), np.float32)
    half = rt.transform(fitted, torch.from_numpy(np.ascontiguousarray(old, np.float32)), out, sigma=sigma, dtype="float16", device=device, batch=64)
    assert half.vectors is out and np.abs(out.float().numpy() - made.vectors).max() < 0.02 * np.abs(made.vectors).max()


@pytest.mark.parametrize("device", DEVICES)
def test_a_folder_is_what_rehang_transform_writes(device: str, fitted: rehang.Adapter, gallery: Any, tmp_path: Path, rehang_cli: Any) -> None:
    old = np.ascontiguousarray(gallery[0], np.float32)
    for name, rows in (("day=1/a.npy", old[:300]), ("day=2/b.npy", old[300:]), ("_rehang/x.npy", old[:3]), ("_SUCCESS.npy", old[:3])):
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "old" / name, rows)
    fitted.save(tmp_path / "a.safetensors")
    rehang_cli("transform", "a.safetensors", "old", "-o", "rust")
    transform = lambda dtype="float32": rt.transform(  # noqa: E731
        tmp_path / "a.safetensors", tmp_path / "old", tmp_path / "new", sigma=tmp_path / "sigma", device=device, batch=77, dtype=dtype
    )
    done = transform()
    assert (done.rows, done.made, done.there) == (len(old), 2, 0)
    names = lambda folder: sorted(str(file.relative_to(folder)) for file in folder.rglob("*.npy"))  # noqa: E731
    assert names(tmp_path / "new") == names(tmp_path / "rust") == names(tmp_path / "sigma") == ["day=1/a.npy", "day=2/b.npy"]
    for name in names(tmp_path / "new"):
        made, expected = (np.load(tmp_path / folder / name) for folder in ("new", "rust"))
        assert np.abs(made - expected).max() <= 1e-5 * np.abs(expected).max()
        sizes = [(tmp_path / folder / name).stat().st_size for folder in ("new", "rust")]
        assert sizes[0] == sizes[1]
        expect_equal(fitted, np.load(tmp_path / "old" / name), (made, np.load(tmp_path / "sigma" / name)))
    # What is made is passed over, until something of it changes.
    assert (transform().made, transform().there) == (0, 2)
    np.save(tmp_path / "old" / "day=1/a.npy", old[:299])
    assert (transform().made, transform("float16").made) == (1, 2)
    assert np.load(tmp_path / "new" / "day=1/a.npy").dtype == np.float16
    assert not list(tmp_path.rglob("*.part"))
    # rehang itself does not take partitions of a card for its own.
    assert rehang_cli("transform", "a.safetensors", "old", "-o", "new")["made"] == 2


def test_parquet_has_ids_and_sigma(fitted: rehang.Adapter, gallery: Any, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    old = np.ascontiguousarray(gallery[0], np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(old.reshape(-1)), old.shape[1])
    (tmp_path / "old").mkdir()
    pq.write_table(pa.table({"id": [f"item {row}" for row in range(len(old))], "old": lists}), tmp_path / "old" / "p.parquet")
    rt.transform(fitted, tmp_path / "old", tmp_path / "new", device="cpu", batch=200)
    made = pq.read_table(tmp_path / "new" / "p.parquet")
    assert made.schema.names == ["id", "vector", "sigma2"] and made.column("id")[5].as_py() == "item 5"
    expect_equal(fitted, old, (np.stack(made.column("vector").to_numpy()), made.column("sigma2").to_numpy()))
    # Every other verb reads it.
    order = rehang.order("sigma", sigma=str(tmp_path / "new" / "p.parquet"))
    assert sorted(order) == list(range(len(old)))


def test_broken_rows_are_named_and_nothing_half_written_is_left(fitted: rehang.Adapter, gallery: Any, tmp_path: Path) -> None:
    old = np.ascontiguousarray(np.tile(gallery[0], (8, 1)), np.float32)
    old[5000, 1] = np.inf
    np.save(tmp_path / "old.npy", old)
    with pytest.raises(rehang.CorruptError, match="old.npy.*row 5000"):
        rt.transform(fitted, tmp_path / "old.npy", tmp_path / "new.npy", device="cpu", batch=512)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["old.npy"]
    with pytest.raises(rehang.CorruptError, match="row 5000"):
        rt.transform(fitted, old, device="cpu", batch=999)
    with pytest.raises(rehang.MismatchError, match="source"):
        rt.transform(fitted, old[:, :5], device="cpu")
    with pytest.raises(rehang.OptionError, match="out"):
        rt.transform(fitted, tmp_path / "old.npy", tmp_path / "old.npy", device="cpu")
    with pytest.raises(rehang.OptionError, match="bfloat16"):
        rt.transform(fitted, old, device="cpu", dtype=torch.bfloat16)


class NoStream:
    """What stands for a stream and an event of a card where there is none: everything is done at once."""

    def __init__(self, *_: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait_event(self, *_: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...


@pytest.mark.parametrize("batch", [3000, 500, 333, 70])
@pytest.mark.parametrize("where", ["memory", "pinned", "file"])
def test_overlapped_batches_come_back_to_their_places(
    where: str, batch: int, fitted: rehang.Adapter, gallery: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rehang.torch import _transform

    old = np.ascontiguousarray(np.tile(gallery[0], (2, 1)), np.float32)
    monkeypatch.setattr(_transform._Pipe, "run", _transform._Pipe._run_card)
    monkeypatch.setattr(_transform, "_pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda *_: where == "pinned")
    for name in ("Stream", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, NoStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    if where == "file":
        np.save(tmp_path / "old.npy", old)
        done = rt.transform(fitted, tmp_path / "old.npy", tmp_path / "new.npy", sigma=tmp_path / "s.npy", device="cpu", batch=batch)
        made = np.load(tmp_path / "new.npy"), np.load(tmp_path / "s.npy")
    else:
        done = rt.transform(fitted, torch.from_numpy(old), device="cpu", batch=batch)
        made = done.vectors, done.sigma2
    expect_equal(fitted, old, made)
    assert abs(done.mean_variance / made[1].mean() - 1) < 1e-4
    old[1500, 0] = np.nan
    with pytest.raises(rehang.CorruptError, match="row 1500"):
        rt.transform(fitted, old, device="cpu", batch=batch)
