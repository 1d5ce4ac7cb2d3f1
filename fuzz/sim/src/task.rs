//! The task of a simulation and its results: the driver, the store, or a cut at each command of the store.

use std::fmt;
use std::ops::Range;
use std::process::Command;

use adit_sim::kv::{self, StoreCanary, StoreCounts};
use adit_sim::{Canary, Counts, Failure, Report, run_seed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The driver, perhaps with a law broken on purpose.
    Driver(Option<Canary>),
    /// The store, likewise.
    Store(Option<StoreCanary>),
    /// The store, cut at every `every`th command of the runs, one for each durability.
    Sweep {
        commands: [u64; 3],
        /// 1 for all.
        every: u64,
    },
}

/// Sums over schedules.
#[derive(Clone, Debug)]
pub(crate) enum Totals {
    Driver(Box<Counts>),
    Store(Box<StoreCounts>),
}

/// The result of one schedule.
pub(crate) struct Told {
    pub(crate) totals: Totals,
    pub(crate) hash: u64,
    pub(crate) trace: Vec<String>,
}

impl Task {
    pub(crate) fn totals(&self) -> Totals {
        match self {
            Task::Driver(_) => Totals::Driver(Box::default()),
            Task::Store(_) | Task::Sweep { .. } => Totals::Store(Box::default()),
        }
    }

    /// Returns the number of schedules, if the task determines it.
    pub(crate) fn schedules(&self) -> Option<u64> {
        match self {
            Task::Sweep { commands, every } => Some(commands.iter().sum::<u64>().div_ceil(*every)),
            _ => None,
        }
    }

    /// Runs the `index`th schedule, counted from seed `first`.
    ///
    /// # Errors
    /// The law that was broken.
    pub(crate) fn run(&self, first: u64, index: u64, keeps: bool) -> Result<Told, Box<Failure>> {
        let seed = first.wrapping_add(index);
        match self {
            Task::Driver(canary) => {
                run_seed(seed, *canary, keeps).map(|Report { hash, counts, trace }| Told {
                    totals: Totals::Driver(Box::new(counts)),
                    hash,
                    trace,
                })
            }
            Task::Store(canary) => kv::run_seed(seed, *canary, keeps).map(of_store),
            Task::Sweep { commands, every } => {
                let cut = kv::run_cuts(first, *commands, &[index * every], keeps);
                cut.map(of_store).map_err(|(_, failure)| failure)
            }
        }
    }

    /// Runs these schedules, counted from seed `first`; those of a sweep together.
    ///
    /// # Errors
    /// The number of one that broke a law.
    pub(crate) fn run_all(&self, first: u64, indices: Range<u64>) -> Result<Totals, u64> {
        let mut totals = self.totals();
        if let Task::Sweep { commands, every } = self {
            let cuts: Vec<u64> = indices.map(|index| index * every).collect();
            let cuts = kv::run_cuts(first, *commands, &cuts, false);
            let cuts = cuts.map_err(|(number, _)| number / every)?;
            totals.add(&of_store(cuts).totals);
            return Ok(totals);
        }
        for index in indices {
            totals.add(&self.run(first, index, false).map_err(|_| index)?.totals);
        }
        Ok(totals)
    }

    /// Adds the arguments for another process to run the same task.
    pub(crate) fn hand_on(&self, command: &mut Command) {
        let canary = match self {
            Task::Driver(canary) => canary.map(Canary::name),
            Task::Store(canary) => {
                command.arg("--store");
                canary.map(StoreCanary::name)
            }
            Task::Sweep { every, .. } => {
                command.args(["--store", "--sweep", "--every"]).arg(every.to_string());
                None
            }
        };
        if let Some(name) = canary {
            command.arg("--canary").arg(name);
        }
    }

    /// Adds the arguments for another process to run only the `index`th schedule.
    pub(crate) fn hand_on_one(&self, command: &mut Command, first: u64, index: u64) {
        match self {
            Task::Sweep { every, .. } => {
                command.args(["--store", "--sweep", "--seed"]).arg(first.to_string());
                command.arg("--cut").arg((index * every).to_string());
            }
            _ => {
                self.hand_on(command);
                command.arg("--seed").arg(first.wrapping_add(index).to_string());
            }
        }
    }
}

fn of_store(report: Report<StoreCounts>) -> Told {
    let Report { hash, counts, trace } = report;
    Told { totals: Totals::Store(Box::new(counts)), hash, trace }
}

impl Totals {
    pub(crate) fn schedules(&self) -> u64 {
        match self {
            Totals::Driver(counts) => counts.schedules,
            Totals::Store(counts) => counts.schedules(),
        }
    }

    /// Adds other totals of the same task.
    pub(crate) fn add(&mut self, other: &Totals) {
        match (self, other) {
            (Totals::Driver(mine), Totals::Driver(theirs)) => mine.add(theirs),
            (Totals::Store(mine), Totals::Store(theirs)) => mine.add(theirs),
            _ => panic!("processes of one task count alike"),
        }
    }

    /// Formats them as one line, for another process.
    pub(crate) fn to_line(&self) -> String {
        match self {
            Totals::Driver(counts) => format!("driver {}", counts.to_line()),
            Totals::Store(counts) => format!("store {}", counts.to_line()),
        }
    }

    /// Parses the output of [`Totals::to_line`]; returns `None` if it is invalid.
    pub(crate) fn from_line(line: &str) -> Option<Totals> {
        match line.split_once(' ')? {
            ("driver", counts) => Some(Totals::Driver(Box::new(Counts::from_line(counts)?))),
            ("store", counts) => Some(Totals::Store(Box::new(StoreCounts::from_line(counts)?))),
            _ => None,
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Totals::Driver(counts) => counts.fmt(f),
            Totals::Store(counts) => counts.fmt(f),
        }
    }
}
