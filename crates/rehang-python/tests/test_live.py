"""Live upgrades from Python: SQLite, a Python encoder, searches at every stage."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rehang

pytestmark = pytest.mark.filterwarnings("ignore::rehang.FindingWarning")


class Model:
    """The new model of the demo's images: knows every item's vector by its source."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.calls: list[int] = []

    def encode(self, sources: Sequence[str]) -> np.ndarray:
        self.calls.append(len(sources))
        return self.rows[[int(source.removeprefix("image ")) for source in sources]]


@pytest.fixture
def config(demo: dict[str, np.ndarray], tmp_path: Path) -> Path:
    """A gallery of 1,797 items, and a configuration without an encoder."""
    items = [
        {"id": f"i{row}", "source": f"image {row}", "label": str(label), "payload": {"even": row % 2 == 0}}
        for row, label in enumerate(demo["label"])
    ]
    made = rehang.import_items(tmp_path / "g.db", demo["old"], items, space="small", distance="l2")
    assert made["items"] == len(items)
    path = tmp_path / "rehang.toml"
    rehang.init(tmp_path / "g.db", path, new_name="large", new_dimension=demo["new"].shape[1])
    return path


def contents(folder: Path, items: Any) -> list[tuple[str, str | None, str | None, Any]]:
    """Imports items; what the gallery has of each."""
    path = folder / f"g{len(list(folder.iterdir()))}.db"
    vectors = np.arange(1, 9, dtype="f4").reshape(4, 2)
    assert rehang.import_items(path, vectors, items, space="s", distance="l2")["items"] == 4
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT id, source, label, payload FROM item ORDER BY key").fetchall()
    return [(*row[:3], json.loads(row[3]) if row[3] else None) for row in rows]


def test_items_come_as_people_hold_them(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    ids = [uuid.UUID(int=7), np.int64(5), 2**70, np.str_("a")]
    wanted = ["00000000-0000-0000-0000-000000000007", "5", str(2**70), "a"]
    sources = ["x", float("nan"), None, np.str_("y")]
    payload = {"n": np.int64(3), "v": np.arange(2), "none": float("nan"), "day": date(2026, 5, 1), "u": uuid.UUID(int=1)}
    kept = {"n": 3, "v": [0, 1], "none": None, "day": "2026-05-01", "u": str(uuid.UUID(int=1))}
    rows = [
        {"_id": id, "source": source, "label": label, "payload": payload}
        for id, source, label in zip(ids, sources, [1.0, np.int32(2), None, "c"], strict=True)
    ]
    labels = ["1", "2", None, "c"]
    right = [(id, source, label, kept) for id, source, label in zip(wanted, ["x", None, None, "y"], labels, strict=True)]
    assert contents(tmp_path, rows) == right
    frame = pd.DataFrame({"id": [1, 2, 3, 4], "source": ["x", None, np.nan, "y"], "label": [1, 2, None, 4]})
    assert [row[:3] for row in contents(tmp_path, frame)] == [("1", "x", "1"), ("2", None, "2"), ("3", None, None), ("4", "y", "4")]
    pa = pytest.importorskip("pyarrow")
    assert [row[:3] for row in contents(tmp_path, pa.Table.from_pandas(frame, preserve_index=False))][1] == ("2", None, "2")


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["1", "2", "3", "4"], "items[0] is '1' (str); a dictionary is needed"),
        (7, "items is 7 (int)"),
        ([{"id": 1.5}] * 4, "items[0]['id'] is 1.5 (float); a text, a whole number or a UUID"),
        ([{"id": True}] * 4, "items[0]['id'] is True (bool)"),
        ([{"source": "x"}] * 4, "items[0] has no id"),
        ([{"id": "1", "source": 7}] * 4, "items[0]['source'] is 7 (int); a text is needed"),
        ([{"id": "1", "text": "x"}] * 4, "items[0] has 'text', which is none of id, source, label, payload"),
        ([{"id": "1", "payload": {"k": object}}] * 4, "items[0]['payload']['k'] is"),
        ([{"id": "1"}] * 4, 'items holds id "1" more than once'),
    ],
)
def test_items_that_are_none_are_named_without_a_file_of_ours(tmp_path: Path, items: Any, words: str) -> None:
    with pytest.raises(rehang.Error) as raised:
        rehang.import_items(tmp_path / "g.db", np.eye(4, dtype="f4"), items, space="s")
    assert words in str(raised.value)
    assert "items.jsonl" not in str(raised.value)
    assert not (tmp_path / "g.db").exists()


