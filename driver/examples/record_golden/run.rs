//! Runs the commands on a controller and records each result.

use adit_driver::spec::{Cid, Iova, Status};
use adit_driver::{
    Buffer, Command, CommandError, Completion, Controller, Error, QueuePair, Result,
};
use zerocopy::IntoBytes;

use crate::commands::{self, Case, Queue};
use crate::text::Item;

/// Fill byte of a command's data before it runs.
const UNTOUCHED: u8 = 0xee;
/// Longest data of a command, except for those that fail before touching it.
const DATA_BYTES: usize = 128 << 10;

/// Runs every command; returns the arena's address and an item for each.
///
/// # Errors
/// If the controller stops answering.
pub(crate) fn run(controller: &Controller, queue: &mut QueuePair<()>) -> Result<(Iova, Vec<Item>)> {
    let mut arena = controller.allocate(commands::ARENA_BYTES)?;
    let iova = arena.iova();
    let cases = commands::all(iova);
    let items = cases.iter().map(|case| run_one(controller, queue, &mut arena, case));
    Ok((iova, items.collect::<Result<_>>()?))
}

/// Runs one command. It names the arena by address, so the arena is ours only while none is in flight.
fn run_one(
    controller: &Controller,
    queue: &mut QueuePair<()>,
    arena: &mut Buffer,
    case: &Case,
) -> Result<Item> {
    arena[..DATA_BYTES].fill(UNTOUCHED);
    for (offset, bytes) in &case.memory {
        arena[*offset..*offset + bytes.len()].copy_from_slice(bytes);
    }
    let (cid, result) = match case.queue {
        Queue::Admin => (None, admin(controller, case)?),
        Queue::Io => io(controller, queue, case).map(|(cid, result)| (Some(cid), result))?,
    };
    let mut item = Item::new(case.name).with("sqe", case.sqe.as_bytes());
    if let Some(cid) = cid {
        item = item.with("cid", &cid.0.to_le_bytes());
    }
    Ok(match result {
        Ok(dw0) => {
            let item = item.with("status", &[0, 0]).with("dw0", &dw0.to_le_bytes());
            if case.shows_bytes > 0 { item.with("data", &arena[..case.shows_bytes]) } else { item }
        }
        Err(status) => item.with("status", &status.bits().to_le_bytes()),
    })
}

#[allow(unsafe_code)]
fn admin(controller: &Controller, case: &Case) -> Result<Result<u32, Status>> {
    // SAFETY: every pointer of a recorded command lies in the arena, which outlives the run,
    // or is meant not to be mapped; none touches the driver's own queues.
    match unsafe { controller.admin(case.name, case.sqe, None) } {
        Ok((dw0, _)) => Ok(Ok(dw0)),
        Err(Error::Status { status, .. }) => Ok(Err(status)),
        Err(error) => Err(error),
    }
}

#[allow(unsafe_code)]
fn io(
    controller: &Controller,
    queue: &mut QueuePair<()>,
    case: &Case,
) -> Result<(Cid, Result<u32, Status>)> {
    // SAFETY: as in `admin`.
    let command = unsafe { Command::raw(case.sqe, ()) };
    let cid = queue
        .submit(controller.now(), command)
        .map_err(|rejected| Error::invalid(case.name, rejected.reason))?;
    let mut finished = None;
    loop {
        queue.poll(controller.now(), |completion| finished = Some(completion));
        match finished.take() {
            Some(Completion { result: Ok(dw0), .. }) => return Ok((cid, Ok(dw0))),
            Some(Completion { result: Err(CommandError::Status(status)), .. }) => {
                return Ok((cid, Err(status)));
            }
            _ => controller.check()?,
        }
        controller.pause(std::time::Duration::from_micros(20));
    }
}
