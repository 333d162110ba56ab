"""What two builds of `rehang fit` make of the same pairs: areas of every method's row, and the row that the rule of choice would keep.

    python choices.py OLD NEW FOLDER [SET…]

OLD and NEW are programs, FOLDER holds the real sets. Each is fitted with and without labels. Methods with a formula only: networks are
slow, and one build's are the other's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

SETS = ["toy_digits", "img_omniglot", "ir_cisi", "img_caltech101", "text_banking77", "text_clinc150"]


def inputs(folder: Path) -> tuple[list[str], list[str]]:
    """The arguments that name the pairs, and those that name their labels."""
    if (folder / "role.npy").exists():
        files = ["--old", f"{folder}/old.npy", "--new", f"{folder}/new.npy", "--rows", f"{folder}/role.npy=0"]
        return files, ["--labels", f"{folder}/label.npy"]
    if (folder / "docs_old.npy").exists():
        return ["--old", f"{folder}/docs_old.npy", "--new", f"{folder}/docs_new.npy"], []
    files = ["--old", f"{folder}/train_old.npy", "--new", f"{folder}/train_new.npy"]
    return files, ["--labels", f"{folder}/train_label.npy"]


def rows(program: str, arguments: list[str]) -> dict[tuple[str, str], dict]:
    with tempfile.TemporaryDirectory() as place:
        fit = [program, "fit", *arguments, "--method", "ridge", "--json", "-o", f"{place}/adapter.rehang"]
        said = subprocess.run(fit, check=True, capture_output=True, text=True).stdout
    return {(row["method"], row["geometry"]): row for row in json.loads(said)["held_out"]["rows"]}


def kept(table: dict[tuple[str, str], dict]) -> tuple[str, str]:
    """The first row within the spread of the best one."""
    return next(name for name, row in table.items() if row["behind"] <= (row["spread"] or 0.0) + 1e-12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="*", default=SETS)
    asked = parser.parse_args()
    print("| set | known | kept, old | kept, new | largest change of an area | of |")
    print("|---|---|---|---|--:|---|")
    for name in asked.sets:
        files, labels = inputs(asked.folder / name)
        for known, more in [("labels", labels), ("nothing", [])] if labels else [("nothing", [])]:
            old, new = (rows(program, files + more) for program in (asked.old, asked.new))
            assert old.keys() == new.keys(), name
            most = max(old, key=lambda row: abs(old[row]["area"] - new[row]["area"]))
            change = new[most]["area"] - old[most]["area"]
            choices = " | ".join(", ".join(kept(table)) for table in (old, new))
            print(f"| {name} | {known} | {choices} | {change:+.2f} | {', '.join(most)} |", flush=True)


if __name__ == "__main__":
    main()
