//! NVRTC, the CUDA compiler as a library: the one of the driver's major version where there are several, because a
//! driver refuses what a newer one compiles.
#![allow(unsafe_code)]

use super::places::{Places, entries};
use crate::cuda::library::{driver_major, functions};
use crate::error::with_causes;
use crate::{Error, Result};
use cudarc::nvrtc::sys::nvrtcProgram;
use libloading::Library;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

/// Environment variable that names the directory of NVRTC's libraries.
const DIRECTORY_VARIABLE: &str = "ADIT_NVRTC";
const LIBRARY: &str = "libnvrtc.so";
const BUILTINS: &str = "libnvrtc-builtins.so";
/// Major versions to look for by name; a newer driver adds its own.
const MAJOR_MIN: u32 = 12;
const MAJOR_KNOWN: u32 = 13;
const WHAT: &str = "the device code's compiler";
const FIX: &str = "pip install nvidia-cuda-nvrtc (nvidia-cuda-nvrtc-cu12 for a driver of CUDA 12), or set ADIT_NVRTC or LD_LIBRARY_PATH to the directory of its libnvrtc.so";
const SUCCESS: u32 = 0;
const COMPILATION: u32 = 6;

/// Output of NVRTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageForm {
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
    form: ImageForm,
) -> Result<(Vec<u8>, String)> {
    let nvrtc = nvrtc()?;
    let program = Source::new(nvrtc, source, headers)?;
    let architecture = format!("--gpu-architecture={architecture}");
    // The last option makes the log list registers and spills.
    let options =
        [&architecture, "-std=c++17", "-default-device", "--ptxas-options=-v"].map(zero_ended);
    let options = options.each_ref().map(|option| option.as_ptr());
    // SAFETY: as many texts as passed, which end with zeroes and live until it returns.
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
    nvrtc()?.version()
}

impl Nvrtc {
    fn version(&self) -> Result<(u32, u32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes two ints.
        let result = unsafe { (self.nvrtcVersion)(&mut major, &mut minor) };
        check("nvrtcVersion", result)?;
        Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
    }
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
        // SAFETY: as many texts as passed, which end with zeroes and are copied before it returns.
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

    fn output(&self, form: ImageForm) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc;
        match form {
            ImageForm::Cubin => {
                self.bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, "nvrtcGetCUBIN")
            }
            ImageForm::Ptx => self.bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, "nvrtcGetPTX"),
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
    let driver = driver_major();
    let found = match std::env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) => find_in(Path::new(&directory), driver)?,
        None => find_anywhere(driver)?,
    };
    Ok(NVRTC.get_or_init(|| found))
}

/// Finds NVRTC by the dynamic linker, or else where CUDA and Python keep it.
fn find_anywhere(driver: Option<u32>) -> Result<Nvrtc> {
    let newest = driver.unwrap_or(0).max(MAJOR_KNOWN);
    let versioned = (MAJOR_MIN..=newest).map(|major| format!("{LIBRARY}.{major}"));
    let mut files: Vec<PathBuf> = versioned.rev().map(PathBuf::from).collect();
    files.push(PathBuf::from(LIBRARY));
    let places = Places::find(Path::new("/"), |name| std::env::var_os(name));
    files.extend(places.directories.iter().flat_map(|directory| files_in(directory, LIBRARY)));
    first_for(driver, preferred(files, driver), open_anywhere)?.ok_or_else(|| absent(&places))
}

fn absent(places: &Places) -> Error {
    Error::unavailable(WHAT, format!("{LIBRARY} is not found: {}", places.looked()), FIX)
}

/// Loads a file of [`find_anywhere`]; `None` if it is a name that the dynamic linker does not find.
fn open_anywhere(file: &Path) -> Result<Option<&'static Library>> {
    let Some(directory) = directory_of(file) else { return Ok(open(file).ok()) };
    // Newer versions may do without.
    if let Some(builtins) = builtins_of(&files_in(directory, BUILTINS), file) {
        open(builtins)?;
    }
    open(file).map(Some)
}

/// Finds NVRTC and its own dependency in a directory, so that neither needs the dynamic linker's search path.
fn find_in(directory: &Path, driver: Option<u32>) -> Result<Nvrtc> {
    let missing = |start: &str| {
        let shown = directory.display();
        let why = format!("there is no {start} in {shown}, which {DIRECTORY_VARIABLE} names");
        Error::unavailable(WHAT, why, FIX)
    };
    let builtins = files_in(directory, BUILTINS);
    let files = preferred(files_in(directory, LIBRARY), driver);
    let found = first_for(driver, files, |file| {
        open(builtins_of(&builtins, file).ok_or_else(|| missing(BUILTINS))?)?;
        open(file).map(Some)
    });
    found?.ok_or_else(|| missing(LIBRARY))
}

/// Loads libraries in turn, until one is NVRTC of a version that the driver takes; of none, keeps the first. `None` if
/// none is there.
fn first_for(
    driver: Option<u32>,
    files: Vec<PathBuf>,
    load: impl Fn(&Path) -> Result<Option<&'static Library>>,
) -> Result<Option<Nvrtc>> {
    let mut other = None;
    for file in files {
        let Some(loaded) = load(&file).transpose() else { continue };
        let found = loaded.and_then(functions_of).and_then(|nvrtc| {
            let (major, _) = nvrtc.version()?;
            Ok((nvrtc, major))
        });
        match found {
            Ok((nvrtc, major)) if driver.is_none_or(|driver| major <= driver) => {
                return Ok(Some(nvrtc));
            }
            Ok((nvrtc, _)) => other = other.filter(Result::is_ok).or(Some(Ok(nvrtc))),
            Err(error) => other = other.or(Some(Err(error))),
        }
    }
    other.transpose()
}

