"""Old vectors through a card: reading, copying in, computing, copying out and writing at the same time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._arrays import array
from .._call import Bar
from .._verbs import Adapter, load
from ..errors import CorruptError, MismatchError, OptionError

SLOTS = 4
"""Batches that are under way at once: one is read, one copied in, one computed, one copied out and written."""
LOOKED_AT = 4096
"""Rows that the adapter's own guards look at before anything else happens."""
NOTES = "_rehang"
"""The folder of notes among outputs, as ``rehang transform`` has it."""


@dataclass(frozen=True)
class Transformed:
    """What :func:`transform` did: rows, partitions that were made and that were there already, the mean of σ², and the arrays where nothing was written."""

    rows: int
    made: int = 1
    there: int = 0
    mean_variance: float = 0.0
    vectors: Any = None
    sigma2: Any = None


def transform(
    adapter: Adapter | str | os.PathLike[str],
    source: Any,
    out: Any = None,
    *,
    sigma: Any = None,
    device: Any = None,
    dtype: str | torch.dtype = "float32",
    batch: int | None = None,
    force: bool = False,
    progress: bool | None = None,
) -> Transformed:
    """Turn old vectors into vectors of the new space on a card, with σ² for each.

    In ``float32`` the numbers are those of ``rehang transform`` within 1e-5 of the largest coordinate, and σ² within 1e-5 of itself; PyTorch's own switch
    (``torch.set_float32_matmul_precision``) may trade that for speed. With ``float16`` the products are computed in half precision, too.

    Parameters
    ----------
    adapter : Adapter or path
    source : array or path
        Rows ``[n, d_old]``: an array or tensor in memory, a ``.npy`` or ``.parquet`` file, or a folder of such, at any depth. What lies in pinned memory
        is copied to the card from where it is.
    out : array or path, optional
        An array or tensor ``[n, d_new]`` to be filled, a file of the source's kind, or a folder, where every partition gets the name that it has in
        ``source``. Without it the answer holds the vectors. A Parquet file has ``id`` (where the source has it), ``vector`` and ``sigma2``. Files appear
        whole or not at all; a folder's partition that this adapter has made from the input that is there is passed over.
    sigma : array or path, optional
        Where σ² goes, ``float32 [n]``: an array, a ``.npy`` file, or a folder of them.
    dtype : str
        ``float32`` or ``float16``: of the vectors that are written.
    batch : int, optional
        Rows at a time; 65,536 by default.
    force : bool
        Go on although the vectors do not look like those that the adapter was fitted on.

    Raises
    ------
    MismatchError, CorruptError
        As :meth:`rehang.Adapter.transform`; the file and the row are named.
    """
    adapter = adapter if isinstance(adapter, Adapter) else load(adapter)
    if adapter.side_dimension is not None:
        raise OptionError("adapter: it reads side information, which goes through adapter.to_torch() only")
    kind = str(dtype).removeprefix("torch.")
    if kind not in ("float32", "float16"):
        raise OptionError(f"dtype: {kind!r} is neither float32 nor float16")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    batch = batch or 65_536
    if batch < 1:
        raise OptionError(f"batch: {batch}; 1 or more is needed")
    pipe = _Pipe(adapter, device, getattr(torch, kind), batch)
    with Bar(progress) as bar:

        def show(done: int, total: int, note: str = "") -> None:
            if bar.show is not None:
                bar.show("transforming", "vectors", note, done, total)

        if isinstance(source, (str, os.PathLike)):
            path = Path(source)
            if path.is_dir():
                return _folder(pipe, path, out, sigma, force, show)
            rows, mean = _file(pipe, path, _as_path("out", out), _optional_path("sigma", sigma), force, show)
            return Transformed(rows, mean_variance=mean)
        return _in_memory(pipe, source, out, sigma, force, show)


Show = Callable[..., None]


