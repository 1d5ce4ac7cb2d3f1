//! Reads keys and buffers from Python objects.

use adit_kvstore::{Error, Key};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors;
use crate::view::View;

/// Reads a key: bytes, or text as UTF-8.
///
/// # Errors
/// `TypeError` for other objects; `InvalidKeyError` if it is empty or too long.
pub(crate) fn key(object: &Bound<'_, PyAny>) -> PyResult<Key> {
    Key::new(bytes(object)?).map_err(|why| errors::of(object.py(), &why))
}

/// Reads a prefix of keys, which may be empty.
///
/// # Errors
/// `TypeError` for other objects than bytes or text.
pub(crate) fn prefix(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Ok(bytes(object)?.to_vec())
}

/// Returns the bytes of bytes or text.
fn bytes<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    match object.cast::<PyString>() {
        Ok(text) => Ok(text.to_str()?.as_bytes()),
        Err(_) => {
            let kind = object.get_type().name()?;
            Err(PyTypeError::new_err(format!("a key is bytes or str, not {kind}")))
        }
    }
}

/// Reads keys from an iterable.
///
/// # Errors
/// As [`key`]; `TypeError` if `object` is one key itself.
pub(crate) fn keys(object: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    if object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("a list of keys is wanted, and this is one key"));
    }
    let mut keys = Vec::with_capacity(object.len().unwrap_or(0));
    for item in object.try_iter()? {
        keys.push(key(&item?)?);
    }
    Ok(keys)
}

/// Takes views of buffers.
///
/// # Errors
/// As `take`.
pub(crate) fn views(
    object: &Bound<'_, PyAny>,
    take: fn(&Bound<'_, PyAny>) -> PyResult<View>,
) -> PyResult<Vec<View>> {
    let mut views = Vec::with_capacity(object.len().unwrap_or(0));
    for item in object.try_iter()? {
        views.push(take(&item?)?);
    }
    Ok(views)
}

/// Reads keys and as many buffers.
///
/// # Errors
/// As [`keys`] and `take`; `InvalidError` if their numbers differ.
pub(crate) fn pairs(
    keys_of: &Bound<'_, PyAny>,
    buffers: &Bound<'_, PyAny>,
    take: fn(&Bound<'_, PyAny>) -> PyResult<View>,
) -> PyResult<Vec<(Key, View)>> {
    let (keys, views) = (keys(keys_of)?, views(buffers, take)?);
    if keys.len() != views.len() {
        let fix = format!("there are {} keys: give one buffer for each", keys.len());
        let why = Error::invalid("the number of buffers", views.len(), fix);
        return Err(errors::of(keys_of.py(), &why));
    }
    Ok(keys.into_iter().zip(views).collect())
}
