"""The demo's data, and the command line of the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# PyTorch's threads wait for each other by spinning, which on small batches and a busy machine costs many times what they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")

DEMO = Path(__file__).parents[3] / "demo"


@pytest.fixture(scope="session")
def demo() -> dict[str, np.ndarray]:
    """Old and new vectors of 1,797 images, their labels, and which are pairs (role 0)."""
    return {name: np.load(DEMO / f"{name}.npy") for name in ("old", "new", "label", "role")}


@pytest.fixture(scope="session")
def pairs(demo: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    is_pair = demo["role"] == 0
    return demo["old"][is_pair], demo["new"][is_pair], demo["label"][is_pair]


@pytest.fixture(scope="session")
def gallery(demo: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    is_item = demo["role"] != 0
    return demo["old"][is_item], demo["new"][is_item], demo["label"][is_item]


@pytest.fixture
def rehang_cli(tmp_path: Path) -> Any:
    """Calls the command line in the test's folder; gives what it printed as JSON."""

    def run(*arguments: str) -> Any:
        line = [sys.executable, "-m", "rehang", "--json", *map(str, arguments)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    return run
