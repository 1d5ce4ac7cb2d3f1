//! Reads whole numbers from Python's arguments. One out of range is an `InvalidError` with its name and range.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::options;

/// An argument's number, optional number, or list of numbers.
trait Number: Sized {
    fn read(what: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self>;
}

macro_rules! whole {
    ($($kind:ty),+) => {
        $(impl Number for $kind {
            fn read(what: &'static str, object: &Bound<'_, PyAny>) -> PyResult<$kind> {
                object.extract::<$kind>().map_err(|why| {
                    if !why.is_instance_of::<PyOverflowError>(object.py()) {
                        return why;
                    }
                    let fix = format!("give a whole number from 0 to {}", <$kind>::MAX);
                    options::invalid(object.py(), what, object, fix)
                })
            }
        })+
    };
}

whole!(u8, u16, u32, u64, usize);

impl<T: Number> Number for Option<T> {
    fn read(what: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Option<T>> {
        if object.is_none() { Ok(None) } else { T::read(what, object).map(Some) }
    }
}

impl<T: Number> Number for Vec<T> {
    fn read(what: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
        object.try_iter()?.map(|item| T::read(what, &item?)).collect()
    }
}

/// Defines a function that reads each argument, by name.
macro_rules! arguments {
    ($($name:ident: $kind:ty),+ $(,)?) => {
        $(pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<$kind> {
            Number::read(stringify!($name), object)
        })+
    };
}

arguments! {
    capacity_bytes: Option<u64>,
    capacity_objects: Option<u64>,
    cores: Option<Vec<usize>>,
    cursor: u64,
    depth: u64,
    head_dim: u32,
    if_version: Option<u64>,
    key_bytes: u16,
    kv_heads: u32,
    layer: u32,
    layers: u32,
    limit: usize,
    nbytes: usize,
    objects_max: Option<u64>,
    pool_bytes: usize,
    position: u64,
    quota: Option<u64>,
    shards: u16,
    size: Option<u64>,
    slots: Option<u32>,
    start: u64,
    stop: Option<u64>,
    tensors_per_layer: u8,
    threads: Option<usize>,
    tier_bytes: u64,
    tokens: u32,
    write_bytes_per_day: Option<u64>,
}

/// Reads the length of a stream, which may be unknown.
pub(crate) fn stream_nbytes(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    Number::read("nbytes", object)
}

/// Reads the cursor of an earlier answer, if there was one.
pub(crate) fn last_cursor(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    Number::read("cursor", object)
}

/// Reads the maximum number of bytes to copy, if it is limited.
pub(crate) fn most_nbytes(object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    Number::read("nbytes", object)
}
