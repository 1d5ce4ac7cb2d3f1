//! `cargo xtask device`: tests the GPU's code on a machine without a GPU.
//!
//! The C++ build runs on threads, plain and with sanitizers; builds with a known fault must fail. NVRTC
//! compiles the code for several architectures; the result must contain the required fences and keep everything
//! in registers.

mod nvrtc;
mod programs;
mod ptx;

use crate::deps::{self, PIP};
use crate::failure::Result;
use std::time::Instant;

/// Tests the device code; returns 0 if nothing is wrong.
pub(crate) fn run() -> Result<u8> {
    let begun = Instant::now();
    deps::ensure(deps::TO_BUILD.iter().chain([&PIP]))?;
    let mut tally = programs::run()?;
    tally.add(nvrtc::run()?);
    let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
    let elapsed_s = begun.elapsed().as_secs_f64();
    println!(
        "device code: {verdict}. {} passed, {} failed; finished in {elapsed_s:.1} s",
        tally.passed, tally.failed
    );
    Ok(u8::from(tally.failed > 0))
}
