//! The faults that strike commands of the store's devices.

use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The device reports that it is busy: sent again, the command succeeds.
    Busy,
    /// A command takes long.
    Late,
    /// A read fails once.
    ReadError,
    /// An LBA is unreadable until it is written.
    BadLba,
    /// A write fails, perhaps after a part of it.
    WriteError,
    /// A flush fails.
    FlushError,
    /// A bit of stored data flips.
    StoredFlip,
    /// A bit flips on the way from the device.
    ReadFlip,
    /// A bit flips on the way to the device.
    WriteFlip,
    /// A write goes to another place.
    MisdirectedWrite,
    /// A read comes from another place.
    MisdirectedRead,
    /// A write is acknowledged but not carried out.
    LostWrite,
    /// Part of a read returns the data before the last write.
    StaleRead,
    /// The same within LBAs.
    TornRead,
    /// The device is lost: everything in flight ends.
    Lost,
}

impl Fault {
    pub(crate) const ALL: [Fault; 15] = [
        Fault::Busy,
        Fault::Late,
        Fault::ReadError,
        Fault::BadLba,
        Fault::WriteError,
        Fault::FlushError,
        Fault::StoredFlip,
        Fault::ReadFlip,
        Fault::WriteFlip,
        Fault::MisdirectedWrite,
        Fault::MisdirectedRead,
        Fault::LostWrite,
        Fault::StaleRead,
        Fault::TornRead,
        Fault::Lost,
    ];

    /// Returns whether it only costs time.
    pub(crate) fn is_harmless(self) -> bool {
        self == Fault::Late
    }

    /// Returns whether it can strike such a command.
    fn strikes(self, kind: Kind) -> bool {
        match self {
            Fault::Busy | Fault::Late | Fault::Lost => true,
            Fault::ReadError
            | Fault::BadLba
            | Fault::StoredFlip
            | Fault::ReadFlip
            | Fault::MisdirectedRead
            | Fault::StaleRead
            | Fault::TornRead => kind == Kind::Read,
            Fault::WriteError | Fault::WriteFlip | Fault::MisdirectedWrite | Fault::LostWrite => {
                kind == Kind::Write
            }
            Fault::FlushError => kind == Kind::Flush,
        }
    }
}

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Deallocate,
}

/// The faults of a run, and how often they strike.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// In the order of [`Fault::ALL`].
    on: Vec<bool>,
    /// One in this many commands is struck.
    one_in: u64,
    struck: Vec<u64>,
    is_calm: bool,
}

impl Faults {
    /// Creates a run without faults.
    pub(crate) fn none() -> Faults {
        let kinds = Fault::ALL.len();
        Faults { on: vec![false; kinds], one_in: 1, struck: vec![0; kinds], is_calm: false }
    }

    /// Draws the faults of a run: none for half of the runs, a few kinds for the others, because faults mask one
    /// another.
    pub(crate) fn draw(random: &mut Random) -> Faults {
        let mut faults = Faults::none();
        if random.one_in(2) {
            return faults;
        }
        for _ in 0..random.between(1, 3) {
            faults.on[random.index(Fault::ALL.len())] = true;
        }
        faults.one_in = random.pick(&[8, 30, 100]);
        faults
    }

    /// Suspends or resumes the faults.
    pub(crate) fn set_calm(&mut self, is_calm: bool) {
        self.is_calm = is_calm;
    }

    pub(crate) fn strike(&mut self, kind: Kind, random: &mut Random) -> Option<Fault> {
        if self.is_calm || !self.has_any() || !random.one_in(self.one_in) {
            return None;
        }
        let apt: Vec<usize> = (0..Fault::ALL.len())
            .filter(|&index| self.on[index] && Fault::ALL[index].strikes(kind))
            .collect();
        if apt.is_empty() {
            return None;
        }
        let index = random.pick(&apt);
        // Losing a device ends a life, so it is rare.
        if Fault::ALL[index] == Fault::Lost && !random.one_in(10) {
            return None;
        }
        self.struck[index] += 1;
        Some(Fault::ALL[index])
    }

    fn has_any(&self) -> bool {
        self.on.iter().any(|on| *on)
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = Fault> + '_ {
        Fault::ALL.into_iter().zip(&self.on).filter(|(_, on)| **on).map(|(fault, _)| fault)
    }

    /// Returns how often each kind struck.
    pub(crate) fn struck(&self) -> &[u64] {
        &self.struck
    }

    /// Returns whether a command took longer than the pace allows.
    pub(crate) fn has_delayed(&self) -> bool {
        let mut struck = Fault::ALL.iter().zip(&self.struck);
        struck.any(|(fault, count)| *count > 0 && *fault == Fault::Late)
    }

    /// Returns whether a fault struck that excuses missing objects.
    pub(crate) fn has_harmed(&self) -> bool {
        let mut struck = Fault::ALL.iter().zip(&self.struck);
        struck.any(|(fault, count)| *count > 0 && !fault.is_harmless())
    }
}
