//! Finds the bytes of torch tensors, which lack the buffer protocol. torch is not imported: if a tensor exists, it is.
//!
//! The address comes from the tensor's storage. DLPack does not suffice: it refuses tensors that require a gradient
//! and, in older versions, numbers of 8 bits.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::unusable;

/// Returns the address and the length of a tensor's bytes, or `None` if the object is not a torch tensor.
///
/// # Errors
/// `BadBufferError` if the bytes are not contiguous, not on the CPU, or not the tensor's values.
pub(crate) fn bytes(
    object: &Bound<'_, PyAny>,
    is_written: bool,
) -> PyResult<Option<(usize, usize)>> {
    let py = object.py();
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(torch) = modules.get_item("torch")? else { return Ok(None) };
    let Some(tensor) = torch.getattr_opt("Tensor")? else { return Ok(None) };
    if !object.is_instance(&tensor)? {
        return Ok(None);
    }
    let found = look(object, &torch, is_written);
    // Some kinds of tensors lack some of these attributes.
    let found = found.map_err(|why| match why.is_instance_of::<PyException>(py) {
        true => unusable(py, &format!("{}; give a dense tensor of the CPU's", why.value(py))),
        false => why,
    })?;
    found.map(Some).map_err(|why| unusable(py, &why))
}

/// Finds the bytes; the inner error is the reason why they cannot be used.
fn look(
    tensor: &Bound<'_, PyAny>,
    torch: &Bound<'_, PyAny>,
    is_written: bool,
) -> PyResult<Result<(usize, usize), String>> {
    let device = tensor.getattr("device")?;
    match device.getattr("type")?.extract::<String>()?.as_str() {
        "cpu" => {}
        "meta" => {
            let why = "the tensor is on the device 'meta' and has no bytes, which .cpu() cannot change; make one with \
                       torch.empty_like(tensor, device='cpu')";
            return Ok(Err(why.to_owned()));
        }
        _ if is_written => {
            let fix =
                "read into a tensor on the CPU, as .cpu() makes it, and copy that with .copy_()";
            return Ok(Err(format!("the tensor is on '{device}'; {fix}")));
        }
        _ => return Ok(Err(format!("the tensor is on '{device}'; give tensor.cpu()"))),
    }
    if !tensor.getattr("layout")?.is(&torch.getattr("strided")?) {
        let layout = tensor.getattr("layout")?;
        return Ok(Err(format!("the tensor's layout is {layout}; give tensor.to_dense()")));
    }
    let is = |what: &str| tensor.call_method0(what)?.is_truthy();
    if !is("is_contiguous")? {
        let fix = if is_written {
            "read into one as .contiguous() makes it, and copy that with .copy_()"
        } else {
            "give tensor.contiguous()"
        };
        return Ok(Err(format!("the tensor is not contiguous; {fix}")));
    }
    for (lazily, fix) in [("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")] {
        if is(lazily)? {
            return Ok(Err(format!("the tensor's values are not its bytes; give tensor.{fix}()")));
        }
    }
    let number = |object: &Bound<'_, PyAny>, what: &str| object.call_method0(what)?.extract();
    let (address, len): (usize, usize) =
        (number(tensor, "data_ptr")?, tensor.getattr("nbytes")?.extract()?);
    let storage = tensor.call_method0("untyped_storage")?;
    let (start, room): (usize, usize) =
        (number(&storage, "data_ptr")?, number(&storage, "nbytes")?);
    let offset = address.checked_sub(start).filter(|_| start > 0);
    // A fake tensor, or one whose storage was freed, has fewer bytes than its shape requires, or none.
    let has_all = offset.is_some_and(|offset| offset <= room && len <= room - offset);
    if len > 0 && !has_all {
        return Ok(Err("the tensor has no memory for its values; give tensor.clone()".to_owned()));
    }
    Ok(Ok((address, len)))
}
