//! A client's settings.

use std::time::Duration;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The tenant that owns the objects that it puts. Default none.
    pub tenant: Option<String>,
    /// Requests that the server has at a time: a power of two from 2 to 4096. Others wait in line. Default 256.
    pub depth: u64,
    /// Bytes of the pool for plain bytes and values, made when it is first needed. Default 64 MiB.
    pub pool_bytes: usize,
    /// How long [`Pending::wait`] waits. Default 60 s.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        let timeout = Duration::from_secs(60);
        ClientOptions { tenant: None, depth: 256, pool_bytes: 64 << 20, timeout }
    }
}
