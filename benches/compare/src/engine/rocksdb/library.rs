//! RocksDB's C interface, as much of it as the comparison needs.
//!
//! It is stable, so that one declaration fits the RocksDB of each distribution; a crate's bindings fit one version, and
//! take libclang to make. All options are text (`rocksdb_get_options_from_string`), and RocksDB refuses what it does
//! not know. See `rocksdb/c.h`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use anyhow::{Context, Result, bail};

/// What RocksDB gives out: only it knows what is behind.
type Opaque = *mut c_void;
/// Where a call leaves its error: a string of `malloc`, or nothing.
type Failure = *mut *mut c_char;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> Opaque;
    fn rocksdb_get_options_from_string(
        base: Opaque,
        text: *const c_char,
        made: Opaque,
        why: Failure,
    );
    fn rocksdb_options_enable_statistics(options: Opaque);
    fn rocksdb_options_statistics_get_string(options: Opaque) -> *mut c_char;
    fn rocksdb_options_destroy(options: Opaque);
    fn rocksdb_writeoptions_create() -> Opaque;
    fn rocksdb_writeoptions_disable_WAL(options: Opaque, is_off: c_int);
    fn rocksdb_writeoptions_destroy(options: Opaque);
    fn rocksdb_readoptions_create() -> Opaque;
    fn rocksdb_readoptions_set_verify_checksums(options: Opaque, verifies: c_uchar);
    fn rocksdb_readoptions_destroy(options: Opaque);
    fn rocksdb_flushoptions_create() -> Opaque;
    fn rocksdb_flushoptions_set_wait(options: Opaque, waits: c_uchar);
    fn rocksdb_flushoptions_destroy(options: Opaque);
    fn rocksdb_open(options: Opaque, folder: *const c_char, why: Failure) -> Opaque;
    fn rocksdb_close(db: Opaque);
    fn rocksdb_put(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        why: Failure,
    );
    fn rocksdb_get_pinned(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        why: Failure,
    ) -> Opaque;
    fn rocksdb_pinnableslice_value(slice: Opaque, len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Opaque);
    fn rocksdb_flush(db: Opaque, options: Opaque, why: Failure);
    fn rocksdb_free(memory: *mut c_void);
}

/// An open database, closed when this is dropped.
pub(super) struct Db {
    db: Opaque,
    options: Opaque,
    write: Opaque,
    read: Opaque,
    flush: Opaque,
}

// SAFETY: RocksDB's DB, its statistics and options that no call changes may be used by all threads at once.
unsafe impl Send for Db {}
// SAFETY: as above.
unsafe impl Sync for Db {}

/// Bytes that RocksDB keeps in place for the caller.
pub(super) struct Pinned<'a> {
    slice: Opaque,
    _db: &'a Db,
}

/// Takes what a call left as its error.
///
/// # Safety
/// `why` is null, or a string of RocksDB's that nothing else uses.
unsafe fn outcome(why: *mut c_char) -> Result<()> {
    if why.is_null() {
        return Ok(());
    }
    // SAFETY: the caller gives a string of RocksDB's, which ends with a null; it is freed once, after its last use.
    let text = unsafe {
        let text = CStr::from_ptr(why).to_string_lossy().into_owned();
        rocksdb_free(why.cast());
        text
    };
    bail!("RocksDB: {text}")
}

impl Db {
    /// Opens a database with options as text (`name=value;…`), without a write-ahead log, with statistics.
    ///
    /// # Errors
    /// RocksDB's, which name an option that this version does not know.
    pub(super) fn open(options: &str, folder: &Path) -> Result<Db> {
        let text = CString::new(options)?;
        let path = CString::new(folder.as_os_str().as_bytes())?;
        let mut why = ptr::null_mut();
        // SAFETY: these calls take nothing, or what they made; each lives until the drop of `db`.
        let mut db = unsafe {
            let write = rocksdb_writeoptions_create();
            rocksdb_writeoptions_disable_WAL(write, 1);
            let (read, flush) = (rocksdb_readoptions_create(), rocksdb_flushoptions_create());
            rocksdb_flushoptions_set_wait(flush, 1);
            Db { db: ptr::null_mut(), options: rocksdb_options_create(), write, read, flush }
        };
        // SAFETY: options of the calls above, strings that end with a null, and a place for an error. `base` is copied.
        unsafe {
            let base = rocksdb_options_create();
            rocksdb_get_options_from_string(base, text.as_ptr(), db.options, &raw mut why);
            rocksdb_options_destroy(base);
            outcome(why).context("this version of RocksDB does not have all options")?;
            rocksdb_options_enable_statistics(db.options);
            db.db = rocksdb_open(db.options, path.as_ptr(), &raw mut why);
            outcome(why).with_context(|| format!("opening {}", folder.display()))?;
        }
        Ok(db)
    }

