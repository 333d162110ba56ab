"""What a compatible model is worth, from models and a dataset: the numbers of ``rehang-lab evaluate``, by the same code.

Each function gives what its verb prints with ``--json``; laboratory/docs/evaluation.md has every formula. Needs ``rehang``, PyTorch, and the
program ``rehang-lab`` on the path, or where ``REHANG_LAB`` says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rehang._arrays import array, column, matrix
from rehang.errors import Error, OptionError

Model = Any
"""A module that makes vectors of a batch of inputs; or vectors ``[n, d]`` that are made already, as an array or the path of a file."""


def embed(
    model: Any,
    data: Any,
    *,
    device: Any = None,
    dtype: torch.dtype = torch.float32,
    batch: int = 256,
    workers: int = 0,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | None]:
    """Vectors of every item of a dataset or a loader, in its order, and their labels where it has any.

    The model is put into evaluation mode for it, and back.

    Parameters
    ----------
    model : callable
        Gets a batch of inputs on the device, gives ``[B, d]``.
    data : Dataset or DataLoader
        Of inputs, or of ``(input, label, …)``.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    loader = data
    if not isinstance(data, torch.utils.data.DataLoader) and hasattr(data, "__getitem__"):
        loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=workers, pin_memory=device.type == "cuda")
    was_training = getattr(model, "training", False)
    if isinstance(model, torch.nn.Module):
        model.to(device).eval()
    vectors: list[Any] = []
    labels: list[Any] = []
    try:
        with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            for given in loader:
                inputs, *beside = given if isinstance(given, (list, tuple)) else (given,)
                vectors.append(model(inputs.to(device, non_blocking=True)).float().cpu())
                if beside:
                    labels.append(torch.as_tensor(beside[0]).cpu())
    finally:
        if was_training:
            model.train()
    if not vectors:
        raise OptionError("data: it gives no batch")
    rows = np.ascontiguousarray(torch.cat(vectors).numpy())
    return rows, np.asarray(torch.cat(labels).numpy()).astype(np.int64) if labels else None


def cross(
    models: Mapping[str, Model],
    data: Any = None,
    *,
    queries: Any = None,
    labels: Any = None,
    query_labels: Any = None,
    best: str | None = None,
    distance: str = "l2",
    k: int = 10,
    **embedding: Any,
) -> dict[str, Any]:
    """The cross matrix M(query model, gallery model) of every metric; for every older and newer model the criterion, Γ, the absolute gain, Δ↑ and Δ↓.

    Parameters
    ----------
    models : dict
        By name, oldest first; all make vectors of the same ``data``, or are vectors of the same items.
    data : Dataset or DataLoader, optional
        The gallery; labels come from it unless ``labels`` are given. Each item is also a query, which leaves itself out.
    queries : Dataset, DataLoader or dict of vectors by model, optional
        Queries of their own.
    best : str, optional
        The model that was trained without regard for the old one, for Γ and Δ↓.
    embedding
        Options of :func:`embed`.
    """
    with _Files(models, data, labels, queries, query_labels, embedding) as files:
        options = [*files.options(distance), "-k", str(k), *(["--best", best] if best else [])]
        return _evaluate("cross", *options)


def refresh(
    models: Mapping[str, Model],
    orders: Mapping[str, Any],
    data: Any = None,
    *,
    queries: Any = None,
    labels: Any = None,
    query_labels: Any = None,
    distance: str = "l2",
    k: int = 10,
    **embedding: Any,
) -> dict[str, Any]:
    """A hot refresh from the first model to the second, in every order: mAP, mAP@k and the negative flip rates along the way (RACT).

    ``orders`` are permutations ``[n]`` by name, such as :func:`rehang.torch.refresh_order` makes. All else as :func:`cross`.
    """
    with _Files(models, data, labels, queries, query_labels, embedding) as files:
        named = [f"{name}={files.write(f'order-{place}', column('order', order))}" for place, (name, order) in enumerate(orders.items())]
        return _evaluate("refresh", *files.options(distance), "-k", str(k), "--orders", *named)


def sequence(
    models: Mapping[str, Model],
    data: Any = None,
    *,
    backfilled: Sequence[float],
    queries: Any = None,
    labels: Any = None,
    query_labels: Any = None,
    distance: str = "l2",
    **embedding: Any,
) -> dict[str, Any]:
    """Several upgrades in a row: a gallery that is never backfilled beside one of which ``backfilled`` is at each step (RACT §5.4, DMU table 6)."""
    with _Files(models, data, labels, queries, query_labels, embedding) as files:
        return _evaluate("sequence", *files.options(distance), "--backfilled", *map(str, backfilled))


def verification(models: Mapping[str, Model], data: Any = None, *, metadata: Any, pairs: Any, **embedding: Any) -> dict[str, Any]:
    """1:1 verification, TAR@FAR of template pairs, the first template by one model and the second by another (BCT §3.1, §3.3).

    ``metadata`` and ``pairs`` are files of a face set's lists (laboratory/docs/formats.md, "Face and landmark lists").
    """
    with _Files(models, data, (), None, None, embedding) as files:
        lists = ["--metadata", os.fspath(metadata), "--pairs", os.fspath(pairs)]
        return _evaluate("verification", "--models", *files.models, *lists)


