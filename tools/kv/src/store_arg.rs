//! The store argument of commands, and the one place that opens what it names.

use adit_driver::Target;
use adit_kvstore::{OpenOptions, Store};
use clap::Args;

use super::store;
use super::survey::Reader;
use crate::failure::{Failure, Result};
use adit_tools_common::session::Session;

/// The store argument of commands with other arguments.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArg {
    /// The store's device, as in uring:kv.img, vfio:0000:01:00.0 or soft:file=kv.img,size=4G
    target: Target,

    /// Another device of the store; in the order in which they were formatted or added
    #[arg(long, value_name = "TARGET")]
    with: Vec<Target>,
}

impl StoreArg {
    /// Returns the store with all its devices in order.
    pub(crate) fn all(&self) -> StoreArgs {
        StoreArgs { targets: [&self.target].into_iter().chain(&self.with).cloned().collect() }
    }
}

/// The store argument of commands without other arguments.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArgs {
    /// The store's devices in the order in which they were formatted or added, as in uring:kv.img or vfio:0000:01:00.0
    #[arg(value_name = "TARGET", required = true)]
    pub(crate) targets: Vec<Target>,
}

impl StoreArgs {
    /// Returns the store's name for messages.
    pub(crate) fn name(&self) -> String {
        store::name(&self.targets)
    }

    /// Opens the store, calls `call`, and makes everything durable.
    ///
    /// # Errors
    /// As [`Store::open_local`] and `call`.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        store::check_there(&self.targets, store::NO_STORE)?;
        let local = Store::open_local(&OpenOptions::new(self.targets.clone()))?;
        let mut session = Session::of(local);
        let done = call(&mut session)?;
        session.close()?;
        Ok(done)
    }

    /// Opens the devices for reading; with `exclusive`, only if no other process has them open.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub(crate) fn reader(&self, exclusive: bool) -> Result<Reader> {
        Reader::open(&self.targets, exclusive)
    }

    /// Returns the failure for objects that do not exist.
    pub(crate) fn no_objects(&self, keys: &[String]) -> Failure {
        let keys = keys.join("', '");
        Failure::failed(format!("{}: there is no object '{keys}'", self.name()))
    }

    /// Returns the failure for a tenant that does not exist.
    pub(crate) fn no_tenant(&self, name: &str) -> Failure {
        Failure::failed(format!(
            "{}: there is no tenant '{name}'; 'adit kv tenant' lists them",
            self.name()
        ))
    }
}
