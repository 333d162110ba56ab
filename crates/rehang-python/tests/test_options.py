"""Every option that a signature declares is one that its verb reads: a value of no type that anything has is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang
from rehang._call import COLUMNS, MATRICES

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")

ROWS = np.eye(4, dtype=np.float32)
OF_PYTHON = MATRICES | COLUMNS | {"self", "adapter", "adapters", "encoder", "models", "policy", "progress", "return_sigma"}
"""What the Python package itself looks at, or makes an array of."""


def expect_read(verb: Callable[..., Any], *given: Any, **also: Any) -> None:
    """Gives each option of the verb a value of no type, one after the other."""
    names = [name for name in inspect.signature(verb).parameters if name not in OF_PYTHON]
    for name in names:
        with pytest.raises((TypeError, rehang.OptionError)):
            verb(*given, **{**also, name: object()})
            pytest.fail(f"{verb.__qualname__} never reads {name}")


def test_the_verbs_on_vectors_read_their_options() -> None:
    adapter = rehang.fit(ROWS, ROWS, method="do-nothing", compare=False)
    expect_read(rehang.fit, ROWS, ROWS)
    expect_read(adapter.transform, ROWS)
    expect_read(rehang.order, "random", adapted=ROWS)
    expect_read(rehang.curve, ROWS, ROWS, np.arange(4))
    expect_read(rehang.report, adapter, ROWS, ROWS)
    expect_read(rehang.identify, ROWS, {"m": ROWS})


@pytest.fixture
def upgrade(tmp_path: Path) -> Iterator[rehang.Upgrade]:
    items = [{"id": str(row), "source": str(row)} for row in range(4)]
    rehang.import_items(tmp_path / "g.db", ROWS, items, space="old")
    rehang.init(tmp_path / "g.db", tmp_path / "rehang.toml", new_name="new", new_dimension=4)
    yield rehang.Upgrade(tmp_path / "rehang.toml")


def test_the_verbs_of_an_upgrade_read_their_options(upgrade: rehang.Upgrade) -> None:
    for embeds in (upgrade.auto, upgrade.pairs, upgrade.run):
        expect_read(embeds, encoder=len)
    for verb in (upgrade.fit, upgrade.identify, upgrade.plan, upgrade.switch, upgrade.status, upgrade.resume):
        expect_read(verb)


def test_importing_and_beginning_read_their_options(tmp_path: Path) -> None:
    expect_read(rehang.import_items, tmp_path / "g.db", ROWS, tmp_path / "items.jsonl", space="old")
    expect_read(rehang.init, tmp_path / "g.db", tmp_path / "rehang.toml")
