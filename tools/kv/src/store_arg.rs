//! The store argument of commands, and the one place that opens what it names.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use adit_driver::Target;
use adit_kvshare::ClientOptions;
use adit_kvstore::{OpenOptions, Store};
use clap::Args;

use super::any_store::{AnyStore, POOL_BYTES, connect};
use super::store::{self, NO_STORE};
use super::survey::Reader;
use crate::failure::{Failure, Result};
use adit_tools_common::session::Session;

/// Why a command refuses a served store.
const NEEDS_DEVICES: &str = "this command needs the store's devices, which the server has: end the server and name \
                             them; beside it, 'stat', 'info', 'tenant', and 'ls' and 'check' with --read-only read them";

/// A part of a store on the command line: a device, or the socket of the server that has all of them.
#[derive(Clone, Debug)]
pub(crate) enum StoreTarget {
    Device(Target),
    Served(PathBuf),
}

impl fmt::Display for StoreTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreTarget::Device(target) => target.fmt(f),
            StoreTarget::Served(socket) => write!(f, "serve:{}", socket.display()),
        }
    }
}

impl FromStr for StoreTarget {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<StoreTarget, String> {
        match text.strip_prefix("serve:") {
            Some("") => Err("name the server's socket, as in serve:/run/adit/kv.sock".to_owned()),
            Some(socket) => Ok(StoreTarget::Served(socket.into())),
            None => text
                .parse()
                .map(StoreTarget::Device)
                .map_err(|why: adit_driver::Error| why.to_string()),
        }
    }
}

/// The store argument of commands with other arguments.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArg {
    /// The store's device, as in uring:kv.img, vfio:0000:01:00.0 or soft:file=kv.img,size=4G; or serve:SOCKET
    target: StoreTarget,

    /// Another device of the store; in the order in which they were formatted or added
    #[arg(long, value_name = "TARGET")]
    with: Vec<StoreTarget>,
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
    /// The store's devices in the order in which they were formatted or added, as in uring:kv.img or vfio:0000:01:00.0;
    /// or serve:SOCKET
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<StoreTarget>,
}

impl StoreArgs {
    /// The store of these targets.
    pub(crate) fn of(targets: &[StoreTarget]) -> StoreArgs {
        StoreArgs { targets: targets.to_vec() }
    }

    /// Returns the store's name for messages: its first device, or its server.
    pub(crate) fn name(&self) -> String {
        match self.targets.first() {
            None => String::new(),
            Some(StoreTarget::Device(target)) => target.device(),
            Some(served) => served.to_string(),
        }
    }

    /// Returns all its targets as text.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.targets.iter().map(ToString::to_string).collect()
    }

    /// Returns the devices in order.
    ///
    /// # Errors
    /// A usage failure for a served store.
    pub(crate) fn devices(&self) -> Result<Vec<Target>> {
        let device = |target: &StoreTarget| match target {
            StoreTarget::Device(target) => Ok(target.clone()),
            StoreTarget::Served(_) => {
                Err(Failure::usage(format!("{}: {NEEDS_DEVICES}", self.name())))
            }
        };
        self.targets.iter().map(device).collect()
    }

    /// Returns the socket of the store's server, if it is served.
    ///
    /// # Errors
    /// A usage failure for a server beside other targets.
    pub(crate) fn socket(&self) -> Result<Option<&Path>> {
        let served = self.targets.iter().find_map(|target| match target {
            StoreTarget::Device(_) => None,
            StoreTarget::Served(socket) => Some(&**socket),
        });
        match (served, self.targets.len()) {
            (Some(socket), 2..) => Err(Failure::usage(format!(
                "serve:{}: the server has all devices of its store; name no other target",
                socket.display()
            ))),
            (served, _) => Ok(served),
        }
    }

    /// Opens the store in this process, with a pool of `pool_bytes`.
    ///
    /// # Errors
    /// As [`Store::open`]; a usage failure for a served store.
    pub(crate) fn open_own(&self, pool_bytes: usize) -> Result<Store> {
        let targets = self.devices()?;
        store::check_there(&targets, NO_STORE)?;
        Ok(Store::open(&OpenOptions { pool_bytes, ..OpenOptions::new(targets) })?)
    }

    /// Opens the store or connects to its server, calls `call`, and makes everything durable.
    ///
    /// # Errors
    /// As [`StoreArgs::open_own`] or [`connect`], and `call`.
    pub(crate) fn on<T>(&self, call: impl FnOnce(&AnyStore) -> Result<T>) -> Result<T> {
        self.on_with(None, POOL_BYTES, call)
    }

    /// Like [`StoreArgs::on`], with a pool of `pool_bytes`. Over a connection, `tenant` owns what is put.
    ///
    /// # Errors
    /// As [`StoreArgs::on`].
    pub(crate) fn on_with<T>(
        &self,
        tenant: Option<&str>,
        pool_bytes: usize,
        call: impl FnOnce(&AnyStore) -> Result<T>,
    ) -> Result<T> {
        let tenant = tenant.map(str::to_owned);
        let options = ClientOptions { tenant, pool_bytes, ..ClientOptions::default() };
        let any = match self.socket()? {
            Some(socket) => AnyStore::Served(connect(socket, &options)?),
            None => AnyStore::Own(self.open_own(pool_bytes)?),
        };
        let done = call(&any);
        // Also after a failure: without that, the process may end before the store's threads do.
        let closed = any.close();
        done.and_then(|done| closed.map(|()| done))
    }

    /// Opens the store on this thread, calls `call`, and makes everything durable.
    ///
    /// # Errors
    /// As [`Store::open_local`] and `call`; a usage failure for a served store.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let devices = self.devices()?;
        store::check_there(&devices, NO_STORE)?;
        let mut session = Session::of(Store::open_local(&OpenOptions::new(devices))?);
        let done = call(&mut session)?;
        session.close()?;
        Ok(done)
    }

    /// Opens the devices for reading; with `exclusive`, only if no other process has them open.
    ///
    /// # Errors
    /// As [`Reader::open`]; a usage failure for a served store.
    pub(crate) fn reader(&self, exclusive: bool) -> Result<Reader> {
        Reader::open(&self.devices()?, exclusive)
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
