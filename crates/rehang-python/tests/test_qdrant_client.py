"""The searches of docs/qdrant.md by the clients for Python and TypeScript, against a real server (REHANG_QDRANT_URL). REHANG_NODE_MODULES: a folder where `npm install @qdrant/js-client-rest` was run."""

import json
import os
import pathlib
import subprocess
import uuid
from collections.abc import Callable, Iterator

import numpy
import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs/qdrant.md"
HANDICAP, LIMIT = 0.02, 5
ANGLES = numpy.arange(1, 41) / 60
MADE_BY = ["native" if at % 3 == 0 else "adapted" for at in range(40)]
MAIN = """
import { QdrantClient } from "@qdrant/js-client-rest";
import { search } from "./search.js";
const client = new QdrantClient({ url: process.argv[2] });
const found = await search(client, [1, 0], Number(process.argv[3]), Number(process.argv[4]));
console.log(JSON.stringify(found.map((hit) => [hit.id, hit.score])));
"""


def code(language: str, collection: str) -> str:
    parts = PAGE.read_text().split(f"```{language}\n")
    return next(part.split("```")[0] for part in parts[1:] if "$score" in part).replace('"documents"', json.dumps(collection))


@pytest.fixture
def server() -> Iterator[tuple[str, str]]:
    """A collection with tags as a mixed stage has them, and the address of its server."""
    qdrant_client = pytest.importorskip("qdrant_client")
    url = os.environ.get("REHANG_QDRANT_URL")
    if not url:
        pytest.skip("no server: REHANG_QDRANT_URL is not set")
    name = f"test_{uuid.uuid4().hex}"
    client, models = qdrant_client.QdrantClient(url=url), qdrant_client.models
    client.create_collection(name, vectors_config={"large": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    points = [
        models.PointStruct(
            id=at + 1,
            vector={"large": [float(numpy.cos(angle)), float(numpy.sin(angle))]},
            # One has no tag, and one is being written.
            payload={"rehang_tag": {"s2": {"p": "pending" if at == 1 else kind}}} | ({} if at == 0 else {"rehang": 7}),
        )
        for at, (angle, kind) in enumerate(zip(ANGLES, MADE_BY, strict=True))
    ]
    try:
        client.upsert(name, points, wait=True)
        yield url, name
    finally:
        client.delete_collection(name)


def by_python(url: str, name: str, _: pathlib.Path) -> list[tuple[int, float]]:
    import qdrant_client

    names: dict[str, Callable[..., list[qdrant_client.models.ScoredPoint]]] = {}
    exec(code("python search.py", name), names)
    found = names["search"](qdrant_client.QdrantClient(url=url), [1.0, 0.0], LIMIT, HANDICAP)
    return [(int(hit.id), hit.score) for hit in found]


def by_typescript(url: str, name: str, folder: pathlib.Path) -> list[tuple[int, float]]:
    modules = os.environ.get("REHANG_NODE_MODULES")
    if not modules:
        pytest.skip("no client: REHANG_NODE_MODULES is not set")
    (folder / "node_modules").symlink_to(pathlib.Path(modules, "node_modules").resolve())
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "search.ts").write_text(code("typescript search.ts", name))
    (folder / "main.js").write_text(MAIN)
    compiler = ["node", "node_modules/typescript/bin/tsc", "--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck", "search.ts"]
    subprocess.run(compiler, cwd=folder, check=True)
    found = subprocess.run(["node", "main.js", url, str(LIMIT), str(HANDICAP)], cwd=folder, check=True, capture_output=True, text=True)
    return [(one, score) for one, score in json.loads(found.stdout)]


@pytest.mark.parametrize("search", [by_python, by_typescript])
def test_the_search_of_the_page_heeds_tags_and_handicap(
    search: Callable[[str, str, pathlib.Path], list[tuple[int, float]]], server: tuple[str, str], tmp_path: pathlib.Path
) -> None:
    found = search(*server, tmp_path)
    scores = {at + 1: numpy.cos(ANGLES[at]) - HANDICAP * (MADE_BY[at] == "adapted") for at in range(2, 40)}
    expected = sorted(scores, key=lambda one: -scores[one])[:LIMIT]
    assert [one for one, _ in found] == expected
    assert numpy.allclose([score for _, score in found], [scores[one] for one in expected], atol=1e-5)
