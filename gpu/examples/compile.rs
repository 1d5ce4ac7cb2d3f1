//! Compiles the kernels for some architectures, without a GPU: `compile DIRECTORY sm_80 sm_90`; or a file's, which may
//! include the device code: `compile DIRECTORY attend.cu sm_90`.
//!
//! Writes `kernels.sm_80.ptx`, `.cubin` and `.log` for each into the directory (`attend.sm_90.ptx`). Finds NVRTC as
//! the rings do.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, architectures) = match arguments.get(1..) {
        Some([file, rest @ ..]) if file.ends_with(".cu") => (Some(Path::new(file)), rest),
        rest => (None, rest.unwrap_or_default()),
    };
    if architectures.is_empty() {
        eprintln!("usage: compile DIRECTORY [FILE.cu] ARCHITECTURE...");
        return ExitCode::from(2);
    }
    for architecture in architectures {
        if let Err(error) = write(Path::new(&arguments[0]), file, architecture) {
            eprintln!("{architecture}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn write(directory: &Path, file: Option<&Path>, architecture: &str) -> Result<(), Box<dyn Error>> {
    let compiled = match file {
        Some(file) => adit_gpu::compile_kernels(&std::fs::read_to_string(file)?, architecture)?,
        None => adit_gpu::compile(architecture)?,
    };
    let stem =
        file.and_then(Path::file_stem).map_or("kernels".into(), |stem| stem.to_string_lossy());
    let file = |kind: &str| directory.join(format!("{stem}.{architecture}.{kind}"));
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
