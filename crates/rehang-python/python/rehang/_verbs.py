"""The verbs on vectors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from . import _rehang
from ._arrays import matrix
from ._call import Bar, core_of, options, warn

if TYPE_CHECKING:
    import torch

Path = str | os.PathLike[str]
Vectors = Any
"""Rows of numbers, ``[n, d]``: an array of NumPy, PyTorch or Arrow, or the path of a file (``"gallery.parquet#embedding"``)."""
Values = Any
"""One value a row, ``[n]``: whole numbers, numbers or texts, or the path of a file."""
Distance = Literal["l2", "cosine", "dot"]


@dataclass(frozen=True)
class Space:
    """What vectors live in: a model, a dimension, a distance, and whether every vector has length 1."""

    model: str
    dimension: int
    distance: str
    normalised: bool


class Adapter:
    """The map h from old vectors to the new space, with σ² for every item: the expected squared error of its adapted vector.

    Made by :func:`fit` and :func:`load`. It may be pickled, copied and shared between threads.

    Attributes
    ----------
    answer : dict or None
        What was found while it was fitted, as ``rehang fit --json`` prints it: how the methods compared on pairs that were held
        out, how good σ² is. ``None`` for an adapter that was read from a file.
    """

    __slots__ = ("_about", "_core", "answer")

    def __init__(self, core: _rehang.Adapter, answer: dict[str, Any] | None = None) -> None:
        self._core = core
        self._about: dict[str, Any] = json.loads(core.about())
        self.answer = answer

    @property
    def method(self) -> str:
        """The method that it was fitted by; of ``auto``, the one that was chosen."""
        return str(self._about["training"]["method"])

    @property
    def old(self) -> Space:
        """The space of the vectors that go in."""
        return Space(**self._about["old"])

    @property
    def new(self) -> Space:
        """The space of the new model."""
        return Space(**self._about["new"])

    @property
    def handicap(self) -> float:
        """What searches add to the distance of every adapted vector, in the unit of the new space's distance."""
        return float(self._about["handicap"])

    @property
    def side_dimension(self) -> int | None:
        """Coordinates of the side information that it reads; ``None`` where it reads none."""
        width = self._about["side_dimension"]
        return None if width is None else int(width)

    @property
    def training(self) -> dict[str, Any]:
        """How it was made: seed, number of pairs, hyper-parameters, fingerprints of its inputs."""
        return dict(self._about["training"])

    @overload
    def transform(
        self,
        vectors: Vectors,
        *,
        side: Vectors | None = ...,
        return_sigma: Literal[False] = ...,
        force: bool = ...,
        batch: int | None = ...,
        progress: bool | None = ...,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def transform(
        self,
        vectors: Vectors,
        *,
        side: Vectors | None = ...,
        return_sigma: Literal[True],
        force: bool = ...,
        batch: int | None = ...,
        progress: bool | None = ...,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...

    def transform(
        self,
        vectors: Vectors,
        *,
        side: Vectors | None = None,
        return_sigma: bool = False,
        force: bool = False,
        batch: int | None = None,
        progress: bool | None = None,
    ) -> npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Turn old vectors into vectors of the new space.

        The numbers are those of ``rehang transform``, to the bit. The input is read a batch at a time: of one that is mapped from a
        file, or that is not of type ``float32``, there is never a copy as a whole.

        Parameters
        ----------
        vectors : array or path, ``[n, d_old]``
            Old vectors. Zero vectors are legal where the old space is raw.
        side : array or path, ``[n, d_side]``, optional
            Side information, for adapters that were fitted with some.
        return_sigma : bool
            Give σ² too.
        force : bool
            Go on although the vectors do not look like those that the adapter was fitted on.
        batch : int, optional
            Rows that are transformed at once.
        progress : bool, optional
            Show a bar by ``tqdm``; by default where a person looks and ``tqdm`` is there.

        Returns
        -------
        adapted : ``float32``, ``[n, d_new]``
        sigma2 : ``float32``, ``[n]``
            The expected squared error of every row, above 0. Only with ``return_sigma``.

        Raises
        ------
        MismatchError
            Rows of another width; another number of rows of ``side``.
        CorruptError
            A number that is NaN or infinite, a vector of another length than 1 in a normalised space, no rows at all. The row is named.
        """
        given_options = options(locals())
        with Bar(progress) as bar:
            adapted, sigma2, _, findings = _rehang.transform(self._core, given_options, bar.show)
        warn(findings)
        return (adapted, sigma2) if return_sigma else adapted

    def save(self, path: Path) -> None:
        """Write the adapter to a safetensors file, the same bytes as ``rehang fit -o`` does.

        The file appears whole or not at all.
        """
        self._core.save(os.fspath(path))

    def to_bytes(self) -> bytes:
        """The bytes of the adapter's file."""
        return self._core.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Adapter:
        """The adapter of the bytes of a file."""
        return cls(_rehang.Adapter.from_bytes(data))

    def to_onnx(self, path: Path | None = None) -> bytes:
        """The adapter as an ONNX model, written to a file where a path is given: the bytes of ``rehang export``.

        Its inputs are ``old``, ``[batch, d_old]``, and ``side`` where the adapter reads some; its outputs ``vector``, ``[batch, d_new]``, and
        ``sigma2``, ``[batch]``. Its metadata says the handicap and the spaces. ONNX Runtime gives the vectors of :meth:`transform` within
        1e-5 of their largest coordinate, and σ² within 1e-5 of itself. What :meth:`transform` refuses (NaN, rows of another length than 1 in a normalised space) is for the caller to notice.
        """
        data = self._core.to_onnx()
        if path is not None:
            with open(path, "wb") as file:
                file.write(data)
        return data

    def to_torch(self) -> torch.nn.Module:
        """The adapter as a module of PyTorch, for any device: ``module(old)`` gives ``(vector, sigma2)``.

        It does what :meth:`to_onnx` writes, operator by operator, and is as near. Side information is its second argument. A device that
        has no double precision, as those of Apple, takes single for it, and kernel ridge and σ² are less exact.
        """
        from ._torch import Module

        return Module(self._core)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.to_bytes(), self.answer)

    def __repr__(self) -> str:
        pairs = self._about["training"]["pairs"]
        return f"<rehang.Adapter {self.method}: {_said(self.old)} → {_said(self.new)}, {pairs} pairs>"


def _restored(data: bytes, answer: dict[str, Any] | None) -> Adapter:
    return Adapter(_rehang.Adapter.from_bytes(data), answer)


def _said(space: Space) -> str:
    return f"{space.model} ({space.dimension})"


def fit(
    old: Vectors,
    new: Vectors,
    *,
    labels: Values | None = None,
    method: str = "auto",
    distance: Distance = "l2",
    old_distance: Distance | None = None,
    seed: int = 0,
    side: Vectors | None = None,
    old_model: str = "old",
    new_model: str = "new",
    old_ids: Values | None = None,
    new_ids: Values | None = None,
    keep_common: bool = False,
    rows: str | None = None,
    queries_old: Vectors | None = None,
    queries_new: Vectors | None = None,
    qrels: Path | None = None,
    ids: Values | None = None,
    query_ids: Values | None = None,
    head_weight: Vectors | None = None,
    head_bias: Values | None = None,
    head_kind: str | None = None,
    metric: str | None = None,
    compare: bool = True,
    within: str | None = None,
    epochs: int | None = None,
    early_stop: int | None = None,
    seeds: int | None = None,
    checkpoints: Path | None = None,
    networks: bool = False,
    loss: Literal["l2", "disc", "both"] | None = None,
    squared: Literal["mean", "sum", "variance", "cosine"] | None = None,
    uncertainty: Literal["out-of-fold", "joint", "off"] | None = None,
    label_smoothing: float | None = None,
    uncertainty_weights: tuple[float, float] | None = None,
    evaluation_old: Vectors | None = None,
    precision: Literal["f32", "f16"] = "f32",
    progress: bool | None = None,
) -> Adapter:
    """Learn the map from old to new vectors, and how far to trust it, from pairs.

    Pairs are held out, every method is fitted on the others and compared with doing nothing, and the best one is kept. The same pairs
    and seed give the same adapter, to the bit, as ``rehang fit`` does from files.

    Parameters
    ----------
    old, new : array or path, ``[n, d_old]`` and ``[n, d_new]``
        The two vectors of each pair: row i of both is one item.
    labels : array or path, ``[n]``, optional
        Classes, whole numbers or names; negative means unknown.
    method : str
        ``auto``, ``do-nothing``, ``procrustes``, ``ridge``, ``low-rank``, ``kernel-ridge``, ``per-kind``, ``residual-mlp``, ``fct``,
        ``fastfill`` or ``fastfill-reference``. ``per-kind`` needs old vectors of two kinds.
    distance, old_distance : str
        How the new space is searched, and the old one where that differs: ``l2``, ``cosine`` or ``dot``.
    seed : int
        Seed of everything random.
    side : array or path, ``[n, d_side]``, optional
        Side information: vectors of another model that you also keep for the whole gallery.
    old_model, new_model : str
        Names, as they shall stand in the adapter and in reports. In a live upgrade they are those of the spaces.
    old_ids, new_ids : array or path, ``[n]``, optional
        Ids: rows are joined by these and not by position. With ``keep_common``, items that one side lacks are left out.
    rows : str, optional
        ``"FILE=VALUES"``: only rows where that file of whole numbers has one of the values.
    queries_old, queries_new : array or path, optional
        Queries as people ask them, by both models; methods are compared by them. ``qrels`` (a file), ``ids`` and ``query_ids`` say
        which items are right for which.
    head_weight, head_bias, head_kind : optional
        The new model's classifier head, ``[classes, d_new]`` and ``[classes]``.
    metric : str, optional
        What methods are compared by.
    compare : bool
        Compare the named method with the others on held-out pairs, which takes most of the time. Without, it is fitted alone.
    within : str, optional
        Keep the best map of those that can be tried within this time, such as ``"60s"``, closed forms first. Another run may try others.
    epochs, early_stop, seeds, checkpoints, networks, loss, squared, uncertainty, label_smoothing, uncertainty_weights : optional
        How networks are trained; as the options of ``rehang fit``.
    evaluation_old : array or path, optional
        Old vectors of evaluation items, which must not be among the pairs.
    precision : str
        ``f16`` rounds the adapter's matrices to half precision, which halves its file; a warning says what that changes where it is much.
    progress : bool, optional
        Show a bar by ``tqdm``; by default where a person looks and ``tqdm`` is there.

    Returns
    -------
    Adapter
        Its ``answer`` has the table of the comparison.

    Raises
    ------
    MismatchError
        Another number of rows; pairs that seem to be swapped.
    CorruptError
        A number that is NaN or infinite, no rows at all.
    OptionError
        An unknown method, or parameters that do not go together.

    Warns
    -----
    FindingWarning
        What the reader should know of the pairs before relying on the map.
    """
    given_options = options(locals())
    with Bar(progress) as bar:
        core, answer, findings = _rehang.fit(given_options, bar.show)
    warn(findings)
    return Adapter(core, json.loads(answer))


def load(path: Path) -> Adapter:
    """Read an adapter that was written by :meth:`Adapter.save` or ``rehang fit``.

    Raises
    ------
    FileError
        There is no such file, or it cannot be read.
    CorruptError
        It is damaged, or no adapter.
    """
    return Adapter(_rehang.Adapter.load(os.fspath(path)))


def order(
    policy: str = "coverage",
    *,
    adapter: Adapter | Path | None = None,
    adapted: Vectors | None = None,
    sigma: Values | None = None,
    new: Vectors | None = None,
    old_ids: Values | None = None,
    new_ids: Values | None = None,
    keep_common: bool = False,
    head_weight: Vectors | None = None,
    head_bias: Values | None = None,
    head_kind: str | None = None,
    seed: int = 0,
) -> npt.NDArray[np.int64]:
    """Say in which order the items of a gallery should be re-embedded.

    Parameters
    ----------
    policy : str
        ``coverage`` (take that one), ``sigma``, ``random``, ``entropy``, ``oracle``, …; ``rehang order --help`` has all of them. An
        unknown one is an error that lists them.
    adapter : Adapter or path, optional
        Its own head serves the coverage order.
    adapted : array or path, ``[n, d_new]``, optional
        Adapted vectors. They or ``sigma`` are needed: they say how many items there are.
    sigma : array or path, ``[n]``, optional
        σ² of every item.
    new : array or path, ``[n, d_new]``, optional
        New vectors, for the oracle only.
    seed : int
        Seed of the random order.

    Returns
    -------
    ``int64``, ``[n]``
        A permutation: the first entry is re-embedded first.

    Raises
    ------
    OptionError
        An unknown policy; what the policy needs and was not given.
    """
    given_options = options(locals())
    permutation, findings = _rehang.order(policy, given_options)
    warn(findings)
    return permutation


class Curve:
    """An exact backfilling curve: what every percent of re-embedding buys.

    Every attribute is a dictionary by metric (``map``, ``top1``, ``top5``, …; ``agreement@k`` where there were no right answers), and
    every value is in percent.

    Attributes
    ----------
    start, end : dict
        With no item re-embedded, and with all of them.
    min, area : dict
        The worst point on the way, and the mean over all fractions (M̃ of the papers).
    do_nothing : dict or None
        What old queries find in the old gallery; ``None`` where that was not measured.
    answer : dict
        Everything, as ``rehang curve --json`` prints it.
    """

    def __init__(self, answer: dict[str, Any], lines: list[_rehang.Line]) -> None:
        self.answer = answer
        self._lines = {metric: values for metric, values, _ in lines}
        numbers = {metric: of for metric, _, of in lines}
        self.start = {metric: of[0] for metric, of in numbers.items()}
        self.end = {metric: of[1] for metric, of in numbers.items()}
        self.min = {metric: of[2] for metric, of in numbers.items()}
        self.area = {metric: of[3] for metric, of in numbers.items()}
        self.do_nothing: dict[str, float] | None = answer.get("do_nothing")

    @property
    def metrics(self) -> list[str]:
        """The metrics that were measured."""
        return list(self._lines)

    @property
    def fractions(self) -> npt.NDArray[np.float64]:
        """The share of items that are native at each point, ``[n + 1]``, from 0 to 1."""
        return np.linspace(0.0, 1.0, int(self.answer["n"]) + 1)

    def points(self, metric: str) -> npt.NDArray[np.float64]:
        """The exact value after each single item, ``[n + 1]``, in percent."""
        return self._lines[metric]

    def to_pandas(self) -> Any:
        """A table: the fraction as index, a column a metric."""
        import pandas

        index = pandas.Index(self.fractions, name="fraction")
        return pandas.DataFrame({metric: self._lines[metric] for metric in self._lines}, index=index)

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Draw the curve of a metric by ``matplotlib``, beside the line of doing nothing; gives the axes."""
        from matplotlib import pyplot

        metric = metric or next((name for name in ("map", "top1") if name in self._lines), self.metrics[0])
        if ax is None:
            _, ax = pyplot.subplots()
        ax.plot(100 * self.fractions, self.points(metric), label=metric)
        if self.do_nothing is not None and metric in self.do_nothing:
            ax.axhline(self.do_nothing[metric], linestyle="--", color="grey", label="do nothing")
        ax.set_xlabel("items re-embedded (percent)")
        ax.set_ylabel(f"{metric} (percent)")
        ax.legend()
        return ax

    def __repr__(self) -> str:
        said = ", ".join(f"{metric} {self.area[metric]:.1f}" for metric in self._lines)
        return f"<rehang.Curve of {self.answer['n']} items; area: {said}>"


def curve(
    new: Vectors,
    adapted: Vectors,
    order: Values,
    *,
    labels: Values | None = None,
    queries: Vectors | None = None,
    query_labels: Values | None = None,
    queries_old: Vectors | None = None,
    qrels: Path | None = None,
    ids: Values | None = None,
    query_ids: Values | None = None,
    groups: Values | None = None,
    k: int = 10,
    old: Vectors | None = None,
    adapter: Adapter | Path | None = None,
    sigma: Values | None = None,
    distance: Distance | None = None,
    old_distance: Distance | None = None,
    handicap: float | None = None,
    old_ids: Values | None = None,
    new_ids: Values | None = None,
    keep_common: bool = False,
    rows: str | None = None,
    grid: int | None = None,
    bootstrap: int = 1000,
    progress: bool | None = None,
) -> Curve:
    """Compute the exact backfilling curve of a gallery: its quality after every single item that is re-embedded.

    Parameters
    ----------
    new, adapted : array or path, ``[n, d_new]``
        The native and the adapted vector of every item.
    order : array or path, ``[n]``
        The order of re-embedding: :func:`order` makes one.
    labels : array or path, ``[n]``, optional
        Classes: an item of the query's class is a right answer. Without right answers, the curve is how much of the fully native
        gallery's answers is given (``agreement@k``).
    queries, query_labels, queries_old : optional
        Separate queries by the new model, their classes, and the same queries by the old model. Without, every item asks for the
        others.
    qrels, ids, query_ids : optional
        Judgements in place of labels: a file of BEIR or TREC, with the ids of items and queries.
    groups : array or path, ``[queries]``, optional
        A group of every query, for the gap between groups.
    k : int
        Cut-off of ``map@k``, ``ndcg@k``, ``recall@k`` and ``agreement@k``.
    old : array or path, ``[n, d_old]``, optional
        Old vectors, for the line of doing nothing.
    adapter : Adapter or path, optional
        The adapter that made the adapted vectors: its handicap and distances are used.
    sigma : array or path, ``[n]``, optional
        σ² of every item: adds how good it is.
    distance, old_distance, handicap : optional
        Those of the adapter by default, or else ``l2`` and 0.
    grid : int, optional
        Equally spaced points whose values stand in ``answer``.
    bootstrap : int
        Samples of the queries for 95 % intervals of the areas, in ``answer["area_interval"]``; 0 for none.

    Returns
    -------
    Curve

    Raises
    ------
    MismatchError
        Things that go row by row and have different numbers of rows, or other widths.
    CorruptError
        A number that is NaN or infinite; an order that is no permutation.
    """
    given_options = options(locals())
    with Bar(progress) as bar:
        answer, lines, findings = _rehang.curve(given_options, bar.show)
    warn(findings)
    return Curve(json.loads(answer), lines)


class Report:
    """What upgrades would buy: adapters, orders, curves, the verdict. A notebook shows it; :meth:`save` writes it."""

    def __init__(self, core: _rehang.Report) -> None:
        self._core = core

    @property
    def data(self) -> dict[str, Any]:
        """Everything in it, as ``rehang report -o report.json`` writes it."""
        data: dict[str, Any] = json.loads(self._core.json())
        return data

    def to_html(self) -> str:
        """One page that opens offline."""
        return self._core.html()

    def save(self, path: Path) -> None:
        """Write it as ``.html``, ``.md`` or ``.json``. A report in JSON is the forecast of a live upgrade."""
        self._core.save(os.fspath(path))

    def _repr_html_(self) -> str:
        page = self.to_html().replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" width="100%" height="800" style="border:0"></iframe>'


def identify(
    vectors: Vectors,
    models: Mapping[str, Vectors] | None = None,
    *,
    new: Vectors | None = None,
    old_ids: Values | None = None,
    new_ids: Values | None = None,
    keep_common: bool = False,
    rows: str | None = None,
    seed: int = 0,
    output: Path | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Say which model made which vectors: one, a mixture of several, or none of those given.

    Parameters
    ----------
    vectors : array or path, ``[n, d]``
        Vectors of unknown origin.
    models : dict of array or path by name, optional
        What models that may have made them give for the same items. Cut, scaled and rounded vectors are told too.
    new : array or path, optional
        In their place, vectors of one model whose origin is known: old vectors of two kinds are then seen by their neighbours. With neither,
        two models that were trained apart are seen by the axes of their vectors.
    old_ids, new_ids : optional
        Ids of the vectors, and of the models' vectors; ``keep_common`` leaves out what one side lacks.
    output : path, optional
        A list to write of the vectors that are not as most are.

    Returns
    -------
    dict
        As ``rehang identify --json`` prints it: ``origin`` is ``one-model``, ``mixed``, ``near``, ``unknown`` or ``no-sign``; with ``others``,
        the rows (of those that were joined) that are not as most are, each with what it is.

    Raises
    ------
    MismatchError, CorruptError, OptionError
        As :func:`curve`.
    """
    given_options = options({name: value for name, value in locals().items() if name != "models"})
    named = [(name, matrix(name, rows_of)) for name, rows_of in (models or {}).items()]
    with Bar(progress) as bar:
        about, others, findings = _rehang.identify(named, given_options, bar.show)
    warn(findings)
    result: dict[str, Any] = json.loads(about)
    result["others"] = others
    return result


def report(
    adapters: Mapping[str, Adapter | Path] | Adapter,
    old: Vectors,
    new: Vectors,
    *,
    labels: Values | None = None,
    queries: Vectors | None = None,
    query_labels: Values | None = None,
    queries_old: Vectors | None = None,
    qrels: Path | None = None,
    ids: Values | None = None,
    query_ids: Values | None = None,
    groups: Values | None = None,
    k: int = 10,
    orders: Sequence[str] | None = None,
    random_orders: int | None = None,
    side: Vectors | None = None,
    gallery: Vectors | None = None,
    gallery_labels: Values | None = None,
    gallery_ids: Values | None = None,
    pairs_old: Vectors | None = None,
    head_weight: Vectors | None = None,
    head_bias: Values | None = None,
    head_kind: str | None = None,
    old_ids: Values | None = None,
    new_ids: Values | None = None,
    keep_common: bool = False,
    rows: str | None = None,
    seed: int = 0,
    bootstrap: int = 1000,
    widths: Sequence[int] | None = None,
    precisions: Sequence[str] | None = None,
    title: str | None = None,
    force: bool = False,
    progress: bool | None = None,
) -> Report:
    """Compare adapters and orders on a gallery whose new vectors are known.

    Parameters
    ----------
    adapters : dict of Adapter or path by name, or one Adapter
        What is compared. None of them may have been fitted on the gallery: the report says where one was.
    old, new : array or path, ``[n, d_old]`` and ``[n, d_new]``
        Both vectors of every item of the gallery.
    orders : list of str, optional
        ``coverage``, ``sigma``, ``random`` and ``oracle`` by default; the first that is not the oracle carries the verdict.
    gallery : array or path, optional, ``[N, d_old]``
        Old vectors of the whole gallery that ``old`` is a random sample of: the report then forecasts that gallery, with
        intervals. Items of ``old`` are found in it by their vectors.
    gallery_labels, gallery_ids : array or path, optional
        Class labels of the whole gallery (``labels`` is then not needed), and ids of its items for ``qrels``.
    pairs_old : array or path, optional
        Old vectors of the pairs: gallery items among them are counted.
    widths, precisions : list of int, list of str, optional
        What new vectors cut to so many coordinates, and kept as ``f32``, ``f16`` or ``i8``, are worth and take.

    The other parameters are those of :func:`curve` and :func:`fit`.

    Returns
    -------
    Report

    Raises
    ------
    MismatchError, CorruptError, OptionError
        As :func:`curve`.
    """
    given_options = options(locals())
    if isinstance(adapters, Adapter):
        adapters = {adapters.method: adapters}
    named = [(name, core_of(adapter)) for name, adapter in adapters.items()]
    with Bar(progress) as bar:
        core, findings = _rehang.report(named, given_options, bar.show)
    warn(findings)
    return Report(core)

