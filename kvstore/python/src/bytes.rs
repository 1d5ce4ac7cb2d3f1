//! Creates objects of the type `bytes` and fills them without the interpreter.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use adit_driver::sys::{SharedBytes, SharedBytesMut};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Copying up to this many bytes is faster than detaching from the interpreter.
pub(crate) const FEW: usize = 64 << 10;

/// An object that no Python code has seen yet, so its bytes may still change.
pub(crate) struct Unfilled {
    object: Py<PyBytes>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: only its owner writes its bytes, on whatever thread. The object itself is only made, passed on and released.
unsafe impl Send for Unfilled {}

impl Unfilled {
    /// Creates an object of `len` uninitialized bytes.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn new(py: Python<'_>, len: usize) -> PyResult<Unfilled> {
        let size = isize::try_from(len).expect("a value is no longer than memory");
        // SAFETY: this thread is attached; without bytes to copy, the function makes an object of this length, or
        // returns null and has raised.
        let object = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), size))?
        };
        let object = object.cast_into::<PyBytes>()?;
        // SAFETY: the object is alive, and of this type.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast::<u8>();
        let start = NonNull::new(start).expect("it is an object of this type");
        Ok(Unfilled { object: object.unbind(), start, len })
    }

    /// Copies bytes to `offset`. Needs no interpreter.
    pub(crate) fn write_at(&mut self, offset: usize, from: SharedBytes<'_>) {
        // SAFETY: they are the object's, which is alive and which nothing else refers to.
        let mut bytes = unsafe { SharedBytesMut::new(self.start, self.len) };
        bytes.slice(offset..offset.saturating_add(from.len())).copy_from(from);
    }

    /// Returns the object. All of its bytes must have been written.
    pub(crate) fn into_object(self) -> Py<PyBytes> {
        self.object
    }
}

/// Returns an object with these bytes. Copies many bytes detached from the interpreter.
///
/// # Errors
/// `MemoryError`.
pub(crate) fn of<'py>(py: Python<'py>, bytes: SharedBytes<'_>) -> PyResult<Bound<'py, PyBytes>> {
    let mut object = Unfilled::new(py, bytes.len())?;
    if bytes.len() > FEW {
        py.detach(|| object.write_at(0, bytes));
    } else {
        object.write_at(0, bytes);
    }
    Ok(object.into_object().into_bound(py))
}
