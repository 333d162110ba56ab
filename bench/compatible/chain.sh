#!/usr/bin/env bash
# A chain of upgrades on Omniglot: φ1 saw 80 classes, φ2 120, φ3 160; each is trained by BCT against the one before it, and
# the cross matrix says whether φ3 can still be searched against φ1's gallery, which it never saw (BCT §4.4).
#   bench/compatible/chain.sh [FOLDER OF THE DATA] [REHANG]
set -euo pipefail
cd "$(dirname "$0")/../.."
data=$(realpath "${1:-../shared/data}/img_omniglot")
rehang=$(realpath "${2:-target/release/rehang}")
work=target/compatible-chain
mkdir -p "$work" bench/runs/compatible-chain
config() { # number, classes of the model before, classes of this one, old encoder
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
[output]
model = "phi$1"
encoder = "phi$1.safetensors"
TOML
  if [ "$1" -gt 1 ]; then printf '[old]\nencoder = "phi%d.safetensors"\n' $(($1 - 1)); fi
}
config 1 40 80 > "$work/1.toml"
config 2 80 120 > "$work/2.toml"
config 3 120 160 > "$work/3.toml"
"$rehang" train plain "$work/1.toml" > "$work/1.log"
"$rehang" train bct "$work/2.toml" > "$work/2.log"
"$rehang" train bct "$work/3.toml" > "$work/3.log"
# All three are searched on classes that none of them saw.
for number in 1 2 3; do
  "$rehang" embed "$work/phi$number.safetensors" "$work/3.toml" --part unseen -o "$work/phi$number.npy" \
    --labels "$work/labels.npy" > /dev/null
done
"$rehang" evaluate cross --models phi1="$work/phi1.npy" --models phi2="$work/phi2.npy" --models phi3="$work/phi3.npy" \
  --labels "$work/labels.npy" --distance cosine | tee bench/runs/compatible-chain/cross.txt
