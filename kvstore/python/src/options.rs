//! Reads settings from Python's keyword arguments.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use adit_driver::Target;
use adit_driver::runtime::Cores;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::Condition;
use adit_kvstore::{Error, Quota, Version, WhenReached};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence, PyString};

use crate::errors;

/// Reads a target, or a list of targets.
///
/// # Errors
/// `InvalidError` for a text or path that is not a target, `TypeError` for other objects.
pub(crate) fn targets(object: &Bound<'_, PyAny>) -> PyResult<Vec<Target>> {
    // SAFETY: the program names the servers, and says by that that they are controllers: 'vfio-user:' in the
    // documentation of targets.
    unsafe { adit_driver::bus::vfio_user::trust_servers() };
    if let Some(target) = target(object)? {
        return Ok(vec![target]);
    }
    let none = || {
        let kind = object.get_type();
        PyTypeError::new_err(format!(
            "a target is a str such as 'uring:/data/kv.img', or a path, or there is a list of them: this is of {kind}"
        ))
    };
    // Bytes are not a list of targets.
    let list = object.cast::<PySequence>().ok().filter(|_| !object.is_instance_of::<PyBytes>());
    let list = list.ok_or_else(none)?.try_iter()?;
    list.map(|item| target(&item?)?.ok_or_else(none)).collect()
}

/// Reads a target: as text, or as the path of a file or block device, which means ``uring:``. Returns `None` for
/// another object.
fn target(object: &Bound<'_, PyAny>) -> PyResult<Option<Target>> {
    let py = object.py();
    if let Ok(text) = object.cast::<PyString>() {
        let target = text.to_str()?.parse::<Target>();
        return target.map(Some).map_err(|why| errors::of(py, &why.into()));
    }
    if !object.hasattr("__fspath__")? {
        return Ok(None);
    }
    let path: PathBuf = object.extract()?;
    let text = path.to_string_lossy();
    if text.parse::<Target>().is_ok() {
        let fix = "it is the text of a target: give that as a str";
        return Err(invalid(py, "the path of a target", text, fix));
    }
    let target = format!("uring:{text}").parse::<Target>();
    // A comma would begin options, and bytes that are not UTF-8 have no text.
    match target {
        Ok(Target::Kernel(kernel)) if kernel.file == path => Ok(Some(Target::Kernel(kernel))),
        _ => {
            let fix = "give a path without commas, whose name is UTF-8";
            Err(invalid(py, "the path of a target", text, fix))
        }
    }
}

/// Reads a duration in seconds.
///
/// # Errors
/// `InvalidError` unless it is a number of seconds that fits.
pub(crate) fn seconds(py: Python<'_>, what: &'static str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| invalid(py, what, value, "give seconds, from 0 to 1e19"))
}

/// Creates an exception that states how to correct a setting.
pub(crate) fn invalid(
    py: Python<'_>,
    what: &'static str,
    value: impl ToString,
    fix: impl ToString,
) -> PyErr {
    errors::of(py, &Error::invalid(what, value, fix))
}

/// Reads which threads a store has: their cores or their number.
///
/// # Errors
/// `InvalidError` if both are given.
pub(crate) fn cores(
    py: Python<'_>,
    cores: Option<Vec<usize>>,
    threads: Option<usize>,
) -> PyResult<Option<Cores>> {
    match (cores, threads) {
        (Some(_), Some(threads)) => {
            let fix = "give the threads' number or their cores, not both";
            Err(invalid(py, "threads", threads, fix))
        }
        (Some(list), None) => Ok(Some(Cores::List(list))),
        (None, threads) => Ok(threads.map(Cores::Unpinned)),
    }
}

/// Reads the name of a durability or a policy.
///
/// # Errors
/// `InvalidError` for an unknown one.
pub(crate) fn named<T: FromStr<Err = Error>>(py: Python<'_>, name: &str) -> PyResult<T> {
    name.parse().map_err(|why| errors::of(py, &why))
}

/// Reads a tenant's quota; `None` lifts it.
///
/// # Errors
/// `InvalidError` for an unknown action.
pub(crate) fn quota(py: Python<'_>, bytes: Option<u64>, when: &str) -> PyResult<Option<Quota>> {
    let when_reached = match when {
        "refuse" => WhenReached::Refuse,
        "evict-own" => WhenReached::EvictOwn,
        _ => return Err(invalid(py, "when_reached", when, "use refuse or evict-own")),
    };
    Ok(bytes.map(|bytes| Quota { bytes, when_reached }))
}

/// Reads the condition of a put.
///
/// # Errors
/// `InvalidError` for two conditions.
pub(crate) fn condition(
    py: Python<'_>,
    if_absent: bool,
    if_version: Option<u64>,
) -> PyResult<Condition> {
    match (if_absent, if_version) {
        (false, None) => Ok(Condition::Always),
        (true, None) => Ok(Condition::Absent),
        (false, Some(version)) => Ok(Condition::Version(Version(version))),
        (true, Some(version)) => {
            let fix = "leave it out with if_absent: an object that is absent has no version";
            Err(invalid(py, "if_version", version, fix))
        }
    }
}

/// Reads the type of a number in a KV cache.
///
/// # Errors
/// `InvalidError` for an unknown one.
pub(crate) fn dtype(py: Python<'_>, name: &str) -> PyResult<Dtype> {
    match name {
        "f32" | "float32" => Ok(Dtype::F32),
        "f16" | "float16" => Ok(Dtype::F16),
        "bf16" | "bfloat16" => Ok(Dtype::Bf16),
        "fp8" => Ok(Dtype::Fp8),
        "int8" => Ok(Dtype::Int8),
        _ => Err(invalid(py, "dtype", name, "use f32, f16, bf16, fp8 or int8")),
    }
}

/// Creates the layout of a model's KV blocks.
///
/// # Errors
/// As [`Layout::new`].
pub(crate) fn layout(py: Python<'_>, block: BlockShape, slots: Option<u32>) -> PyResult<Layout> {
    let order = slots.map_or(Order::BlockMajor, |slots| Order::LayerMajor { slots });
    Layout::new(block, order).map_err(|why| errors::of(py, &why))
}
