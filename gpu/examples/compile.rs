//! Compiles the kernels for some architectures, without a GPU: `compile DIRECTORY sm_80 sm_90`.
//!
//! Writes `kernels.sm_80.ptx`, `.cubin` and `.log` for each into the directory. Finds NVRTC by the dynamic linker, or in
//! the directory that `ADIT_NVRTC` names.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((directory, architectures)) =
        arguments.split_first().filter(|(_, rest)| !rest.is_empty())
    else {
        eprintln!("usage: compile DIRECTORY ARCHITECTURE...");
        return ExitCode::from(2);
    };
    for architecture in architectures {
        if let Err(error) = write(Path::new(directory), architecture) {
            eprintln!("{architecture}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn write(directory: &Path, architecture: &str) -> Result<(), Box<dyn Error>> {
    let compiled = adit_gpu::compile(architecture)?;
    let file = |kind: &str| directory.join(format!("kernels.{architecture}.{kind}"));
    std::fs::write(file("ptx"), &compiled.ptx)?;
    std::fs::write(file("cubin"), &compiled.cubin)?;
    std::fs::write(file("log"), &compiled.log)?;
    println!(
        "{architecture}: {} bytes of PTX, {} of CUBIN",
        compiled.ptx.len(),
        compiled.cubin.len()
    );
    Ok(())
}
