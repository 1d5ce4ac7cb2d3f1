//! A store that a command works on: opened by this process, or served by another one.

use std::path::Path;

use adit_kvshare::{Client, ClientOptions, Error, KvStore, PendingAnswer};
use adit_kvstore::Store;

use crate::failure::{Failure, Result};

/// Bytes of the pool through which objects pass by default.
pub(crate) const POOL_BYTES: usize = 64 << 20;

/// Returns how large the pool has to be for objects with pieces of `piece_bytes`, of which one passes through it while
/// others are read ahead.
pub(crate) fn pool_bytes(piece_bytes: u64) -> usize {
    usize::try_from(3 * piece_bytes).map_or(POOL_BYTES, |bytes| bytes.max(POOL_BYTES))
}

/// A store of this process, or a connection to the server of one.
pub(crate) enum AnyStore {
    Own(Store),
    Served(Client),
}

/// Evaluates an expression over a store, whichever it is: both are [`KvStore`]s.
macro_rules! on {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            $crate::any_store::AnyStore::Own($store) => $call,
            $crate::any_store::AnyStore::Served($store) => $call,
        }
    };
}
pub(crate) use on;

impl AnyStore {
    /// Makes everything durable, and releases the devices or the connection.
    ///
    /// # Errors
    /// Why the store failed.
    pub(crate) fn close(self) -> Result<()> {
        match self {
            AnyStore::Own(store) => store.close().wait().map(drop)?,
            AnyStore::Served(client) => client.commit().wait()?,
        }
        Ok(())
    }
}

/// Connects to the server at a socket.
///
/// # Errors
/// When no server answers there, or it refuses the connection.
pub(crate) fn connect(socket: &Path, options: &ClientOptions) -> Result<Client> {
    Client::connect(socket, options).map_err(|why| match why {
        Error::System { .. } => Failure::failed(format!(
            "{why}; start 'adit kv serve --socket {}', or correct the path",
            socket.display()
        )),
        why => why.into(),
    })
}
