#!/bin/sh
# Times the exact curve (all n + 1 cuts) against torch + scikit-learn (22 cuts) on the same vectors, one after the
# other, and fails where the answers differ.
#
#     PYTHON=/path/to/venv/bin/python bench/curve/run.sh [ITEMS] [WIDTH] [CLASSES] [RIVAL_POINTS]
#
# The rival needs numpy, torch and scikit-learn. RIVAL_POINTS below 22 computes that many of the 22 cuts and scales the
# rival's time linearly, which its output says.
set -eu
cd "$(dirname "$0")/../.."
items=${1:-10000} width=${2:-128} classes=${3:-100} points=${4:-22}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
binary=${BENCH_CURVE:-$(bench/program.sh rehang-files curve)}
"$binary" "$items" "$width" "$classes" "$directory" | tee "$directory/ours.json"
"${PYTHON:-python3}" bench/curve/rival.py "$directory" "$directory/ours.json" --points "$points"
