//! Converts the answer to one request into Python objects.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_kvshare::SharedBytes;
use adit_kvstore::Error;
use adit_kvstore::store::{Removed, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors;
use crate::view::View;

/// Memory that a value is in.
pub(crate) trait Bytes: Deref<Target = [u8]> + Send + Sync {}

impl<T: Deref<Target = [u8]> + Send + Sync> Bytes for T {}

/// The answer to one request.
pub(crate) enum Answered {
    Flag(bool),
    /// Bytes read, or a miss.
    Length(Option<u64>),
    Value(Option<Box<dyn Bytes>>),
    /// A value that is to be copied to a buffer with room for it.
    Copy(Value, View),
    /// A value copied to a Python object.
    Object(Py<PyBytes>),
    Count(usize),
    Removals(Removed),
    Done,
    Failed(Error),
    /// The buffer is shorter than the object.
    Short {
        needs: usize,
        has: usize,
    },
}

impl Answered {
    /// Copies a value into a buffer, and returns its length.
    pub(crate) fn copied(
        view: &View,
        value: Option<SharedBytes<'_>>,
        copied: &AtomicU64,
    ) -> Answered {
        let Some(value) = value else { return Answered::Length(None) };
        if value.len() > view.len() {
            return Answered::Short { needs: value.len(), has: view.len() };
        }
        view.write_at(0, value);
        copied.fetch_add(value.len() as u64, Ordering::Relaxed);
        Answered::Length(Some(value.len() as u64))
    }

    /// Returns the answer as a Python object.
    ///
    /// # Errors
    /// The request's failure.
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            Answered::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
            Answered::Length(length) => length.into_pyobject(py)?,
            Answered::Count(count) => count.into_pyobject(py)?.into_any(),
            Answered::Removals(Removed { keys, next, missed_some }) => {
                let keys =
                    PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key.as_bytes())))?;
                (keys, next, missed_some).into_pyobject(py)?.into_any()
            }
            Answered::Object(value) => value.into_bound(py).into_any(),
            Answered::Value(Some(_)) | Answered::Copy(..) => unreachable!("values were copied"),
            Answered::Value(None) | Answered::Done => py.None().into_bound(py),
            Answered::Failed(why) => return Err(errors::of(py, &why)),
            Answered::Short { needs, has } => {
                let text = format!(
                    "the object has {needs} bytes and the buffer {has}: pass a larger buffer"
                );
                return Err(errors::named(py, "BadBufferError", &text));
            }
        })
    }
}
