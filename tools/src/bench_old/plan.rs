//! What the options come to on a particular namespace.

use adit_driver::spec::Lba;
use adit_driver::{ControllerInfo, Namespace};

use super::options::BenchArgs;
use super::verify::BLOCK_BYTES_MIN;
use crate::failure::{Failure, Result};
use crate::human;

/// Most bytes of one I/O; its buffers are allocated `iodepth` times.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// The blocks that one job covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) block_count: u64,
    pub(crate) lba_bytes: u32,
}

impl Region {
    /// Where `block` starts in the namespace, in bytes.
    #[inline]
    pub(crate) fn offset(&self, block: u64) -> u64 {
        self.start_bytes + block * self.block_bytes
    }

    /// Where `block` starts in the namespace.
    #[inline]
    pub(crate) fn lba(&self, block: u64) -> Lba {
        Lba(self.offset(block) >> self.lba_bytes.trailing_zeros())
    }
}

/// The namespace's properties that options are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    pub(crate) namespace_bytes: u64,
    pub(crate) lba_bytes: u32,
    pub(crate) command_bytes_max: u64,
    pub(crate) boundary_bytes: u64,
    pub(crate) queue_entries_max: u32,
    pub(crate) queue_count: u16,
}

impl Ground {
    pub(crate) fn of(namespace: &Namespace, info: &ControllerInfo) -> Ground {
        let limits = namespace.limits();
        Ground {
            namespace_bytes: namespace.bytes(),
            lba_bytes: namespace.lba_bytes(),
            command_bytes_max: limits.max_bytes,
            boundary_bytes: u64::from(limits.boundary_lbas) << limits.lba_shift,
            queue_entries_max: info.queue_entries_max,
            queue_count: info.io_queues,
        }
    }
}

/// A region for each job, and the queue depth they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) regions: Vec<Region>,
    pub(crate) queue_entries: u32,
}

/// Checks the options against the namespace.
///
/// # Errors
/// What is asked for and not there, with what would be.
pub(crate) fn plan(args: &BenchArgs, ground: &Ground) -> Result<Plan> {
    check_times(args)?;
    check_block(args, ground)?;
    let whole = covered(args, ground)?;
    let regions = if args.checks_writes() {
        divide(whole, args.numjobs)?
    } else {
        vec![whole; args.numjobs as usize]
    };
    if args.numjobs > u32::from(ground.queue_count) {
        let why = format!(
            "--numjobs={}: the controller grants {} I/O queue(s) and each job needs one; use --numjobs={1}",
            args.numjobs, ground.queue_count
        );
        return Err(Failure::failed(why));
    }
    Ok(Plan { regions, queue_entries: queue_entries(args, whole.start_bytes, ground)? })
}

fn check_times(args: &BenchArgs) -> Result<()> {
    if args.time_based && args.runtime.is_none() {
        return Err(Failure::usage("--time_based needs a --runtime, as in --runtime=10"));
    }
    Ok(())
}

fn check_block(args: &BenchArgs, ground: &Ground) -> Result<()> {
    let (bs, lba) = (args.bs, u64::from(ground.lba_bytes));
    if !bs.is_multiple_of(lba) {
        let better = bs.next_multiple_of(lba);
        let why = format!(
            "--bs={bs}: the namespace has LBAs of {lba} bytes; use a multiple of it, as in --bs={better}"
        );
        return Err(Failure::usage(why));
    }
    if bs > BLOCK_BYTES_MAX {
        return Err(Failure::usage(format!(
            "--bs={bs}: one I/O is at most {BLOCK_BYTES_MAX} bytes (1g)"
        )));
    }
    debug_assert!(bs >= BLOCK_BYTES_MIN, "no LBA is shorter than a verify header needs");
    Ok(())
}

fn covered(args: &BenchArgs, ground: &Ground) -> Result<Region> {
    let (whole, lba) = (ground.namespace_bytes, u64::from(ground.lba_bytes));
    let offset = args.offset.of(whole);
    if !offset.is_multiple_of(lba) {
        let why = format!(
            "--offset={offset}: the namespace has LBAs of {lba} bytes; start at a multiple of it"
        );
        return Err(Failure::usage(why));
    }
    let available = whole.saturating_sub(offset);
    let size = args.size.map_or(available, |size| size.of(whole));
    if size > available {
        let why = format!(
            "--size={size}: the namespace has {available} bytes ({}) from --offset={offset} on",
            human::bytes(available as f64)
        );
        return Err(Failure::usage(why));
    }
    match size / args.bs {
        0 => {
            Err(Failure::usage(format!("--size={size} is less than one block of --bs={}", args.bs)))
        }
        block_count => Ok(Region {
            start_bytes: offset,
            block_bytes: args.bs,
            block_count,
            lba_bytes: ground.lba_bytes,
        }),
    }
}

fn divide(whole: Region, jobs: u32) -> Result<Vec<Region>> {
    let share = whole.block_count / u64::from(jobs);
    if share == 0 {
        let why = format!(
            "--numjobs={jobs}: with --verify the jobs divide the {} blocks of --size between them; use fewer",
            whole.block_count
        );
        return Err(Failure::usage(why));
    }
    let part = |job| Region {
        start_bytes: whole.offset(u64::from(job) * share),
        block_count: share,
        ..whole
    };
    Ok((0..jobs).map(part).collect())
}

