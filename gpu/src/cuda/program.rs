//! The device code: its source, compiled by NVRTC for the present GPU, and loaded.
//!
//! The source is part of the program. NVRTC is located on first use: by the dynamic linker, in CUDA's folders and in
//! Python's packages, or only in the directory that `ADIT_NVRTC` names. Of several versions, the one for the driver is
//! taken. NVRTC needs no GPU.

mod compiler;
mod places;

use crate::cuda::{Function, Gpu, Module};
use crate::{Error, Result};
use compiler::ImageForm;
pub use compiler::compiler_version;
use std::ffi::CStr;
use std::sync::Arc;

/// The device code's files by name, for custom kernels that include `uring.h`: pass them to NVRTC as headers, or write
/// them to a directory.
pub const SOURCES: &[(&str, &str)] = &[
    ("platform.h", include_str!("../../device/platform.h")),
    ("layout.h", include_str!("../../device/layout.h")),
    ("ring.h", include_str!("../../device/ring.h")),
    ("uring.h", include_str!("../../device/uring.h")),
    ("checksum.h", include_str!("../../device/checksum.h")),
    ("controller.h", include_str!("../../device/controller.h")),
];
/// The file with the kernels, which includes the others.
const KERNELS: &str = include_str!("../../device/kernels.cu");

/// Compiled device code of one architecture.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// PTX of the kernels, for the driver to compile.
    pub ptx: String,
    /// Machine code, for one major architecture; empty for a virtual architecture such as `compute_90`.
    pub cubin: Vec<u8>,
    /// The compiler's output: its warnings, and each kernel's registers and spills.
    pub log: String,
}

/// Compiles this crate's kernels for an architecture such as `sm_90`; needs no GPU.
///
/// # Errors
///
/// [`Error::Unavailable`] without NVRTC; [`Error::Cuda`] with the compiler's output.
pub fn compile(architecture: &str) -> Result<Compiled> {
    compile_kernels(KERNELS, architecture)
}

/// Compiles kernels of one's own for an architecture such as `sm_90`, which may include [`SOURCES`], in C++17, where
/// functions without an execution space are device code. Needs no GPU.
///
/// # Errors
///
/// As [`compile`].
pub fn compile_kernels(source: &str, architecture: &str) -> Result<Compiled> {
    let (cubin, log) = compiler::compile(source, SOURCES, architecture, ImageForm::Cubin)?;
    let (ptx, _) = compiler::compile(source, SOURCES, architecture, ImageForm::Ptx)?;
    Ok(Compiled {
        ptx: String::from_utf8_lossy(&ptx).trim_end_matches('\0').to_owned(),
        cubin,
        log,
    })
}

/// The kernels, in the order of [`Program::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Executes given control blocks, and ends.
    Issue,
    /// Executes control blocks until stopped.
    Persist,
    /// Waits for control blocks, on the GPU.
    Wait,
    /// Abandons the commands that control blocks have in flight.
    Abandon,
    /// Compares bytes with their checksums.
    Verify,
    Controller,
    /// Writes one word as a doorbell is written.
    Poke,
    /// Arithmetic, to measure how I/O slows it down.
    Compute,
}

impl Kernel {
    /// All kernels, and their names in the device code.
    const ALL: [(Kernel, &CStr); 8] = [
        (Kernel::Issue, c"adit_issue"),
        (Kernel::Persist, c"adit_persist"),
        (Kernel::Wait, c"adit_wait"),
        (Kernel::Abandon, c"adit_abandon"),
        (Kernel::Verify, c"adit_verify"),
        (Kernel::Controller, c"adit_controller"),
        (Kernel::Poke, c"adit_poke"),
        (Kernel::Compute, c"adit_compute"),
    ];
}

/// The kernels, loaded on a GPU.
#[derive(Debug)]
pub struct Program {
    functions: Vec<Function>,
}

impl Program {
    /// Compiles the kernels for this GPU and loads them.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] without NVRTC, or with one too old for the GPU; [`Error::Cuda`] with the compiler's
    /// output; [`Error::Refused`] while the persistent kernel of rings runs.
    pub fn load(gpu: &Arc<Gpu>) -> Result<Arc<Program>> {
        let _making = gpu.may_make("load the device code")?;
        let target = target(gpu.info().compute_capability, &compiler::architectures()?)?;
        let (image, _) = compiler::compile(KERNELS, SOURCES, &target.architecture, target.form)?;
        let module = Module::load(gpu, &image)?;
        let functions = Kernel::ALL.into_iter().map(|(_, name)| module.function(name));
        Ok(Arc::new(Program { functions: functions.collect::<Result<_>>()? }))
    }

    pub fn function(&self, kernel: Kernel) -> &Function {
        &self.functions[kernel as usize]
    }
}

/// Architecture and form to compile.
#[derive(Debug, PartialEq, Eq)]
struct ImageTarget {
    architecture: String,
    form: ImageForm,
}

/// Returns the best target that a compiler for `architectures` (90 for 9.0) has for a GPU: machine code of the GPU's
/// own architecture or of an older one with the same major number, which it runs as well; otherwise PTX, which the
/// GPU's driver compiles.
fn target((major, minor): (u32, u32), architectures: &[u32]) -> Result<ImageTarget> {
    let own = major * 10 + minor;
    let older = architectures.iter().copied().filter(|&architecture| architecture <= own).max();
    let Some(best) = older else {
        let why = format!(
            "this NVRTC compiles for newer GPUs than this one, of compute capability {major}.{minor}"
        );
        return Err(Error::unavailable(
            "the device code's compiler",
            why,
            "use the NVRTC of an older CUDA",
        ));
    };
    Ok(if best / 10 == major {
        ImageTarget { architecture: format!("sm_{best}"), form: ImageForm::Cubin }
    } else {
        ImageTarget { architecture: format!("compute_{best}"), form: ImageForm::Ptx }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_has_its_place() {
        for (place, (kernel, _)) in Kernel::ALL.into_iter().enumerate() {
            assert_eq!(kernel as usize, place, "{kernel:?}");
        }
    }

    #[test]
    fn a_gpu_gets_code_of_its_own_architecture_or_the_nearest_it_runs() {
        let known = [75, 80, 86, 90, 100, 120];
        let is =
            |architecture: &str, form| ImageTarget { architecture: architecture.to_owned(), form };
        assert_eq!(target((9, 0), &known).unwrap(), is("sm_90", ImageForm::Cubin));
        assert_eq!(target((8, 9), &known).unwrap(), is("sm_86", ImageForm::Cubin));
        assert_eq!(target((10, 3), &known).unwrap(), is("sm_100", ImageForm::Cubin));
        assert_eq!(target((13, 0), &known).unwrap(), is("compute_120", ImageForm::Ptx));
        assert!(target((7, 0), &known).unwrap_err().is_unavailable());
    }
}
