//! DLPack: reads arrays of libraries other than NumPy and torch, from capsules with and without a version.
//!
//! The structures are those of DLPack 1.1's `dlpack.h`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::slice;

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::unusable;

/// The requested version, whose major number is the only supported one.
const VERSION: (u32, u32) = (1, 1);
/// `kDLCPU`.
const CPU: i32 = 1;
/// `kDLOpaqueHandle`.
const HANDLE: u8 = 3;
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;
const ELSEWHERE: &str =
    "the array is on another device; give one of the CPU's, such as array.cpu() returns";

/// `DLTensor`, with its device and its type.
#[repr(C)]
struct Tensor {
    data: *mut u8,
    device: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Plain {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Plain)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// An array that its library keeps until this is dropped. Drop it attached to the interpreter.
pub(crate) struct Managed(Kind);

enum Kind {
    Plain(NonNull<Plain>),
    Versioned(NonNull<Versioned>),
}

impl Managed {
    /// Takes an object's array, or returns `None` if it has none.
    ///
    /// # Errors
    /// `BadBufferError` if it is not on the CPU, or its library refuses.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Managed>> {
        let py = object.py();
        if object.getattr_opt("__dlpack__")?.is_none() {
            return Ok(None);
        }
        let refused = |why: PyErr| match why.is_instance_of::<PyException>(py) {
            true => unusable(py, &why.value(py).to_string()),
            false => why,
        };
        let device = object.call_method0("__dlpack_device__").map_err(refused)?;
        let (device, _): (i32, Bound<'_, PyAny>) = device.extract()?;
        if device != CPU {
            return Err(unusable(py, ELSEWHERE));
        }
        let newest = PyDict::new(py);
        newest.set_item("max_version", VERSION)?;
        let capsule = match object.call_method("__dlpack__", (), Some(&newest)) {
            // The library predates DLPack's versions.
            Err(why) if why.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
            capsule => capsule,
        };
        let capsule = capsule.map_err(refused)?;
        if let Some(array) = take(&capsule, c"dltensor_versioned", c"used_dltensor_versioned")? {
            return Ok(Some(Managed(Kind::Versioned(array.cast()))));
        }
        let array = take(&capsule, c"dltensor", c"used_dltensor")?;
        let array = array.ok_or_else(|| unusable(py, "its __dlpack__ returned no array"))?;
        Ok(Some(Managed(Kind::Plain(array.cast()))))
    }

    /// Returns the address and number of its bytes.
    ///
    /// # Errors
    /// `BadBufferError` if the bytes are not contiguous, are addresses or parts of bytes, or must not be written.
    pub(crate) fn bytes(&self, py: Python<'_>, is_written: bool) -> PyResult<(*mut u8, usize)> {
        let (tensor, flags) = match &self.0 {
            // Without a version, the array does not tell whether it may be written; JAX's arrays may not.
            // SAFETY: its library keeps the structure until the deleter is called, and does not change it.
            Kind::Plain(array) => (unsafe { &array.as_ref().tensor }, READ_ONLY),
            Kind::Versioned(array) => {
                // SAFETY: as above. The version comes first in any.
                let major = unsafe { (&raw const (*array.as_ptr()).major).read() };
                if major != VERSION.0 {
                    let text = format!("it is of DLPack {major}, and {} is understood", VERSION.0);
                    return Err(unusable(py, &text));
                }
                // SAFETY: as above, and it is of the version that has this structure.
                let array = unsafe { array.as_ref() };
                (&array.tensor, array.flags)
            }
        };
        if is_written && flags & (READ_ONLY | IS_COPIED) != 0 {
            return Err(unusable(
                py,
                "the array is read-only, a copy, or does not say that it is not; read into one that is writable",
            ));
        }
        tensor.bytes().map_err(|why| unusable(py, why))
    }
}

impl Tensor {
    fn bytes(&self) -> Result<(*mut u8, usize), &'static str> {
        if self.device != CPU {
            return Err(ELSEWHERE);
        }
        let item_bits = usize::from(self.bits) * usize::from(self.lanes);
        if self.code == HANDLE {
            return Err("its items are handles, which mean nothing outside this process");
        }
        if !item_bits.is_multiple_of(8) {
            return Err("its items are parts of bytes; give a view of it as uint8");
        }
        let len =
            self.items().ok_or("the array is not contiguous; give a contiguous copy of it")?;
        let len = len.checked_mul(item_bits / 8).ok_or("it has more bytes than there are")?;
        if len > 0 && self.data.is_null() {
            return Err("the array has no memory for its values; give a copy of it");
        }
        Ok((self.data.wrapping_add(self.byte_offset as usize), len))
    }

    /// Returns the number of items, if they are contiguous.
    fn items(&self) -> Option<usize> {
        let shape = self.numbers(self.shape)?;
        let is_empty = shape.contains(&0);
        let mut items = 1_usize;
        let strides = if self.strides.is_null() { None } else { Some(self.numbers(self.strides)?) };
        for (at, length) in shape.iter().enumerate().rev() {
            let is_next = strides.is_none_or(|strides| usize::try_from(strides[at]) == Ok(items));
            if !is_next && *length != 1 && !is_empty {
                return None;
            }
            items = items.checked_mul(usize::try_from(*length).ok()?)?;
        }
        Some(items)
    }

    /// Returns the numbers of a list with one per dimension.
    fn numbers(&self, list: *const i64) -> Option<&[i64]> {
        match usize::try_from(self.ndim).ok()? {
            0 => Some(&[]),
            _ if list.is_null() => None,
            // SAFETY: the list has as many, as long as the array is kept.
            ndim => Some(unsafe { slice::from_raw_parts(list, ndim) }),
        }
    }
}

/// Takes the contents of a capsule with this name, and renames it as used.
fn take(
    capsule: &Bound<'_, PyAny>,
    name: &CStr,
    used: &'static CStr,
) -> PyResult<Option<NonNull<c_void>>> {
    let raw = capsule.as_ptr();
    // SAFETY: this thread is attached, the object is alive, and the names are texts; the new one is so forever.
    unsafe {
        if ffi::PyCapsule_IsValid(raw, name.as_ptr()) == 0 {
            return Ok(None);
        }
        let array = NonNull::new(ffi::PyCapsule_GetPointer(raw, name.as_ptr()));
        if ffi::PyCapsule_SetName(raw, used.as_ptr()) != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(array)
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the array was taken from its capsule, which does not delete it then, and is deleted once, by an
        // attached thread: its view's drop sees to that. In a structure of any version the deleter is at the same
        // place.
        unsafe {
            match &self.0 {
                Kind::Plain(array) => {
                    let array = array.as_ptr();
                    if let Some(delete) = (*array).deleter {
                        delete(array);
                    }
                }
                Kind::Versioned(array) => {
                    let array = array.as_ptr();
                    if let Some(delete) = (&raw const (*array).deleter).read() {
                        delete(array);
                    }
                }
            }
        }
    }
}
