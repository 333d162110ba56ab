"""Items as people hold them: dictionaries, data frames, ids of NumPy and of other types."""

from __future__ import annotations

import math
import operator
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import OptionError

FIELDS = ("id", "source", "label", "payload")
"""What an item of an import may have."""


def records(items: Any) -> Iterator[dict[str, Any]]:
    """The items of an import, as JSON has them: of a list of dictionaries, or of a data frame of pandas, Polars or Arrow, row by row."""
    if hasattr(items, "to_pylist"):
        rows = items.to_pylist()
    elif hasattr(items, "to_dicts"):
        rows = items.to_dicts()
    elif hasattr(items, "to_dict") and hasattr(items, "columns"):
        rows = items.to_dict("records")
    else:
        rows = items
    if not isinstance(rows, Iterable):
        raise OptionError(f"items is {_said(rows)}; a list of dictionaries or a data frame is needed")
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise OptionError(
                f"items[{at}] is {_said(row)}; a dictionary is needed, {{'id': …, 'source': …}}, or a data frame with such columns"
            )
        yield record(row, at)


def record(row: Mapping[str, Any], at: int) -> dict[str, Any]:
    """One item of an import."""
    renamed = {("id" if name == "_id" and "id" not in row else name): value for name, value in row.items()}
    for name in renamed:
        if name not in FIELDS:
            raise OptionError(
                f"items[{at}] has {name!r}, which is none of {', '.join(FIELDS)}: rename it, leave it out, or put it into the payload"
            )
    if "id" not in renamed:
        raise OptionError(f"items[{at}] has no id")
    made: dict[str, Any] = {"id": id_text(renamed["id"], f"items[{at}]['id']")}
    source = renamed.get("source")
    if not is_missing(source):
        if not isinstance(source, str):
            raise OptionError(f"items[{at}]['source'] is {_said(source)}; a text is needed, or None where there is none")
        made["source"] = str(source)
    label = renamed.get("label")
    if not is_missing(label):
        # pandas keeps whole numbers beside missing ones as fractions.
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        made["label"] = id_text(label, f"items[{at}]['label']")
    payload = renamed.get("payload")
    if not is_missing(payload):
        made["payload"] = plain(payload, f"items[{at}]['payload']")
    return made


def id_text(value: Any, name: str) -> str:
    """An id, or a label, as text: of a text, a whole number of any type, or a UUID."""
    if isinstance(value, (str, uuid.UUID)):
        return str(value)
    # NumPy's truth values are no numbers for `operator.index`, Python's are.
    if not isinstance(value, bool):
        try:
            return str(operator.index(value))
        except TypeError:
            pass
    raise OptionError(f"{name} is {_said(value)}; a text, a whole number or a UUID is needed")


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: ``None``, NaN, and what pandas has in their place."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value))


def plain(value: Any, name: str) -> Any:
    """A payload as JSON has it: arrays as lists, NumPy's numbers as numbers, dates and UUIDs as texts, NaN as null."""
    if is_missing(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(inner, f"{name}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(inner, f"{name}[{at}]") for at, inner in enumerate(value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), name)
    if isinstance(value, float) and math.isinf(value):
        raise OptionError(f"{name} is {value}, which JSON does not have")
    if isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise OptionError(f"{name} is {_said(value)}; what JSON has is needed: texts, numbers, lists, dictionaries")


def _said(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({type(value).__name__})"
