#!/bin/sh
# Opening a file device of foyer prints a line to the standard output of the program that embeds it.
#
# foyer 0.22.6, tokio 1.54.1, Linux 6.1, Rust 1.95. A cache on a file is the common one, and the line is neither logged
# (`tracing`) nor can it be turned off: a program whose standard output is data, such as JSON for another, or a protocol,
# has one more line in it as soon as it opens a cache.
#
# Seen 2026-11-28: building a device of 16 MiB prints "==========> 16777216", to standard output and not to standard
# error. Takes 1 GB in a temporary folder, and minutes. Fails if what was seen changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat >"$folder/Cargo.toml" <<'MANIFEST'
[package]
name = "quiet"
version = "0.0.0"
edition = "2024"

[dependencies]
foyer = "=0.22.6"
tokio = "=1.54.1"

[workspace]
MANIFEST
cat >"$folder/src/main.rs" <<'PROGRAM'
use foyer::{DeviceBuilder, FileDeviceBuilder};

fn main() {
    let file = std::env::args().nth(1).unwrap();
    FileDeviceBuilder::new(file).with_capacity(16 << 20).build().unwrap();
}
PROGRAM
cargo build --quiet --release --manifest-path "$folder/Cargo.toml"
printed=$("$folder/target/release/quiet" "$folder/cache.img" 2>"$folder/errors")
echo "standard output: $printed"
if [ "$printed" = "==========> 16777216" ] && [ ! -s "$folder/errors" ]; then
    echo "as seen"
else
    echo "changed"
    exit 1
fi
