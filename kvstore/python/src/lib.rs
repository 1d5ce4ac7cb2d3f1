//! The store for Python: the extension module `adit._adit` of the wheel `adit`.
//!
//! Every call has three steps. Attached to the interpreter, it reads its arguments into keys and views of buffers.
//! Detached, so that other Python threads run, it makes its requests and waits. Attached again, it turns the answers
//! into Python objects. A [`queue::Queue`] does the second step without waiting.
//!
//! | file | holds |
//! |---|---|
//! | `calls` | the class `Calls`: what `Store` and `Client` have in common |
//! | `scope` | the class `Scope`: what the `with` statement ends |
//! | `source` | a store of this process or a connection, where Python needs one object; the options of a put |
//! | `store` | the class `Store`: what only the process that has the store can ask for |
//! | `inside` | an open store behind the objects that use it, and its end |
//! | `queue` | the class `Queue`: requests signalled by an eventfd |
//! | `ready` | the ended jobs of a queue, and its eventfd |
//! | `client` | the class `Client`: calls of a client; and `connect` |
//! | `connection` | a connection behind the objects that use it, and its return after a loss |
//! | `reaper` | the thread that takes a connection's answers for its queues |
//! | `shared` | the memory that a client shares with its server |
//! | `streams` | the class `Pieces`, behind readers of objects of any length; and puts of such objects |
//! | `blocks` | the classes `Layout`, `BlocksWriter` and `Lease` |
//! | `arguments`, `options`, `numbers` | keys, buffers and settings, read from Python objects |
//! | `session` | the requests of each call, over either kind of store |
//! | `job`, `flight`, `answer` | the requests of one call, one of them, and its answer |
//! | `link` | a connection in one era: its session, and the thread that takes its answers |
//! | `memory` | the class `Region`: registered memory of the caller |
//! | `lending` | memory of either kind, and its runs lent to requests |
//! | `view` | the bytes of a Python object, by its buffer protocol; copies through pointers |
//! | `torch`, `dlpack` | the bytes of tensors, which lack the buffer protocol |
//! | `bytes` | objects of the type `bytes`, filled without the interpreter |
//! | `waiting` | waits that a signal ends |
//! | `figures` | counters by name |
//! | `errors` | the store's errors as Python exceptions |
//! | `logs` | passes the logs of driver and store to Python's `logging` |
//! | `forked` | values that a forked child must not drop |
//! | `lock` | locks, whether or not a thread has panicked with one |

mod answer;
mod arguments;
mod blocks;
mod bytes;
mod calls;
mod client;
mod connection;
mod dlpack;
mod errors;
mod figures;
mod flight;
mod forked;
mod inside;
mod job;
mod lending;
mod link;
mod lock;
mod logs;
mod memory;
mod numbers;
mod options;
mod queue;
mod ready;
mod reaper;
mod scope;
mod session;
mod shared;
mod source;
mod store;
mod streams;
mod torch;
mod view;
mod waiting;

use pyo3::prelude::*;

/// The part of `adit` that is written in Rust.
#[pymodule(gil_used = false)]
mod _adit {
    use super::*;

    #[pymodule_export]
    use blocks::{BlocksWriter, Layout, Lease};
    #[pymodule_export]
    use calls::Calls;
    #[pymodule_export]
    use client::{Client, connect};
    #[pymodule_export]
    use memory::Region;
    #[pymodule_export]
    use queue::Queue;
    #[pymodule_export]
    use scope::Scope;
    #[pymodule_export]
    use store::Store;
    #[pymodule_export]
    use streams::Pieces;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        logs::start()?;
        // The last one runs first.
        let at_exit = module.py().import("atexit")?;
        at_exit.call_method1("register", (wrap_pyfunction!(logs::flush_logs, module)?,))?;
        at_exit.call_method1("register", (wrap_pyfunction!(inside::close_all, module)?,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
