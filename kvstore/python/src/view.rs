//! Views of a Python object's bytes, held in place while the view exists: of an object with the buffer protocol, a
//! torch tensor, or another array with DLPack.
//!
//! The stable ABI has the buffer protocol from Python 3.11 on; Python 3.10 exports the same functions with the same
//! structure, so they are declared here.
//!
//! Bytes of a buffer are only copied ([`SharedBytes`]): other threads may change them at any time, so no reference to
//! them is created. The contents of a copy then depend on those threads.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr::{self, NonNull};

use adit_driver::sys::{HostMemory, SharedBytes, SharedBytesMut};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use crate::dlpack::Managed;
use crate::errors;
use crate::torch;

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
/// Contiguous, with a description of its items.
const PYBUF_DESCRIBED: c_int = 4 | 8;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut Raw, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut Raw);
}

/// The contiguous bytes of a Python object, which is kept alive. A buffer can neither be freed nor resized while this
/// exists. A tensor's storage can be resized, but must not be.
pub(crate) struct View {
    start: *mut u8,
    len: usize,
    is_writable: bool,
    /// `None` once the view is released.
    owner: Option<Owner>,
}

/// The owner that keeps the bytes in place. Release it attached to the interpreter.
enum Owner {
    Buffer(#[allow(dead_code, reason = "it is kept")] Buffer),
    Tensor(#[allow(dead_code, reason = "it is kept")] Py<PyAny>),
    Managed(#[allow(dead_code, reason = "it is kept")] Managed),
}

// SAFETY: the view's memory stays in place whatever thread holds it, and it is released only by a thread that is
// attached to the interpreter.
unsafe impl Send for View {}
// SAFETY: as above; sharing a view gives out its address and length only.
unsafe impl Sync for View {}

impl View {
    /// Takes a view of an object for reading.
    ///
    /// # Errors
    /// `TypeError` if the object has no bytes; `BadBufferError` if they are not contiguous, are addresses, or are not
    /// on the CPU.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<View> {
        let fix = "it has to be contiguous, as numpy.ascontiguousarray makes it";
        View::take(object, false, fix)
    }

    /// Takes a view of an object for writing.
    ///
    /// # Errors
    /// As [`View::readable`]; `BadBufferError` also if the object is read-only.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<View> {
        View::take(object, true, "it has to be contiguous and writable")
    }

    fn take(object: &Bound<'_, PyAny>, is_written: bool, fix: &str) -> PyResult<View> {
        let py = object.py();
        let why = match Buffer::of(object, is_written) {
            Ok(buffer) => return buffer.into_view(object),
            Err(why) => why,
        };
        let is_refused = why.is_instance_of::<PyBufferError>(py);
        if (is_refused || why.is_instance_of::<PyTypeError>(py))
            && let Some(view) = View::of_tensor(object, is_written)?
        {
            return Ok(view);
        }
        // NumPy raises ValueError for arrays that are not contiguous or read-only.
        if is_refused || why.is_instance_of::<PyValueError>(py) {
            return Err(errors::unusable(py, &format!("{}; {fix}", why.value(py))));
        }
        Err(why)
    }

    /// Takes a view of a tensor, or returns `None` for other objects.
    fn of_tensor(object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Option<View>> {
        if let Some((address, len)) = torch::bytes(object, is_written)? {
            let (start, owner) = (ptr::with_exposed_provenance_mut(address), object.clone());
            let owner = Some(Owner::Tensor(owner.unbind()));
            return Ok(Some(View { start, len, is_writable: true, owner }));
        }
        let Some(managed) = Managed::of(object)? else { return Ok(None) };
        let (start, len) = managed.bytes(object.py(), is_written)?;
        let owner = Some(Owner::Managed(managed));
        Ok(Some(View { start, len, is_writable: is_written, owner }))
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }

    /// Returns the bytes, which are only copied.
    pub(crate) fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the owner keeps `len` bytes readable while the view exists, and nothing here makes references to
        // them.
        unsafe { SharedBytes::new(self.start(), self.len) }
    }

    /// Returns a writable view's bytes, which are only copied.
    pub(crate) fn bytes_mut(&self) -> SharedBytesMut<'_> {
        assert!(self.is_writable, "it was taken to be written");
        // SAFETY: as in `bytes`; the owner keeps them writable.
        unsafe { SharedBytesMut::new(self.start(), self.len) }
    }

