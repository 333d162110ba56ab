"""Live upgrades, and the galleries that they are of."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _rehang
from ._arrays import matrix
from ._call import Bar, options, warn
from ._items import id_text, plain, records
from ._verbs import Distance, Path, Report, Vectors
from .errors import Error

Encode = Callable[[list[str]], Any]
"""Embeds sources: gets a list of them, gives rows of numbers, ``[n, d]``, in their order. A row of NaN says that its item has failed."""


class Hit(NamedTuple):
    """An item that a search found."""

    id: str
    """Its id."""
    distance: float
    """Its distance to the query: smaller is nearer."""
    provenance: str
    """Who made the vector that was found: ``old``, ``adapted`` or ``native``."""
    source: str | None = None
    """Its source, where the queries were texts."""


def _hits(results: list[list[dict[str, Any]]]) -> list[list[Hit]]:
    return [
        [Hit(hit["id"], hit["distance"], hit["provenance"], hit.get("source")) for hit in hits] for hits in results
    ]


class Gallery:
    """A live gallery under an application's searches and writes, right at every stage of an upgrade.

    It may be shared between threads and kept as long as a process lives. A process that forks opens one of its own.

    Examples
    --------
    >>> gallery = rehang.Gallery.open("rehang.toml")  # doctest: +SKIP
    >>> hits = gallery.search(queries, k=10)  # doctest: +SKIP
    """

    def __init__(self, core: _rehang.Upgrade) -> None:
        self._core = core

    @classmethod
    def open(cls, config: Path = "rehang.toml") -> Gallery:
        """Open the gallery that a configuration names: SQLite, PostgreSQL or Qdrant.

        Raises
        ------
        FileError, NotFoundError, CorruptError, UnavailableError
            What is wrong with the configuration or the gallery.
        """
        return cls(_rehang.Upgrade.open(os.fspath(config)))

    @property
    def serving(self) -> str | None:
        """The name of the space that searches go to now."""
        spaces = json.loads(self._core.spaces())
        return None if spaces["serving"] is None else str(spaces["serving"])

    def search(
        self,
        queries: Vectors | Mapping[str, Vectors] | Sequence[str] | str,
        k: int = 10,
        *,
        labels: Sequence[str] | None = None,
        payload: Mapping[str, Any] | None = None,
        space: str | None = None,
        old_queries: Vectors | None = None,
        encoders: Mapping[str, Encode] | None = None,
        normalise: bool = False,
    ) -> list[list[Hit]]:
        """Find the ``k`` nearest items of every query, in what serves now.

        Parameters
        ----------
        queries : dict of arrays by space, or array ``[n, d]``, or list of texts
            The safest is a dictionary, ``{"old-model": a, "new-model": b}``: the same queries by every model that the application has.
            The ones that the gallery serves are used, so the same call stays right before, during and after an upgrade. An array
            is taken for the model that serves: name it by ``space``, so that a switch is noticed. Texts are embedded by the
            configuration's encoders, or by ``encoders``.
        k : int
            Neighbours of each query.
        labels : list of str, optional
            Only items with one of these labels.
        payload : dict, optional
            Only items whose payload has these fields with these values.
        space : str, optional
            Fail unless this space serves.
        old_queries : array, optional
            The same queries by the old model, where an upgrade serves fused searches or a bridge is in use.
        encoders : dict of callables by space, optional
            What embeds texts, for each model.
        normalise : bool
            Scale what ``encoders`` give to length 1.

        Returns
        -------
        list of list of Hit
            The nearest first.

        Raises
        ------
        OptionError
            The queries of the model that serves are not among those given.
        MismatchError
            Queries of another width.
        ConflictError
            Another space serves than ``space``.
        """
        if isinstance(queries, str):
            queries = [queries]
        asked: Any
        if isinstance(queries, Mapping):
            asked = {name: matrix(name, rows) for name, rows in queries.items()}
        elif isinstance(queries, Sequence) and all(isinstance(query, str) for query in queries):
            asked = list(queries)
        else:
            asked = matrix("queries", queries)
        given_options = {
            "k": k,
            "labels": None if labels is None else list(labels),
            "payload": None if payload is None else json.dumps(payload),
            "space": space,
            "old_queries": matrix("old_queries", old_queries),
            "encoders": None if encoders is None else dict(encoders),
            "normalise": normalise,
        }
        return _hits(json.loads(self._core.search(asked, given_options))["results"])

    def put(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Write items, new or changed.

        As long as an upgrade is under way, an item that comes with an old vector only gets an adapted one in the same transaction, so
        that no search misses it.

        Parameters
        ----------
        items : list of dict
            ``id``, and what changes of ``source``, ``label``, ``payload`` and ``vectors`` (by the name of the space). Every put is a change
            of the content: vectors that are not given belong to the content before, and are removed.

        Returns
        -------
        list of dict
            ``id``, ``revision`` and ``removed_from`` of every item.
        """
        puts = []
        for at, item in enumerate(items):
            put = dict(item)
            if "id" in put:
                put["id"] = id_text(put["id"], f"items[{at}]['id']")
            if put.get("payload") is not None:
                put["payload"] = json.dumps(plain(put["payload"], f"items[{at}]['payload']"))
            if put.get("vectors") is not None:
                put["vectors"] = {space: _row(space, vector) for space, vector in put["vectors"].items()}
            puts.append(put)
        done: list[dict[str, Any]] = json.loads(self._core.put(puts))
        return done

    def delete(self, ids: Sequence[Any]) -> dict[str, Any]:
        """Delete items; gives how many there were, and the ids that were missing."""
        texts = [id_text(value, f"ids[{at}]") for at, value in enumerate(ids)]
        done: dict[str, Any] = json.loads(self._core.delete(texts))
        return done

    def contents(self) -> dict[str, Any]:
        """What the gallery holds: its items, and its spaces with what is old, adapted and native in each."""
        found: dict[str, Any] = json.loads(self._core.contents())
        return found


