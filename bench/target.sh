#!/bin/sh
# Prints the folder that cargo builds into, which CARGO_TARGET_DIR or a configuration file of cargo may have moved.
set -eu
cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
