//! A CUDA driver without a GPU.
//!
//! The libraries that this crate builds have the names and functions of CUDA's driver, of NVRTC and of gdrcopy. GPU
//! memory is host memory, streams are threads, and a kernel is the C++ build of the device code with a thread per warp.
//! A process has this GPU if it loads the libraries before anything looks for CUDA ([`load`]), or starts with
//! [`directory`] in `LD_LIBRARY_PATH`.
//!
//! It is strict where CUDA is lenient or silent: stale handles and memory are refused and counted ([`report`]). [`set`]
//! changes the GPU's properties and injects failures at run time; `native/settings.h` lists the words. A process has
//! one GPU and one set of settings, so tests that set anything need their own process.
//!
//! It says nothing about speed, PCIe, or a GPU's memory order beyond the compiler's.
#![allow(unsafe_code)]

mod alone;

use std::ffi::CString;
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

pub use alone::alone;

/// A choice of libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installation {
    /// The driver, NVRTC and gdrcopy.
    All,
    /// The driver alone: programs cannot be compiled.
    DriverAlone,
    /// A driver without green contexts, alone.
    OldDriver,
    /// The driver, and NVRTC of CUDA 12 and of CUDA 13.
    BothCompilers,
}

/// Live objects of the emulated driver, and errors so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Device allocations (`cuMemAlloc`).
    pub allocations: u64,
    /// Bytes of GPU memory in use, of both kinds of allocation.
    pub allocated_bytes: u64,
    /// Pinned host allocations.
    pub host_allocations: u64,
    /// Registered host memory, registers of devices included.
    pub registrations: u64,
    /// Reserved ranges of virtual addresses.
    pub virtual_ranges: u64,
    /// Memory mapped into them.
    pub mappings: u64,
    /// Memory made for mapping (`cuMemCreate`).
    pub physicals: u64,
    /// Streams, without default ones.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Loaded modules.
    pub modules: u64,
    /// Retained primary contexts.
    pub contexts: u64,
    /// Green contexts.
    pub green_contexts: u64,
    /// Running kernels.
    pub kernels_running: u64,
    /// Kernels launched so far.
    pub launches: u64,
    /// Calls so far with a nonexistent handle or memory, or an argument that CUDA forbids.
    pub misuses: u64,
    /// Objects so far that outlived their context.
    pub leaks: u64,
    /// Calls so far that gave up waiting for work on the GPU.
    pub stalls: u64,
    /// Calls so far that CUDA may delay until all kernels end, made while one ran.
    pub frees_behind_kernels: u64,
    /// Ranges pinned through gdrcopy.
    pub pinned_ranges: u64,
}

/// Returns the directory of the libraries, for `LD_LIBRARY_PATH`.
pub fn directory() -> &'static Path {
    directory_of(Installation::All)
}

/// Returns the directory of an installation's libraries.
pub fn directory_of(installation: Installation) -> &'static Path {
    Path::new(match installation {
        Installation::All => concat!(env!("OUT_DIR"), "/all"),
        Installation::DriverAlone => concat!(env!("OUT_DIR"), "/driver"),
        Installation::OldDriver => concat!(env!("OUT_DIR"), "/old"),
        Installation::BothCompilers => concat!(env!("OUT_DIR"), "/both"),
    })
}

/// Loads all libraries into this process permanently, so that a later search by name finds them.
///
/// # Panics
/// If another installation was loaded before, or a library cannot be loaded.
pub fn load() {
    load_installation(Installation::All);
}

/// Loads an installation, as [`load`].
///
/// # Panics
/// As [`load`].
pub fn load_installation(installation: Installation) {
    let loaded = LOADED.get_or_init(|| Loaded::open(installation));
    assert_eq!(loaded.installation, installation, "a process has one installation");
}

/// Replaces all settings by a comma list; an empty one restores the defaults. Loads the libraries if needed.
///
/// # Panics
/// If the list has a word that `native/settings.h` does not.
pub fn set(settings: &str) {
    let list = CString::new(settings).expect("a list of settings has no zero byte");
    for set in &loaded().set {
        // SAFETY: the function is as declared (native/settings.h) and reads the text during the call only.
        let result = unsafe { set(list.as_ptr()) };
        assert_eq!(
            result, 0,
            "{settings:?} has a word that is not in gpu/emulated/native/settings.h"
        );
    }
}

/// Returns the live objects and the errors so far. Loads the libraries if needed.
pub fn report() -> Report {
    let mut report = Report::default();
    // SAFETY: the function is as declared (native/state.cpp) and writes the structure, which is laid out as there.
    unsafe { (loaded().report)(&raw mut report) };
    report
}

type Set = unsafe extern "C" fn(*const std::ffi::c_char) -> i32;
type Fill = unsafe extern "C" fn(*mut Report);

/// The libraries, which stay for the life of the process.
struct Loaded {
    installation: Installation,
    set: Vec<Set>,
    report: Fill,
}

static LOADED: OnceLock<Loaded> = OnceLock::new();

fn loaded() -> &'static Loaded {
    LOADED.get_or_init(|| Loaded::open(Installation::All))
}

impl Loaded {
    fn open(installation: Installation) -> Self {
        let driver = open(installation, "libcuda.so");
        let mut set = vec![symbol::<Set>(&driver, b"adit_emulated_set\0")];
        let report = symbol::<Fill>(&driver, b"adit_emulated_report\0");
        std::mem::forget(driver);
        let compilers: &[&str] = match installation {
            Installation::All => &["libnvrtc.so"],
            Installation::BothCompilers => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Installation::DriverAlone | Installation::OldDriver => &[],
        };
        for name in compilers {
            let nvrtc = open(installation, name);
            set.push(symbol::<Set>(&nvrtc, b"adit_emulated_set\0"));
            std::mem::forget(nvrtc);
        }
        if installation == Installation::All {
            std::mem::forget(open(installation, "libgdrapi.so.2"));
        }
        Self { installation, set, report }
    }
}

fn open(installation: Installation, name: &str) -> Library {
    let path = directory_of(installation).join(name);
    // SAFETY: the build made the library; loading it runs C++ initialisers of its own only.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    library.unwrap_or_else(|why| panic!("{} is not a library: {why}", path.display()))
}

fn symbol<T: Copy>(library: &Library, name: &[u8]) -> T {
    // SAFETY: the type is as the library declares it; the library is never unloaded.
    *unsafe { library.get::<T>(name) }.expect("the emulated library has the function")
}
