//! Plans jobs for their devices: threads, regions, queues.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use adit_driver::paths::DeviceInfo;
use adit_driver::{ProtectionChecks, Target};

use crate::failure::{Failure, Result};
use crate::human;
use crate::options::replay::LogEntry;
use crate::options::{BlockSizes, JobOptions, Section, targets};
use crate::output::Warning;
use crate::units::Size;
use crate::way::Way;
use crate::workload::{JobRegion, unit_bytes};

/// Maximum bytes of an I/O; `iodepth` buffers of this size are allocated.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// The alignment of files through the page cache unless a job needs less.
const SECTOR: u64 = 512;

/// One thread of a job, before devices are opened.
#[derive(Clone, Debug)]
pub(crate) struct Thread<'a> {
    pub(crate) section: &'a Section,
    /// Its index among the section's `numjobs`.
    pub(crate) number: u32,
    /// Index of the group of jobs that are reported together.
    pub(crate) group: u32,
    /// Index of the wave of jobs that run concurrently; waves run one after the other.
    pub(crate) wave: u32,
}

/// Returns the threads of all sections in order, with their groups and waves.
pub(crate) fn threads(sections: &[Section]) -> Vec<Thread<'_>> {
    let mut threads: Vec<Thread<'_>> = Vec::new();
    let (mut group, mut wave) = (0, 0);
    for section in sections {
        let (order, is_next) = (&section.job.order, !threads.is_empty());
        wave += u32::from(order.stonewall && is_next);
        group += u32::from((order.stonewall || order.new_group) && is_next);
        let thread = |number| Thread { section, number, group, wave };
        threads.extend((0..order.numjobs).map(thread));
    }
    threads
}