/// Ring entries that hold `iodepth` I/Os, each of which may be several commands; one entry stays free.
fn queue_entries(args: &BenchArgs, start_bytes: u64, ground: &Ground) -> Result<u32> {
    let commands = commands_per_io(args.bs, start_bytes, ground);
    let needed = commands * u64::from(args.iodepth) + 1;
    if needed > u64::from(ground.queue_entries_max) {
        let most = (u64::from(ground.queue_entries_max) - 1) / commands;
        let (depth, bs, holds) = (args.iodepth, args.bs, ground.queue_entries_max - 1);
        let why = match commands {
            1 => format!(
                "--iodepth={depth}: a queue of this controller holds {holds} commands; use --iodepth={most} at most"
            ),
            _ if most == 0 => format!(
                "--bs={bs}: each I/O is up to {commands} commands and a queue holds {holds}; use a smaller --bs"
            ),
            _ => format!(
                "--iodepth={depth}: at --bs={bs} each I/O is up to {commands} commands and a queue holds {holds}; \
                 use --iodepth={most} at most, or a smaller --bs"
            ),
        };
        return Err(Failure::usage(why));
    }
    Ok(needed as u32)
}

/// Most commands that one I/O becomes: as MDTS cuts it, and as NOIOB does.
fn commands_per_io(bs: u64, start_bytes: u64, ground: &Ground) -> u64 {
    let boundary = ground.boundary_bytes;
    let never_crosses =
        boundary == 0 || (boundary.is_multiple_of(bs) && start_bytes.is_multiple_of(bs));
    if never_crosses {
        return bs.div_ceil(ground.command_bytes_max);
    }
    // Between two boundaries MDTS cuts each stretch anew.
    let stretch = boundary.min(bs);
    let stretches = bs.div_ceil(boundary) + 1;
    stretches * stretch.div_ceil(ground.command_bytes_max)
}

#[cfg(test)]
mod tests {
    use super::super::options::{ReadWrite, Verify};
    use super::*;
    use crate::units::Size;

    const GROUND: Ground = Ground {
        namespace_bytes: 1 << 20,
        lba_bytes: 512,
        command_bytes_max: 128 << 10,
        boundary_bytes: 0,
        queue_entries_max: 64,
        queue_count: 4,
    };

    fn args() -> BenchArgs {
        BenchArgs::new("soft:null".parse().expect("a target"))
    }

    fn refusal(args: &BenchArgs) -> String {
        plan(args, &GROUND).expect_err("must be refused").to_string()
    }

    #[test]
    fn the_whole_namespace_is_covered_by_default() {
        let plan = plan(&args(), &GROUND).expect("planned");
        assert_eq!((plan.regions[0].block_count, plan.queue_entries), (256, 2));
        assert_eq!(plan.regions[0].lba(3), Lba(24));
    }

    #[test]
    fn a_size_is_rounded_down_to_blocks() {
        let args =
            BenchArgs { size: Some(Size::Bytes(10_000)), offset: Size::Bytes(512), ..args() };
        let region = plan(&args, &GROUND).expect("planned").regions[0];
        assert_eq!((region.block_count, region.offset(1)), (2, 4608));
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        assert!(refusal(&BenchArgs { bs: 1000, ..args() }).contains("--bs=1024"));
        assert!(
            refusal(&BenchArgs { size: Some(Size::Bytes(2 << 20)), ..args() })
                .contains("1048576 bytes")
        );
        assert!(
            refusal(&BenchArgs { size: Some(Size::Bytes(100)), ..args() })
                .contains("less than one block")
        );
        assert!(refusal(&BenchArgs { offset: Size::Bytes(100), ..args() }).contains("LBAs of 512"));
        assert!(refusal(&BenchArgs { iodepth: 64, ..args() }).contains("--iodepth=63 at most"));
        assert!(refusal(&BenchArgs { numjobs: 5, ..args() }).contains("4 I/O queue(s)"));
        assert!(refusal(&BenchArgs { time_based: true, ..args() }).contains("--runtime"));
    }

    #[test]
    fn large_blocks_count_their_commands() {
        let args = BenchArgs { bs: 512 << 10, iodepth: 4, ..args() };
        assert_eq!(plan(&args, &GROUND).expect("planned").queue_entries, 17);
        let bounded = Ground { boundary_bytes: 192 << 10, ..GROUND };
        assert_eq!(commands_per_io(512 << 10, 0, &bounded), 8);
        assert_eq!(commands_per_io(4096, 8192, &bounded), 1);
        assert_eq!(commands_per_io(4096, 512, &bounded), 2);
    }

    #[test]
    fn verified_writers_do_not_share_blocks() {
        let args = BenchArgs {
            numjobs: 3,
            rw: ReadWrite::Randwrite,
            verify: Some(Verify::Crc32c),
            ..args()
        };
        let regions = plan(&args, &GROUND).expect("planned").regions;
        assert_eq!(regions.iter().map(|region| region.block_count).collect::<Vec<_>>(), [85; 3]);
        assert_eq!(regions[1].start_bytes, 85 * 4096);
        let readers = BenchArgs { rw: ReadWrite::Randread, ..args };
        assert_eq!(plan(&readers, &GROUND).expect("planned").regions[1].start_bytes, 0);
    }
}
