"""Transforms one folder of Parquet files with every engine that is installed, and compares each number with `rehang transform`.

    python engines.py [ROWS]

A worker of Ray is killed while it works. Prints one line an engine.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rehang
from rehang.arrow import Transform

OLD, NEW, FILES = 128, 256, 8


def make(folder: Path, rows: int) -> None:
    """Eight files of vectors with ids, and an adapter for them."""
    rng = np.random.default_rng(0)
    turn = rng.normal(size=(OLD, NEW)).astype(np.float32) / OLD**0.5
    pairs = rng.normal(size=(4000, OLD)).astype(np.float32)
    new = pairs @ turn + 0.1 * rng.normal(size=(4000, NEW)).astype(np.float32)
    rehang.fit(pairs, new, method="ridge", progress=False).save(folder / "adapter.safetensors")
    (folder / "old").mkdir()
    for part in range(FILES):
        vectors = rng.normal(size=(rows // FILES, OLD)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), OLD)
        ids = np.arange(len(vectors)) + part * len(vectors)
        pq.write_table(pa.table({"id": ids, "vector": column}), folder / "old" / f"part-{part}.parquet")


def by_rehang(folder: Path, out: Path) -> str:
    """The command line, a file at a time."""
    out.mkdir()
    for path in sorted((folder / "old").iterdir()):
        line: list[str | Path] = [sys.executable, "-m", "rehang", "transform", folder / "adapter.safetensors", path, "-o", out / path.name]
        subprocess.run(line, check=True, capture_output=True)
    return ""


def by_ray(folder: Path, out: Path) -> str:
    """Ray Data with two actors, one of which is killed."""
    import ray

    class Slow(Transform):
        def __call__(self, batch: pa.Table) -> pa.Table:
            (folder / "actors" / str(os.getpid())).touch()
            time.sleep(0.2)
            return super().__call__(batch)

    (folder / "actors").mkdir()
    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False, runtime_env={"env_vars": {"RAYON_NUM_THREADS": "1"}})
    killed: list[int] = []

    def kill() -> None:
        while not list((folder / "actors").iterdir()):
            time.sleep(0.05)
        time.sleep(0.5)
        victim = int(next((folder / "actors").iterdir()).name)
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)

    threading.Thread(target=kill, daemon=True).start()
    ray.data.read_parquet(str(folder / "old")).map_batches(
        Slow, fn_constructor_args=[str(folder / "adapter.safetensors")], batch_format="pyarrow", batch_size=8192,
        concurrency=2, num_cpus=1, max_restarts=3, max_task_retries=3,
    ).write_parquet(str(out))
    ray.shutdown()
    actors = len(list((folder / "actors").iterdir()))
    assert killed and actors > 1, (killed, actors)
    return f", actor {killed[0]} killed at its work, {actors} actors in all"


def by_spark(folder: Path, out: Path) -> str:
    """Spark on two cores of this machine."""
    from pyspark.sql import SparkSession
    from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.executorEnv.RAYON_NUM_THREADS", "1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.read.parquet(str(folder / "old"))
    schema = StructType([*frame.schema, StructField("adapted", ArrayType(FloatType())), StructField("sigma2", FloatType())])
    frame.mapInArrow(Transform(str(folder / "adapter.safetensors")).stream, schema).write.parquet(str(out))
    spark.stop()
    return ""


def by_arrow(folder: Path, out: Path) -> str:
    """A loop over batches, without an engine."""
    import pyarrow.dataset as ds

    transform = Transform(folder / "adapter.safetensors")
    batches = ds.dataset(folder / "old").to_batches(batch_size=8192)
    pq.write_to_dataset(pa.Table.from_batches(list(transform.stream(batches))), str(out))
    return ""


def read(out: Path, vectors: str) -> tuple[np.ndarray, np.ndarray]:
    """Adapted vectors and σ² in the order of ids."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(out.rglob("*.parquet"))], promote_options="permissive")
    table = table.sort_by("id")
    assert (table["id"].to_numpy() == np.arange(len(table))).all(), "an item is missing, or there twice"
    rows = table[vectors].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return rows.reshape(len(table), -1), table["sigma2"].to_numpy()


def main() -> None:
    """Runs what is there."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    engines: dict[str, Callable[[Path, Path], str]] = {"pyarrow": by_arrow}
    engines |= {name: by for name, by in (("ray", by_ray), ("pyspark", by_spark)) if importlib.util.find_spec(name)}
    folder = Path(tempfile.mkdtemp())
    try:
        make(folder, rows)
        by_rehang(folder, folder / "expected")
        name = next(name for name in pq.read_schema(folder / "expected" / "part-0.parquet").names if name not in ("id", "sigma2"))
        expected = read(folder / "expected", name)
        for engine, by in engines.items():
            began = time.monotonic()
            said = by(folder, folder / engine)
            took = time.monotonic() - began
            made = read(folder / engine, "adapted")
            same = all(ours.astype(np.float32).tobytes() == theirs.tobytes() for ours, theirs in zip(made, expected, strict=True))
            assert same, engine
            version = importlib.metadata.version(engine)
            print(f"{engine} {version}: {rows} vectors in {took:.1f} s, every number that of rehang transform{said}", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    import importlib.metadata

    main()
