//! GPU memory through gdrdrv, NVIDIA's module that maps BAR1 into a process, by `libgdrapi.so.2`, loaded on demand.
//!
//! The memory is pinned as long as its mapping lives, and both end before it is freed. The library is loaded once and
//! stays.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::Library;

use crate::error::{Error, Result, with_causes};

const LIBRARY: &str = "libgdrapi.so.2";
const WHAT: &str = "GPU memory through gdrdrv";
/// The library pins whole GPU pages, from a page boundary.
const GPU_PAGE_BYTES: u64 = 64 << 10;
const INSTALL: &str = "install gdrcopy (libgdrapi) and load its module: modprobe gdrdrv";

/// A pinned range: the library's structure of one word.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle(c_ulong);

/// The library's functions (gdrapi.h of gdrcopy 2).
struct Functions {
    open: unsafe extern "C" fn() -> *mut c_void,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
    pin: unsafe extern "C" fn(*mut c_void, c_ulong, usize, u64, u32, *mut Handle) -> c_int,
    unpin: unsafe extern "C" fn(*mut c_void, Handle) -> c_int,
    map: unsafe extern "C" fn(*mut c_void, Handle, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(*mut c_void, Handle, *mut c_void, usize) -> c_int,
    _library: Library,
}

pub(crate) struct GdrMapping {
    session: Session,
    pinned: Handle,
    at: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the library's calls are made once each, in `new` and `drop`; the mapping is only an address.
unsafe impl Send for GdrMapping {}
// SAFETY: as above; nothing is called through a shared reference.
unsafe impl Sync for GdrMapping {}

struct Session {
    functions: &'static Functions,
    raw: NonNull<c_void>,
}

/// Checks that the library and the module are present.
///
/// # Errors
/// [`Error::Unavailable`] with what is missing.
#[cfg(feature = "internals")]
pub fn is_present() -> Result<()> {
    Session::open().map(drop)
}

/// Explains why the library, by its name, did not load.
fn not_loaded(why: &libloading::Error) -> String {
    format!("{LIBRARY}: {}", with_causes(why))
}

impl Functions {
    fn load() -> Result<&'static Functions> {
        static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
        // SAFETY: loading runs the library's initialisers, as linking with it would.
        let load = || unsafe { Functions::find() }.map_err(|why| not_loaded(&why));
        let loaded = LOADED.get_or_init(load).as_ref();
        loaded.map_err(|why| Error::unavailable(WHAT, why, INSTALL))
    }

    /// Finds the functions.
    ///
    /// # Safety
    /// The library that the system finds by this name is gdrcopy's, whose interface the types above are.
    unsafe fn find() -> Result<Functions, libloading::Error> {
        // SAFETY: the caller's.
        let library = unsafe { Library::new(LIBRARY)? };
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the caller's: the function has this type.
                *unsafe { library.get($name)? }
            };
        }
        Ok(Functions {
            open: find!(b"gdr_open\0"),
            close: find!(b"gdr_close\0"),
            pin: find!(b"gdr_pin_buffer\0"),
            unpin: find!(b"gdr_unpin_buffer\0"),
            map: find!(b"gdr_map\0"),
            unmap: find!(b"gdr_unmap\0"),
            _library: library,
        })
    }
}

impl Session {
    fn open() -> Result<Session> {
        let functions = Functions::load()?;
        // SAFETY: takes nothing; returns null or a session.
        let raw = NonNull::new(unsafe { (functions.open)() });
        let raw = raw.ok_or_else(|| {
            Error::unavailable(
                WHAT,
                "the library cannot open /dev/gdrdrv",
                "load the module: modprobe gdrdrv",
            )
        })?;
        Ok(Session { functions, raw })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed once.
        unsafe { (self.functions.close)(self.raw.as_ptr()) };
    }
}

impl GdrMapping {
    /// Pins and maps `bytes` of GPU memory at `address`, a multiple of 64 KiB.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without the library or the module; [`Error::Refused`] with the library's error number, or
    /// for an address inside a page of the GPU.
    pub(super) fn new(address: u64, bytes: u64) -> Result<GdrMapping> {
        let session = Session::open()?;
        let refused = |call: &str, code: c_int| {
            let why = format!("{call} failed: {}", std::io::Error::from_raw_os_error(code));
            let fix = "it may not fit the GPU's BAR1: enable Resizable BAR, or make the pool smaller; see dmesg for gdrdrv";
            Error::refused(format!("{WHAT}: {bytes} bytes at {address:#x}"), why, fix)
        };
        if !address.is_multiple_of(GPU_PAGE_BYTES) {
            return Err(Error::refused(
                format!("{WHAT}: {bytes} bytes at {address:#x}"),
                "gdrdrv pins from a multiple of 65536 on",
                "register the whole allocation, or memory that begins at such an address",
            ));
        }
        let len = usize::try_from(bytes).map_err(|why| Error::invalid(WHAT, why))?;
        let Functions { pin, unpin, map, .. } = session.functions;
        let raw = session.raw.as_ptr();
        let mut pinned = Handle(0);
        // SAFETY: the session is open; the library checks the range and writes one handle.
        let code = unsafe { pin(raw, address as c_ulong, len, 0, 0, &raw mut pinned) };
        if code != 0 {
            return Err(refused("gdr_pin_buffer", code));
        }
        let mut at = std::ptr::null_mut();
        // SAFETY: pinned just now; the library writes one address.
        let code = unsafe { map(raw, pinned, &raw mut at, len) };
        let Some(at) = NonNull::new(at).filter(|_| code == 0) else {
            // SAFETY: pinned just now, and not mapped.
            unsafe { unpin(raw, pinned) };
            return Err(refused("gdr_map", code));
        };
        Ok(GdrMapping { session, pinned, at, bytes: len })
    }

    /// Returns its first byte in this process.
    pub(super) fn at(&self) -> NonNull<u8> {
        self.at.cast()
    }
}

impl fmt::Debug for GdrMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GdrMapping({:p}+{:#x})", self.at, self.bytes)
    }
}

impl Drop for GdrMapping {
    fn drop(&mut self) {
        let Functions { unpin, unmap, .. } = self.session.functions;
        let raw = self.session.raw.as_ptr();
        // SAFETY: mapped and pinned in `new`, taken back once, in that order.
        let codes = unsafe {
            [unmap(raw, self.pinned, self.at.as_ptr(), self.bytes), unpin(raw, self.pinned)]
        };
        if codes != [0, 0] {
            tracing::error!("gdrdrv does not take {self:?} back (errors {codes:?})");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_linkers_reason() {
        // SAFETY: there is no such library, so nothing of it runs.
        let why = unsafe { Library::new("libgdrapi-that-is-not-there.so") };
        let told = not_loaded(&why.expect_err("there is none"));
        assert!(told.starts_with("libgdrapi.so.2: "), "{told}");
        assert!(told.contains("No such file"), "{told}");
    }
}