impl Thread<'_> {
    pub(crate) fn job(&self) -> &JobOptions {
        &self.section.job
    }

    /// Returns whether it changes data on the device.
    pub(crate) fn destroys(&self) -> bool {
        crate::options::writes(self.job())
    }

    /// Returns whether its blocks or places are no multiples of a sector, as only the page cache takes them.
    pub(crate) fn wants_bytes(&self) -> bool {
        let job = self.job();
        let step = if job.rw.random { 0 } else { job.rw.step.unsigned_abs() };
        let places = [job.amount.offset.of(0), job.amount.offset_increment.of(0), step];
        let aligns = job.random.blockalign.0.iter().flatten().copied();
        let replayed = job.replay.of_thread(self.number).into_iter().flat_map(|log| log.iter());
        let replayed = replayed.filter_map(LogEntry::io).flat_map(|(_, at, bytes)| [at, bytes]);
        let sizes = job.bs.iter().flat_map(|(_, sizes)| sizes.listed()).chain(replayed);
        places.into_iter().chain(aligns).chain(sizes).any(|bytes| !bytes.is_multiple_of(SECTOR))
    }

    /// Returns the bytes its file `file` must have; `None` if the file decides.
    pub(crate) fn file_bytes(&self, file: usize) -> Option<u64> {
        let job = self.job();
        let size = self.share(job.amount.size.filter(|_| job.files.allow_file_create)?, file).of(0);
        let start =
            job.amount.offset.of(0) + u64::from(self.number) * job.amount.offset_increment.of(0);
        (size > 0).then_some(start + size)
    }

    /// Returns a file's share of `size`. As in fio, shares are equal in whole blocks, and the first files take
    /// the remaining blocks. A percentage applies to each file.
    fn share(&self, size: Size, file: usize) -> Size {
        let files = targets::count(self.job()) as u64;
        if let Some(bytes) = self.job().amount.filesize {
            return Size::Bytes(bytes);
        }
        let Size::Bytes(bytes) = size else { return size };
        if files == 1 {
            return size;
        }
        let block = self.job().block_min();
        let blocks = bytes / block;
        Size::Bytes(block * (blocks / files + u64::from((file as u64) < blocks % files)))
    }

    /// Returns the start of its region. As in fio, one given as a share of the device is rounded up to a block.
    fn start(&self, info: &DeviceInfo) -> u64 {
        let (offset, each) = (self.job().amount.offset, self.job().amount.offset_increment);
        let start = offset.of(info.bytes) + u64::from(self.number) * each.of(info.bytes);
        let is_share = [offset, each].iter().any(|size| matches!(size, Size::Percent(_)));
        let block = self.job().block_min().next_multiple_of(info.lba_bytes.into());
        if is_share { start.next_multiple_of(block) } else { start }
    }

    /// Returns its region of its file `file`.
    ///
    /// # Errors
    /// The requested region does not fit; says what would.
    pub(crate) fn region(&self, info: &DeviceInfo, file: usize) -> Result<JobRegion> {
        let (job, lba) = (self.job(), u64::from(info.lba_bytes));
        let start = self.start(info);
        if !start.is_multiple_of(lba) {
            return Err(self.usage(format!(
                "offset={start}: {} has LBAs of {lba} bytes; start at a multiple of it",
                info.device
            )));
        }
        let there = info.bytes.saturating_sub(start);
        let size = match job.amount.size.map(|size| self.share(size, file)) {
            None => there,
            // As in fio, a share of the whole ends where the whole ends.
            Some(size @ Size::Percent(_)) => size.of(info.bytes).min(there),
            Some(Size::Bytes(bytes)) => bytes,
        };
        // As in fio, the size is rounded down to whole LBAs.
        let bytes = size / lba * lba;
        if bytes > there {
            let there = format!("{there} bytes ({})", human::bytes(there as f64));
            return Err(self.usage(format!(
                "size={size}: {} has {there} from offset={start} on",
                info.device
            )));
        }
        let least = self.job().block_min();
        if bytes < least || bytes == 0 {
            return Err(self.usage(format!("size={size} is less than one block of bs={least}")));
        }
        Ok(JobRegion { start, bytes })
    }

    /// Returns the bytes after which it ends, from those its files have and its regions; `None` if only time or a
    /// full device ends it.
    pub(crate) fn bytes_max(&self, there: u64, regions: &[JobRegion]) -> Option<u64> {
        let job = self.job();
        if let Some(log) = job.replay.of_thread(self.number) {
            return Some(log.iter().filter_map(LogEntry::io).map(|(.., bytes)| bytes).sum());
        }
        // As in fio, no block crosses the end of a file.
        let unit = unit_bytes(job);
        let of_region =
            |region: &JobRegion| self.holed(*region).unwrap_or(region.bytes / unit * unit);
        let whole = || regions.iter().map(of_region).sum();
        let pass = job.amount.io_size.map_or_else(whole, |size| size.of(there));
        let pass = (pass / unit * unit).max(unit) * job.rw.ios_per_block();
        (!job.time.time_based).then(|| pass.saturating_mul(u64::from(job.amount.loops.max(1))))
    }

    /// Returns the bytes of a pass that skips after each I/O, if it ends where no block fits any more; as in fio, a pass
    /// whose next place lies behind the region begins again, until it has moved as much as the region has.
    fn holed(&self, region: JobRegion) -> Option<u64> {
        let job = self.job();
        let skip = u64::try_from(job.rw.step).ok().filter(|skip| *skip > 0 && !job.rw.random)?;
        let way = match (job.rw.reads, job.rw.writes, job.rw.trims) {
            (true, false, false) => Way::Read,
            (false, true, false) => Way::Write,
            (false, false, true) => Way::Trim,
            _ => return None,
        };
        let BlockSizes::Fixed(block) = job.bs[way] else { return None };
        let ios = region.bytes.checked_sub(block)? / (block + skip) + 1;
        (ios * (block + skip) < region.bytes).then_some(ios * block)
    }

    /// Checks blocks and depth against the device. Returns the commands its queue must hold, and a warning if
    /// `iodepth` I/Os can exceed the queue; I/Os then wait for room.
    ///
    /// # Errors
    /// The request is impossible; says what would be possible.
    pub(crate) fn queue_depth(
        &self,
        info: &DeviceInfo,
        region: JobRegion,
    ) -> Result<(u32, Option<Warning>)> {
        self.check_blocks(info)?;
        let job = self.job();
        let bytes = job.block_max();
        let aligned = job.replay.read.is_none()
            && job.bs.iter().all(|(_, sizes)| sizes.min() == bytes && sizes.max() == bytes);
        let commands = commands_per_io(bytes, aligned && region.start.is_multiple_of(bytes), info);
        let (depth, holds) = (self.iodepth(info), u64::from(info.queue_depth_max));
        let needed = commands * u64::from(depth);
        if needed <= holds {
            return Ok((needed as u32, None));
        }
        let (device, most) = (&info.device, holds / commands);
        match (commands, most) {
            (1, _) => Err(self.usage(format!(
                "iodepth={depth}: a queue of {device} holds {holds} commands; use iodepth={most} at most"
            ))),
            (_, 0) => Err(self.usage(format!(
                "bs={bytes}: each I/O is up to {commands} commands and a queue of {device} holds {holds}; use a smaller bs"
            ))),
            _ => {
                let text = format!(
                    "{}: iodepth={depth}: at bs={bytes} each I/O is up to {commands} commands and a queue of {device} holds \
                     {holds}, so about {most} I/Os are in flight at most",
                    job.name
                );
                Ok((holds as u32, Some(Warning { code: "queue-full", text })))
            }
        }
    }

    /// Returns the checks it requests of the device's protection information, if any.
    ///
    /// # Errors
    /// The device does not support them.
    pub(crate) fn protection_checks(&self, info: &DeviceInfo) -> Result<Option<ProtectionChecks>> {
        let Some(asked) = self.job().nvme.protection else { return Ok(None) };
        let Some(protection) = info.protection else {
            return Err(self.usage(format!(
                "pi_chk, apptag: {} has no protection information; format its namespace with it, or omit these options",
                info.device
            )));
        };
        let usual = protection.usual_checks();
        let [guard, reference_tag, application_tag] =
            asked.checks.unwrap_or([usual.guard, usual.reference_tag, usual.application_tag]);
        if reference_tag && !protection.checks_place() {
            let number = protection.number();
            return Err(self.usage(format!(
                "pi_chk=REFTAG: protection information of type {number} has no reference tag that is checked; omit it"
            )));
        }
        let (application, application_mask) = (asked.tag, asked.mask);
        Ok(Some(ProtectionChecks {
            guard,
            reference_tag,
            application_tag,
            application,
            application_mask,
        }))
    }

    /// Returns the placement identifiers of its writes, given the device's by handle.
    ///
    /// # Errors
    /// The device has none, or not those that the job wants.
    pub(crate) fn placement(
        &self,
        info: &DeviceInfo,
        handles: impl FnOnce() -> Result<Vec<u16>>,
    ) -> Result<Vec<u16>> {
        let options = &self.job().nvme.placement;
        if !options.is_on || !self.destroys() {
            return Ok(Vec::new());
        }
        let (device, known) = (&info.device, handles()?);
        if known.is_empty() {
            return Err(self.usage(format!(
                "fdp: {device} has no reclaim unit handles; enable Flexible Data Placement (soft:fdp=N), use a vfio: target, or omit fdp"
            )));
        }
        let all = (0..known.len()).collect();
        let wanted = options.indices.as_ref().unwrap_or(&all);
        let of = |index: &usize| {
            known.get(*index).copied().ok_or_else(|| {
                self.usage(format!(
                    "plids={index}: {device} has {} reclaim unit handles; the last is {}",
                    known.len(),
                    known.len() - 1
                ))
            })
        };
        wanted.iter().map(of).collect()
    }

    /// Checks trims against the device.
    ///
    /// # Errors
    /// It takes none, or none so long; says what would be possible.
    fn check_trims(&self, info: &DeviceInfo) -> Result<()> {
        let (job, device, lba) = (self.job(), &info.device, u64::from(info.lba_bytes));
        if !job.rw.trims {
            return Ok(());
        }
        if !info.deallocates {
            return Err(self.usage(format!("rw: {device} cannot deallocate; leave out trims")));
        }
        let (trim, most) = (job.bs[Way::Trim].max(), info.deallocate_lbas_max.saturating_mul(lba));
        if trim > most {
            return Err(self.usage(format!(
                "bs={trim}: one trim of {device} is at most {most} bytes (DMRL, DMRSL, DMSL); use a smaller bs for \
                 trims, as in bs=4k,4k,{most}"
            )));
        }
        Ok(())
    }

    /// Returns the I/Os in flight; one if the path blocks.
    pub(crate) fn iodepth(&self, info: &DeviceInfo) -> u32 {
        if info.is_synchronous { 1 } else { self.job().iodepth }
    }

    /// Checks the I/Os of its log on its file `file` of `files`.
    ///
    /// # Errors
    /// The first that the device does not take; says what would help.
    pub(crate) fn check_replay(&self, info: &DeviceInfo, file: usize, files: usize) -> Result<()> {
        let Some(log) = self.job().replay.of_thread(self.number) else { return Ok(()) };
        let (lba, device) = (u64::from(info.lba_bytes), &info.device);
        let trim_max = info.deallocate_lbas_max.saturating_mul(lba);
        let is_here = |entry: &&LogEntry| (entry.file as usize).min(files - 1) == file;
        for (way, offset, bytes) in log.iter().filter(is_here).filter_map(LogEntry::io) {
            let why = if offset.saturating_add(bytes) > info.bytes {
                format!("{device} ends at {}; use a larger one, or replay_scale", info.bytes)
            } else if !offset.is_multiple_of(lba) {
                format!("{device} has LBAs of {lba} bytes; give replay_align={lba}")
            } else if !bytes.is_multiple_of(lba) {
                format!("{device} has LBAs of {lba} bytes; use a target with smaller ones")
            } else if way == Way::Trim && (!info.deallocates || bytes > trim_max) {
                format!("{device} does not take such a trim; give replay_skip=trim")
            } else {
                continue;
            };
            let way = way.name();
            return Err(
                self.usage(format!("read_iolog: a {way} of {bytes} bytes at {offset}: {why}"))
            );
        }
        Ok(())
    }

    fn check_blocks(&self, info: &DeviceInfo) -> Result<()> {
        let lba = u64::from(info.lba_bytes);
        for (_, sizes) in self.job().bs.iter() {
            let all = sizes.listed();
            if let Some(bytes) = all.iter().find(|bytes| !bytes.is_multiple_of(lba)) {
                let better = bytes.next_multiple_of(lba);
                return Err(self.usage(format!(
                    "bs={bytes}: {} has LBAs of {lba} bytes; use a multiple of it, as in bs={better}",
                    info.device
                )));
            }
            if sizes.max() > BLOCK_BYTES_MAX {
                return Err(self.usage(format!(
                    "bs={}: one I/O is at most {BLOCK_BYTES_MAX} bytes (1g)",
                    sizes.max()
                )));
            }
        }
        if self.destroys() && info.is_write_protected {
            return Err(self.usage(format!(
                "{}: its controller refuses writes to this namespace (NSATTR); end its write protection, as with nvme \
                 set-feature -f 0x84 -v 0, or only read",
                info.device
            )));
        }
        self.check_trims(info)
    }

    /// Returns a refusal that names the job.
    pub(crate) fn usage(&self, why: String) -> Failure {
        Failure::usage(format!("job '{}': {why}", self.job().name))
    }
}

