//! Options that all shards of a store share.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Durability {
    /// Only data is written. The store is empty after it is opened.
    Volatile,
    /// Everything acknowledged before a clean stop comes back, and all but the last instants before a crash. A put
    /// costs no flush.
    #[default]
    Restart,
    /// Acknowledged data survives a power cut. Concurrent requests share a flush.
    Durable,
}

impl Durability {
    const NAMES: [(&'static str, Durability); 3] = [
        ("volatile", Durability::Volatile),
        ("restart", Durability::Restart),
        ("durable", Durability::Durable),
    ];
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Durability::NAMES.iter().find(|(_, durability)| durability == self);
        f.write_str(named.expect("each has a name").0)
    }
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Durability> {
        let named = Durability::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, durability)| *durability).ok_or_else(|| {
            Error::invalid("durability", text, "use 'volatile', 'restart' or 'durable'")
        })
    }
}

/// A limit on a tenant's use of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of all its objects, padding included; counts in whole units of 4 KiB.
    pub bytes: u64,
    /// The treatment of a put beyond that.
    pub when_reached: WhenReached,
}

/// The treatment of a put for which a tenant's quota has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenReached {
    /// It fails with [`crate::shard::Failure::Quota`].
    #[default]
    Refuse,
    /// It is stored, and the tenant's least recently used objects are evicted. Until then, puts in progress may exceed
    /// the quota.
    EvictOwn,
}

/// The order of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum PolicyKind {
    /// Evicts the object of least worth, learned from the load. Knows sequences, and declines an object worth less than
    /// all others.
    #[default]
    Auto,
    /// Evicts the least recently used object.
    Lru,
    /// S3-FIFO: most objects pass only through a small queue; those that were hit move to a main queue.
    S3Fifo,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyKind::Auto => "auto",
            PolicyKind::Lru => "lru",
            PolicyKind::S3Fifo => "s3fifo",
        })
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<PolicyKind> {
        match text {
            "auto" => Ok(PolicyKind::Auto),
            "lru" => Ok(PolicyKind::Lru),
            "s3fifo" => Ok(PolicyKind::S3Fifo),
            _ => Err(Error::invalid("policy", text, "use 'auto', 'lru' or 's3fifo'")),
        }
    }
}

/// How full a store may be, in thousandths of the capacity: above `high`, objects are evicted until at most `low` is
/// in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Watermarks {
    /// Occupancy at which eviction begins.
    pub high: u16,
    /// Occupancy at which eviction ends.
    pub low: u16,
}

impl Default for Watermarks {
    fn default() -> Watermarks {
        Watermarks { high: 980, low: 960 }
    }
}

impl Watermarks {
    /// Checks the order.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless 0 < low <= high <= 1000.
    pub fn check(self) -> Result<Watermarks> {
        if self.low == 0 || self.low > self.high || self.high > 1000 {
            let text = format!("{}/{}", self.high, self.low);
            return Err(Error::invalid("watermarks", text, "0 < low <= high <= 1000 must hold"));
        }
        Ok(self)
    }

    pub(crate) fn high_units(self, capacity_units: u64) -> u64 {
        part(capacity_units, self.high)
    }

    pub(crate) fn low_units(self, capacity_units: u64) -> u64 {
        part(capacity_units, self.low)
    }
}

fn part(units: u64, thousandths: u16) -> u64 {
    (u128::from(units) * u128::from(thousandths) / 1000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prints_parses_to_the_same() {
        for durability in [Durability::Volatile, Durability::Restart, Durability::Durable] {
            assert_eq!(durability.to_string().parse::<Durability>().expect("a name"), durability);
        }
        for policy in [PolicyKind::Auto, PolicyKind::Lru, PolicyKind::S3Fifo] {
            assert_eq!(policy.to_string().parse::<PolicyKind>().expect("a name"), policy);
        }
        assert!("fast".parse::<Durability>().is_err() && "mru".parse::<PolicyKind>().is_err());
    }

    #[test]
    fn watermarks_are_in_order() {
        let check = |high, low| Watermarks { high, low }.check().is_ok();
        assert!(check(1000, 1000) && check(900, 1));
        assert!(!check(900, 901) && !check(1001, 5) && !check(10, 0));
    }
}
