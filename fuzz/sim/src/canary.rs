//! Laws broken on purpose: each must be caught, otherwise the simulation checks nothing.

use std::str::FromStr;

use adit_driver::soft::Verdict;
use adit_driver::spec::{IoOpcode, Sqe};

/// A fault outside every contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Law 1: a write is acknowledged but not carried out.
    LostWrite,
    /// Law 1: a read is acknowledged but returns nothing.
    EmptyRead,
    /// Law 1: the checker forgets an acknowledged write, and takes its data for wrong.
    ForgetWrite,
    /// Law 1: a Flush is acknowledged but not carried out, and power is lost.
    LostFlush,
    /// Law 1: a bit on the medium flips.
    BitRot,
    /// Law 2: memory beside a buffer is overwritten.
    Scribble,
    /// Law 3: a queue's ring is unmapped while the device uses it.
    EarlyUnmap,
    /// Law 3: a buffer never comes back.
    Leak,
    /// Law 4: the driver's time stands still, so that no deadline ever passes.
    FrozenTime,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 9] = [
        Canary::LostWrite,
        Canary::EmptyRead,
        Canary::ForgetWrite,
        Canary::LostFlush,
        Canary::BitRot,
        Canary::Scribble,
        Canary::EarlyUnmap,
        Canary::Leak,
        Canary::FrozenTime,
    ];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Canary::LostWrite => "lost-write",
            Canary::EmptyRead => "empty-read",
            Canary::ForgetWrite => "forget-write",
            Canary::LostFlush => "lost-flush",
            Canary::BitRot => "bit-rot",
            Canary::Scribble => "scribble",
            Canary::EarlyUnmap => "early-unmap",
            Canary::Leak => "leak",
            Canary::FrozenTime => "frozen-time",
        }
    }

    /// Returns the law it breaks.
    pub fn law(self) -> u8 {
        match self {
            Canary::LostWrite
            | Canary::EmptyRead
            | Canary::ForgetWrite
            | Canary::LostFlush
            | Canary::BitRot => 1,
            Canary::Scribble => 2,
            Canary::EarlyUnmap | Canary::Leak => 3,
            Canary::FrozenTime => 4,
        }
    }

    /// Returns its verdict on an I/O command, if it acts on commands.
    pub(crate) fn verdict(self, sqe: &Sqe) -> Option<Verdict> {
        let opcode = sqe.io_opcode();
        match self {
            Canary::LostWrite if opcode == IoOpcode::WRITE => Some(Verdict::Answer(0)),
            Canary::EmptyRead if opcode == IoOpcode::READ => Some(Verdict::Answer(0)),
            Canary::LostFlush if opcode == IoOpcode::FLUSH => Some(Verdict::Answer(0)),
            Canary::BitRot if opcode == IoOpcode::READ => Some(Verdict::Rot { bit: 77 }),
            _ => None,
        }
    }
}

impl FromStr for Canary {
    type Err = String;

    fn from_str(name: &str) -> Result<Canary, String> {
        let found = Canary::ALL.into_iter().find(|canary| canary.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Canary::ALL.iter().map(|canary| canary.name()).collect();
            format!("there is no canary '{name}'; choose one of {}", names.join(", "))
        })
    }
}
