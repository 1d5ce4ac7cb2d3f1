//! Golden bytes, recorded from QEMU's controller, against both sides of the wire types.
//!
//! | file | what it checks |
//! |---|---|
//! | `parse` | QEMU's data parses to the expected values and serializes to the same bytes |
//! | `build` | our entries equal the recorded ones, and QEMU's trace agrees with their meaning |
//! | `soft` | the software controller answers as QEMU does, or there is a reason |
//!
//! `qemu.txt` and `qemu-trace.txt` are data; `examples/record_golden` makes them and shares its list of commands with
//! these tests.

#[path = "../../examples/record_golden/commands/mod.rs"]
mod commands;
#[path = "../../examples/record_golden/run.rs"]
mod run;
#[path = "../../examples/record_golden/text.rs"]
mod text;

mod build;
mod parse;
mod recording;
mod soft;
mod trace;
