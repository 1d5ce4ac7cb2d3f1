//! NVRTC, the CUDA compiler as a library.
#![allow(unsafe_code)]

use crate::cuda::library::functions;
use crate::error::with_causes;
use crate::{Error, Result};
use cudarc::nvrtc::sys::{self, nvrtcProgram};
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

/// Environment variable that names the directory of NVRTC's libraries.
const DIRECTORY_VARIABLE: &str = "ADIT_NVRTC";
const WHAT: &str = "the device code's compiler";
const FIX: &str = "pip install nvidia-cuda-nvrtc, and set ADIT_NVRTC or LD_LIBRARY_PATH to the directory of its libnvrtc.so";
const SUCCESS: u32 = 0;
const COMPILATION: u32 = 6;

/// Output of NVRTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Cubin,
    /// PTX text, zero-terminated.
    Ptx,
}

functions! {
    Nvrtc, required {
        fn nvrtcVersion(*mut c_int, *mut c_int);
        fn nvrtcGetNumSupportedArchs(*mut c_int);
        fn nvrtcGetSupportedArchs(*mut c_int);
        fn nvrtcCreateProgram(
            *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        );
        fn nvrtcDestroyProgram(*mut nvrtcProgram);
        fn nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
        fn nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        fn nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
        fn nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
        fn nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
        fn nvrtcGetPTXSize(nvrtcProgram, *mut usize);
        fn nvrtcGetPTX(nvrtcProgram, *mut c_char);
    }
    optional {}
}

/// A program in NVRTC, destroyed when dropped.
struct Source {
    nvrtc: &'static Nvrtc,
    raw: nvrtcProgram,
}

/// Compiles a source with headers for an architecture; returns the result and the compiler's log.
///
/// # Errors
///
/// [`Error::Unavailable`] without NVRTC; [`Error::Cuda`] with the compiler's output.
pub(super) fn compile(
    source: &str,
    headers: &[(&str, &str)],
    architecture: &str,
    form: Form,
) -> Result<(Vec<u8>, String)> {
    let nvrtc = nvrtc()?;
    let program = Source::new(nvrtc, source, headers)?;
    let architecture = format!("--gpu-architecture={architecture}");
    // The last option makes the log list registers and spills.
    let options =
        [&architecture, "-std=c++17", "-default-device", "--ptxas-options=-v"].map(zero_ended);
    let options = options.each_ref().map(|option| option.as_ptr());
    // SAFETY: as many texts as it is told, which end with zeroes and live until it returns.
    let result = unsafe {
        (nvrtc.nvrtcCompileProgram)(program.raw, options.len() as c_int, options.as_ptr())
    };
    let log = program.log();
    if result != SUCCESS {
        return Err(failure("nvrtcCompileProgram", result, &log));
    }
    Ok((program.output(form)?, log))
}

/// Returns the architectures that NVRTC supports, as numbers: 90 for 9.0.
pub(super) fn architectures() -> Result<Vec<u32>> {
    let nvrtc = nvrtc()?;
    let mut count: c_int = 0;
    // SAFETY: it writes one int.
    let result = unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&mut count) };
    check("nvrtcGetNumSupportedArchs", result)?;
    let mut numbers: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: it writes as many ints as it has just said.
    let result = unsafe { (nvrtc.nvrtcGetSupportedArchs)(numbers.as_mut_ptr()) };
    check("nvrtcGetSupportedArchs", result)?;
    Ok(numbers.into_iter().filter_map(|number| u32::try_from(number).ok()).collect())
}

/// Returns the CUDA version of the device code's compiler, NVRTC, such as (13, 0); needs no GPU.
///
/// # Errors
///
/// [`Error::Unavailable`] without NVRTC; [`Error::Cuda`].
pub fn compiler_version() -> Result<(u32, u32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two ints.
    let result = unsafe { (nvrtc()?.nvrtcVersion)(&mut major, &mut minor) };
    check("nvrtcVersion", result)?;
    Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
}

impl Source {
    fn new(nvrtc: &'static Nvrtc, source: &str, headers: &[(&str, &str)]) -> Result<Source> {
        let source = zero_ended(source);
        let names: Vec<CString> = headers.iter().map(|(name, _)| zero_ended(name)).collect();
        let texts: Vec<CString> = headers.iter().map(|(_, text)| zero_ended(text)).collect();
        let pointers =
            |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (names, texts) = ((pointers(&names), names), (pointers(&texts), texts));
        let count = headers.len() as c_int;
        let mut raw: nvrtcProgram = ptr::null_mut();
        // SAFETY: as many texts as it is told, which end with zeroes and are copied before it returns.
        let result = unsafe {
            (nvrtc.nvrtcCreateProgram)(
                &mut raw,
                source.as_ptr(),
                c"kernels.cu".as_ptr(),
                count,
                texts.0.as_ptr(),
                names.0.as_ptr(),
            )
        };
        check("nvrtcCreateProgram", result)?;
        Ok(Source { nvrtc, raw })
    }