fn functions_of(library: &'static Library) -> Result<Nvrtc> {
    Nvrtc::of(library)
        .map_err(|name| Error::unavailable(WHAT, format!("this NVRTC has no {name}"), FIX))
}

/// Loads a library for the process's life: NVRTC finds its dependency by name when needed.
fn open(file: &Path) -> Result<&'static Library> {
    // SAFETY: loading NVRTC runs its initialisers, which is what any program that uses it does.
    let library = unsafe { Library::new(file) }.map_err(|why| {
        let why = format!("{}: {}", file.display(), with_causes(&why));
        Error::unavailable(WHAT, why, FIX)
    })?;
    Ok(Box::leak(Box::new(library)))
}

/// Sorts files of NVRTC: the driver's own major version, whose machine code it takes whatever the minor versions; a name
/// without a version; older ones, the newest first; newer ones, which it takes least likely. Without a driver, the name
/// without a version, then the newest. Of equal ones, names for the dynamic linker come first, and then files in their
/// order.
fn preferred(mut files: Vec<PathBuf>, driver: Option<u32>) -> Vec<PathBuf> {
    let rank = |file: &Path| match (major_of(file), driver) {
        (None, None) => (0, 0),
        (Some(major), None) => (1, u32::MAX - major),
        (Some(major), Some(driver)) if major == driver => (0, 0),
        (None, Some(_)) => (1, 0),
        (Some(major), Some(driver)) if major < driver => (2, driver - major),
        (Some(major), Some(driver)) => (3, major - driver),
    };
    files.sort_by_key(|file| (rank(file), directory_of(file).is_some()));
    files
}

fn directory_of(file: &Path) -> Option<&Path> {
    file.parent().filter(|directory| !directory.as_os_str().is_empty())
}

/// Parses the major version of a library: 13 of `libnvrtc.so.13.0.88`.
fn major_of(file: &Path) -> Option<u32> {
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    version.split('.').next()?.parse().ok()
}

/// Chooses the dependency of the same major version; without a version, the highest.
fn builtins_of<'a>(builtins: &'a [PathBuf], file: &Path) -> Option<&'a PathBuf> {
    let is_same = |other: &&PathBuf| match (major_of(file), major_of(other)) {
        (Some(major), Some(other)) => major == other,
        _ => true,
    };
    builtins.iter().find(is_same)
}

/// Returns the files of a directory whose names begin with `start`; the last by name, which is the newest, comes first.
fn files_in(directory: &Path, start: &str) -> Vec<PathBuf> {
    entries(directory, |name| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    fn sorted(names: &[&str], driver: Option<u32>) -> Vec<String> {
        let files = preferred(paths(names), driver);
        files.iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn the_drivers_own_version_comes_first_and_newer_ones_last() {
        let names = ["libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.14"];
        let order = |driver| sorted(&names, driver).join(" ").replace("libnvrtc.so", "");
        assert_eq!(order(Some(13)), ".13  .12 .14");
        assert_eq!(order(Some(12)), ".12  .13 .14");
        assert_eq!(order(Some(15)), " .14 .13 .12");
        assert_eq!(order(None), " .14 .13 .12");
    }

    #[test]
    fn of_one_version_the_linkers_comes_first_and_then_the_likelier_place() {
        let names =
            ["/p/libnvrtc.so.12.8.93", "/q/libnvrtc.so.12", "libnvrtc.so.12", "/q/libnvrtc.so.13"];
        let order =
            ["libnvrtc.so.12", "/p/libnvrtc.so.12.8.93", "/q/libnvrtc.so.12", "/q/libnvrtc.so.13"];
        assert_eq!(sorted(&names, Some(12)), order);
        let major = |name| major_of(Path::new(name));
        assert_eq!(major("/p/libnvrtc.so.12.8.93"), Some(12));
        assert_eq!((major("libnvrtc.so"), major("libnvrtc.so.alt")), (None, None));
    }

    #[test]
    fn the_dependency_is_of_the_same_version() {
        let builtins = paths(&["/p/libnvrtc-builtins.so.13.0", "/p/libnvrtc-builtins.so.12.8"]);
        let of = |name| builtins_of(&builtins, Path::new(name)).map(|it| it.display().to_string());
        assert_eq!(of("/p/libnvrtc.so.12").as_deref(), Some("/p/libnvrtc-builtins.so.12.8"));
        assert_eq!(of("/p/libnvrtc.so.13.0.88").as_deref(), Some("/p/libnvrtc-builtins.so.13.0"));
        assert_eq!(of("/p/libnvrtc.so").as_deref(), Some("/p/libnvrtc-builtins.so.13.0"));
        assert_eq!(of("/p/libnvrtc.so.14"), None);
    }

    #[test]
    fn a_machine_without_nvrtc_says_where_was_looked_and_how_to_get_it() {
        let error = absent(&Places::default());
        assert!(error.is_unavailable(), "{error}");
        let text = error.to_string();
        for part in [
            "libnvrtc.so is not found: neither by the dynamic linker",
            "CUDA_HOME",
            "Python's packages",
            "pip install nvidia-cuda-nvrtc",
            "LD_LIBRARY_PATH",
            "ADIT_NVRTC",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
