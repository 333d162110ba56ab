#!/bin/sh
# Epochs of the FCT-size adapter, rehang against PyTorch on the CPU, interleaved.
#   PYTHON=/path/to/venv/bin/python bench/fit/run.sh [ROUNDS [EPOCHS]]
# PYTHON needs torch and safetensors. One JSON line a run goes to bench_fit.jsonl in cargo's target folder, the summary to stdout.
set -eu
cd "$(dirname "$0")/../.."
target=$(bench/target.sh)
rounds=${1:-5}
epochs=${2:-2}
python=${PYTHON:-python3}
here=bench/fit
raw=$target/bench_fit.jsonl
ours() {
    cargo bench --quiet --package rehang-fit --bench fit -- "$@"
}
data=$(mktemp --suffix=.safetensors)
trap 'rm -f "$data"' EXIT
ours write "$data"
: > "$raw"
for round in $(seq "$rounds"); do
    for threads in 1 2; do
        ours run "$threads" "$epochs" >> "$raw"
        for kind in foreach fused; do
            "$python" $here/rival.py "$data" "$threads" "$epochs" "$kind" >> "$raw"
        done
    done
    echo "round $round of $rounds" >&2
done
"$python" $here/summary.py "$raw"
