//! Creates and fills files before jobs read them.
//!
//! As in fio, a file that is missing or too short is filled first, because the device would not be read for
//! data that was never written.

use std::fs;
use std::io::IsTerminal;
use std::ops::Range;

use adit_driver::paths::{CommandQueue, Device, Operation, QueueOptions, Request};
use adit_driver::spec::Lba;
use adit_driver::target::KernelPath;
use adit_driver::{Buffer, Target};
use adit_load::noise;

use super::plan::Thread;
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::options::JobOptions;
use crate::output;

/// Bytes of each write.
const CHUNK: u64 = 1 << 20;

/// Returns the length of the regular file behind a target, 0 if it is missing; `None` if it is no regular file.
pub(crate) fn length(target: &Target) -> Option<u64> {
    let Target::Kernel(kernel) = target else { return None };
    if matches!(kernel.path, KernelPath::Null | KernelPath::UringCmd) {
        return None;
    }
    match fs::metadata(&kernel.file) {
        Ok(about) => about.is_file().then_some(about.len()),
        Err(_) => Some(0),
    }
}

/// Returns the bytes of a file that must be created.
pub(crate) fn makes(
    target: &Target,
    length: Option<u64>,
    wanted: Option<u64>,
    first: &Thread<'_>,
) -> Option<Range<u64>> {
    let (length, wanted) = (length?, wanted?);
    // A target that is written first needs no filling.
    let is_written_first = !first.job().rw.reads && !first.job().files.overwrite;
    (length < wanted && !is_written_first && matches!(target, Target::Kernel(_)))
        .then_some(length..wanted)
}

/// Extends a missing or shorter regular file to this length, without allocating space.
///
/// # Errors
/// When it cannot be created or extended.
pub(crate) fn lengthen(target: &Target, bytes: u64) -> Result<()> {
    let Target::Kernel(kernel) = target else { return Ok(()) };
    if length(target).is_none_or(|length| length >= bytes) {
        return Ok(());
    }
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&kernel.file);
    // An exclusive handle keeps its length; opening the file then says why.
    if let Ok(file) = &file
        && matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
    {
        return Ok(());
    }
    file.and_then(|file| file.set_len(bytes)).map_err(|error| {
        Failure::failed(format!(
            "{}: it cannot be made {bytes} bytes long: {error}",
            target.device()
        ))
    })
}

/// Truncates a file to its previous length.
pub(crate) fn shorten(target: &Target, length: u64) {
    let Target::Kernel(kernel) = target else { return };
    let file = fs::OpenOptions::new().write(true).open(&kernel.file);
    if let Err(error) = file.and_then(|file| file.set_len(length)) {
        tracing::warn!("{}: the incomplete file could not be shortened: {error}", target.device());
    }
}

/// Writes incompressible data to `range` of a device.
///
/// # Errors
/// When a write fails, or the user interrupts.
pub(crate) fn fill(
    device: &Device,
    job: &JobOptions,
    range: Range<u64>,
    interrupt: &Interrupt,
) -> Result<()> {
    let info = device.info();
    if std::io::stderr().is_terminal() {
        let bytes = human::bytes((range.end - range.start) as f64);
        let line = format!("{}: laying out {} ({bytes})", job.name, info.device);
        output::remark(&human::printable(&line));
    }
    let depth = info.queue_depth_max.min(8);
    let timeout = std::time::Duration::from_secs(60);
    let options = QueueOptions { depth, timeout, abort_timeout: timeout };
    let mut idle: Vec<Buffer> =
        (0..depth).map(|_| device.allocate(CHUNK as usize)).collect::<adit_driver::Result<_>>()?;
    // No buffer is registered: nothing is measured, and lockable memory is scarce.
    let mut queue = device.create_queue::<Buffer>(&options, &[])?;
    let lba = u64::from(info.lba_bytes);
    // An LBA that the existing file ends in keeps its beginning.
    let mut offset = range.start.next_multiple_of(lba);
    let end = range.end.min(info.bytes);
    let mut failure = None;
    while idle.len() < depth as usize || offset < end {
        while offset < end && failure.is_none() {
            let Some(mut buffer) = idle.pop() else { break };
            let left = (end - offset).next_multiple_of(lba);
            let bytes = info.split(1).first(offset, CHUNK.min(left));
            noise(&mut buffer, offset);
            drop(buffer.split_off(bytes as usize));
            let request = Request { operation: Operation::Write(Lba(offset / lba)), buffer };
            queue
                .post(device.now(), request)
                .map_err(|rejected| Failure::failed(rejected.reason))?;
            offset += bytes;
        }
        if failure.is_some() || interrupt.requested() {
            offset = end;
        }
        queue.ring();
        let found = queue.poll(device.now(), |completion| {
            if let Err(error) = completion.result {
                failure.get_or_insert(error);
            }
            idle.push(completion.buffer);
        });
        if found == 0 && idle.len() < depth as usize {
            // I/Os on a lost device never end.
            queue.check()?;
            queue.wait(std::time::Duration::from_millis(10));
        }
    }
    match failure {
        Some(error) => Err(Failure::failed(format!("{}: laying out: {error}", info.device))),
        None if interrupt.requested() => {
            Err(Failure::stopped("interrupted while the file was laid out"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::DeviceOptions;

    #[test]
    fn what_a_file_held_before_it_is_laid_out_stays_to_the_byte() {
        let file = std::env::temp_dir().join(format!("adit-lay-out-{}", std::process::id()));
        fs::write(&file, [7; 700]).expect("a file");
        let target: Target =
            format!("psync:{},direct=off", file.display()).parse().expect("a target");
        // The range neither begins nor ends at a sector boundary.
        let options = DeviceOptions { file_bytes: Some(10_000), ..DeviceOptions::default() };
        let device = Device::open(&target, &options).expect("a device");
        fill(&device, &JobOptions::usual(), 700..10_000, &Interrupt::default()).expect("filled");
        let content = fs::read(&file).expect("the file");
        fs::remove_file(&file).expect("removing it");
        assert!(content[..700].iter().all(|byte| *byte == 7), "what was there");
        assert!(content[1024..9728].chunks(512).all(|sector| sector.iter().any(|byte| *byte != 0)));
    }
}
