//! The write cache and power cuts: what may be lost and what may not.

use super::*;
use crate::Verdict;
use proptest::prelude::*;

/// LBAs that the tests use.
const LBAS: u64 = 48;

#[derive(Clone, Debug)]
enum Op {
    Write {
        lba: u64,
        count: u64,
        fua: bool,
    },
    Zeroes {
        lba: u64,
        count: u64,
    },
    Deallocate {
        lba: u64,
        count: u64,
    },
    Copy {
        from: u64,
        to: u64,
        count: u64,
    },
    Flush,
    Read {
        lba: u64,
        count: u64,
        fua: bool,
    },
    Compare {
        lba: u64,
        count: u64,
    },
    /// Cuts the power with these writes in flight.
    Cut {
        in_flight: Vec<(u64, u64)>,
        seed: u64,
    },
}

/// A host that tracks what each LBA may hold.
struct Checker {
    rig: Rig,
    lba_bytes: u64,
    /// By LBA: the versions it may hold after a power cut, the newest last; reads return that one.
    allowed: Vec<Vec<u64>>,
    version: u64,
    breaks_flush: bool,
}

impl Checker {
    fn new(tail: &str, breaks_flush: bool) -> Checker {
        let rig = Rig::new(tail);
        let lba_bytes = u64::from(rig.controller.options().lba_bytes[0]);
        let allowed = vec![vec![0]; LBAS as usize];
        let mut checker = Checker { rig, lba_bytes, allowed, version: 0, breaks_flush };
        checker.hook();
        checker
    }

    /// Breaks Flush, which the checker must notice.
    fn hook(&mut self) {
        if self.breaks_flush {
            self.rig.controller.set_hook(|sqe, qid| {
                let is_flush = !qid.is_admin() && sqe.opcode() == 0;
                if is_flush { Verdict::Fail(Status::SUCCESS) } else { Verdict::Run }
            });
        }
    }

    fn data(&self, lba: u64, count: u64) -> u64 {
        // Each LBA has its own place in the buffer, so that writes in flight differ.
        assert!(lba + count <= LBAS);
        DATA + lba * self.lba_bytes
    }

    fn command(&self, opcode: u8, lba: u64, count: u64) -> Cmd {
        let mut block = [0; 16];
        block[..8].copy_from_slice(&self.data(lba, count).to_le_bytes());
        block[8..12].copy_from_slice(&((count * self.lba_bytes) as u32).to_le_bytes());
        Cmd::new(opcode).nsid(1).lbas(lba, count as u32).sgl(block)
    }

    /// Fills every word of the host's buffer with a new version.
    fn fill(&mut self, lba: u64, count: u64) -> u64 {
        self.version += 1;
        let words = count * self.lba_bytes / 8;
        let bytes: Vec<u8> = (0..words).flat_map(|_| self.version.to_le_bytes()).collect();
        self.rig.poke(self.data(lba, count), &bytes);
        self.version
    }

    /// Reads the LBAs; fails if one holds more than one version.
    fn read(&mut self, lba: u64, count: u64, fua: bool) -> Result<Vec<u64>, String> {
        let command = self.command(2, lba, count);
        let flags = if fua { 1 << 30 } else { 0 };
        self.rig.ok(command.with(12, (count as u32 - 1) | flags));
        let bytes = self.rig.peek(self.data(lba, count), (count * self.lba_bytes) as usize);
        let lbas = bytes.chunks(self.lba_bytes as usize).enumerate().map(|(index, bytes)| {
            let (words, _) = bytes.as_chunks();
            let first = u64::from_le_bytes(words[0]);
            let is_whole = words.iter().all(|word| u64::from_le_bytes(*word) == first);
            is_whole.then_some(first).ok_or_else(|| format!("LBA {} is torn", lba + index as u64))
        });
        lbas.collect()
    }

    fn wrote(&mut self, lba: u64, count: u64, versions: &[u64], is_durable: bool) {
        for (at, version) in (lba..lba + count).zip(versions.iter().cycle()) {
            let allowed = &mut self.allowed[at as usize];
            if is_durable {
                allowed.clear();
            }
            allowed.push(*version);
        }
    }

    fn newest(&self, lba: u64) -> u64 {
        *self.allowed[lba as usize].last().expect("never empty")
    }

