//! Makes a controller write to forbidden memory, to test an IOMMU.
//!
//! ```text
//! cargo xtask vm --example stray_dma --nvme '' --allow-dmar -- sh -c 'stray_dma {0}; dmesg | grep DMAR'
//! ```
//!
//! Sends one read whose data pointer names an address that was never mapped for the device. The printed
//! result proves nothing: some controllers report a Data Transfer Error, QEMU's reports success. The kernel's
//! log shows that the access was blocked. An ordinary read then shows that the controller still works.
//! Nothing is written to the medium.

use std::process::ExitCode;

use adit_driver::spec::{DataPointer, Iova, Lba, LbaCount, Sqe};
use adit_driver::{
    Command, CommandError, Completion, Controller, ControllerOptions, Error, QueuePair,
    QueuePairOptions, Result, Target,
};

/// Far from anything this process maps, and inside what a 39-bit IOMMU can translate.
const NOWHERE: Iova = Iova(0x40_dead_0000);

fn main() -> ExitCode {
    let target = std::env::args().nth(1).unwrap_or_default();
    match target.parse().and_then(|target| stray(&target)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stray_dma: {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

fn stray(target: &Target) -> Result<()> {
    let controller = Controller::open(target, &ControllerOptions::default())?;
    let namespace = controller.namespace_of(target)?;
    let pointer = DataPointer::Prp { prp1: NOWHERE, prp2: Iova(0) };
    let sqe = Sqe::read(namespace.nsid(), Lba(0), LbaCount::ONE).with_dptr(pointer);
    let mut queue = controller.create_queue_pair::<()>(QueuePairOptions::default())?;
    // SAFETY: nothing of this process is at that address, nor does its IOMMU map anything there.
    #[allow(unsafe_code)]
    let command = unsafe { Command::raw(sqe, ()) };
    let said = match end_of(&controller, &mut queue, command)? {
        Ok(_) => "success".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("a read to the unmapped device address {:#x}: the controller says: {said}", NOWHERE.0);
    let mut queue = controller.create_queue_pair(QueuePairOptions::default())?;
    let data = controller.allocate(namespace.lba_bytes() as usize)?;
    let (data, _) = queue.execute(namespace.read(Lba(0), data))?;
    println!("a read to memory of our own: {} bytes came", data.len());
    Ok(())
}

/// Sends `command` and waits for its result.
fn end_of(
    controller: &Controller,
    queue: &mut QueuePair<()>,
    command: Command<'_, ()>,
) -> Result<std::result::Result<u32, CommandError>> {
    let device = &controller.info().device;
    let refused = |reason| Error::invalid(device, reason);
    queue.submit(controller.now(), command).map_err(|rejected| refused(rejected.reason))?;
    let mut ended = None;
    loop {
        queue.poll(controller.now(), |completion| ended = Some(completion));
        if let Some(Completion { result, .. }) = ended.take() {
            return Ok(result);
        }
        // A controller that is out of service and cannot be reset returns nothing.
        controller.check()?;
        controller.pause(std::time::Duration::from_micros(20));
    }
}
