"""The command line of rehang: ``rehang …`` and ``python -m rehang …``."""

from __future__ import annotations

import signal
import sys

from . import _rehang


def main() -> None:
    """Does what the command line asks for, and ends with its exit code."""
    # The command line handles Ctrl-C as a program does, and not as Python does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_rehang.main(["rehang", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