class _Pipe:
    """An adapter on a device, and the buffers through which batches go."""

    def __init__(self, adapter: Adapter, device: torch.device, dtype: torch.dtype, batch: int) -> None:
        self.adapter, self.device, self.dtype, self.batch = adapter, device, dtype, batch
        self.d_old, self.d_new = adapter.old.dimension, adapter.new.dimension
        self.module = adapter.to_torch().to(device)
        self.on_card = device.type == "cuda"
        # A map that scales its input takes rows of any length.
        self.wants_length_1 = adapter.old.normalised and _outline(adapter)["input"] == "as-is"

    def look(self, rows: Any, what: str, force: bool) -> None:
        """The adapter's own guards on the first rows: width, NaN, and whether they look like those that it was fitted on."""
        seen = np.ascontiguousarray(_numpy(rows[:LOOKED_AT]), dtype=np.float32)
        try:
            self.adapter.transform(seen, force=force, progress=False)
        except (MismatchError, CorruptError) as error:
            raise type(error)(f"{what}: {error}") from error

    def compute(self, old: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Vectors, σ², and how many rows of the batch are in order."""
        old = old.float()
        with torch.no_grad(), torch.autocast(self.device.type, dtype=torch.float16, enabled=self.dtype == torch.float16):
            vectors, sigma2 = self.module(old)
        good = vectors.isfinite().all(dim=1) & old.isfinite().all(dim=1)
        if self.wants_length_1:
            good &= (torch.linalg.vector_norm(old.double(), dim=1) - 1).abs() <= 2e-3
        return vectors.to(self.dtype), sigma2.float(), good.sum()

    def refuse(self, rows: Any, first: int, what: str) -> None:
        """Raises for the first row of a batch that is not in order, in the words of the adapter."""
        given = np.ascontiguousarray(_numpy(rows), dtype=np.float32)
        bad = np.flatnonzero(~np.isfinite(given).all(axis=1))
        if len(bad):
            raise CorruptError(f"{what}: row {first + int(bad[0])} holds a number that is NaN or infinite")
        if self.wants_length_1:
            lengths = np.linalg.norm(given.astype(np.float64), axis=1)
            bad = np.flatnonzero(np.abs(lengths - 1) > 2e-3)
            if len(bad):
                raise CorruptError(f"{what}: row {first + int(bad[0])} has length {lengths[bad[0]]:.4f} where the old space has length 1")
        raise CorruptError(f"{what}: a row of {first}..{first + len(given)} becomes infinite in {self.dtype}; float32 may hold it")

    def run(self, source: _Source, sink: _Sink, show: Show) -> float:
        """Sends all rows through; the sum of σ²."""
        return self._run_card(source, sink, show) if self.on_card else self._run_plain(source, sink, show)

    def _run_plain(self, source: _Source, sink: _Sink, show: Show) -> float:
        total = 0.0
        for first in range(0, source.rows, self.batch):
            count = min(self.batch, source.rows - first)
            buffer = torch.empty((count, self.d_old), dtype=source.dtype)
            source.read(first, buffer)
            vectors, sigma2, good = self.compute(buffer.to(self.device))
            if int(good) < count:
                self.refuse(buffer, first, source.what)
            sink.write(first, vectors.cpu(), sigma2.cpu())
            total += float(sigma2.double().sum())
            show(first + count, source.rows)
        return total

    def _run_card(self, source: _Source, sink: _Sink, show: Show) -> float:
        """Three streams, and threads that read and write; a slot is taken again when what it held is written."""
        streams = [torch.cuda.Stream(self.device) for _ in range(3)]
        copy_in, work, copy_out = streams
        size = min(self.batch, source.rows)
        slots = [_Slot(self, size, source, sink) for _ in range(min(SLOTS, -(-source.rows // size)))]
        steps = [(first, min(size, source.rows - first)) for first in range(0, source.rows, size)]
        # The adapter's numbers have to be there before another stream reads them.
        work.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(work):
            total = torch.zeros((), dtype=torch.float64, device=self.device)
        with ThreadPoolExecutor(len(slots)) as readers, ThreadPoolExecutor(len(slots)) as writers:
            reading: list[Future[torch.Tensor]] = []
            writing: list[Future[None]] = []

            def begin(step: int) -> None:
                first, count = steps[step]
                reading.append(readers.submit(slots[step % len(slots)].filled, source, first, count))

            for step in range(min(len(slots), len(steps))):
                begin(step)
            for step, (first, count) in enumerate(steps):
                slot = slots[step % len(slots)]
                if step >= len(slots):
                    writing[step - len(slots)].result()
                given = reading[step].result()
                with torch.cuda.stream(copy_in):
                    slot.old[:count].copy_(given, non_blocking=True)
                    slot.is_in.record(copy_in)
                with torch.cuda.stream(work):
                    work.wait_event(slot.is_in)
                    vectors, sigma2, good = self.compute(slot.old[:count])
                    total += sigma2.double().sum()
                    slot.is_made.record(work)
                with torch.cuda.stream(copy_out):
                    copy_out.wait_event(slot.is_made)
                    to = slot.targets(sink, first, count)
                    for target, made in zip(to, (vectors, sigma2, good[None]), strict=True):
                        target.copy_(made, non_blocking=True)
                        # It was allocated for another stream, which would use its memory again before it is copied.
                        made.record_stream(copy_out)
                    slot.is_out.record(copy_out)
                writing.append(writers.submit(slot.written, self, source, sink, given, to, first, count))
                if step + len(slots) < len(steps):
                    begin(step + len(slots))
                show(first + count, source.rows)
            for done in writing[-len(slots) :]:
                done.result()
            return float(total)


class _Slot:
    """The buffers of one batch: pinned memory on this side, plain memory on the card."""

    def __init__(self, pipe: _Pipe, size: int, source: _Source, sink: _Sink) -> None:
        self.old = torch.empty((size, pipe.d_old), dtype=source.dtype, device=pipe.device)
        self._in = None if source.is_pinned else _pinned((size, pipe.d_old), source.dtype)
        self._out = None if sink.is_pinned else _pinned((size, pipe.d_new), pipe.dtype)
        self._sigma2, self._good = _pinned((size,), torch.float32), _pinned((1,), torch.int64)
        self.is_in, self.is_made, self.is_out = (torch.cuda.Event() for _ in range(3))

    def filled(self, source: _Source, first: int, count: int) -> torch.Tensor:
        """The rows in pinned memory."""
        if self._in is None:
            return source.slice(first, count)
        # What was here before has to have left.
        self.is_in.synchronize()
        source.read(first, self._in[:count])
        return self._in[:count]

    def targets(self, sink: _Sink, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where vectors, σ² and the number of good rows are copied to."""
        vectors = sink.slice(first, count) if self._out is None else self._out[:count]
        return vectors, self._sigma2[:count], self._good

    def written(
        self,
        pipe: _Pipe,
        source: _Source,
        sink: _Sink,
        given: torch.Tensor,
        made: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        first: int,
        count: int,
    ) -> None:
        """Waits for the copy, then writes."""
        self.is_out.synchronize()
        if int(made[2]) < count:
            again = torch.empty((count, pipe.d_old), dtype=source.dtype)
            source.read(first, again)
            pipe.refuse(again, first, source.what)
        sink.write(first, made[0], made[1])


def _pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class _Source:
    """Rows, wherever they are."""

    what: str
    rows: int
    width: int
    dtype: torch.dtype
    is_pinned = False

    def read(self, first: int, buffer: torch.Tensor) -> None:
        """Fills a buffer with rows; several threads call it at once."""
        raise NotImplementedError

    def slice(self, first: int, count: int) -> torch.Tensor:
        """Rows that are in pinned memory already."""
        raise NotImplementedError


class _Sink:
    """Where vectors and σ² go."""

    is_pinned = False

    def write(self, first: int, vectors: torch.Tensor, sigma2: torch.Tensor) -> None:
        """Takes rows; several threads call it at once."""
        raise NotImplementedError

    def slice(self, first: int, count: int) -> torch.Tensor:
        """Pinned memory of the output itself."""
        raise NotImplementedError


class _InMemory(_Source):
    def __init__(self, given: Any) -> None:
        self.what = "source"
        tensor = given if isinstance(given, torch.Tensor) else _tensor(array("source", given))
        if tensor.ndim != 2:
            raise OptionError(f"source has shape {tuple(tensor.shape)}; rows of numbers, [n, d], are needed")
        self._rows = tensor.detach().cpu()
        self.rows, self.width = self._rows.shape
        self.dtype = self._rows.dtype if self._rows.dtype in (torch.float16, torch.bfloat16) else torch.float32
        self.is_pinned = self.dtype == self._rows.dtype and self._rows.is_contiguous() and self._rows.is_pinned()

    def first_rows(self) -> torch.Tensor:
        return self._rows[:LOOKED_AT]

    def read(self, first: int, buffer: torch.Tensor) -> None:
        buffer.copy_(self._rows[first : first + len(buffer)])

    def slice(self, first: int, count: int) -> torch.Tensor:
        return self._rows[first : first + count]


class _IntoMemory(_Sink):
    def __init__(self, vectors: torch.Tensor, sigma2: torch.Tensor, dtype: torch.dtype) -> None:
        self.vectors, self.sigma2 = vectors, sigma2
        self.is_pinned = vectors.dtype == dtype and vectors.is_contiguous() and vectors.is_pinned()

    def write(self, first: int, vectors: torch.Tensor, sigma2: torch.Tensor) -> None:
        if not self.is_pinned or vectors.data_ptr() != self.slice(first, len(vectors)).data_ptr():
            self.slice(first, len(vectors)).copy_(vectors)
        self.sigma2[first : first + len(sigma2)].copy_(sigma2)

    def slice(self, first: int, count: int) -> torch.Tensor:
        return self.vectors[first : first + count]


class _OfNpy(_Source):
    """A ``.npy`` file: what is of its own type and order is read by the system's own calls, all else through a map of the file."""

    def __init__(self, path: Path) -> None:
        self.what = str(path)
        try:
            self._map = np.load(path, mmap_mode="r")
        except ValueError as error:
            raise CorruptError(f"{path}: it is no array of numbers ({error})") from error
        if self._map.ndim != 2:
            raise CorruptError(f"{path} has shape {self._map.shape}; rows of numbers, [n, d], are needed")
        self.rows, self.width = self._map.shape
        is_half = self._map.dtype == np.float16
        self.dtype = torch.float16 if is_half else torch.float32
        is_plain = self._map.dtype in (np.dtype("<f4"), np.dtype("<f2")) and self._map.flags.c_contiguous
        self._offset = self._map.offset if is_plain and hasattr(os, "preadv") else None
        self._file = open(path, "rb", buffering=0) if self._offset is not None else None

    def first_rows(self) -> Any:
        return np.array(self._map[:LOOKED_AT])

    def read(self, first: int, buffer: torch.Tensor) -> None:
        if self._file is None:
            rows = np.asarray(self._map[first : first + len(buffer)], dtype=buffer.numpy().dtype)
            buffer.copy_(torch.from_numpy(np.ascontiguousarray(rows)))
            return
        into = memoryview(buffer.numpy().reshape(-1).view(np.uint8))
        at = int(self._offset or 0) + first * self.width * buffer.element_size()
        while len(into):
            got = os.preadv(self._file.fileno(), [into], at)
            if got == 0:
                raise CorruptError(f"{self.what}: it ends before its header says")
            into, at = into[got:], at + got

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _IntoNpy:
    """Rows of a ``.npy`` file, at their places; its header is what ``numpy.save`` writes."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        import io

        header = io.BytesIO()
        kind = np.dtype(dtype)
        described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        self._row = int(np.prod(shape[1:], dtype=np.int64)) * kind.itemsize
        self._begin = len(header.getvalue())
        self._file = open(path, "wb", buffering=0)
        self._file.write(header.getvalue())
        self._file.truncate(self._begin + shape[0] * self._row)

    def write(self, first: int, rows: torch.Tensor) -> None:
        from_ = memoryview(rows.contiguous().numpy().reshape(-1).view(np.uint8))
        at = self._begin + first * self._row
        while len(from_):
            put = os.pwrite(self._file.fileno(), from_, at)
            from_, at = from_[put:], at + put

    def close(self, sync: bool) -> None:
        if sync:
            os.fsync(self._file.fileno())
        self._file.close()


class _IntoFiles(_Sink):
    def __init__(self, vectors: _IntoNpy | None, sigma2: _IntoNpy | None) -> None:
        self._vectors, self._sigma2 = vectors, sigma2

    def write(self, first: int, vectors: torch.Tensor, sigma2: torch.Tensor) -> None:
        if self._vectors is not None:
            self._vectors.write(first, vectors)
        if self._sigma2 is not None:
            self._sigma2.write(first, sigma2)


def _in_memory(pipe: _Pipe, given: Any, out: Any, sigma: Any, force: bool, show: Show) -> Transformed:
    source = _InMemory(given)
    _expect_width(pipe, source)
    if source.rows == 0:
        raise CorruptError("source has no rows")
    pipe.look(source.first_rows(), source.what, force)
    for name, target in (("out", out), ("sigma", sigma)):
        if isinstance(target, (str, os.PathLike)):
            raise OptionError(f"{name}: rows in memory go into an array; write a file with numpy.save, or give a file as the source")
    vectors = torch.empty((source.rows, pipe.d_new), dtype=pipe.dtype) if out is None else _tensor(out)
    sigma2 = torch.empty(source.rows) if sigma is None else _tensor(sigma)
    for name, target, shape in (("out", vectors, (source.rows, pipe.d_new)), ("sigma", sigma2, (source.rows,))):
        if tuple(target.shape) != shape:
            raise MismatchError(f"{name} has shape {tuple(target.shape)} where {shape} is needed")
    mean = pipe.run(source, _IntoMemory(vectors, sigma2, pipe.dtype), show) / source.rows
    return Transformed(source.rows, mean_variance=mean, vectors=_given_back(out, vectors), sigma2=_given_back(sigma, sigma2))


def _given_back(given: Any, made: torch.Tensor) -> Any:
    return made.numpy() if given is None else given


def _file(pipe: _Pipe, path: Path, out: Path, sigma: Path | None, force: bool, show: Show) -> tuple[int, float]:
    """One file into one file; gives rows and the mean of σ²."""
    if out.exists() and out.samefile(path):
        raise OptionError(f"out: {out} is the source")
    if path.suffix != out.suffix:
        raise OptionError(f"out: {out} is of another kind than the source, {path.suffix or 'without an extension'}")
    if path.suffix in (".parquet", ".pq"):
        return _parquet(pipe, path, out, sigma, force)
    if path.suffix != ".npy":
        raise OptionError(f"source: {path} is neither .npy nor .parquet; `rehang transform` reads more kinds of files")
    source = _OfNpy(path)
    try:
        _expect_width(pipe, source)
        if source.rows == 0:
            return 0, 0.0
        pipe.look(source.first_rows(), source.what, force)
        kind = np.float16 if pipe.dtype == torch.float16 else np.float32
        with _whole(out) as beside, _whole(sigma) as sigma_beside:
            into = _IntoNpy(beside, (source.rows, pipe.d_new), kind) if beside else None
            of_sigma = _IntoNpy(sigma_beside, (source.rows,), np.float32) if sigma_beside else None
            try:
                total = pipe.run(source, _IntoFiles(into, of_sigma), show)
            except BaseException:
                for file in (into, of_sigma):
                    if file is not None:
                        file.close(sync=False)
                raise
            for file in (into, of_sigma):
                if file is not None:
                    file.close(sync=True)
        return source.rows, total / source.rows
    finally:
        source.close()


def _parquet(pipe: _Pipe, path: Path, out: Path, sigma: Path | None, force: bool) -> tuple[int, float]:
    """Some batches at a time, which overlap among themselves; the file is read and written between them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    vectors_of = _column_of_vectors(file.schema_arrow, path)
    has_id = "id" in file.schema_arrow.names
    numbers = pa.float16() if pipe.dtype == torch.float16 else pa.float32()
    columns = [pa.field("id", file.schema_arrow.field("id").type, nullable=False)] if has_id else []
    columns.append(pa.field("vector", pa.list_(pa.field("element", numbers, nullable=False), pipe.d_new), nullable=False))
    columns.append(pa.field("sigma2", pa.float32(), nullable=False))
    rows, total, all_sigma2 = 0, 0.0, []
    if file.metadata.num_rows == 0:
        return 0, 0.0
    with _whole(out) as beside:
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pq.ParquetWriter(beside, pa.schema(columns), **options) as writer:
            for batch in file.iter_batches(pipe.batch * SLOTS, columns=["id", vectors_of] if has_id else [vectors_of]):
                source = _InMemory(array(str(path), batch.column(vectors_of)))
                source.what = str(path)
                _expect_width(pipe, source)
                if rows == 0:
                    pipe.look(source.first_rows(), source.what, force)
                made = torch.empty((source.rows, pipe.d_new), dtype=pipe.dtype)
                sigma2 = torch.empty(source.rows)
                total += pipe.run(source, _IntoMemory(made, sigma2, pipe.dtype), lambda *_: None)
                lists = pa.FixedSizeListArray.from_arrays(pa.array(made.numpy().reshape(-1)), type=columns[-2].type)
                arrays = [batch.column("id")] if has_id else []
                writer.write_batch(pa.record_batch([*arrays, lists, pa.array(sigma2.numpy())], schema=pa.schema(columns)))
                rows += source.rows
                all_sigma2.append(sigma2.numpy())
    if sigma is not None:
        with _whole(sigma) as beside, open(beside, "wb") as opened:
            np.save(opened, np.concatenate(all_sigma2))
    return rows, total / rows


def _column_of_vectors(schema: Any, path: Path) -> str:
    import pyarrow as pa

    def is_rows(kind: Any) -> bool:
        return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))

    names = [field.name for field in schema if is_rows(field.type)]
    if len(names) != 1:
        raise OptionError(f"{path}: one column of lists is needed, and it has {', '.join(names) or 'none'}")
    return str(names[0])