def identification(
    models: Mapping[str, Model], data: Any = None, *, metadata: Any, gallery: Sequence[Any], probes: Any, **embedding: Any
) -> dict[str, Any]:
    """1:N search, TPIR@FPIR and rank-k, probes by one model and enrolled templates by another (BCT §3.1, §3.3)."""
    with _Files(models, data, (), None, None, embedding) as files:
        lists = ["--metadata", os.fspath(metadata), "--gallery", *map(os.fspath, gallery), "--probes", os.fspath(probes)]
        return _evaluate("identification", "--models", *files.models, *lists)


def landmarks(
    models: Mapping[str, Model],
    data: Any = None,
    *,
    queries: Any,
    ids: Any = None,
    query_ids: Any = None,
    solution: Any = None,
    ground_truth: Any = None,
    distance: str = "cosine",
    **embedding: Any,
) -> dict[str, Any]:
    """Landmark retrieval: mAP@100 of Google Landmarks v2 (``solution``, with the ids of both sides), or revisited Oxford and Paris (``ground_truth``)."""
    with _Files(models, data, (), queries, (), embedding) as files:
        lists = ["--solution", os.fspath(solution)] if solution is not None else []
        lists += ["--ground-truth", os.fspath(ground_truth)] if ground_truth is not None else []
        for name, values in (("ids", ids), ("query_ids", query_ids)):
            if values is not None:
                lists += [f"--{name.replace('_', '-')}", files.write(name, column(name, values))]
        return _evaluate("landmarks", "--models", *files.models, "--queries", *files.queries, "--distance", distance, *lists)


class _Files:
    """Vectors and labels as files of a folder that goes away again."""

    def __init__(self, models: Mapping[str, Model], data: Any, labels: Any, queries: Any, query_labels: Any, embedding: dict[str, Any]) -> None:
        if not models:
            raise OptionError("models: at least one is needed")
        self._folder = tempfile.TemporaryDirectory(prefix="rehang-")
        try:
            self._made: list[str] = []
            self.models, of_data = self._vectors("gallery", models, data, embedding)
            self.queries: list[str] = []
            of_queries = None
            if queries is not None:
                if isinstance(queries, Mapping):
                    self.queries, of_queries = self._vectors("queries", queries, None, embedding)
                else:
                    self.queries, of_queries = self._vectors("queries", models, queries, embedding)
            self._labels = self._column("labels", of_data if labels is None else labels)
            self._query_labels = self._column("query_labels", of_queries if query_labels is None else query_labels)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def write(self, name: str, values: Any) -> str:
        """An array as a file; a path stays what it is."""
        if isinstance(values, str):
            return os.path.abspath(values)
        path = Path(self._folder.name) / f"{name}.npy"
        np.save(path, values)
        return str(path)

    def options(self, distance: str) -> list[str]:
        """What every verb on labelled vectors is told."""
        if self._labels is None:
            raise OptionError("labels: they are needed, or a dataset that has them")
        options = ["--models", *self.models, "--labels", self._labels, "--distance", distance]
        if self.queries:
            if self._query_labels is None:
                raise OptionError("query_labels: they are needed, or queries that have them")
            options += ["--queries", *self.queries, "--query-labels", self._query_labels]
        return options

    def _vectors(self, what: str, models: Mapping[str, Model], data: Any, embedding: dict[str, Any]) -> tuple[list[str], Any]:
        named, labels = [], None
        for place, (name, model) in enumerate(models.items()):
            if "=" in name:
                raise OptionError(f"models: the name {name!r} holds an equals sign")
            if callable(model):
                if data is None:
                    raise OptionError(f"data: the model {name!r} needs a dataset")
                rows, found = embed(model, data, **embedding)
                labels = found if labels is None else labels
                named.append(f"{name}={self.write(f'{what}-{place}', rows)}")
            else:
                named.append(f"{name}={self.write(f'{what}-{place}', matrix(f'models[{name!r}]', model))}")
        return named, labels

    def _column(self, name: str, values: Any) -> str | None:
        if values is None or isinstance(values, tuple):
            return None
        return self.write(name, values if isinstance(values, str) else array(name, values))


def _evaluate(verb: str, *options: str) -> dict[str, Any]:
    """Calls the laboratory's command line."""
    program = os.environ.get("REHANG_LAB") or shutil.which("rehang-lab")
    if program is None:
        raise Error("rehang-lab is not on the path: build it with `cargo build --release -p rehang-lab`, and name it in REHANG_LAB")
    line = [program, "--json", "evaluate", verb, *options]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    # 1 says that a criterion is not met; the answer is there all the same.
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise Error((done.stderr.strip() or done.stdout.strip()).removeprefix("error: ")) from None
    return answer
