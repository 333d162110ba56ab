"""scikit-learn, Arrow, sentence-transformers, LangChain, LlamaIndex."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")


def test_an_estimator(pairs: Any, gallery: Any) -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from rehang.sklearn import Adapter

    old, new, labels = pairs
    estimator = Adapter(method="ridge", seed=3)
    assert clone(estimator).get_params() == {"method": "ridge", "distance": "l2", "seed": 3, "epochs": None}
    made = estimator.fit(old, new, labels=labels).transform(gallery[0])
    expected = rehang.fit(old, new, labels=labels, method="ridge", seed=3).transform(gallery[0])
    np.testing.assert_array_equal(made, expected)
    assert estimator.sigma(gallery[0]).shape == (len(gallery[0]),)
    assert list(estimator.get_feature_names_out())[:2] == ["new0", "new1"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).transform(gallery[0]), made)
    assert 0.3 < estimator.score(gallery[0], gallery[1]) < 1
    pipeline = make_pipeline(StandardScaler(), Adapter(method="ridge")).fit(old, new)
    assert pipeline.transform(gallery[0]).shape == gallery[1].shape
    search = GridSearchCV(Adapter(), {"method": ["procrustes", "ridge"]}, cv=2).fit(old, new)
    assert search.best_params_ == {"method": "ridge"}


def test_the_checks_of_scikit_learn_that_apply() -> None:
    pytest.importorskip("sklearn")
    from sklearn.utils.estimator_checks import check_estimator

    from rehang.sklearn import Adapter

    results = check_estimator(Adapter(method="ridge"), on_skip=None, on_fail=None)
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    assert len(passed) > 30
    # These fit it on one number a row, which is no vector.
    assert failed <= {"check_transformer_data_not_an_array", "check_transformer_general"}


def test_batches_of_arrow(pairs: Any, gallery: Any, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from rehang.arrow import Transform

    adapter = rehang.fit(pairs[0], pairs[1], method="ridge")
    adapter.save(tmp_path / "a.safetensors")
    old = np.ascontiguousarray(gallery[0], dtype=np.float32)
    expected, sigma2 = adapter.transform(old, return_sigma=True)
    column = pa.FixedSizeListArray.from_arrays(pa.array(old.reshape(-1)), old.shape[1])
    table = pa.table({"id": np.arange(len(old)), "vector": column})
    transform = Transform(tmp_path / "a.safetensors")
    for callable_ in (transform, pickle.loads(pickle.dumps(transform)), Transform(adapter)):
        made = callable_(table)
        assert made.column_names == ["id", "vector", "adapted", "sigma2"]
        rows = made["adapted"].combine_chunks().flatten().to_numpy().reshape(expected.shape)
        assert rows.tobytes() == expected.tobytes()
        assert made["sigma2"].to_numpy().tobytes() == sigma2.tobytes()
    streamed = pa.Table.from_batches(transform.stream(iter(table.to_batches(max_chunksize=100))))
    # Spark knows plain lists alone.
    assert streamed.schema.field("adapted").type == pa.list_(pa.float32())
    assert streamed.combine_chunks().cast(made.schema) == made.combine_chunks()
    assert transform.schema(table.schema) == made.schema
    lean = Transform(adapter, sigma=None, keep=False)(table)
    assert lean.column_names == ["id", "adapted"]
    with pytest.raises(KeyError, match="there are id, vector"):
        Transform(adapter, vectors="embedding")(table)


def test_a_bridged_model(pairs: Any) -> None:
    from rehang.sentence_transformers import Bridged

    adapter = rehang.fit(pairs[0], pairs[1], method="ridge")

    class Old:
        def encode(self, texts: list[str], scale: float = 1.0) -> np.ndarray:
            return scale * pairs[0][[int(text) for text in texts]]

    bridged = Bridged(Old(), adapter)
    expected = adapter.transform(pairs[0][:3])
    np.testing.assert_array_equal(bridged.encode(["0", "1", "2"]), expected)
    row, sigma2 = bridged.encode("1", return_sigma=True)
    np.testing.assert_array_equal(row, expected[1])
    assert sigma2 > 0 and bridged.get_sentence_embedding_dimension() == expected.shape[1]


def _old_vector(pairs: Any, text: str) -> list[float]:
    """The vector of a text by an old model that knows one pair by its number; what is asked for is another one than what is kept."""
    number = text.removeprefix("query ")
    return (pairs[0][int(number)] * (1.0 if number == text else 1.01)).tolist()


def test_embeddings_of_langchain(pairs: Any) -> None:
    embeddings = pytest.importorskip("langchain_core.embeddings")
    from langchain_core.vectorstores import InMemoryVectorStore

    from rehang.langchain import Bridged

    class Old(embeddings.Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [_old_vector(pairs, text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return _old_vector(pairs, f"query {text}")

    adapter = rehang.fit(pairs[0], pairs[1], method="ridge")
    bridged = Bridged(Old(), adapter)
    documents = adapter.transform(pairs[0][:20]).tolist()
    query = adapter.transform(1.01 * pairs[0][3:4], force=True)[0].tolist()
    texts = [str(number) for number in range(20)]
    assert bridged.embed_documents(texts) == documents and bridged.embed_documents([]) == []
    assert bridged.embed_query("3") == query
    assert asyncio.run(bridged.aembed_documents(texts)) == documents and asyncio.run(bridged.aembed_query("3")) == query
    store = InMemoryVectorStore(bridged)
    store.add_texts(texts)
    assert store.similarity_search("3", k=1)[0].page_content == "3"
    assert asyncio.run(store.asimilarity_search("4", k=1))[0].page_content == "4"


def test_an_embedding_model_of_llama_index(pairs: Any) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core import VectorStoreIndex
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.schema import TextNode

    from rehang.llama_index import Bridged

    class Old(BaseEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return _old_vector(pairs, text)

        def _get_query_embedding(self, query: str) -> list[float]:
            return _old_vector(pairs, f"query {query}")

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

    adapter = rehang.fit(pairs[0], pairs[1], method="ridge", new_model="large")
    bridged = Bridged(Old(), adapter, embed_batch_size=7)
    documents = adapter.transform(pairs[0][:20]).tolist()
    query = adapter.transform(1.01 * pairs[0][3:4], force=True)[0].tolist()
    texts = [str(number) for number in range(20)]
    assert bridged.model_name == "large" and bridged.get_text_embedding("2") == documents[2]
    assert bridged.get_text_embedding_batch(texts) == documents and bridged.get_query_embedding("3") == query
    assert asyncio.run(bridged.aget_text_embedding_batch(texts)) == documents
    assert asyncio.run(bridged.aget_text_embedding("2")) == documents[2] and asyncio.run(bridged.aget_query_embedding("3")) == query
    index = VectorStoreIndex([TextNode(text=text) for text in texts], embed_model=bridged)
    assert index.as_retriever(similarity_top_k=1).retrieve("3")[0].node.get_content() == "3"
