//! A store's options as a configuration file gives them (feature `serde`): for any format that serde reads.
//!
//! Sizes are whole numbers; their names end in the unit. Omitted options keep their defaults. Unknown names and
//! values out of range are errors of the file's parser, which knows the line.

use std::fmt::Display;
use std::time::Duration;

use adit_driver::Target;
use adit_driver::runtime::Cores;
use serde::de::{Deserialize, Deserializer, Error as _};

use super::format::FormatStore;
use super::options::OpenOptions;
use crate::error::Result;
use crate::model::layout::{BlockShape, Dtype, Layout, Order};
use crate::model::options::{Durability, PolicyKind, Watermarks};

/// A store in a configuration file. [`OpenOptions`] explains the options.
///
/// ```
/// # #[cfg(feature = "serde")] {
/// let config: adit_kvstore::store::StoreConfig = toml::from_str(
///     "targets = ['uring:/var/lib/kv.img']
///      durability = 'durable'
///      pool_bytes = 268_435_456",
/// )?;
/// let options = config.open_options();
/// assert_eq!(options.pool_bytes, 256 << 20);
/// # }
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// The store's devices, in the order in which they were formatted.
    #[serde(deserialize_with = "targets")]
    pub targets: Vec<Target>,
    /// `volatile`, `restart` or `durable`.
    pub durability: Option<Durability>,
    /// `auto`, `lru` or `s3fifo`.
    pub policy: Option<PolicyKind>,
    /// Maximum bytes of all objects.
    pub capacity_bytes: Option<u64>,
    /// Maximum number of objects.
    pub capacity_objects: Option<u64>,
    /// When eviction begins and ends, in thousandths of the capacity.
    #[serde(deserialize_with = "watermarks")]
    pub watermarks: Option<Watermarks>,
    /// Bytes per day that objects may write.
    pub write_bytes_per_day: Option<u64>,
    /// How many days the drives must endure.
    #[serde(deserialize_with = "positive")]
    pub lifetime_days: Option<u64>,
    /// Commands in flight per queue.
    #[serde(deserialize_with = "positive")]
    pub queue_depth: Option<u64>,
    /// Where the threads run.
    pub cores: Option<CoresConfig>,
    /// Requests that may wait for each thread, 1 to 65536.
    #[serde(deserialize_with = "positive")]
    pub mailbox_depth: Option<u64>,
    /// Bytes of registered memory per device.
    #[serde(deserialize_with = "positive")]
    pub pool_bytes: Option<u64>,
    /// The most bytes of registered memory for the memory tier.
    pub tier_bytes: Option<u64>,
    /// Whether objects stay that damage to the journal may have made outdated.
    pub keep_outdated: Option<bool>,
    /// How long a call may wait to begin.
    #[serde(deserialize_with = "positive")]
    pub timeout_ms: Option<u64>,
    /// How long a command may take on a device.
    #[serde(deserialize_with = "positive")]
    pub command_timeout_ms: Option<u64>,
    /// How long a record may wait for others.
    pub seal_interval_ms: Option<u64>,
    /// The longest that `restart` leaves written data unflushed.
    pub flush_interval_ms: Option<u64>,
    /// How long space stays free before it is deallocated.
    pub discard_after_ms: Option<u64>,
    /// How to format the devices.
    pub format: FormatConfig,
}

/// How to format a store, in a configuration file. [`FormatStore`] explains the options.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FormatConfig {
    /// Number of shards.
    pub shards: Option<u16>,
    /// Number of objects that it holds.
    pub objects_max: Option<u64>,
    /// Length of its longest keys.
    pub key_bytes: Option<u16>,
    /// Bytes of each shard's journal.
    pub journal_bytes: Option<u64>,
    /// A name of at most 32 bytes.
    pub label: Option<String>,
    /// Creates a missing regular file of this many bytes.
    pub file_bytes: Option<u64>,
}

/// The cores of a store's threads: how many, or which.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(
    untagged,
    expecting = "use a number of cores, a list of cores such as [2, 3], { unpinned = 2 } or { near = 2 }"
)]
pub enum CoresConfig {
    /// [`Cores::Count`].
    Count(usize),
    /// [`Cores::List`].
    List(Vec<usize>),
    /// The others, by name.
    Moved(MovedConfig),
}

/// Threads in a configuration file that the system moves among cores.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MovedConfig {
    /// [`Cores::Unpinned`].
    Unpinned(usize),
    /// [`Cores::Near`].
    Near(usize),
}

