"""The search of docs/qdrant.md by the client for Python, against a real server (REHANG_QDRANT_URL)."""

import os
import pathlib
import uuid

import numpy
import pytest

qdrant_client = pytest.importorskip("qdrant_client")


def test_the_search_of_the_page_heeds_tags_and_handicap() -> None:
    url = os.environ.get("REHANG_QDRANT_URL")
    if not url:
        pytest.skip("no server: REHANG_QDRANT_URL is not set")
    page = (pathlib.Path(__file__).parents[3] / "docs/qdrant.md").read_text()
    code = next(part.split("```")[0] for part in page.split("```python search.py") if "FormulaQuery" in part)
    name = f"test_{uuid.uuid4().hex}"
    names: dict[str, object] = {}
    exec(code.replace('"documents"', repr(name)), names)
    client = qdrant_client.QdrantClient(url=url)
    models = qdrant_client.models
    client.create_collection(name, vectors_config={"large": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    try:
        angles = numpy.arange(1, 41) / 60
        made_by = ["native" if at % 3 == 0 else "adapted" for at in range(40)]
        points = [
            models.PointStruct(
                id=at + 1,
                vector={"large": [float(numpy.cos(angle)), float(numpy.sin(angle))]},
                # One has no tag, and one is being written.
                payload={"rehang_tag": {"s2": {"p": "pending" if at == 1 else kind}}} | ({} if at == 0 else {"rehang": 7}),
            )
            for at, (angle, kind) in enumerate(zip(angles, made_by, strict=True))
        ]
        client.upsert(name, points, wait=True)
        found = names["search"](client, [1.0, 0.0], 5, 0.02)  # type: ignore[operator]
        scores = {at + 1: numpy.cos(angles[at]) - 0.02 * (made_by[at] == "adapted") for at in range(2, 40)}
        expected = sorted(scores, key=lambda one: -scores[one])[:5]
        assert [hit.id for hit in found] == expected
        assert numpy.allclose([hit.score for hit in found], [scores[one] for one in expected], atol=1e-5)
    finally:
        client.delete_collection(name)
