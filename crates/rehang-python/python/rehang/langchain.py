"""Embeddings of LangChain by the old model, heard in the new space."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from ._verbs import Adapter


class Bridged(Embeddings):
    """Embeddings whose vectors lie in the new space: the old model's, adapted.

    They are estimates: where the new model itself can embed, let it.

    Parameters
    ----------
    embeddings : Embeddings
        The old model.
    adapter : Adapter
        From its space to the new one.
    """

    def __init__(self, embeddings: Embeddings, adapter: Adapter) -> None:
        self.embeddings = embeddings
        self.adapter = adapter

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One row a text."""
        return self._adapted(self.embeddings.embed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        """One row."""
        return self._adapted([self.embeddings.embed_query(text)])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """One row a text."""
        return self._adapted(await self.embeddings.aembed_documents(texts))

    async def aembed_query(self, text: str) -> list[float]:
        """One row."""
        return self._adapted([await self.embeddings.aembed_query(text)])[0]

    def _adapted(self, rows: list[list[float]]) -> list[list[float]]:
        return self.adapter.transform(rows, force=True, progress=False).tolist() if rows else []
