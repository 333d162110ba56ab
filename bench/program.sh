#!/bin/sh
# Builds a bench of a crate with everything optimised, and prints the path of its program: CRATE BENCH [OPTION…]
set -eu
crate=$1 bench=$2
shift 2
cargo bench --no-run --quiet --message-format=json --package "$crate" --bench "$bench" "$@" |
    sed -n "s/.*\"target\":{\"kind\":\[\"bench\"\].*\"name\":\"$bench\".*\"executable\":\"\([^\"]*\)\".*/\1/p"