def test_vectors_that_know_their_items_are_never_given_to_others(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": ["a", "b"], "vector": pa.FixedSizeListArray.from_arrays(pa.array([1.0, 0.0, 0.0, 1.0]), 2)})
    parquet.write_table(table, tmp_path / "vectors.parquet")
    with pytest.raises(rehang.MismatchError, match="paired by position"):
        rehang.import_items(tmp_path / "g.db", tmp_path / "vectors.parquet", [{"id": "b"}, {"id": "a"}], space="s")
    done = rehang.import_items(tmp_path / "g.db", tmp_path / "vectors.parquet", [{"id": "a"}, {"id": "b"}], space="s")
    assert done["items"] == 2


def test_ids_of_any_type_are_put_and_deleted(config: Path, demo: dict[str, np.ndarray]) -> None:
    gallery = rehang.Gallery.open(config)
    gallery.put([{"id": np.int64(9), "source": "image 9", "vectors": {"small": demo["old"][9]}, "payload": {"n": np.float32(1)}}])
    assert gallery.delete([np.int64(9), uuid.UUID(int=3)]) == {"deleted": 1, "missing": [str(uuid.UUID(int=3))]}


def test_vectors_of_a_callable_are_cut(config: Path, demo: dict[str, np.ndarray]) -> None:
    path = config.with_name("cut.toml")
    width = demo["new"].shape[1]
    rehang.init(config.with_name("g.db"), path, new_name="cut", new_dimension=width // 2, new_model_dimension=width)
    upgrade = rehang.Upgrade(path)
    upgrade.pairs(encoder=Model(demo["new"]).encode, items=200, worth=0, fingerprint="1")
    upgrade.fit("ridge")
    upgrade.start()
    upgrade.switch(anyway=True)
    upgrade.run(encoder=Model(demo["new"]).encode, fingerprint="1")
    found = upgrade.gallery.search({"cut": demo["new"][:20, : width // 2]}, k=1)
    assert [hits[0].id for hits in found] == [f"i{row}" for row in range(20)]


def test_a_bridge_serves_new_queries_in_the_old_gallery(config: Path, demo: dict[str, np.ndarray]) -> None:
    old, new = demo["old"], demo["new"]
    upgrade = rehang.Upgrade(config)
    upgrade.pairs(encoder=Model(new).encode, items=600, worth=0, fingerprint="large 1")
    bridged = upgrade.bridge()
    choice = bridged["choice"]
    assert choice["criterion"] == "mAP" and len(choice["rows"]) == 20
    queries = {"small": old[:50], "large": new[:50]}
    def ids() -> list[list[str]]:
        return [[hit.id for hit in hits] for hits in upgrade.gallery.search(queries, k=5)]

    over, share = ids(), (bridged["bridge"] or {}).get("share")
    assert (upgrade.status()["bridge"] or {}).get("share") == share
    assert upgrade.bridge(off=True)["bridge"] is None
    assert (over != ids()) == (share is not None)


def test_a_whole_upgrade(config: Path, demo: dict[str, np.ndarray]) -> None:
    old, new = demo["old"], demo["new"]
    model = Model(new)
    upgrade = rehang.Upgrade(config)
    gallery = upgrade.gallery
    queries = {"small": old[:5], "large": new[:5]}
    assert gallery.serving == "small"
    assert [hits[0].id for hits in gallery.search(queries, k=3)] == [f"i{row}" for row in range(5)]

    drawn = upgrade.pairs(encoder=model.encode, items=600, worth=0, fingerprint="large 1")
    assert drawn["pairs"] == 600 and sum(model.calls) == 600
    fitted = upgrade.fit("ridge")
    assert fitted["method"] == "ridge"
    report = upgrade.report()
    assert report.data["spaces"]["new"]["model"] == "large"
    assert upgrade.plan()["to_embed"] == len(old) - 600
    upgrade.start()
    assert gallery.serving == "small"
    upgrade.switch(anyway=True)
    assert gallery.serving == "large"
    # The same call stays right; an adapted vector of an item is near its native one, and says what it is.
    found = gallery.search(queries, k=3)
    assert all(hit.provenance in ("adapted", "native") for hits in found for hit in hits)
    ran = upgrade.run(encoder=model.encode, until=0.5, fingerprint="large 1", progress=False)
    assert ran["native"] > 0
    status = upgrade.status()
    assert status["counts"]["native"] >= len(old) // 2, status
    upgrade.rollback()
    assert gallery.serving == "small"
    upgrade.switch(anyway=True)
    upgrade.run(encoder=model.encode, fingerprint="large 1", workers=2, batch=50)
    assert max(model.calls) <= 64
    found = gallery.search({"large": new[:50]}, k=1)
    assert [hits[0][:1] + hits[0][2:3] for hits in found] == [(f"i{row}", "native") for row in range(50)]
    # By what is kept beside the vectors, and by texts.
    even = gallery.search({"large": new[:20]}, k=5, payload={"even": True})
    assert all(int(hit.id[1:]) % 2 == 0 for hits in even for hit in hits)
    by_text = gallery.search(["image 7"], k=1, encoders={"large": model.encode})
    assert (by_text[0][0].id, by_text[0][0].source) == ("i7", "image 7")
    upgrade.finish()
    assert [space["name"] for space in map(_named, gallery.contents()["spaces"])] == ["large"]


def _named(space: dict[str, Any]) -> dict[str, Any]:
    inner = space.get("space", space)
    return {"name": inner if isinstance(inner, str) else inner.get("model", inner.get("name"))}


def test_writes_while_an_upgrade_is_under_way(config: Path, demo: dict[str, np.ndarray]) -> None:
    model = Model(demo["new"])
    upgrade = rehang.Upgrade(config)
    upgrade.pairs(encoder=model.encode, items=500, worth=0)
    upgrade.fit("ridge")
    upgrade.start()
    upgrade.switch(anyway=True)
    gallery = upgrade.gallery
    put = gallery.put([{"id": "new one", "source": "image 3", "vectors": {"small": demo["old"][3]}, "payload": {"even": False}}])
    assert put[0]["id"] == "new one"
    hits = gallery.search({"large": demo["new"][3:4]}, k=len(demo["old"]))
    found = {hit.id: hit.provenance for hit in hits[0]}
    assert found["new one"] == "adapted", "it is found at once"
    assert gallery.delete(["new one", "nobody"]) == {"deleted": 1, "missing": ["nobody"]}


def test_what_a_callable_does_wrong_is_said(config: Path, demo: dict[str, np.ndarray]) -> None:
    upgrade = rehang.Upgrade(config)
    width = demo["new"].shape[1]

    def fails(sources: Sequence[str]) -> np.ndarray:
        raise RuntimeError("out of memory on the card")

    with pytest.raises(rehang.UnavailableError, match="out of memory on the card") as said:
        upgrade.pairs(encoder=fails, items=20)
    cause = said.value.__cause__
    assert isinstance(cause, RuntimeError) and cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_code.co_name == "fails", "with the place where it was raised"

    def ends(sources: Sequence[str]) -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upgrade.pairs(encoder=ends, items=20)
    with pytest.raises(rehang.MismatchError, match=f"{width - 1}|{width}"):
        upgrade.pairs(encoder=lambda sources: np.ones((len(sources), width - 1)), items=20)
    with pytest.raises(rehang.CorruptError, match="1 rows came back for"):
        upgrade.pairs(encoder=lambda sources: np.ones((1, width)), items=20, batch=10)
    with pytest.raises(rehang.OptionError, match="encoder"):
        upgrade.pairs(items=20)


def test_one_item_that_the_callable_fails_at_stops_no_other(config: Path, demo: dict[str, np.ndarray]) -> None:
    model = Model(demo["new"])

    def encode(sources: Sequence[str]) -> np.ndarray:
        if "image 11" in sources:
            raise ValueError("cannot read image 11")
        return model.encode(sources)

    upgrade = rehang.Upgrade(config)
    upgrade.pairs(encoder=encode, items=1797, worth=0, fingerprint="1")
    status = upgrade.status(failures=5)
    assert (status["counts"]["native"], status["counts"]["failed"]) == (1796, 1)
    (failure,) = status["failures"]
    assert failure["id"] == "i11" and "cannot read image 11" in failure["reason"]


def test_items_of_which_the_callable_makes_nan_are_listed(config: Path, demo: dict[str, np.ndarray]) -> None:
    model = Model(demo["new"])

    def encode(sources: Sequence[str]) -> np.ndarray:
        rows = model.encode(sources).copy()
        rows[[source == "image 11" for source in sources]] = np.nan
        return rows

    upgrade = rehang.Upgrade(config)
    upgrade.pairs(encoder=encode, items=500, worth=0)
    upgrade.fit("ridge")
    upgrade.start()
    ran = upgrade.run(encoder=encode)
    assert ran["failed_in_all"] == 1
    assert [item["id"] for item in upgrade.status()["failures"]] == ["i11"]


def test_stages_that_do_not_fit_say_what_to_call(config: Path) -> None:
    upgrade = rehang.Upgrade(config)
    with pytest.raises(rehang.Error) as caught:
        upgrade.switch()
    assert caught.value.remedy is not None and "`upgrade." in caught.value.remedy
    with pytest.raises(rehang.OptionError, match="small"):
        upgrade.gallery.search({"large": np.zeros((1, 4))})


def test_a_run_can_be_paused_from_elsewhere(config: Path, demo: dict[str, np.ndarray]) -> None:
    model = Model(demo["new"])
    upgrade = rehang.Upgrade(config)
    upgrade.pairs(encoder=model.encode, items=400, worth=0)
    upgrade.fit("ridge")
    upgrade.start()

    def slow(sources: Sequence[str]) -> np.ndarray:
        time.sleep(0.05)
        return model.encode(sources)

    done: list[dict[str, Any]] = []
    worker = threading.Thread(target=lambda: done.append(upgrade.run(encoder=slow, batch=5)))
    worker.start()
    while upgrade.status()["counts"]["native"] < 420:
        time.sleep(0.05)
    rehang.Upgrade(config).stop()
    worker.join(timeout=30)
    assert not worker.is_alive() and done[0]["ending"] != "nothing-left"
    upgrade.resume()
    assert upgrade.run(encoder=model.encode)["failed_in_all"] == 0


def test_a_callable_that_becomes_another_model_leaves_nothing_wrong(
    config: Path, demo: dict[str, np.ndarray]
) -> None:
    upgrade = rehang.Upgrade(config)
    upgrade.pairs(encoder=Model(demo["new"]).encode, items=200, worth=0, fingerprint="1")
    upgrade.fit("ridge")
    upgrade.start()
    upgrade.switch(anyway=True)
    model = Model(demo["new"])

    def turning(sources: Sequence[str]) -> np.ndarray:
        is_turned = sum(model.calls) >= 500
        rows = model.encode(sources)
        return np.roll(rows, 1, axis=1) if is_turned else rows

    with pytest.raises(rehang.Error, match="stay as they were.*has changed"):
        upgrade.run(encoder=turning, batch=8)
    counts = upgrade.status()["counts"]
    assert 200 + 500 - 128 - 64 <= counts["native"] <= 200 + 500
    assert counts["native"] + counts["adapted"] == len(demo["new"])
    # Every native vector is of the right model: its item is found where it is.
    found = upgrade.gallery.search({"large": demo["new"]}, k=1)
    right = [hits[0] for row, hits in enumerate(found) if hits[0].id == f"i{row}" and hits[0].distance < 1e-4]
    assert sum(hit.provenance == "native" for hit in right) == counts["native"]
    upgrade.run(encoder=Model(demo["new"]).encode, batch=8)
    assert upgrade.status()["counts"]["native"] == len(demo["new"])


def test_thresholds_are_those_of_counting_pair_by_pair(config: Path, demo: dict[str, np.ndarray], tmp_path: Path) -> None:
    upgrade = rehang.Upgrade(config)
    upgrade.pairs(encoder=Model(demo["new"]).encode, items=400, worth=0, folder=tmp_path / "pairs", fingerprint="1")
    fitted = upgrade.fit("ridge", out=tmp_path / "map.safetensors")
    ids = (tmp_path / "pairs" / "ids.txt").read_text().split()
    asking = [int(id[1:]) for id, held in zip(ids, np.load(tmp_path / "pairs" / "held-out.npy"), strict=True) if held]
    adapted = rehang.load(fitted["adapter"]).transform(demo["old"])

    def squared(queries: np.ndarray, gallery: np.ndarray, items: Sequence[int], more: float = 0.0) -> np.ndarray:
        """Squared distances of every query that asks to every other item."""
        rows = [
            [more + float(((queries[q].astype("f8") - gallery[i].astype("f8")) ** 2).sum()) for i in items if i != q] for q in asking
        ]
        return np.array([value for row in rows for value in row])

    everything = range(len(demo["old"]))
    today = squared(demo["old"], demo["old"], everything)
    # Between two distances that occur, so that rounding decides nothing.
    known = np.unique(today)
    place = int(np.searchsorted(known, np.quantile(today, 0.05)))
    floor = float(np.sqrt((known[place] + known[place + 1]) / 2))
    stages = {
        "adapted": (today, squared(demo["new"], adapted, everything, fitted["handicap"])),
        "native": (squared(demo["old"], demo["old"], asking), squared(demo["new"], demo["new"], asking)),
    }
    made = upgrade.thresholds([floor])
    assert (made["queries"], made["natives"], made["rows"][0]["today"]) == (len(asking), len(asking), floor)
    for stage, (before, then) in stages.items():
        passes = before <= floor**2
        limit = np.sort(then)[passes.sum() - 1]
        told = made["rows"][0][stage]
        assert told["floor"] == pytest.approx(np.sqrt(limit), rel=1e-4)
        assert told["changed"] == pytest.approx(1 - (passes & (then <= limit)).sum() / passes.sum(), abs=1e-3)


def test_clicks_that_name_no_item_of_the_gallery_are_refused(config: Path, demo: dict[str, np.ndarray], tmp_path: Path) -> None:
    table = f'kind = "table"\nvectors = "{tmp_path / "new.npy"}"\n'
    np.save(tmp_path / "new.npy", demo["new"])
    config.write_text(config.read_text() + f"\n[encoder]\n{table}[old.encoder]\n{table}")
    clicks = tmp_path / "clicks.csv"
    clicks.write_text("query,item,weight\nred shoes,nothing,1\n")
    upgrade = rehang.Upgrade(config)
    for verb in (upgrade.pairs, upgrade.auto, upgrade.report):
        with pytest.raises(rehang.Error, match="none of its 1 clicks is of an item"):
            verb(clicks=clicks)
