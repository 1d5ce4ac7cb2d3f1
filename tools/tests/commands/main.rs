//! Tests the `adit` program as users see it: a module for each command, in one program that is linked once.
//!
//! `cargo test -p adit --test commands kv_serve` runs one module.
#![forbid(unsafe_code)]

mod support;

mod bench_faults;
mod bench_fio;
mod bench_iolog;
mod bench_language;
mod bench_reports;
mod bench_side;
mod bench_sync;
mod command_line;
mod gpu;
mod gpu_bench;
mod gpu_lab;
mod kv;
mod kv_bad_input;
mod kv_conditions;
mod kv_devices;
mod kv_full_disk;
mod kv_in_use;
mod kv_kept;
mod kv_moving;
mod kv_serve;
mod kv_tensors;
mod kv_top;
mod log;
mod pages;
mod setup_bind;
mod setup_changes;
mod setup_doctor;
mod setup_hostile;
mod setup_trees;
mod softnvme;
mod vfio_user;
