#!/usr/bin/env bash
# rehang.torch on one graphics card, in under eight minutes: `laboratory/bench/gpu/run.sh WHEEL OUT [options of run.py]`, from the repository's root.
#
# Needs Python with PyTorch, torchvision and NumPy, and the wheel of rehang as a file, built with --release; no network.
set -euo pipefail
wheel="$1"
out="$2"
shift 2
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
# A wheel is a zip file: no installer is needed.
python3 -m zipfile -e "$wheel" "$site"
PYTHONPATH="$site" python3 -u laboratory/bench/gpu/run.py --out "$out" "$@"
