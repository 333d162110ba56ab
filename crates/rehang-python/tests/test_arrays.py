"""What counts as an array, and what is said of one that cannot be used."""

from __future__ import annotations

import copy
import errno
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")


@pytest.fixture(scope="module")
def adapter(pairs: Any) -> rehang.Adapter:
    return rehang.fit(pairs[0], pairs[1], method="ridge", seed=1)


def test_one_matrix_in_every_form_is_one_input(adapter: rehang.Adapter, gallery: Any, tmp_path: Path) -> None:
    old = np.ascontiguousarray(gallery[0], dtype=np.float32)
    expected = adapter.transform(old)
    assert expected.dtype == np.float32 and expected.flags.c_contiguous
    np.save(tmp_path / "old.npy", old)
    wide = np.repeat(old, 2, axis=1)
    forms = {
        "fortran": np.asfortranarray(old),
        "strided": wide[:, ::2],
        "reversed twice": old[::-1][::-1],
        "float64": old.astype(np.float64),
        "big-endian": old.astype(">f4"),
        "read-only": np.frombuffer(old.tobytes(), dtype=np.float32).reshape(old.shape),
        "mapped": np.load(tmp_path / "old.npy", mmap_mode="r"),
        "list": old.tolist(),
        "objects": old.astype(object),
        "path": tmp_path / "old.npy",
    }
    for name, form in forms.items():
        np.testing.assert_array_equal(adapter.transform(form), expected, err_msg=name)
    np.testing.assert_array_equal(adapter.transform(old, batch=7), expected)


def test_arrow_and_torch(adapter: rehang.Adapter, gallery: Any) -> None:
    old = np.ascontiguousarray(gallery[0], dtype=np.float32)
    expected = adapter.transform(old)
    pyarrow = pytest.importorskip("pyarrow")
    flat = pyarrow.array(old.reshape(-1))
    fixed = pyarrow.FixedSizeListArray.from_arrays(flat, old.shape[1])
    ragged = pyarrow.array([[1.0], [1.0, 2.0]])
    for form in (fixed, pyarrow.chunked_array([fixed[:100], fixed[100:]]), fixed.cast(pyarrow.list_(pyarrow.float32()))):
        np.testing.assert_array_equal(adapter.transform(form), expected)
    np.testing.assert_array_equal(adapter.transform(fixed[10:20]), expected[10:20])
    with pytest.raises(rehang.CorruptError, match="rows of 1 and of 2"):
        adapter.transform(ragged)
    with pytest.raises(rehang.CorruptError, match="1 rows without a value"):
        adapter.transform(pyarrow.array([[1.0] * 8, None]))


def test_labels_of_any_kind_are_the_same_classes(pairs: Any, gallery: Any) -> None:
    _, new, labels = gallery
    order = rehang.order("random", adapted=new)
    numbers = rehang.curve(new, new, order, labels=labels, bootstrap=0).area
    for form in (labels.astype(np.int8), labels.astype(np.float64), [f"class {label}" for label in labels],
                 np.array([f"c{label}" for label in labels]), labels.tolist()):
        assert rehang.curve(new, new, order, labels=form, bootstrap=0).area == numbers
    # From 2²⁴ on not every whole number is a float32: two labels may have become one.
    with pytest.raises(rehang.CorruptError, match="too large for their type"):
        rehang.curve(new, new, order, labels=(labels + 2**24).astype(np.float32), bootstrap=0)


def test_a_curve_is_its_ten_line_twin(gallery: Any) -> None:
    _, new, labels = (array[:60] for array in gallery)
    new = new.astype(np.float64)
    rng = np.random.default_rng(0)
    adapted = (new + rng.normal(size=new.shape) * 5).astype(np.float32)
    order = rng.permutation(60)
    top1 = []
    for done in range(61):
        now = adapted.astype(np.float64)
        now[order[:done]] = new[order[:done]].astype(np.float32)
        distances = ((new.astype(np.float32)[:, None] - now[None]) ** 2).sum(-1)
        np.fill_diagonal(distances, np.inf)
        has_answer = [(labels == label).sum() > 1 for label in labels]
        found = labels[distances.argmin(1)] == labels
        top1.append(100 * found[has_answer].mean())
    curve = rehang.curve(new, adapted, order, labels=labels, bootstrap=0)
    np.testing.assert_allclose(curve.points("top1"), top1)
    assert curve.start["top1"] == curve.points("top1")[0] and curve.fractions[-1] == 1.0


