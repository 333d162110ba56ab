"""An embedding model of LlamaIndex, the old one, heard in the new space."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from ._verbs import Adapter


class Bridged(BaseEmbedding):
    """An embedding model whose vectors lie in the new space: the old one's, adapted.

    They are estimates: where the new model itself can embed, let it.

    Parameters
    ----------
    embed_model : BaseEmbedding
        The old model.
    adapter : Adapter
        From its space to the new one.
    options
        Those of every embedding model of LlamaIndex, such as ``embed_batch_size``.
    """

    _embed_model: BaseEmbedding = PrivateAttr()
    _adapter: Adapter = PrivateAttr()

    def __init__(self, embed_model: BaseEmbedding, adapter: Adapter, **options: Any) -> None:
        super().__init__(**{"model_name": adapter.new.model, **options})
        self._embed_model = embed_model
        self._adapter = adapter

    @classmethod
    def class_name(cls) -> str:
        """Its name in what LlamaIndex writes down."""
        return "rehang.Bridged"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._adapted([self._embed_model.get_query_embedding(query)])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._adapted([await self._embed_model.aget_query_embedding(query)])[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._adapted(self._embed_model.get_text_embedding_batch(texts))

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._adapted(await self._embed_model.aget_text_embedding_batch(texts))

    def _adapted(self, rows: list[list[float]]) -> list[list[float]]:
        return self._adapter.transform(rows, force=True, progress=False).tolist() if rows else []
