"""Arrays from whatever holds numbers, without a copy where none is needed."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from .errors import CorruptError, OptionError


def given(name: str, value: Any) -> Any:
    """A path, or an array of one or two dimensions, of an argument; ``None`` stays ``None``."""
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    return array(name, value)


def matrix(name: str, value: Any) -> Any:
    """The same for rows of numbers alone."""
    rows = given(name, value)
    if isinstance(rows, np.ndarray) and rows.ndim != 2:
        raise OptionError(f"{name} has shape {rows.shape}; rows of numbers, [n, d], are needed")
    return rows


def column(name: str, value: Any) -> Any:
    """The same for one value a row."""
    values = given(name, value)
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise OptionError(f"{name} has shape {values.shape}; one value a row, [n], is needed")
    return values


def array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """An array of one or two dimensions, of numbers or of texts."""
    if isinstance(value, np.ma.MaskedArray):
        raise OptionError(f"{name} is a masked array; fill or drop what is masked")
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(value, (pyarrow.Array, pyarrow.ChunkedArray)):
        made = _of_arrow(name, value)
    elif _is_tensor(value):
        made = _of_torch(value)
    elif hasattr(value, "read") or isinstance(value, (bytes, bytearray)):
        raise OptionError(f"{name} is an open file, or its bytes; give its path, or numpy.load(…) of it")
    elif isinstance(value, (dict, set)) or hasattr(value, "__next__"):
        raise OptionError(f"{name} is a {type(value).__name__}; a path, an array or a list of rows is needed")
    else:
        if isinstance(value, (list, tuple)) and value and all(map(_is_tensor, value)):
            value = [_of_torch(row) for row in value]
        if hasattr(value, "select_dtypes"):
            others = [str(column) for column in value.columns if column not in value.select_dtypes("number").columns]
            if others and len(value.columns) > 1:
                raise OptionError(
                    f"{name} is a DataFrame whose column {others[0]!r} holds no numbers; choose the columns of numbers, or give "
                    "numpy.stack(frame[column]) where each value of a column is a vector"
                )
        try:
            made = np.asarray(value)
        except ValueError as error:
            raise CorruptError(f"{name} cannot be made an array: {error}") from None
    if made.ndim not in (1, 2):
        raise OptionError(f"{name} has shape {made.shape}; one value a row, [n], or rows of numbers, [n, d], are needed")
    return _typed(name, made)


def _typed(name: str, made: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, where its type is one that is understood."""
    kind = made.dtype.kind
    if kind == "O":
        if made.ndim == 1 and all(isinstance(value, str) for value in made):
            return made
        try:
            # Numbers that were kept as objects, as pandas does beside texts.
            again = np.array(made.tolist())
        except ValueError as error:
            raise CorruptError(f"{name} holds neither numbers nor texts: {error}") from None
        if again.dtype.kind != "O":
            return _typed(name, again)
        row, other = next((row, one) for row, one in enumerate(made) if not isinstance(one, str))
        raise CorruptError(f"{name} holds neither numbers nor texts: row {row} is {other!r:.60}, a {type(other).__name__}")
    if kind in "US":
        if made.ndim == 1:
            return made.astype(str)
        raise OptionError(f"{name} holds rows of texts; rows of numbers are needed")
    if kind not in "biuf":
        raise OptionError(f"{name} has type {made.dtype}; real numbers or texts are needed")
    if made.dtype == np.uint64 and made.ndim == 1 and made.size and made.max() > np.iinfo(np.int64).max:
        return made.astype(str)
    return made


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch, which may be on a card; files have ``detach`` too."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def _of_torch(value: Any) -> np.ndarray[Any, Any]:
    tensor = value.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:
        # A type that NumPy does not have, such as bfloat16; each of its numbers is a float32.
        return np.asarray(tensor.float().numpy())


def _of_arrow(name: str, value: Any) -> np.ndarray[Any, Any]:
    import pyarrow as pa

    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
        if isinstance(value, pa.ChunkedArray):
            value = value.chunk(0)
    if value.null_count:
        raise CorruptError(f"{name} has {value.null_count} rows without a value; fill or drop them")
    if pa.types.is_fixed_size_list(value.type):
        numbers, width = value.flatten(), value.type.list_size
        rows = numbers.to_numpy(zero_copy_only=False)
        return np.asarray(rows).reshape(len(value), width)
    if pa.types.is_list(value.type) or pa.types.is_large_list(value.type):
        lengths = np.unique(value.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise CorruptError(f"{name} has rows of {lengths[0]} and of {lengths[-1]} numbers; they must be equally long")
        rows = value.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(rows).reshape(len(value), int(lengths[0]) if len(lengths) else 0)
    return np.asarray(value.to_numpy(zero_copy_only=False))
