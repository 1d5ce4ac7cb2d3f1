//! The class `Scope`: objects that a ``with`` statement ends.

use pyo3::PyClass;
use pyo3::prelude::*;

/// Returns the state of an object for its ``repr``.
pub(crate) fn state(is_open: bool) -> &'static str {
    if is_open { "open" } else { "closed" }
}

/// An object that a ``with`` statement ends.
#[pyclass(frozen, subclass, module = "adit._adit")]
pub(crate) struct Scope {
    /// The method that ends it.
    end: &'static str,
}

impl Scope {
    /// Creates the scope of an object whose method `end` the statement calls.
    pub(crate) fn until(end: &'static str) -> Scope {
        Scope { end }
    }

    /// Creates such an object.
    ///
    /// # Errors
    /// The interpreter's error.
    pub(crate) fn of<T: PyClass<BaseType = Scope>>(
        py: Python<'_>,
        object: T,
        end: &'static str,
    ) -> PyResult<Py<T>> {
        Py::new(py, (object, Scope::until(end)))
    }
}

#[pymethods]
impl Scope {
    fn __enter__(slf: Py<Scope>) -> Py<Scope> {
        slf
    }

    fn __exit__(
        slf: &Bound<'_, Scope>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        slf.call_method0(slf.get().end).map(drop)
    }
}
