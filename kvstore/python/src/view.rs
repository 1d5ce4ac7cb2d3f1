//! Python's buffer protocol: the memory of an object, held in place while a view of it exists.
//!
//! The stable ABI has it from Python 3.11 on; Python 3.10 exports the same functions with the same structure, so they
//! are declared here.
//!
//! Bytes of a buffer are only copied ([`SharedBytes`]): other threads may change them at any time, so no reference to
//! them is ever made. What a copy of such bytes holds is then up to those threads.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use adit_driver::sys::{HostMemory, SharedBytes, SharedBytesMut};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;

/// `Py_buffer`.
#[repr(C)]
struct Raw {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

const PYBUF_SIMPLE: c_int = 0;
const PYBUF_WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut Raw, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut Raw);
}

/// A contiguous buffer of a Python object, which can neither be freed nor resized while this exists.
pub(crate) struct View(Box<Raw>);

// SAFETY: the view's memory stays in place whatever thread holds it, and it is released only by a thread that is
// attached to the interpreter.
unsafe impl Send for View {}
// SAFETY: as above; sharing a view gives out its address and length only.
unsafe impl Sync for View {}

impl View {
    /// Takes a view of an object whose bytes are read.
    ///
    /// # Errors
    /// `TypeError` if it has no buffer; `BadBufferError` if that is not contiguous.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<View> {
        View::take(
            object,
            PYBUF_SIMPLE,
            "it has to be contiguous, as numpy.ascontiguousarray makes it",
        )
    }

    /// Takes a view of an object whose bytes are written.
    ///
    /// # Errors
    /// As [`View::readable`]; `BadBufferError` also if it is read-only.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<View> {
        View::take(object, PYBUF_WRITABLE, "it has to be contiguous and writable")
    }

    fn take(object: &Bound<'_, PyAny>, flags: c_int, fix: &str) -> PyResult<View> {
        let py = object.py();
        let mut raw = Box::new(Raw {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        // SAFETY: the object is alive, this thread is attached, and the structure stays in its box until its release.
        let status = unsafe { PyObject_GetBuffer(object.as_ptr(), &mut *raw, flags) };
        if status == 0 {
            assert!(raw.len >= 0, "an object has no fewer than zero bytes");
            return Ok(View(raw));
        }
        let why = PyErr::fetch(py);
        // NumPy says ValueError for what is not contiguous or read-only.
        if why.is_instance_of::<PyBufferError>(py) || why.is_instance_of::<PyValueError>(py) {
            let text = format!("the buffer cannot be used: {}; {fix}", why.value(py));
            return Err(errors::named(py, "BadBufferError", &text));
        }
        Err(why)
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len.unsigned_abs()
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.0.buf.addr()
    }

    /// Returns the buffer's bytes, which are only copied.
    pub(crate) fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the exporter keeps `len` bytes readable while the view exists, and nothing here makes references to
        // them. A buffer without bytes may be nowhere.
        unsafe { SharedBytes::new(self.start().unwrap_or(NonNull::dangling()), self.len()) }
    }

    /// Returns a writable buffer's bytes, which are only copied.
    pub(crate) fn bytes_mut(&self) -> SharedBytesMut<'_> {
        assert!(self.0.readonly == 0, "it was taken to be written");
        // SAFETY: as in `bytes`; the exporter keeps them writable.
        unsafe { SharedBytesMut::new(self.start().unwrap_or(NonNull::dangling()), self.len()) }
    }

    fn start(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.0.buf.cast())
    }

    /// Copies all of the buffer to `into`, which is as long.
    pub(crate) fn read(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len(), "all of the buffer is copied");
        self.bytes().read(0, into);
    }

    /// Returns a copy of the buffer.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }

    /// Copies bytes to the beginning of a writable buffer.
    pub(crate) fn write(&self, from: SharedBytes<'_>) {
        self.bytes_mut().slice(0..from.len()).copy_from(from);
    }

    /// Turns a writable view into memory for devices, which releases the view when it is dropped.
    ///
    /// # Errors
    /// As [`HostMemory::adopt`].
    pub(crate) fn into_memory(self) -> adit_driver::Result<HostMemory> {
        assert!(self.0.readonly == 0, "devices write to it");
        let (start, len) = (self.start(), self.len());
        let Some(start) = start else {
            return Err(adit_driver::Error::invalid("memory to register", "it has no bytes"));
        };
        // SAFETY: the owner is the view, for as long as which the exporter keeps the bytes in place and writable. Threads
        // of Python's may write them at any time, so neither the store nor this crate has references to them.
        unsafe { HostMemory::adopt_shared(start, len, None, Box::new(self)) }
    }
}

/// Copies bytes to an object of Python's.
pub(crate) fn copied<'py>(py: Python<'py>, bytes: SharedBytes<'_>) -> Bound<'py, PyBytes> {
    // SAFETY: they are readable, and copied where the compiler does not see it: no reference to them is made.
    unsafe { PyBytes::from_ptr(py, bytes.as_ptr(), bytes.len()) }
}

impl Drop for View {
    fn drop(&mut self) {
        // Without an interpreter, at its end, the object is gone with it.
        let _ = Python::try_attach(|_| {
            // SAFETY: the view was taken once and is released once, by an attached thread.
            unsafe { PyBuffer_Release(&mut *self.0) }
        });
    }
}