    fn run(&mut self, op: &Op, has_cache: bool) -> Result<(), String> {
        match *op {
            Op::Write { lba, count, fua } => {
                let version = self.fill(lba, count);
                let flags = if fua { 1 << 30 } else { 0 };
                let command = self.command(1, lba, count);
                self.rig.ok(command.with(12, (count as u32 - 1) | flags));
                self.wrote(lba, count, &[version], fua || !has_cache);
            }
            Op::Zeroes { lba, count } => {
                self.rig.ok(Cmd::new(8).nsid(1).lbas(lba, count as u32));
                self.wrote(lba, count, &[0], !has_cache);
            }
            Op::Deallocate { lba, count } => {
                let range = u128::from(lba) << 64 | u128::from(count) << 32;
                self.rig.poke(DATA, &range.to_le_bytes());
                self.rig.ok(Cmd::new(9).nsid(1).with(11, 4).prp(DATA, 0));
                self.wrote(lba, count, &[0], !has_cache);
            }
            // The result of copying onto the source itself is undefined.
            Op::Copy { from, to, count } if from.abs_diff(to) < count => {}
            Op::Copy { from, to, count } => {
                let mut source = [0; 32];
                source[8..16].copy_from_slice(&from.to_le_bytes());
                source[16..18].copy_from_slice(&(count as u16 - 1).to_le_bytes());
                self.rig.poke(DATA, &source);
                let copied: Vec<u64> = (from..from + count).map(|lba| self.newest(lba)).collect();
                self.rig.ok(Cmd::new(0x19).nsid(1).with(10, to as u32).prp(DATA, 0));
                self.wrote(to, count, &copied, !has_cache);
            }
            Op::Flush => {
                self.rig.ok(Cmd::new(0).nsid(1));
                self.keep_newest(0, LBAS);
            }
            Op::Read { lba, count, fua } => {
                let found = self.read(lba, count, fua)?;
                let expected: Vec<u64> = (lba..lba + count).map(|lba| self.newest(lba)).collect();
                if found != expected {
                    return Err(format!("LBA {lba} reads {found:?} for {expected:?}"));
                }
                if fua {
                    self.keep_newest(lba, count);
                }
            }
            Op::Compare { lba, count } => {
                self.read(lba, count, false)?;
                self.rig.ok(self.command(5, lba, count));
                self.rig.poke(self.data(lba, count) + 7, &[0xff]);
                if self.rig.io(self.command(5, lba, count)) != Status::COMPARE_FAILURE {
                    return Err(format!("LBA {lba} is taken for what it is not"));
                }
            }
            Op::Cut { ref in_flight, seed } => self.cut(in_flight, seed)?,
        }
        Ok(())
    }

    fn keep_newest(&mut self, lba: u64, count: u64) {
        for at in lba..lba + count {
            self.allowed[at as usize] = vec![self.newest(at)];
        }
    }

    fn cut(&mut self, in_flight: &[(u64, u64)], seed: u64) -> Result<(), String> {
        for &(lba, count) in in_flight {
            let version = self.fill(lba, count);
            let command = self.command(1, lba, count);
            self.rig.submit(1, command);
            // An earlier write in flight may have had its buffer overwritten, so both versions are allowed.
            self.wrote(lba, count, &[version], false);
        }
        self.rig.controller.cut_power(&self.rig.ram, seed);
        assert_eq!(self.rig.csts(), u64::from(u32::MAX));
        assert_eq!(self.rig.step(), 0);
        self.rig.controller.restore_power();
        self.rig.enable();
        self.rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
        self.hook();
        for (lba, found) in (0..LBAS).zip(self.read(0, LBAS, false)?) {
            let allowed = &mut self.allowed[lba as usize];
            if !allowed.contains(&found) {
                return Err(format!("LBA {lba} holds version {found}; allowed are {allowed:?}"));
            }
            *allowed = vec![found];
        }
        Ok(())
    }
}

fn check(tail: &str, ops: &[Op], breaks_flush: bool) -> Result<(), String> {
    let mut checker = Checker::new(tail, breaks_flush);
    let has_cache = checker.rig.controller.options().vwc_bytes > 0;
    ops.iter().try_for_each(|op| checker.run(op, has_cache))
}

fn range(count_max: u64) -> impl Strategy<Value = (u64, u64)> {
    (0..LBAS - count_max, 1..=count_max)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (range(12), prop::bool::weighted(0.2)).prop_map(|((lba, count), fua)| Op::Write { lba, count, fua }),
        1 => range(12).prop_map(|(lba, count)| Op::Zeroes { lba, count }),
        1 => range(12).prop_map(|(lba, count)| Op::Deallocate { lba, count }),
        1 => (range(6), 0..LBAS - 6).prop_map(|((from, count), to)| Op::Copy { from, to, count }),
        1 => Just(Op::Flush),
        2 => (range(12), any::<bool>()).prop_map(|((lba, count), fua)| Op::Read { lba, count, fua }),
        1 => range(12).prop_map(|(lba, count)| Op::Compare { lba, count }),
        2 => (prop::collection::vec(range(6), 0..4), any::<u64>())
            .prop_map(|(in_flight, seed)| Op::Cut { in_flight, seed }),
    ]
}

const TAILS: [&str; 4] =
    ["mem=1M,vwc=on", "mem=1M,vwc=16k,seed=3", "mem=1M,lba=4096,vwc=16k,seed=4", "mem=1M,lba=4096"];

proptest! {
    #[test]
    fn a_power_cut_takes_only_what_was_not_durable(
        tail in prop::sample::select(TAILS.to_vec()),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        if let Err(why) = check(tail, &ops, false) {
            prop_assert!(false, "{tail}: {why}");
        }
    }
}

