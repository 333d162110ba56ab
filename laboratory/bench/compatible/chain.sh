#!/usr/bin/env bash
# A chain of upgrades on Omniglot: φ1 saw 80 classes, φ2 120, φ3 160; each is trained by BCT against the one before it, and
# the cross matrix says whether φ3 can still be searched against φ1's gallery, which it never saw (BCT §4.4). Three seeds; searched
# are held-out images of the 160 classes, and classes that none of the models saw.
#   laboratory/bench/compatible/chain.sh [FOLDER OF THE DATA] [REHANG-LAB] [METHOD [FORM]]
# METHOD is bct unless it is told; RACT's (figure 7) are `ract contrastive` and `ract vanilla`.
set -euo pipefail
cd "$(dirname "$0")/../../.."
data=$(realpath "${1:-../shared/data}/img_omniglot")
target=$(bench/target.sh)
rehang=$(realpath "${2:-$target/release/rehang-lab}")
method=${3:-bct}
form=${4:-}
name=compatible-chain${3:+-$3}${4:+-$4}
work=$target/$name
results=laboratory/bench/runs/$name
mkdir -p "$work" "$results"
config() { # number, classes of the model before, classes of this one, seed
  cat <<TOML
[data]
kind = "arrays"
images = "$data/raw_u8_28.npy"
labels = "$data/raw_label.npy"
[allocation]
file = "step$1.json"
kind = "classes"
classes = { old = ["0..$2"], new = ["0..$3"], unseen = ["160..242"] }
test = 0.3
seed = $4
[encoder]
kind = "cnn-small"
width = $((8 * (1 + $1)))
outputs = 64
[head]
form = "normalised-softmax"
scale = 16.0
[augmentation]
crop_padding = 3
[training]
epochs = 20
seed = $4
[output]
model = "phi$1"
encoder = "phi$1.safetensors"
TOML
  if [ "$1" -gt 1 ] && [ -n "$form" ]; then printf '[method]\nform = "%s"\n' "$form"; fi
  if [ "$1" -gt 1 ]; then printf '[old]\nencoder = "phi%d.safetensors"\n' $(($1 - 1)); fi
}
: > "$results/cross.txt"
for seed in 0 1 2; do
  rm -f "$work"/*
  config 1 40 80 "$seed" > "$work/1.toml"
  config 2 80 120 "$seed" > "$work/2.toml"
  config 3 120 160 "$seed" > "$work/3.toml"
  "$rehang" train plain "$work/1.toml" > "$work/1.log"
  "$rehang" train "$method" "$work/2.toml" > "$work/2.log"
  "$rehang" train "$method" "$work/3.toml" > "$work/3.log"
  for part in test unseen; do
    for number in 1 2 3; do
      "$rehang" embed "$work/phi$number.safetensors" "$work/3.toml" --part $part -o "$work/phi$number.npy" \
        --labels "$work/labels.npy" > /dev/null
    done
    "$rehang" evaluate cross --models phi1="$work/phi1.npy" --models phi2="$work/phi2.npy" --models phi3="$work/phi3.npy" \
      --labels "$work/labels.npy" --distance cosine > "$results/$part-$seed.txt"
    # The gallery that is never backfilled beside one that each upgrade backfills by half, in a random order (RACT §5.4).
    "$rehang" evaluate sequence --models phi1="$work/phi1.npy" --models phi2="$work/phi2.npy" --models phi3="$work/phi3.npy" \
      --labels "$work/labels.npy" --distance cosine --backfilled 0.5 > "$results/sequence-$part-$seed.txt"
    { echo "== seed $seed, part $part"; sed -n '/^mAP, percent/,/^mAP@10/p' "$results/$part-$seed.txt" | grep -v '^mAP@10'; } \
      | tee -a "$results/cross.txt"
    { echo "-- in a row"; cat "$results/sequence-$part-$seed.txt"; echo; } | tee -a "$results/cross.txt"
  done
done
