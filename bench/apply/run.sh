#!/bin/sh
# Measures how fast adapters are applied, against PyTorch and ONNX Runtime on the same weights in the same minutes.
#
#   bench/apply/run.sh PYTHON [ROUNDS]
#
# PYTHON is an interpreter with numpy, torch, onnx, onnxruntime and safetensors. Results go to standard output.
set -eu
cd "$(dirname "$0")/../.."
python=${1:?"usage: bench/apply/run.sh PYTHON [ROUNDS]"}
rounds=${2:-7}
if [ -z "${BENCH_APPLY:-}" ]; then
    BENCH_APPLY=$(bench/program.sh rehang-files apply)
fi
for threads in 1 2; do
    RAYON_NUM_THREADS=$threads OMP_NUM_THREADS=$threads MKL_NUM_THREADS=$threads \
        "$python" bench/apply/rival.py "$BENCH_APPLY" "$threads" "$rounds"
done
