"""What scripts do with the encoders that a study of this folder has kept."""

import json
import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]


class Kept:
    """A study of this folder, after `rehang-lab compare`."""

    def __init__(self, study, rehang):
        self.folder = ROOT / "target" / f"compatible-{study}"
        self.rehang = str(Path(rehang).resolve())
        text = (ROOT / "laboratory" / "bench" / "compatible" / f"{study}.toml").read_text(encoding="utf-8")
        training = text[: text.index("[compare]")].replace('"../../../', f'"{ROOT}/')
        self.configuration = self.folder / "embed.toml"
        self.configuration.write_text(training, encoding="utf-8")

    def call(self, *arguments):
        """Standard output of a command."""
        command = [self.rehang, *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, check=True, text=True, stdout=subprocess.PIPE).stdout

    def vectors(self, encoder, part):
        """A file with a part's vectors by an encoder, such as `bct-0`; `labels.npy` beside it has the part's labels."""
        out = self.folder / f"{encoder}-{part}.npy"
        encoder = f"{encoder}.safetensors"
        self.call("embed", encoder, self.configuration, "--part", part, "-o", out, "--labels", f"labels-{part}.npy")
        return out

    def labels(self, part):
        return np.load(self.folder / f"labels-{part}.npy")

    def rows(self, part):
        """The rows of a part in the data."""
        return np.array(json.loads((self.folder / "allocation.json").read_text(encoding="utf-8"))[part])

    def head(self, encoder):
        """The weights of an encoder's head, of length 1, and its scale."""
        with open(self.folder / f"{encoder}.safetensors", "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            begin, end = header["head.weight"]["data_offsets"]
            file.seek(8 + length + begin)
            weight = np.frombuffer(file.read(end - begin), dtype="<f4").reshape(header["head.weight"]["shape"])
        return unit(weight.astype(np.float64)), json.loads(header["__metadata__"]["head"])["scale"]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