/// Returns the maximum number of commands an I/O is split into by MDTS and NOIOB.
fn commands_per_io(bytes: u64, is_aligned: bool, info: &DeviceInfo) -> u64 {
    let boundary = info.boundary_bytes;
    let fits = is_aligned && (boundary.is_multiple_of(bytes) || bytes.is_multiple_of(boundary));
    // No start takes more commands than one LBA before a boundary.
    let start = if fits { 0 } else { boundary.saturating_sub(info.lba_bytes.into()) };
    info.split(1).pieces(start..start + bytes).count() as u64
}

/// Refuses jobs that would overwrite blocks another job verifies. A thread is listed once per file.
///
/// # Errors
/// A usage error that says how to separate them.
pub(crate) fn check_apart(threads: &[(&Thread<'_>, &Target, JobRegion)]) -> Result<()> {
    let mut by_place: BTreeMap<DataPlace, Vec<(&Thread<'_>, JobRegion)>> = BTreeMap::new();
    for (thread, target, region) in threads.iter().filter(|(thread, ..)| thread.destroys()) {
        by_place.entry(DataPlace::of(target)).or_default().push((thread, *region));
    }
    by_place.values().try_for_each(|users| check_users_apart(users))
}

/// Checks threads that write to the same data.
fn check_users_apart(users: &[(&Thread<'_>, JobRegion)]) -> Result<()> {
    let checked =
        |(_, (thread, _)): &(usize, &(&Thread<'_>, JobRegion))| thread.job().verify.is_some();
    for (index, (thread, region)) in users.iter().enumerate().filter(checked) {
        let clash = users.iter().enumerate().find(|(other, (neighbour, its_region))| {
            *other != index
                && neighbour.wave == thread.wave
                && its_region.start < region.start + region.bytes
                && region.start < its_region.start + its_region.bytes
        });
        if let Some((_, (neighbour, _))) = clash {
            let jobs =
                u64::from(thread.job().order.numjobs.max(neighbour.job().order.numjobs)).max(2);
            let block = thread.job().block_max();
            let share = region.bytes / jobs / block * block;
            let why = format!(
                "verify: '{}' writes the same blocks at the same time; give each its own, as in size={share} and \
                 offset_increment={share} for the threads of one job, or let one wait with stonewall",
                neighbour.job().name
            );
            return Err(thread.usage(why));
        }
    }
    Ok(())
}

/// Identifies a target's data, regardless of path and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DataPlace {
    /// The block device's number.
    Block(u64),
    /// The numbers of file system and inode.
    File(u64, u64),
    /// Known only by name.
    Named(String),
}

impl DataPlace {
    fn of(target: &Target) -> DataPlace {
        let about = match target {
            Target::Kernel(kernel) => fs::metadata(&kernel.file).ok(),
            _ => None,
        };
        match about {
            Some(about) if about.file_type().is_block_device() => DataPlace::Block(about.rdev()),
            Some(about) => DataPlace::File(about.dev(), about.ino()),
            None => DataPlace::Named(target.device()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{AmountOptions, OrderOptions};
    use crate::way::PerWay;

    fn info() -> DeviceInfo {
        DeviceInfo {
            device: "soft:x".to_owned(),
            bytes: 1 << 20,
            lba_bytes: 512,
            command_bytes_max: 128 << 10,
            boundary_bytes: 0,
            queue_depth_max: 63,
            is_synchronous: false,
            queue_count_max: 4,
            is_write_protected: false,
            deallocates: true,
            deallocate_lbas_max: u64::MAX,
            is_preallocated: false,
            has_holes: false,
            is_cached: false,
            protection: None,
        }
    }

    fn section(job: JobOptions) -> Section {
        Section { job, given: Vec::new() }
    }

    fn refusal(job: JobOptions) -> String {
        let section = section(job);
        let thread = &threads(std::slice::from_ref(&section))[0];
        let region = match thread.region(&info(), 0) {
            Ok(region) => region,
            Err(failure) => return failure.to_string(),
        };
        thread.queue_depth(&info(), region).expect_err("must be refused").to_string()
    }

    #[test]
    fn stonewalls_make_waves_and_new_groups_make_groups() {
        let of = |name: &str, stonewall, new_group, numjobs| {
            section(JobOptions {
                name: name.to_owned(),
                order: OrderOptions { numjobs, stonewall, new_group, ..JobOptions::usual().order },
                ..JobOptions::usual()
            })
        };
        let sections = [
            of("a", true, false, 2),
            of("b", false, false, 1),
            of("c", true, false, 1),
            of("d", false, true, 1),
        ];
        let told: Vec<_> = threads(&sections)
            .iter()
            .map(|thread| (thread.job().name.clone(), thread.number, thread.group, thread.wave))
            .collect();
        let expected =
            [("a", 0, 0, 0), ("a", 1, 0, 0), ("b", 0, 0, 0), ("c", 0, 1, 1), ("d", 0, 2, 1)];
        assert_eq!(
            told,
            expected.map(|(name, number, group, wave)| (name.to_owned(), number, group, wave))
        );
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let bs = |bytes| PerWay::all(BlockSizes::Fixed(bytes));
        let job = JobOptions::usual;
        assert!(refusal(JobOptions { bs: bs(1000), ..job() }).contains("bs=1024"));
        assert!(
            refusal(JobOptions {
                amount: AmountOptions { size: Some(Size::Bytes(2 << 20)), ..job().amount },
                ..job()
            })
            .contains("1048576 bytes")
        );
        assert!(
            refusal(JobOptions {
                amount: AmountOptions { size: Some(Size::Bytes(100)), ..job().amount },
                ..job()
            })
            .contains("less than one block")
        );
        assert!(
            refusal(JobOptions {
                amount: AmountOptions { offset: Size::Bytes(100), ..job().amount },
                ..job()
            })
            .contains("LBAs of 512")
        );
        assert!(refusal(JobOptions { iodepth: 64, ..job() }).contains("iodepth=63 at most"));
        let job_of = |options: &str| Section::of(options).expect(options).job;
        let protected = DeviceInfo { is_write_protected: true, ..info() };
        for (options, is_refused) in [("rw=randrw", true), ("rw=trim", true), ("rw=read", false)] {
            let section = section(job_of(options));
            let thread = &threads(std::slice::from_ref(&section))[0];
            let region = JobRegion { start: 0, bytes: 1 << 20 };
            let said = thread.queue_depth(&protected, region).map_err(|why| why.to_string());
            assert_eq!(said.is_err_and(|why| why.contains("NSATTR")), is_refused, "{options}");
        }
        // A controller whose queues have two entries (MQES) is no path that blocks.
        let shallow = DeviceInfo { queue_depth_max: 1, ..info() };
        let section = section(JobOptions { iodepth: 2, ..job() });
        let thread = &threads(std::slice::from_ref(&section))[0];
        let region = JobRegion { start: 0, bytes: 1 << 20 };
        let said = thread.queue_depth(&shallow, region).expect_err("too deep").to_string();
        assert!(said.contains("iodepth=1 at most"), "{said}");
        let blocking = DeviceInfo { is_synchronous: true, ..shallow };
        assert_eq!(thread.queue_depth(&blocking, region).expect("one at a time"), (1, None));
    }

    #[test]
    fn shares_begin_at_a_block_and_end_with_the_device() {
        let region = |size, offset, increment| {
            let amount = AmountOptions {
                size: Some(size),
                offset,
                offset_increment: increment,
                ..JobOptions::usual().amount
            };
            let section = section(JobOptions {
                amount,
                order: crate::options::OrderOptions { numjobs: 2, ..JobOptions::usual().order },
                ..JobOptions::usual()
            });
            let threads = threads(std::slice::from_ref(&section));
            let JobRegion { start, bytes } = threads[1].region(&info(), 0).expect("there");
            (start, bytes)
        };
        let (share, bytes) = (Size::Percent, Size::Bytes);
        // As fio 3.33 does with a file of 1 MiB: 102 blocks are left of 60 %.
        assert_eq!(region(share(60), share(60), bytes(0)), (630_784, 102 * 4096));
        assert_eq!(region(share(60), bytes(1 << 19), bytes(0)), (1 << 19, 1 << 19));
        assert_eq!(region(share(30), share(33), share(33)), (692_224, 614 * 512));
        assert_eq!(region(share(60), bytes(512), bytes(0)), (512, 1228 * 512));
    }

    #[test]
    fn a_pass_with_holes_ends_where_no_block_fits() {
        let moved = |options: &str, bytes| {
            let section = Section::of(options).expect(options);
            let threads = threads(std::slice::from_ref(&section));
            threads[0].bytes_max(bytes, &[JobRegion { start: 0, bytes }]).expect("an end") >> 10
        };
        // As fio 3.33 moves: 85 MiB in 127.5 MiB, and all where the last hole ends the region.
        assert_eq!(moved("rw=read:512k bs=1m", 128 << 20), 87_040);
        assert_eq!(moved("rw=read:512k bs=1m loops=2", 128 << 20), 2 * 87_040);
        assert_eq!(moved("rw=read:4k bs=4k", 1 << 20), 1024);
        assert_eq!(moved("rw=read:512k bs=1m io_size=128m", 128 << 20), 128 << 10);
        assert_eq!(moved("rw=randread:8 bs=4k", 1 << 20), 1024);
    }

    #[test]
    fn large_blocks_count_their_commands() {
        let bounded = DeviceInfo { boundary_bytes: 192 << 10, ..info() };
        assert_eq!(commands_per_io(512 << 10, true, &info()), 4);
        assert_eq!(commands_per_io(512 << 10, true, &bounded), 6);
        assert_eq!(commands_per_io(384 << 10, true, &bounded), 4);
        assert_eq!(commands_per_io(384 << 10, false, &bounded), 5);
        assert_eq!(commands_per_io(4096, true, &bounded), 1);
        assert_eq!(commands_per_io(4096, false, &bounded), 2);
    }

    #[test]
    fn increments_move_each_thread_of_a_job() {
        let job = JobOptions {
            amount: AmountOptions {
                size: Some(Size::Bytes(4096)),
                offset_increment: Size::Bytes(8192),
                ..JobOptions::usual().amount
            },
            order: crate::options::OrderOptions { numjobs: 3, ..JobOptions::usual().order },
            ..JobOptions::usual()
        };
        let section = section(job);
        let threads = threads(std::slice::from_ref(&section));
        let starts: Vec<u64> =
            threads.iter().map(|thread| thread.region(&info(), 0).expect("there").start).collect();
        assert_eq!((starts, threads[2].file_bytes(0)), (vec![0, 8192, 16384], Some(20480)));
    }
}