def import_items(
    gallery: Path,
    vectors: Vectors,
    items: Path | Sequence[Mapping[str, Any]] | Any,
    *,
    space: str,
    distance: Distance = "l2",
    progress: bool | None = None,
) -> dict[str, Any]:
    """Put vectors and their items into a gallery file (SQLite), which is made where there is none: ``rehang gallery import``.

    Parameters
    ----------
    gallery : path
        The gallery. A new one appears whole or not at all.
    vectors : array or path, ``[n, d]``
        The vectors, one row an item. Where a Parquet file has ids beside them, they have to be those of the items, row by row.
    items : list of dict, data frame, or the path of a file with one JSON object a line
        ``id`` (a text, a whole number or a UUID), and where they are there ``source`` (what can be embedded again: a text, a path, a URL),
        ``label`` and ``payload``. A data frame of pandas, Polars or Arrow has them as columns; NaN is what is not there.
    space : str
        The name of the model that made the vectors.
    distance : str
        How the space is searched, as ``distance`` of :func:`fit`.

    Returns
    -------
    dict
        As ``rehang gallery import --json``.

    Raises
    ------
    OptionError, CorruptError, MismatchError, ConflictError
        What is wrong with the items, the vectors or the gallery. Nothing is written then.
    """
    given_options = options({"space": space, "distance": distance, "vectors": vectors})
    with Bar(progress) as bar:
        if isinstance(items, (str, os.PathLike)):
            done = _rehang.import_items(os.fspath(gallery), os.fspath(items), given_options, bar.show)
        else:
            with tempfile.TemporaryDirectory() as folder:
                lines = os.path.join(folder, "items.jsonl")
                with open(lines, "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(item) + "\n" for item in records(items))
                try:
                    done = _rehang.import_items(os.fspath(gallery), lines, given_options, bar.show)
                except Error as error:
                    # The reader gave no such file.
                    error.args = (str(error).replace(lines, "items"),)
                    raise
    imported: dict[str, Any] = json.loads(done)
    return imported


def init(
    gallery: Path,
    path: Path = "rehang.toml",
    *,
    adapter: Path | None = None,
    forecast: Path | None = None,
    new_name: str | None = None,
    new_dimension: int | None = None,
    new_model_dimension: int | None = None,
    new_distance: Distance | None = None,
) -> dict[str, Any]:
    """Write a first configuration of an upgrade of a gallery file, with a comment on every part: ``rehang init``.

    What is in it is what the gallery and the adapter say of themselves. A file that is there is never replaced. A gallery in a table
    of PostgreSQL or a collection of Qdrant gets its configuration by ``rehang init`` on the command line.

    With ``new_model_dimension=3072, new_dimension=512`` vectors of a model that gives 3,072 coordinates are cut to the first 512, scaled to
    length 1. With ``new_model_dimension=1024, new_dimension=1536`` zeros follow, as in columns of one width for all models; no distance changes
    by them.

    Returns
    -------
    dict
        ``path``, and the ``old`` and ``new`` space.
    """
    given_options = options(locals())
    made: dict[str, Any] = json.loads(_rehang.init(os.fspath(gallery), os.fspath(path), given_options))
    return made


def _row(space: str, vector: Any) -> list[float]:
    import numpy as np

    row = np.asarray(vector, dtype=np.float32)
    if row.ndim != 1:
        from .errors import OptionError

        raise OptionError(f"the vector of space {space!r} has shape {row.shape}; one row, [d], is needed")
    return [float(value) for value in row]


class Upgrade:
    """The live upgrade of a configuration: every verb of ``rehang upgrade`` as a call, with the same result as its ``--json``.

    Everything is kept in the gallery, so any process may die at any instruction, and the same call goes on. The first Ctrl-C ends a
    call at the next place where that loses nothing, a second one at once.

    Examples
    --------
    >>> upgrade = rehang.Upgrade("rehang.toml")  # doctest: +SKIP
    >>> upgrade.pairs(encoder=model.encode)  # doctest: +SKIP
    >>> upgrade.fit(); upgrade.start(); upgrade.switch()  # doctest: +SKIP
    >>> upgrade.run(encoder=model.encode, until=0.3)  # doctest: +SKIP
    """

    def __init__(self, config: Path = "rehang.toml") -> None:
        self._core = _rehang.Upgrade.open(os.fspath(config))

    @property
    def gallery(self) -> Gallery:
        """The gallery of the upgrade."""
        return Gallery(self._core)

    def _verb(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        with Bar(arguments.get("progress")) as bar:
            done, findings = self._core.verb(name, options(arguments), bar.show)
        warn(findings, stacklevel=4)
        result: dict[str, Any] = json.loads(done)
        return result

    def auto(
        self,
        *,
        encoder: Encode | None = None,
        yes: bool = False,
        plain: bool = False,
        mapped: bool = False,
        method: str | None = None,
        within: str | None = None,
        items: int | None = None,
        worth: float | None = None,
        queries: Path | None = None,
        clicks: Path | None = None,
        budget: int | None = None,
        rate: float | None = None,
        until: float | str | None = None,
        fused: bool = False,
        switch_if: str | None = None,
        order_for: str | None = None,
        no_refit: bool = False,
        normalise: bool = False,
        batch: int | None = None,
        fingerprint: str | None = None,
        progress: bool | None = None,
    ) -> dict[str, Any]:
        """Go the whole way from where the upgrade is: pairs, fit, report, plan, and with ``yes`` start, switch and backfill.

        Where re-embedding everything takes ten minutes at most, or with ``plain``, nothing is mapped: everything is embedded, then searches
        switch. ``mapped`` maps first in any case.

        Nothing that searches see changes without ``yes``. It never finishes. Parameters are those of the single verbs; ``order_for`` is a metric that the
        order of the backfill is chosen for, as :meth:`order` does.
        """
        return self._verb("auto", locals())

    def pairs(
        self,
        *,
        encoder: Encode | None = None,
        items: int | None = None,
        worth: float | None = None,
        folder: Path | None = None,
        queries: Path | None = None,
        clicks: Path | None = None,
        budget: int | None = None,
        rate: float | None = None,
        normalise: bool = False,
        batch: int | None = None,
        fingerprint: str | None = None,
        progress: bool | None = None,
    ) -> dict[str, Any]:
        """Embed a random sample of the gallery with the new model: the pairs that the map is learned from.

        Parameters
        ----------
        encoder : callable, optional
            Gets a list of sources, gives rows ``[n, d]``. By default the ``[encoder]`` of the configuration. It is called from other
            threads, one call after the other or several at once.
        items : int, optional
            Items of the sample, at most (2000): it begins with 250 and is doubled.
        worth : float, optional
            Points that one more doubling has to be expected to bring.
        folder : path, optional
            Write the pairs there too.
        queries : path, optional
            A file of queries as people ask them, one JSON object a line: ``{"text": "…"}`` or ``{"image": "FILE"}``, with an ``"id"`` where
            ``clicks`` names it.
        clicks : path, optional
            What people took from the answers: CSV with the columns ``query``, ``item`` and ``weight`` or ``position``, or JSON lines with
            these fields. Choice and forecast then go by nDCG@10 of that. Without ``queries``, its queries are texts.
        budget, rate : optional
            Items embedded at most, and items a second at most.
        normalise : bool
            Scale what the callable gives to length 1.
        batch : int, optional
            Sources that the callable gets at once (64).
        fingerprint : str, optional
            What the callable's vectors depend on, as a text: two callables with the same text give the same vectors. Without it some
            items are embedded again and compared, where a run goes on.
        """
        return self._verb("pairs", locals())

    def fit(
        self, method: str | None = None, *, within: str | None = None, out: Path | None = None, progress: bool | None = None
    ) -> dict[str, Any]:
        """Learn the adapter from the pairs that were drawn, but for those held out; the best that can be tried ``within`` a time such as ``"60s"``.

        The gallery keeps it; ``out`` is a file that it is written to as well.
        """
        return self._verb("fit", locals())

    def order(self, metric: str | None = None, *, progress: bool | None = None) -> dict[str, Any] | None:
        """Choose which items are re-embedded first, for a metric such as ``"top1"``: by what held-out pairs find in each order.

        The answer has the area under each order's curve on known and on left-out classes, and in ``rows[kept]`` the order that the next :meth:`start`
        follows; None where there are too few pairs. The configuration's ``[order] policy`` has to be ``"auto"``, as :func:`init` writes it.
        """
        return self._verb("order", locals())

    def bridge(self, *, off: bool = False, progress: bool | None = None) -> dict[str, Any]:
        """Let new queries search the old gallery as it is, over a bridge learned from the pairs that were drawn: nothing is written.

        ``"bridge"`` in the answer is None where held-out pairs do not prove that it finds more. From then on, searches with queries of
        both models use it. ``off`` takes it away; so do a switch and a rollback.
        """
        return self._verb("bridge", locals())

    def first(self, log: Path, *, progress: bool | None = None) -> dict[str, Any]:
        """Re-embed first what people search: a log of the ids that searches returned, one a line, as often as they were returned.

        Items go to the front of the queue by how often they were returned, times their σ²; the answer counts those ``placed``, and those that were ``native``,
        came ``before`` them already, were ``changed`` meanwhile, or are ``unknown``.
        """
        return self._verb("first", locals())

    def report(
        self, *, queries: Path | None = None, clicks: Path | None = None, progress: bool | None = None
    ) -> Report:
        """Measure the adapter on the pairs that were held out: the forecast of the upgrade.

        ``queries`` and ``clicks``, as in :meth:`pairs`, ask it anew: what was embedded before costs nothing.
        """
        with Bar(progress) as bar:
            core, findings = self._core.report(options({"queries": queries, "clicks": clicks}), bar.show)
        warn(findings)
        return Report(core)

    def thresholds(self, floors: Sequence[float] = (), *, progress: bool | None = None) -> dict[str, Any]:
        """Carry floors of searches, such as a similarity of 0.3, over to the new model.

        Every one of ``rows`` says for a floor of ``today`` how many ``answers`` of a query it lets through, and the floors that let as many through at the
        switch (``adapted``) and when all is ``native``: ``floor`` with its range ``low`` to ``high``, and which part of today's answers is ``changed``. A stage
        is None where too few answers pass to say. Floors are in the measure of the old space, such as cosine similarities; without any, usual ones.
        """
        return self._verb("thresholds", locals())

    def plan(self, *, probe: int | None = None) -> dict[str, Any]:
        """Say what the upgrade would do, how long it takes, what it costs. Changes nothing; ``probe`` items are embedded to measure
        the encoder of the configuration."""
        return self._verb("plan", locals())

    def identify(
        self,
        *,
        space: str | None = None,
        items: int | None = None,
        output: Path | None = None,
        progress: bool | None = None,
    ) -> dict[str, Any]:
        """Say whose vectors a space of the gallery holds (the one that serves): random items are embedded again by each encoder of the
        configuration, and compared; with ``items=0`` none is asked, and the vectors are looked at alone."""
        return self._verb("identify", locals())

    def start(self, *, plain: bool = False, progress: bool | None = None) -> dict[str, Any]:
        """Fill the new space with adapted vectors; with ``plain``, make it alone, for :meth:`run` to embed everything. Searches do not change."""
        return self._verb("start", locals())

    def switch(self, *, fused: bool = False, mixed: bool = False, anyway: bool = False) -> dict[str, Any]:
        """Move searches to the new space, in one step.

        With ``fused``, every search needs its query by both models; with ``mixed``, all go by the new model's queries alone. With neither,
        those that come with both are fused where the fit has proven that it finds more.

        Raises
        ------
        ConflictError
            The forecast says that searches would get worse, or the search index is not ready; ``anyway`` switches all the same.
        """
        return self._verb("switch", locals())

    def run(
        self,
        *,
        encoder: Encode | None = None,
        until: float | str | None = None,
        budget: int | None = None,
        rate: float | None = None,
        workers: int | None = None,
        batch: int | None = None,
        no_refit: bool = False,
        follow: bool = False,
        normalise: bool = False,
        fingerprint: str | None = None,
        progress: bool | None = None,
    ) -> dict[str, Any]:
        """Re-embed items, worst first. Any number of processes may run at once.

        Parameters
        ----------
        encoder : callable, optional
            As in :meth:`pairs`.
        until : float or str, optional
            The share of native items to stop at, from 0 to 1; or ``"98% of new"``: where the forecast says that this much of the new
            model's quality is reached, by the cautious end of its range; or ``"worth 0.01/$"`` or ``"worth 0.5/h"``: where a further unit
            of money, or an hour, is forecast to bring less than so many points.
        budget : int, optional
            Items that this run makes native, at most.
        rate : float, optional
            Items a second, at most, by all processes at work together.
        workers : int, optional
            Batches that are embedded at the same time.
        no_refit : bool, optional
            Keep the map as it is, instead of asking at 10 % and 40 % native whether fitting it again pays.
        follow : bool, optional
            Stay when nothing is left: adapt whatever comes within a second, and embed it as the limits allow. Of several followers one
            adapts, the others stand by. Ctrl-C ends it in order.
        """
        return self._verb("run", locals())

    def refit(self, *, progress: bool | None = None) -> dict[str, Any]:
        """Ask whether fitting the map again, on all that is native by now, pays; where it does, make all adapted vectors anew."""
        return self._verb("refit", locals())

    def status(self, *, failures: int | None = None) -> dict[str, Any]:
        """Say how it stands; lists at most so many items that failed (20)."""
        return self._verb("status", locals())

    def pause(self) -> dict[str, Any]:
        """Ask all workers to wait."""
        return self._verb("pause", locals())

    def stop(self) -> dict[str, Any]:
        """Ask all workers to end."""
        return self._verb("stop", locals())

    def resume(self, *, retry_failed: bool = False, re_embed: bool = False) -> dict[str, Any]:
        """Let backfills go on; try failed items again, or put native vectors back, so that they are embedded again."""
        return self._verb("resume", locals())

    def rollback(self) -> dict[str, Any]:
        """Move searches back to the old space, in one step. Nothing that was embedded is lost."""
        return self._verb("rollback", locals())

    def finish(self, *, anyway: bool = False, progress: bool | None = None) -> dict[str, Any]:
        """Drop the old space for good. There is no way back; :meth:`run` goes on after it.

        Raises
        ------
        ConflictError
            Items with a source are not native yet, or have nothing but an old vector; ``anyway`` finishes all the same.
        """
        return self._verb("finish", locals())
