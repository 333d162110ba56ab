#!/usr/bin/env bash
# `rehang transform` of ROWS x 128 vectors from Parquet to Parquet: seconds, rate and peak memory, with the plain copy of the
# same file beside it (what the file side alone costs). Needs about 10 GB of disk for 10 million rows.
#
#     bench/transform/run.sh [ROWS] [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/../.."
rows=${1:-10000000}
folder=${2:-$(mktemp -d)}
cargo build --release --features full
rehang=$(bench/target.sh)/release/rehang
make=$(bench/program.sh rehang-files stream --features parquet)
"$make" make "$folder/in.parquet" "$rows" 128
"$make" make "$folder/pairs-old.parquet" 4000 128
"$make" make "$folder/pairs-new.parquet" 4000 128
"$rehang" fit --old "$folder/pairs-old.parquet" --new "$folder/pairs-new.parquet" --method ridge \
  -o "$folder/ridge.safetensors" > /dev/null 2>&1 || [ $? -eq 1 ] # 1: done, and it says that such pairs are useless
"$make" copy "$folder/in.parquet" "$folder/copy.parquet"
rm "$folder/copy.parquet"
for adapter in ridge; do
  # The vectors of this file are made up, so the warning about their looks does not count here.
  start=$(date +%s.%N)
  /usr/bin/time -v "$rehang" transform "$folder/$adapter.safetensors" "$folder/in.parquet" -o "$folder/out.parquet" --force \
    2> "$folder/time.txt" || true
  end=$(date +%s.%N)
  peak=$(awk '/Maximum resident/ { print $NF / 1024 }' "$folder/time.txt")
  cpu=$(awk -F': ' '/User time|System time/ { sum += $2 } END { print sum }' "$folder/time.txt")
  awk -v a="$start" -v b="$end" -v n="$rows" -v p="$peak" -v c="$cpu" -v m="$adapter" \
    'BEGIN { printf "transform with %s: %d x 128 in %.1f s, %.0f rows/s, %.1f CPU s, peak memory %.0f MiB\n", m, n, b - a, n / (b - a), c, p }'
done
rm -r "$folder"
