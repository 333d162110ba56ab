"""What every call shares: options that were given, progress, findings."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._arrays import column, matrix
from .errors import FindingWarning

Show = Callable[[str, str, str, int, int], None]

QUIET_FOR = 1.0
"""Seconds within which work that is done shows no bar at all."""


MATRICES = frozenset(
    "adapted evaluation_old head_weight new old old_queries pairs_old queries queries_new queries_old side vectors".split()
)
"""Arguments that are rows of numbers, wherever they stand."""
COLUMNS = frozenset("groups head_bias ids labels new_ids old_ids order query_ids query_labels sigma".split())
"""Arguments that are one value a row."""


def options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that were given, which are ``locals()`` at its beginning, as the core takes them."""
    given = {}
    for name, value in arguments.items():
        if value is None or name in ("self", "progress"):
            continue
        if name in MATRICES:
            value = matrix(name, value)
        elif name in COLUMNS:
            value = column(name, value)
        elif name == "adapter":
            value = core_of(value)
        given[name] = value
    return given


def core_of(adapter: Any) -> Any:
    """The core's adapter, or a path."""
    return adapter._core if hasattr(adapter, "_core") else os.fspath(adapter)


def warn(findings: Iterable[tuple[str, str]], stacklevel: int = 3) -> None:
    """Says what the reader of a result should know; mere notes are left out."""
    for severity, sentence in findings:
        if severity != "note":
            warnings.warn(f"{severity}: {sentence}", FindingWarning, stacklevel=stacklevel)


class Bar:
    """Progress by ``tqdm``, where that is there and somebody looks."""

    def __init__(self, wanted: bool | None) -> None:
        self._began = time.monotonic()
        self._stage: str | None = None
        self._bar: Any = None
        self._tqdm: Any = None
        if wanted is False or (wanted is None and not _is_watched()):
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self._tqdm = tqdm

    @property
    def show(self) -> Show | None:
        """What the work calls; ``None`` where nothing is to be shown."""
        return self._show if self._tqdm is not None else None

    def _show(self, stage: str, unit: str, note: str, done: int, total: int) -> None:
        if time.monotonic() - self._began < QUIET_FOR:
            return
        if stage != self._stage or (self._bar is not None and done < self._bar.n):
            self.close()
            self._stage = stage
            self._bar = self._tqdm(desc=stage, unit=f" {unit}", total=total or None, leave=False)
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_watched() -> bool:
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