#[test]
fn a_flush_that_does_nothing_is_caught() {
    let lost = (0..64).find(|seed| {
        let cut = Op::Cut { in_flight: Vec::new(), seed: *seed };
        let write = Op::Write { lba: 1, count: 9, fua: false };
        check("mem=1M,vwc=on", &[write, Op::Flush, cut], true).is_err()
    });
    assert!(lost.is_some(), "the checker believes a cache that never flushes");
}

/// Returns the content of three writes of four LBAs each after a power cut by `seed`.
fn survivors(tail: &str, seed: u64, in_flight: bool) -> Vec<u64> {
    let mut checker = Checker::new(tail, false);
    let writes = [(0, 4), (10, 4), (20, 4)];
    let flying = if in_flight { &writes[..] } else { &[] };
    if !in_flight {
        for (lba, count) in writes {
            checker.run(&Op::Write { lba, count, fua: false }, true).expect("written");
        }
    }
    checker.cut(flying, seed).expect("allowed");
    checker.read(0, 24, false).expect("whole LBAs")
}

#[test]
fn lbas_are_kept_dropped_torn_and_reordered_by_the_seed() {
    for (tail, in_flight) in [("mem=1M,vwc=on", false), ("mem=1M", true), ("mem=1M,vwc=on", true)] {
        let (mut kept, mut dropped, mut torn, mut reordered) = (0, 0, 0, 0);
        for seed in 0..200 {
            let found = survivors(tail, seed, in_flight);
            let there: Vec<usize> = [0, 10, 20]
                .map(|at| found[at..at + 4].iter().filter(|version| **version != 0).count())
                .to_vec();
            kept += usize::from(there == [4, 4, 4]);
            dropped += usize::from(there == [0, 0, 0]);
            torn += usize::from(there.iter().any(|count| (1..4).contains(count)));
            reordered += usize::from(there[0] == 0 && there[2] == 4);
            assert_eq!(
                found,
                survivors(tail, seed, in_flight),
                "seed {seed} is not all that decides"
            );
        }
        let counts = [kept, dropped, torn, reordered];
        assert!(counts.iter().all(|count| *count > 0), "{tail}: {counts:?} of 200");
    }
}

#[test]
fn an_lba_of_4096_bytes_tears_only_where_it_is_told_to() {
    let tears = |tail: &str| {
        (0..100).any(|seed| {
            let mut checker = Checker::new(tail, false);
            checker.run(&Op::Write { lba: 0, count: 8, fua: false }, true).expect("written");
            checker.cut(&[], seed).is_err_and(|why| why.contains("torn"))
        })
    };
    assert!(!tears("mem=1M,lba=4096,vwc=on"));
    assert!(tears("mem=1M,lba=4096,vwc=on,faults=tear"));
}

#[test]
fn a_shutdown_loses_nothing_and_a_cut_without_one_is_counted() {
    let mut checker = Checker::new("mem=1M,vwc=on", false);
    for seed in 0..20 {
        checker.run(&Op::Write { lba: 0, count: 12, fua: false }, true).expect("written");
        checker.rig.controller.write_register(0x14, 4, 0x0046_4001);
        checker.rig.step();
        checker.keep_newest(0, LBAS);
        checker.cut(&[], seed).expect("nothing is lost");
    }
    let smart = |checker: &mut Checker| {
        checker.rig.admin(Cmd::new(2).with(10, 2 | 127 << 16).prp(DATA, 0));
        (checker.rig.peek_u32(DATA + 112), checker.rig.peek_u32(DATA + 144))
    };
    assert_eq!(smart(&mut checker), (21, 0));
    checker.cut(&[], 1).expect("nothing to lose");
    assert_eq!(smart(&mut checker), (22, 1));
}

#[test]
fn resets_keep_the_cache_and_a_disabled_cache_keeps_nothing_back() {
    let mut checker = Checker::new("mem=1M,vwc=on", false);
    for seed in 0..20 {
        checker.run(&Op::Write { lba: 0, count: 12, fua: false }, true).expect("written");
        assert!(checker.rig.controller.reset());
        checker.rig.enable();
        checker.rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
        assert_eq!(checker.read(0, 12, false).expect("whole"), vec![checker.version; 12]);
        // Set Features turns the Volatile Write Cache off: existing and later writes become durable.
        assert_eq!(checker.rig.admin(feature(9, 6, 0)).status, Status::SUCCESS);
        checker.keep_newest(0, LBAS);
        checker.run(&Op::Write { lba: 20, count: 12, fua: false }, false).expect("written");
        checker.cut(&[], seed).expect("nothing is lost");
    }
}

#[test]
fn without_a_cache_there_is_no_feature_to_set() {
    let mut rig = Rig::admin_only("mem=1M");
    assert_eq!(rig.admin(feature(0xa, 6, 0)).status, Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.admin(feature(9, 6, 1)).status, Status::INVALID_FIELD_IN_COMMAND);
    rig.admin(identify(1, 0));
    assert_eq!(rig.peek(DATA + 525, 1)[0] & 1, 0);
}
