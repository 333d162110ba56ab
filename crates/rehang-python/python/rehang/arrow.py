"""Batches of Arrow in, batches of Arrow out: the adapter inside Ray, Spark, Dask, Daft, or a loop over files.

One callable serves them all: it is made with the path of an adapter, travels by ``pickle``, and reads the adapter once a process.
``docs/clusters.md`` has a program for each engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ._verbs import Adapter, load

Batch = TypeVar("Batch", pa.Table, pa.RecordBatch)


class Transform:
    """Adds adapted vectors, and σ², to batches.

    Parameters
    ----------
    adapter : path or Adapter
        A path has to be there on every machine. An adapter itself travels with the callable.
    vectors : str
        The column of old vectors: lists of equal length.
    adapted : str
        The column of adapted vectors that is added: ``fixed_size_list<float32>[d_new]``.
    sigma : str or None
        The column of σ² that is added: ``float32``. ``None`` adds none.
    keep : bool
        Keep the old vectors.
    force : bool
        Go on although vectors do not look like those that the adapter was fitted on. A batch of a few rows is often all of one kind.

    Examples
    --------
    >>> dataset.map_batches(Transform("a.safetensors"), batch_format="pyarrow")  # doctest: +SKIP
    >>> frame.mapInArrow(Transform("a.safetensors").stream, schema)  # doctest: +SKIP
    """

    def __init__(
        self,
        adapter: str | os.PathLike[str] | Adapter,
        *,
        vectors: str = "vector",
        adapted: str = "adapted",
        sigma: str | None = "sigma2",
        keep: bool = True,
        force: bool = True,
    ) -> None:
        self._source = adapter if isinstance(adapter, Adapter) else os.fspath(adapter)
        self._vectors, self._adapted, self._sigma = vectors, adapted, sigma
        self._keep, self._force = keep, force
        self._loaded: Adapter | None = None

    @property
    def adapter(self) -> Adapter:
        """The adapter, read when it is asked for first."""
        if self._loaded is None:
            self._loaded = self._source if isinstance(self._source, Adapter) else load(self._source)
        return self._loaded

    def __call__(self, batch: Batch) -> Batch:
        """A batch with the new columns. The numbers are those of ``rehang transform``, to the bit."""
        return self._with_columns(batch, fixed=True)

    def _with_columns(self, batch: Batch, fixed: bool) -> Batch:
        place = batch.schema.get_field_index(self._vectors)
        if place < 0:
            raise KeyError(f"there is no column {self._vectors!r}; there are {', '.join(batch.schema.names)}")
        d_new = self.adapter.new.dimension
        if batch.num_rows:
            adapted, sigma2 = self.adapter.transform(
                batch.column(place), return_sigma=True, force=self._force, progress=False
            )
        else:
            adapted, sigma2 = np.empty((0, d_new), np.float32), np.empty(0, np.float32)
        if not self._keep:
            batch = batch.drop_columns([self._vectors])
        numbers = pa.array(adapted.reshape(-1))
        if fixed:
            rows = pa.FixedSizeListArray.from_arrays(numbers, d_new)
        else:
            ends = np.arange(len(adapted) + 1, dtype=np.int32) * d_new
            rows = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), numbers)
        columns = {self._adapted: rows}
        if self._sigma is not None:
            columns[self._sigma] = pa.array(sigma2)
        for name, column in columns.items():
            batch = batch.append_column(name, column)
        return batch

    def stream(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same for a stream of batches, as Spark's ``mapInArrow`` has them; with vectors as plain lists, the only ones it knows."""
        for batch in batches:
            yield self._with_columns(batch, fixed=False)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of what comes out for batches of this one."""
        return self(schema.empty_table()).schema

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}