def test_a_curve_as_a_table_and_a_picture(gallery: Any) -> None:
    _, new, labels = gallery
    curve = rehang.curve(new, new, np.arange(len(new)), labels=labels, bootstrap=0)
    pandas = pytest.importorskip("pandas")
    table = curve.to_pandas()
    assert isinstance(table, pandas.DataFrame) and list(table.columns) == curve.metrics
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    assert curve.plot().get_xlabel() == "items re-embedded (percent)"


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        (lambda old: old[:, :5], rehang.MismatchError, "5 coordinates a row where 8"),
        (lambda old: old[:0], rehang.CorruptError, "is empty"),
        (lambda old: old[0], rehang.OptionError, r"shape \(8,\)"),
        (lambda old: old[None], rehang.OptionError, r"shape \(1, .*, 8\)"),
        (lambda old: np.where(np.arange(8) == 3, np.nan, old), rehang.CorruptError, "row 0, column 3 is NaN"),
        (lambda old: np.full_like(old, np.inf), rehang.CorruptError, "NaN or infinite"),
        (lambda old: old.astype(complex), rehang.OptionError, "complex128"),
        (lambda old: [["a", "b"]], rehang.OptionError, "rows of texts"),
        (lambda old: [[1.0], [1.0, 2.0]], rehang.CorruptError, "cannot be made an array"),
        (lambda old: np.ma.masked_array(old), rehang.OptionError, "masked"),
        (lambda old: "missing.npy", rehang.FileError, "missing.npy"),
        (lambda old: open(__file__, "rb"), rehang.OptionError, "open file"),
        (lambda old: io.BytesIO(b"x"), rehang.OptionError, "open file"),
        (lambda old: {"a": old}, rehang.OptionError, "is a dict"),
        (lambda old: (row for row in old), rehang.OptionError, "is a generator"),
    ],
)
def test_what_cannot_be_used_is_said(what: Any, error: type, said: str, adapter: rehang.Adapter, gallery: Any) -> None:
    with pytest.raises(error, match=said):
        adapter.transform(what(gallery[0]))


class Tensor:
    """What a tensor of PyTorch does."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def numpy(self) -> Any:
        return self.values


def test_a_list_of_tensors_is_their_rows(adapter: rehang.Adapter, gallery: Any) -> None:
    old = gallery[0]
    made = adapter.transform([Tensor(row) for row in old])
    np.testing.assert_array_equal(made, adapter.transform(old))


def test_columns_that_hold_no_numbers_are_named(adapter: rehang.Adapter, gallery: Any) -> None:
    pandas = pytest.importorskip("pandas")
    old = gallery[0]
    np.testing.assert_array_equal(adapter.transform(pandas.DataFrame(old)), adapter.transform(old))
    with pytest.raises(rehang.OptionError, match="'name' holds no numbers"):
        adapter.transform(pandas.DataFrame(old).assign(name="x"))


def test_errors_are_of_their_kind_and_name_arguments(pairs: Any, tmp_path: Path) -> None:
    old, new, labels = pairs
    with pytest.raises(rehang.MismatchError, match="old has .* rows and new has 10"):
        rehang.fit(old, new[:10])
    with pytest.raises(rehang.OptionError, match="method cannot be"):
        rehang.fit(old, new, method="magic")
    with pytest.raises(rehang.OptionError, match="labels"):
        rehang.fit(old, new, labels=labels[:, None], method="ridge")
    with pytest.raises(rehang.OptionError, match="policy cannot be"):
        rehang.order("magic", sigma=[1.0])
    with pytest.raises(rehang.OptionError, match="`sigma` or `adapted`"):
        rehang.order("random")
    with pytest.raises(rehang.CorruptError, match="row 0 is named|once|row 0"):
        rehang.curve(new, new, np.zeros(len(new), dtype=int))
    (tmp_path / "bad.safetensors").write_bytes(b"no adapter")
    with pytest.raises(rehang.CorruptError, match="bad.safetensors"):
        rehang.load(tmp_path / "bad.safetensors")
    with pytest.raises(rehang.FileError) as missing:
        rehang.fit("missing.npy", new)
    assert missing.value.errno == errno.ENOENT and "missing.npy" in str(missing.value)
    with pytest.raises(OSError, match="nowhere"):
        rehang.fit(old, new, method="ridge").save(tmp_path / "nowhere" / "a.safetensors")
    assert issubclass(rehang.MismatchError, ValueError) and issubclass(rehang.ConflictError, rehang.Error)


def test_an_adapter_travels(adapter: rehang.Adapter, gallery: Any) -> None:
    for twin in (pickle.loads(pickle.dumps(adapter)), copy.deepcopy(adapter), rehang.Adapter.from_bytes(adapter.to_bytes())):
        np.testing.assert_array_equal(twin.transform(gallery[0]), adapter.transform(gallery[0]))
        assert (twin.method, twin.old, twin.new, twin.training) == (adapter.method, adapter.old, adapter.new, adapter.training)
    assert "ridge" in repr(adapter) and adapter.handicap >= 0 and adapter.side_dimension is None


def test_side_information(pairs: Any, gallery: Any) -> None:
    rng = np.random.default_rng(0)
    side = rng.normal(size=(len(pairs[0]), 3)).astype(np.float32)
    adapter = rehang.fit(pairs[0], pairs[1], side=side, method="fct", epochs=1)
    assert adapter.side_dimension == 3
    assert adapter.transform(pairs[0], side=side).shape == pairs[1].shape
    with pytest.raises(rehang.OptionError, match="side information"):
        adapter.transform(pairs[0])
    with pytest.raises(rehang.MismatchError):
        adapter.transform(pairs[0], side=side[:5])
