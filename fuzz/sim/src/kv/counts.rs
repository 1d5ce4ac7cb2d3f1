//! Counters of what runs of the store encountered, to show that they exercise it.

use std::fmt;

use super::faults::Fault;

/// Names of the sums, in their order.
const NAMES: [&str; Sum::COUNT] = [
    "schedules",
    "lives",
    "commands",
    "power cuts",
    "kills",
    "clean stops",
    "stores that did not open again",
    "puts",
    "gets",
    "hits",
    "misses",
    "excused misses",
    "bytes checked",
    "declined",
    "failed",
    "deletes",
    "commits",
    "sealed",
    "leases",
    "evictions",
    "evictions against fragmentation",
    "expirations",
    "corrupt",
    "checkpoints",
    "KV blocks",
    "layers read",
    "journal rounds",
    "cuts while it was opened",
    "openings as something else",
    "devices attached again",
    "sweeps",
    "evictions for a quota",
    "journals damaged",
    "lost blocks",
    "hits in memory",
    "forgotten in memory",
    "evicted from memory",
    "held in memory",
    "read from memory during a turn",
    "memory tiers made smaller",
    "puts that waited for memory",
    "changes that waited for one of their key",
    "conditions that held",
    "conflicts",
    "other expiries",
    "removals told",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Schedules,
    Lives,
    Commands,
    Cuts,
    Kills,
    Stops,
    Unopenable,
    Puts,
    Gets,
    Hits,
    Misses,
    ExcusedMisses,
    BytesChecked,
    Declined,
    Failed,
    Deletes,
    Commits,
    Sealed,
    Leases,
    Evictions,
    Unfragmented,
    Expirations,
    Corrupt,
    Checkpoints,
    Blocks,
    Layers,
    JournalRounds,
    OpeningCuts,
    OtherDurabilities,
    Attached,
    Sweeps,
    QuotaEvictions,
    Damaged,
    LostBlocks,
    TierHits,
    TierForgotten,
    TierEvicted,
    Held,
    ReadMeanwhile,
    TiersShrunk,
    Waited,
    Followed,
    Conditions,
    Conflicts,
    Touches,
    Told,
}

impl Sum {
    const COUNT: usize = Sum::Told as usize + 1;
}

/// Sums over runs.
#[derive(Clone, Debug)]
pub struct StoreCounts {
    sums: [u64; Sum::COUNT],
    /// How often each kind of fault struck.
    pub(crate) struck: Vec<u64>,
}

impl Default for StoreCounts {
    fn default() -> StoreCounts {
        StoreCounts { sums: [0; Sum::COUNT], struck: vec![0; Fault::ALL.len()] }
    }
}

impl StoreCounts {
    pub(crate) fn count(&mut self, sum: Sum, by: u64) {
        self.sums[sum as usize] += by;
    }

    /// Returns the schedules run to their end.
    pub fn schedules(&self) -> u64 {
        self.sums[Sum::Schedules as usize]
    }

    /// Iterates over the sums by name.
    pub fn named(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let named = NAMES.iter().map(|name| (*name).to_owned()).zip(self.sums);
        let faults = Fault::ALL.iter().map(|fault| format!("{fault:?}"));
        named.chain(faults.zip(self.struck.iter().copied()))
    }

    /// Adds another run's counters.
    pub fn add(&mut self, other: &StoreCounts) {
        self.sums.iter_mut().zip(other.sums).for_each(|(mine, theirs)| *mine += theirs);
        self.struck.iter_mut().zip(&other.struck).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Formats them as one line of numbers, for another process.
    pub fn to_line(&self) -> String {
        let words = self.sums.iter().chain(&self.struck).map(u64::to_string);
        words.collect::<Vec<_>>().join(" ")
    }

    /// Parses the output of [`StoreCounts::to_line`]; returns `None` if it is invalid.
    pub fn from_line(line: &str) -> Option<StoreCounts> {
        let mut counts = StoreCounts::default();
        let mut words = line.split(' ').map(|word| word.parse().ok());
        for sum in counts.sums.iter_mut().chain(&mut counts.struck) {
            *sum = words.next()??;
        }
        words.next().is_none().then_some(counts)
    }
}

impl fmt::Display for StoreCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<(String, u64)> = self.named().collect();
        let (sums, faults) = named.split_at(Sum::COUNT);
        let list = |named: &[(String, u64)]| {
            let there = named.iter().filter(|(_, count)| *count > 0);
            there.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        write!(f, "{}\nfaults: {}", list(sums), list(faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_passed_on_and_added() {
        let mut counts = StoreCounts::default();
        counts.count(Sum::Hits, 3);
        counts.struck[1] = 4;
        let mut twice = StoreCounts::from_line(&counts.to_line()).expect("its own line");
        twice.add(&counts);
        assert!(twice.to_string().contains("hits 6") && twice.to_string().contains("Late 8"));
        for wrong in ["", "1 2", &format!("{} 1", counts.to_line())] {
            assert!(StoreCounts::from_line(wrong).is_none(), "{wrong}");
        }
    }
}