/// A layout of KV blocks in a configuration file: the shape of a block, and the slots of a slab.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutConfig {
    /// Layers of the model.
    pub layers: u32,
    /// Tensors per layer: 2, or 1 in MLA.
    pub tensors_per_layer: u8,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Numbers per head.
    pub head_dim: u32,
    /// `f32`, `f16`, `bf16`, `fp8` or `int8`.
    pub dtype: Dtype,
    /// Tokens per block.
    pub tokens: u32,
    /// Blocks per slab, whose layers lie side by side; without it, each block lies by itself.
    pub slots: Option<u32>,
}

impl StoreConfig {
    /// Returns the options to open the store with.
    pub fn open_options(&self) -> OpenOptions {
        let mut options = OpenOptions::new(self.targets.clone());
        set(&mut options.durability, self.durability);
        set(&mut options.policy, self.policy);
        options.capacity_bytes = self.capacity_bytes;
        options.capacity_objects = self.capacity_objects;
        set(&mut options.watermarks, self.watermarks);
        options.write_bytes_per_day = self.write_bytes_per_day;
        options.lifetime =
            self.lifetime_days.map(|days| Duration::from_secs(days.saturating_mul(24 * 3600)));
        set(
            &mut options.queue_depth,
            self.queue_depth.map(|depth| u32::try_from(depth).unwrap_or(u32::MAX)),
        );
        set(&mut options.cores, self.cores.clone().map(|cores| Some(cores.into())));
        set(&mut options.mailbox_depth, self.mailbox_depth.map(|depth| depth as usize));
        set(&mut options.pool_bytes, self.pool_bytes.map(|bytes| bytes as usize));
        set(&mut options.tier_bytes, self.tier_bytes);
        set(&mut options.keep_outdated, self.keep_outdated);
        set(&mut options.timeout, self.timeout_ms.map(Duration::from_millis));
        set(&mut options.command_timeout, self.command_timeout_ms.map(Duration::from_millis));
        set(&mut options.seal_interval, self.seal_interval_ms.map(Duration::from_millis));
        set(&mut options.flush_interval, self.flush_interval_ms.map(Duration::from_millis));
        set(&mut options.discard_after, self.discard_after_ms.map(Duration::from_millis));
        options
    }

    /// Returns the options to format its devices with.
    pub fn format_options(&self) -> FormatStore {
        let mut options = FormatStore::new(self.targets.clone());
        let FormatConfig { shards, objects_max, key_bytes, journal_bytes, label, file_bytes } =
            self.format.clone();
        set(&mut options.shards, shards);
        set(&mut options.key_bytes, key_bytes);
        set(&mut options.label, label);
        FormatStore { objects_max, journal_bytes, file_bytes, ..options }
    }
}

impl From<CoresConfig> for Cores {
    fn from(cores: CoresConfig) -> Cores {
        match cores {
            CoresConfig::Count(count) => Cores::Count(count),
            CoresConfig::List(list) => Cores::List(list),
            CoresConfig::Moved(MovedConfig::Unpinned(count)) => Cores::Unpinned(count),
            CoresConfig::Moved(MovedConfig::Near(count)) => Cores::Near(count),
        }
    }
}

impl LayoutConfig {
    /// Returns the layout.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn layout(&self) -> Result<Layout> {
        let LayoutConfig { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens, slots } =
            *self;
        let order = slots.map_or(Order::BlockMajor, |slots| Order::LayerMajor { slots });
        let block = BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens };
        Layout::new(block, order)
    }
}

fn set<T>(option: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *option = given;
    }
}

fn said<E: serde::de::Error>(why: impl Display) -> E {
    E::custom(why)
}

fn targets<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Target>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    names.iter().map(|name| name.parse().map_err(said)).collect()
}

fn watermarks<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Watermarks>, D::Error> {
    Watermarks::deserialize(from)?.check().map(Some).map_err(said)
}