def _folder(pipe: _Pipe, path: Path, out: Any, sigma: Any, force: bool, show: Show) -> Transformed:
    to, sigma_to = _as_path("out", out), _optional_path("sigma", sigma)
    here, there = path.resolve(), to.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise OptionError(f"out: {to}; a folder apart from {path} is needed: neither may lie in the other")
    names = sorted(_partitions(path))
    if not names:
        raise CorruptError(f"{path} holds no partition: no .npy or .parquet file")
    by = hashlib.sha256(pipe.adapter.to_bytes()).hexdigest()
    rows, made, were_there, weighted = 0, 0, 0, 0.0
    for place, name in enumerate(names):
        source, target = path / name, to / name
        note = to / NOTES / f"{name}.json"
        sigma_file = None if sigma_to is None else (sigma_to / name).with_suffix(".npy")
        before = _stamp(source)

        def said(source_stamp: Any, target: Path = target, sigma_file: Path | None = sigma_file) -> dict[str, Any]:
            # Another field than that of `rehang transform`, which makes such a partition again rather than take it for its own.
            stamps = {"input": source_stamp, "output": _stamp(target), "sigma": _stamp(sigma_file)}
            return {"adapter": f"rehang.torch {by} {pipe.dtype}", "column": None, **stamps}

        if _stamp(target) is not None and _note(note) == said(before):
            were_there += 1
            continue
        for file in (target, note, sigma_file):
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
        count, mean = _file(pipe, source, target, sigma_file, force, lambda *_: None)
        if count == 0:
            continue
        with _whole(note) as beside:
            beside.write_text(json.dumps(said(before)))
        rows, made, weighted = rows + count, made + 1, weighted + mean * count
        show(place + 1, len(names), f"partition {place + 1} of {len(names)}")
    return Transformed(rows, made, were_there, weighted / max(rows, 1))