    fn start(&self) -> NonNull<u8> {
        let start = NonNull::new(self.start);
        assert!(start.is_some() || self.len == 0, "bytes are somewhere");
        start.unwrap_or(NonNull::dangling())
    }

    /// Copies bytes to a writable buffer, from `offset` on.
    pub(crate) fn write_at(&self, offset: usize, from: SharedBytes<'_>) {
        self.bytes_mut().slice(offset..offset.saturating_add(from.len())).copy_from(from);
    }

    /// Turns a writable view into memory for devices, which releases the view when it is dropped.
    ///
    /// # Errors
    /// As [`HostMemory::adopt`].
    pub(crate) fn into_memory(self) -> adit_driver::Result<HostMemory> {
        assert!(self.is_writable, "devices write to it");
        if self.len == 0 {
            return Err(adit_driver::Error::invalid("memory to register", "it has no bytes"));
        }
        let (start, len) = (self.start(), self.len);
        // SAFETY: the owner is the view, which keeps the bytes in place and writable as long as it exists. Threads of
        // Python's may write them at any time, so neither the store nor this crate has references to them.
        unsafe { HostMemory::adopt_shared(start, len, None, Box::new(self)) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let owner = &mut self.owner;
        // Once the interpreter has ended, the object is gone with it.
        let _ = Python::try_attach(|_| drop(owner.take()));
        mem::forget(self.owner.take());
    }
}

/// An acquired buffer, released once.
struct Buffer(Box<Raw>);

impl Buffer {
    /// Acquires the buffer of an object.
    ///
    /// # Errors
    /// `TypeError` if it has none; the exporter's exception.
    fn of(object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Buffer> {
        let flags = if is_written { PYBUF_WRITABLE } else { PYBUF_SIMPLE };
        let described = Buffer::taken(object, flags | PYBUF_DESCRIBED);
        let py = object.py();
        let is_refused = |why: &PyErr| {
            why.is_instance_of::<PyBufferError>(py) || why.is_instance_of::<PyValueError>(py)
        };
        match described {
            // Some NumPy types, such as dates, have no format. Their bytes are available without one.
            Err(why) if is_refused(&why) => Buffer::taken(object, flags),
            described => described,
        }
    }

    fn taken(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Buffer> {
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
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        assert!(raw.len >= 0, "an object has no fewer than zero bytes");
        Ok(Buffer(raw))
    }

    /// Creates the view of an object's buffer.
    ///
    /// # Errors
    /// `BadBufferError` if the buffer holds addresses of this process.
    fn into_view(self, object: &Bound<'_, PyAny>) -> PyResult<View> {
        let py = object.py();
        let has_addresses = match NonNull::new(self.0.format) {
            // SAFETY: the exporter's text, which it keeps as long as the buffer.
            Some(format) => has_addresses(unsafe { CStr::from_ptr(format.as_ptr()) }.to_bytes()),
            None => {
                let dtype = object.getattr_opt("dtype")?;
                let has = dtype.map(|dtype| dtype.getattr_opt("hasobject")).transpose()?.flatten();
                has.is_some_and(|has| has.is_truthy().unwrap_or(true))
            }
        };
        if has_addresses {
            let text = "its items are Python objects or pointers, whose addresses mean nothing outside this process; \
                        convert them to numbers or bytes";
            return Err(errors::unusable(py, text));
        }
        let (start, len) = (self.0.buf.cast(), self.0.len.unsigned_abs());
        let is_writable = self.0.readonly == 0;
        Ok(View { start, len, is_writable, owner: Some(Owner::Buffer(self)) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer was taken once and is released once, by an attached thread: its view's drop sees to that.
        unsafe { PyBuffer_Release(&mut *self.0) }
    }
}

/// Returns whether a buffer of this format (of `struct`, PEP 3118 or ctypes) has objects, pointers or functions among
/// its items.
fn has_addresses(format: &[u8]) -> bool {
    let mut is_name = false;
    format.iter().enumerate().any(|(at, code)| match code {
        b':' => {
            is_name = !is_name;
            false
        }
        _ if is_name => false,
        b'O' | b'P' | b'z' | b'&' | b'X' => true,
        // A complex number, if its type follows; otherwise text behind a pointer.
        b'Z' => !matches!(format.get(at + 1), Some(b'e' | b'f' | b'd' | b'g')),
        _ => false,
    })
}
