#!/bin/sh
# Training steps of cnn-small and resnet18, rehang against PyTorch on the CPU, interleaved.
#   PYTHON=/path/to/venv/bin/python laboratory/bench/encoder/run.sh [ROUNDS [STEPS]]
# PYTHON needs torch and safetensors. One JSON line a run goes to bench_encoder.jsonl in cargo's target folder, the summary to stdout.
set -eu
cd "$(dirname "$0")/../../.."
target=$(bench/target.sh)
rounds=${1:-3}
steps=${2:-3}
python=${PYTHON:-python3}
here=laboratory/bench/encoder
raw=$target/bench_encoder.jsonl
ours() {
    cargo bench --quiet --package rehang-train --bench encoder -- "$@"
}
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
for encoder in cnn-small resnet18; do
    ours write "$encoder" "$data/$encoder.safetensors"
done
: > "$raw"
for round in $(seq "$rounds"); do
    for encoder in cnn-small resnet18; do
        # A step of cnn-small is a thirtieth of a ResNet's.
        count=$([ "$encoder" = cnn-small ] && echo $((10 * steps)) || echo "$steps")
        for threads in 1 2; do
            ours run "$encoder" "$threads" "$count" >> "$raw"
            for channels in first last; do
                "$python" $here/rival.py "$data/$encoder.safetensors" "$encoder" "$threads" "$count" "$channels" >> "$raw"
            done
        done
    done
    echo "round $round of $rounds" >&2
done
"$python" $here/summary.py "$raw"