/// Refuses a 0, which would leave no room or no time.
fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match u64::deserialize(from)? {
        0 => Err(D::Error::custom("it is 0: use at least 1, or leave it out for the default")),
        number => Ok(Some(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        toml::from_str::<StoreConfig>(text).expect_err("refused").to_string()
    }

    #[test]
    fn what_a_file_leaves_out_keeps_its_default() {
        let config: StoreConfig = toml::from_str("targets = ['null:']").expect("a store");
        let (options, default) = (config.open_options(), OpenOptions::new(config.targets.clone()));
        assert_eq!(format!("{options:?}"), format!("{default:?}"));
        let default = FormatStore::new(config.targets.clone());
        assert_eq!(format!("{:?}", config.format_options()), format!("{default:?}"));
    }

    #[test]
    fn every_option_arrives() {
        let config: StoreConfig = toml::from_str(
            "targets = ['null:', 'soft:mem=16M']\ndurability = 'durable'\npolicy = 's3fifo'\n\
             capacity_bytes = 1\ncapacity_objects = 2\nwatermarks = { high = 900, low = 800 }\n\
             write_bytes_per_day = 3\nlifetime_days = 4\nqueue_depth = 5\n\
             cores = [1, 0]\nmailbox_depth = 6\npool_bytes = 7\ntier_bytes = 16\nkeep_outdated = true\ntimeout_ms = 8\ncommand_timeout_ms = 9\n\
             seal_interval_ms = 10\nflush_interval_ms = 11\ndiscard_after_ms = 12\n\
             [format]\nshards = 2\nobjects_max = 13\nkey_bytes = 16\njournal_bytes = 14\nlabel = 'x'\nfile_bytes = 15\n",
        )
        .expect("a store");
        let options = config.open_options();
        let told = (options.durability, options.policy, options.watermarks);
        let watermarks = Watermarks { high: 900, low: 800 };
        assert_eq!(told, (Durability::Durable, PolicyKind::S3Fifo, watermarks));
        let told = (options.capacity_bytes, options.capacity_objects, options.write_bytes_per_day);
        assert_eq!(told, (Some(1), Some(2), Some(3)));
        assert_eq!((options.queue_depth, options.mailbox_depth, options.pool_bytes), (5, 6, 7));
        assert_eq!((options.tier_bytes, options.keep_outdated), (16, true));
        assert_eq!(
            (options.cores, options.lifetime),
            (Some(Cores::List(vec![1, 0])), Some(Duration::from_secs(345_600)))
        );
        let times = [options.timeout, options.command_timeout, options.seal_interval];
        assert_eq!(times.map(|time| time.as_millis()), [8, 9, 10]);
        assert_eq!(
            (options.flush_interval.as_millis(), options.discard_after.as_millis()),
            (11, 12)
        );
        let format = config.format_options();
        assert_eq!((format.targets.len(), format.shards, format.label.as_str()), (2, 2, "x"));
        assert_eq!(
            (format.objects_max, format.key_bytes, format.journal_bytes, format.file_bytes),
            (Some(13), 16, Some(14), Some(15))
        );
    }

    #[test]
    fn threads_are_pinned_or_moved_as_the_file_says() {
        for (text, cores) in [
            ("2", Cores::Count(2)),
            ("{ unpinned = 3 }", Cores::Unpinned(3)),
            ("{ near = 4 }", Cores::Near(4)),
        ] {
            let text = format!("targets = ['null:']\ncores = {text}");
            let config: StoreConfig = toml::from_str(&text).expect("a store");
            assert_eq!(config.open_options().cores, Some(cores));
        }
    }

    #[test]
    fn a_wrong_value_is_reported_with_its_line_and_a_remedy() {
        for (text, line, remedy) in [
            ("targets = ['null:']\npool_size = 7", 2, "expected one of `targets`"),
            ("\n\ndurability = 'fast'", 3, "`volatile`, `restart`"),
            ("policy = 'mru'", 1, "`auto`"),
            ("queue_depth = 0", 1, "use at least 1"),
            ("\ntimeout_ms = -3", 2, "invalid value: integer `-3`"),
            ("targets = ['usb:x']", 1, "usb"),
            ("watermarks = { high = 1, low = 2 }", 1, "0 < low <= high <= 1000"),
            ("cores = 'all'", 1, "use a number of cores, a list"),
            ("[format]\nsize = 3", 2, "expected one of `shards`"),
        ] {
            let why = why(text);
            assert!(
                why.contains(&format!("line {line}, column")) && why.contains(remedy),
                "{text}: {why}"
            );
        }
    }

    #[test]
    fn a_layout_has_slabs_if_it_has_slots() {
        let of = |more: &str| {
            let text = format!(
                "layers = 4\ntensors_per_layer = 2\nkv_heads = 2\nhead_dim = 64\ndtype = 'bf16'\ntokens = 16\n{more}"
            );
            toml::from_str::<LayoutConfig>(&text).expect("a layout").layout().expect("a layout")
        };
        assert_eq!(
            (of("").order(), of("slots = 8").order()),
            (Order::BlockMajor, Order::LayerMajor { slots: 8 })
        );
        assert!(toml::from_str::<LayoutConfig>("layers = 4").is_err());
    }
}