def _partitions(path: Path) -> Iterator[Path]:
    """Names that begin with ``_`` or ``.`` are passed over, but for folders as ``_day=1``."""
    for file in path.rglob("*"):
        name = file.relative_to(path)
        hidden = [part for part in name.parts if part.startswith((".", "_"))]
        is_seen = all(part.startswith("_") and "=" in part and part != name.name for part in hidden)
        if is_seen and file.suffix.lower() in (".npy", ".parquet", ".pq") and file.is_file():
            yield name


def _stamp(path: Path | None) -> dict[str, int] | None:
    try:
        state = os.stat(path) if path is not None else None
    except FileNotFoundError:
        return None
    return None if state is None else {"bytes": state.st_size, "written": state.st_mtime_ns}


def _note(path: Path) -> Any:
    """A note that cannot be read counts as missing."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _whole(path: Path | None) -> Iterator[Any]:
    """A name beside the file, which takes its place when all is written."""
    if path is None:
        yield None
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _as_path(name: str, given: Any) -> Path:
    if not isinstance(given, (str, os.PathLike)):
        raise OptionError(f"{name}: files become files, so a path is needed")
    return Path(given)


def _optional_path(name: str, given: Any) -> Path | None:
    return None if given is None else _as_path(name, given)


def _expect_width(pipe: _Pipe, source: _Source) -> None:
    if source.width != pipe.d_old:
        # In the words of the adapter.
        with contextlib.suppress(CorruptError):
            pipe.look(np.zeros((1, source.width), dtype=np.float32), source.what, force=True)
        raise MismatchError(f"{source.what}: it has {source.width} coordinates a row where {pipe.d_old} are needed")


def _outline(adapter: Adapter) -> dict[str, Any]:
    """What the adapter's file says of its map."""
    data = adapter.to_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    outline: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["map"])
    return outline


def _tensor(given: Any) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        return given
    if isinstance(given, np.ndarray) and not given.dtype.isnative:
        given = given.astype(given.dtype.newbyteorder("="))
    if isinstance(given, np.ndarray) and not given.flags.writeable:
        # PyTorch has no tensors that cannot be written; nothing here writes what it reads.
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.from_numpy(given)
    return torch.from_numpy(given)


def _numpy(rows: Any) -> Any:
    return rows.float().numpy() if isinstance(rows, torch.Tensor) else rows