    fn output(&self, form: Form) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc;
        match form {
            Form::Cubin => {
                self.bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, "nvrtcGetCUBIN")
            }
            Form::Ptx => self.bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, "nvrtcGetPTX"),
        }
    }

    /// Returns the compiler's log; empty if it cannot be read.
    fn log(&self) -> String {
        let nvrtc = self.nvrtc;
        let log = self.bytes(
            nvrtc.nvrtcGetProgramLogSize,
            nvrtc.nvrtcGetProgramLog,
            "nvrtcGetProgramLog",
        );
        let log = log.unwrap_or_default();
        String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned()
    }

    fn bytes(
        &self,
        size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> u32,
        get: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> u32,
        call: &'static str,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is live; it writes one size.
        check(call, unsafe { size(self.raw, &mut bytes) })?;
        let mut output = vec![0_u8; bytes];
        // SAFETY: it writes as many bytes as it has just said.
        check(call, unsafe { get(self.raw, output.as_mut_ptr().cast()) })?;
        Ok(output)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: it was created, and only here is it destroyed.
        let result = unsafe { (self.nvrtc.nvrtcDestroyProgram)(&mut self.raw) };
        debug_assert_eq!(result, SUCCESS, "it is a program");
    }
}

/// Makes a C string, cut at an inner zero, which our sources and names do not have.
fn zero_ended(text: &str) -> CString {
    let bytes = text.split('\0').next().unwrap_or_default();
    CString::new(bytes).expect("it was cut at its first zero")
}

fn check(call: &'static str, result: u32) -> Result<()> {
    if result == SUCCESS { Ok(()) } else { Err(failure(call, result, "")) }
}

fn failure(call: &'static str, code: u32, log: &str) -> Error {
    let name = match code {
        1 => "NVRTC_ERROR_OUT_OF_MEMORY",
        2 => "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        3 => "NVRTC_ERROR_INVALID_INPUT",
        5 => "NVRTC_ERROR_INVALID_OPTION",
        COMPILATION => "NVRTC_ERROR_COMPILATION",
        7 => "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        11 => "NVRTC_ERROR_INTERNAL_ERROR",
        _ => "an NVRTC result that has no name here",
    };
    let fix = match code {
        7 => "put libnvrtc-builtins beside libnvrtc, both of one version",
        _ => "use NVRTC of CUDA 12.4 or newer (pip install nvidia-cuda-nvrtc)",
    };
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<&str> = std::iter::once(name).chain(lines).collect();
    let what = "compile the device code".to_owned();
    Error::Cuda { what, call, name: told.join("; "), code, fix: fix.to_owned() }
}

/// Returns NVRTC's functions; looks for it again if it was not found before.
fn nvrtc() -> Result<&'static Nvrtc> {
    static NVRTC: OnceLock<Nvrtc> = OnceLock::new();
    if let Some(nvrtc) = NVRTC.get() {
        return Ok(nvrtc);
    }
    let library = match std::env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) => load_from(Path::new(&directory))?,
        None => load_by_name()?,
    };
    let nvrtc = Nvrtc::of(library)
        .map_err(|name| Error::unavailable(WHAT, format!("this NVRTC has no {name}"), FIX))?;
    Ok(NVRTC.get_or_init(|| nvrtc))
}

fn load_by_name() -> Result<&'static libloading::Library> {
    // SAFETY: loading NVRTC runs its initialisers, which is what any program that uses it does.
    if unsafe { sys::is_culib_present() } {
        // SAFETY: as above; it is there.
        return Ok(unsafe { sys::culib() });
    }
    Err(Error::unavailable(WHAT, "libnvrtc.so is not found", FIX))
}

/// Loads NVRTC and its own dependency by path, so that neither needs the dynamic linker's search path.
fn load_from(directory: &Path) -> Result<&'static libloading::Library> {
    let unavailable = |why: String| Error::unavailable(WHAT, why, FIX);
    let shown = directory.display();
    let find = |start: &str| {
        library_in(directory, start).ok_or_else(|| {
            unavailable(format!("there is no {start} in {shown}, which {DIRECTORY_VARIABLE} names"))
        })
    };
    let mut last = None;
    for file in [find("libnvrtc-builtins.so")?, find("libnvrtc.so")?] {
        // SAFETY: as above, of the libraries that the user names.
        let library = unsafe { libloading::Library::new(&file) };
        let library = library
            .map_err(|why| unavailable(format!("{}: {}", file.display(), with_causes(&why))))?;
        // It stays for the process's life: NVRTC finds its dependency by name when needed.
        last = Some(&*Box::leak(Box::new(library)));
    }
    last.ok_or_else(|| unavailable("nothing was loaded".to_owned()))
}

/// Returns the file of a directory whose name begins with `start`; of several the last by name, which has the highest
/// version.
fn library_in(directory: &Path, start: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let name = names.filter(|name| name.starts_with(start)).max()?;
    Some(directory.join(name))
}
