//! Passes the logs of driver and store to the logger `adit` of Python's `logging`.
//!
//! Their threads must not wait for the interpreter, so a separate thread passes messages to Python. If [`WAITING_MAX`]
//! messages wait, further ones are dropped, and the next one passed on states their number.

use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::forked::Ours;

/// Maximum number of messages waiting for Python.
const WAITING_MAX: usize = 1024;
/// Time that the end of the process waits for messages to be passed on.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The sender of the process that started the thread. A forked child has no thread, so its messages are dropped.
static SENDER: OnceLock<Ours<SyncSender<Item>>> = OnceLock::new();
/// Messages dropped since the last one passed on.
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum Item {
    Message {
        /// Level of Python's `logging`.
        level: u8,
        text: String,
    },
    /// Signals that all earlier messages were passed on.
    Flush(SyncSender<()>),
}

/// Sends messages to the thread.
struct Bridge;

impl Subscriber for Bridge {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let Some(sender) = SENDER.get().and_then(Ours::get) else { return };
        let mut text = Text(String::new());
        event.record(&mut text);
        let item = Item::Message { level: level_of(event.metadata().level()), text: text.0 };
        if sender.try_send(item).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Neither driver nor store has spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's message, then its fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let done = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        // A value that cannot be formatted is omitted.
        let _ = done;
    }
}

/// Returns the level of Python's `logging`.
fn level_of(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG | Level::TRACE => 10,
    }
}

/// Starts passing messages on. Has no effect the second time.
///
/// # Errors
/// The system's error, if it has no thread left.
pub(crate) fn start() -> PyResult<()> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    if SENDER.set(Ours::new(sender)).is_ok() {
        thread::Builder::new().name("adit-logs".to_owned()).spawn(move || serve(&receiver))?;
        // Fails only if there is a subscriber, which nothing else in this module sets.
        let _ = tracing::subscriber::set_global_default(Bridge);
    }
    Ok(())
}

/// Waits briefly until all messages so far are passed on. Runs at the end of the process, after stores are closed.
#[pyfunction]
pub(crate) fn flush_logs(py: Python<'_>) {
    let Some(sender) = SENDER.get().and_then(Ours::get) else { return };
    let (done, passed_on) = sync_channel(1);
    if sender.try_send(Item::Flush(done)).is_ok() {
        let _ = py.detach(move || passed_on.recv_timeout(LAST_WAIT));
    }
}

fn serve(items: &Receiver<Item>) {
    while let Ok(item) = items.recv() {
        match item {
            Item::Flush(done) => drop(done.try_send(())),
            Item::Message { level, mut text } => {
                let dropped = DROPPED.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    let _ = write!(text, " ({dropped} messages before it were dropped)");
                }
                // The result is `None` once the interpreter ends.
                let Some(told) = Python::try_attach(|py| tell(py, level, &text)) else { return };
                if let Err(why) = told {
                    Python::try_attach(|py| why.write_unraisable(py, None));
                }
            }
        }
    }
}

fn tell(py: Python<'_>, level: u8, text: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("adit",))?;
    logger.call_method1("log", (level, "%s", text)).map(drop)
}
