"""Replace the embedding model behind a live vector gallery.

>>> import numpy as np, rehang
>>> rng = np.random.default_rng(0)
>>> old = rng.normal(size=(400, 8)).astype("float32")
>>> new = old @ rng.normal(size=(8, 12)).astype("float32")
>>> adapter = rehang.fit(old, new, method="ridge")
>>> adapted, sigma2 = adapter.transform(old, return_sigma=True)
>>> adapted.shape, sigma2.shape
((400, 12), (400,))

Wherever an argument is an array, it may also be the path of a file (``"gallery.parquet#embedding"``); arrays may be of NumPy, of
PyTorch on the processor or of Arrow, of any number type and any strides, and mapped from a file.
"""

from __future__ import annotations

from . import errors
from ._live import Gallery, Hit, Upgrade, import_items, init
from ._rehang import __version__
from ._verbs import Adapter, Curve, Report, Space, curve, fit, identify, load, order, report
from .errors import (
    BudgetSpentError,
    CancelledError,
    ConflictError,
    CorruptError,
    Error,
    FileError,
    FindingWarning,
    MismatchError,
    MissingFeatureError,
    NotFoundError,
    OptionError,
    UnauthorisedError,
    UnavailableError,
)

__all__ = [
    "Adapter",
    "BudgetSpentError",
    "CancelledError",
    "ConflictError",
    "CorruptError",
    "Curve",
    "Error",
    "FileError",
    "FindingWarning",
    "Gallery",
    "Hit",
    "MismatchError",
    "MissingFeatureError",
    "NotFoundError",
    "OptionError",
    "Report",
    "Space",
    "UnauthorisedError",
    "UnavailableError",
    "Upgrade",
    "__version__",
    "curve",
    "errors",
    "fit",
    "identify",
    "import_items",
    "init",
    "load",
    "order",
    "report",
]
