//! The server's settings: a TOML file, and flags that override it. `server.toml` shows every setting.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use adit_kvstore::Durability;
use adit_kvstore::Target;
use adit_kvstore::store::{LayoutConfig, StoreConfig};
use clap::Parser;

/// Serves the objects of a store over HTTP.
#[derive(Parser)]
#[command(
    after_help = "Examples:\n  server --format --size-bytes 1073741824 uring:/var/tmp/objects.img\n  \
                        curl -T file http://127.0.0.1:8080/objects/a-key\n  server --config server.toml"
)]
pub(crate) struct Arguments {
    /// The store's devices, such as 'vfio:0000:01:00.0' or 'uring:PATH'.
    #[arg(required_unless_present = "config")]
    targets: Vec<Target>,
    /// A TOML file with the settings; flags override it. kvstore/examples/server/server.toml explains each.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:8080].
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Format the devices first. Refused if they hold data.
    #[arg(long)]
    pub(crate) format: bool,
    /// With --format: create files of this many bytes.
    #[arg(long, requires = "format")]
    size_bytes: Option<u64>,
    /// The promise of an answer: volatile, restart or durable [default: restart].
    #[arg(long)]
    durability: Option<Durability>,
    /// Maximum concurrent connections; further ones are closed [default: 256].
    #[arg(long)]
    connections: Option<usize>,
    /// Seconds that a client may take for a request, and again for each 16 MiB of it or of the answer [default: 30].
    #[arg(long)]
    timeout_s: Option<u32>,
}

/// The settings of the file, or their defaults.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) timeout_s: u32,
    pub(crate) store: StoreConfig,
    /// KV blocks by the name that a request's X-Layout gives.
    pub(crate) layouts: BTreeMap<String, LayoutConfig>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            connections: 256,
            timeout_s: 30,
            store: StoreConfig::default(),
            layouts: BTreeMap::new(),
        }
    }
}

impl Arguments {
    /// Reads the file, if one is named, and applies the flags.
    ///
    /// # Errors
    /// A sentence for the user, with the file's line if it is about one.
    pub(crate) fn config(&self) -> Result<Config, String> {
        let mut config = self.config.as_deref().map_or(Ok(Config::default()), read)?;
        if !self.targets.is_empty() {
            config.store.targets = self.targets.clone();
        }
        if config.store.targets.is_empty() {
            return Err(
                "no device is named: set targets in [store], or name them as arguments".to_owned()
            );
        }
        config.listen = self.listen.unwrap_or(config.listen);
        config.connections = self.connections.unwrap_or(config.connections);
        config.timeout_s = self.timeout_s.unwrap_or(config.timeout_s);
        config.store.durability = self.durability.or(config.store.durability);
        config.store.format.file_bytes = self.size_bytes.or(config.store.format.file_bytes);
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Config, String> {
    let text = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    toml::from_str(&text).map_err(|why| format!("{}: {why}", path.display()))
}