    /// Lets gets return what they read without a look at its checksum.
    pub(super) fn trust_reads(&mut self) {
        // SAFETY: options that only this database's gets use, none of which runs beside an exclusive borrow.
        unsafe { rocksdb_readoptions_set_verify_checksums(self.read, 0) }
    }

    /// # Errors
    /// RocksDB's.
    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut why = ptr::null_mut();
        let (key, key_len) = (key.as_ptr().cast(), key.len());
        let (value, value_len) = (value.as_ptr().cast(), value.len());
        // SAFETY: an open database, its options, bytes of these lengths, which it copies, and a place for an error.
        unsafe {
            rocksdb_put(self.db, self.write, key, key_len, value, value_len, &raw mut why);
            outcome(why)
        }
    }

    /// # Errors
    /// RocksDB's.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Pinned<'_>>> {
        let mut why = ptr::null_mut();
        let (key, key_len) = (key.as_ptr().cast(), key.len());
        // SAFETY: an open database, its options, bytes of this length, and a place for an error.
        let slice = unsafe {
            let slice = rocksdb_get_pinned(self.db, self.read, key, key_len, &raw mut why);
            outcome(why)?;
            slice
        };
        Ok((!slice.is_null()).then_some(Pinned { slice, _db: self }))
    }

    /// Writes the memtables to files, and waits for that.
    ///
    /// # Errors
    /// RocksDB's.
    pub(super) fn flush(&self) -> Result<()> {
        let mut why = ptr::null_mut();
        // SAFETY: an open database, its options, and a place for an error.
        unsafe {
            rocksdb_flush(self.db, self.flush, &raw mut why);
            outcome(why)
        }
    }

    /// Returns a counter of the statistics, if this version has it.
    pub(super) fn counter(&self, name: &str) -> Option<u64> {
        // SAFETY: options with statistics; the string ends with a null, and is freed once, after its last use.
        let text = unsafe {
            let text = NonNull::new(rocksdb_options_statistics_get_string(self.options))?;
            let copy = CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
            rocksdb_free(text.as_ptr().cast());
            copy
        };
        counter(&text, name)
    }
}

/// Finds a counter in RocksDB's statistics, a line each: `rocksdb.block.cache.hit COUNT : 7`.
fn counter(text: &str, name: &str) -> Option<u64> {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
    values.find_map(|rest| rest.strip_prefix(" COUNT : ")?.trim().parse().ok())
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: each was made by RocksDB, and is used by nothing after this; slices borrow from this value.
        unsafe {
            if !self.db.is_null() {
                rocksdb_close(self.db);
            }
            rocksdb_options_destroy(self.options);
            rocksdb_writeoptions_destroy(self.write);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_flushoptions_destroy(self.flush);
        }
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: a slice of RocksDB's that lives as long as this value; its bytes do not move or change meanwhile.
        unsafe {
            let bytes = rocksdb_pinnableslice_value(self.slice, &raw mut len);
            std::slice::from_raw_parts(bytes.cast(), len)
        }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `rocksdb_get_pinned`, and destroyed once.
        unsafe { rocksdb_pinnableslice_destroy(self.slice) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let text = "rocksdb.block.cache.hit.add COUNT : 9\nrocksdb.block.cache.hit COUNT : 7\n";
        assert_eq!(counter(text, "rocksdb.block.cache.hit"), Some(7));
        assert_eq!(counter(text, "rocksdb.block.cache"), None);
    }

    #[test]
    fn an_option_that_is_not_known_is_named() {
        let why = Db::open("no_such_option=1", Path::new("/nowhere")).err().expect("no option");
        assert!(format!("{why:#}").contains("no_such_option"), "{why:#}");
    }

    #[test]
    fn what_was_put_is_found_and_the_rest_is_not() {
        let folder = std::env::temp_dir().join(format!("adit-compare-db-{}", std::process::id()));
        let db = Db::open("create_if_missing=true", &folder).expect("a database");
        db.put(b"a", b"value").expect("put");
        db.flush().expect("flushed");
        let found = db.get(b"a").expect("no failure").map(|value| value.to_vec());
        assert_eq!(found.as_deref(), Some(&b"value"[..]));
        assert!(db.get(b"b").expect("no failure").is_none());
        assert!(db.counter("rocksdb.number.keys.written").is_some_and(|count| count == 1));
        drop(db);
        std::fs::remove_dir_all(folder).expect("it was made");
    }
}
