//! Typed I/O commands, decoded from their dwords (NVM Command Set 1.0 section 3.2).
//!
//! Refuses fused operations, which this controller does not support. [`super::protected`] interprets protection
//! information.

use crate::command::Command;
use crate::status::{INVALID_FIELD, INVALID_OPCODE};
use crate::timing::Effort;
use adit_spec::Status;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const COMPARE: u8 = 0x05;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const VERIFY: u8 = 0x0c;
pub(crate) const IO_MANAGEMENT_RECEIVE: u8 = 0x12;
const COPY: u8 = 0x19;

/// The supported commands: opcode, name in fault plans (none for one that no plan names), and whether they change data.
pub(crate) const COMMANDS: [(u8, Option<&str>, bool); 9] = [
    (FLUSH, Some("flush"), false),
    (WRITE, Some("write"), true),
    (READ, Some("read"), false),
    (COMPARE, Some("compare"), false),
    (WRITE_ZEROES, Some("zeroes"), true),
    (DATASET_MANAGEMENT, Some("dsm"), true),
    (VERIFY, Some("verify"), false),
    (IO_MANAGEMENT_RECEIVE, None, false),
    (COPY, Some("copy"), true),
];

/// Returns first LBA and count of a single-range command; `None` for all others.
pub(crate) fn range_of(command: &Command) -> Option<(u64, u64)> {
    let is_over_one = matches!(command.opcode, READ | WRITE | COMPARE | WRITE_ZEROES | VERIFY);
    (is_over_one && !command.sqid.is_admin())
        .then(|| (command.qword(10), u64::from(command.low(12)) + 1))
}

/// Returns the work that an I/O command causes on a drive with LBAs of `1 << lba_shift` bytes.
pub(crate) fn effort_of(command: &Command, lba_shift: u8) -> Effort {
    let bytes = range_of(command).map_or(0, |(_, lba_count)| lba_count << lba_shift);
    match command.opcode {
        READ | COMPARE | VERIFY => Effort::Read { bytes },
        WRITE => Effort::Write { bytes },
        FLUSH => Effort::Flush,
        _ => Effort::Tables,
    }
}

/// Returns whether a single-range I/O command writes.
pub(crate) fn writes(opcode: u8) -> bool {
    matches!(opcode, WRITE | WRITE_ZEROES)
}

/// Returns whether an I/O command changes data.
pub(crate) fn changes_data(opcode: u8) -> bool {
    COMMANDS.iter().any(|(known, _, changes)| *known == opcode && *changes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) lba_count: u64,
}

/// Copy's fields other than its ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyTo {
    pub(super) first: u64,
    pub(super) ranges: usize,
    pub(super) fua: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoCommand {
    Flush,
    Read {
        range: Range,
        fua: bool,
    },
    Write {
        range: Range,
        fua: bool,
    },
    Compare(Range),
    WriteZeroes {
        range: Range,
        fua: bool,
    },
    Verify(Range),
    Deallocate {
        ranges: usize,
    },
    Manage {
        ranges: usize,
    },
    /// I/O Management Receive of `bytes`.
    Handles {
        bytes: u64,
    },
    Copy(CopyTo),
}

impl IoCommand {
    #[inline]
    pub(super) fn decode(command: &Command) -> Result<IoCommand, Status> {
        if command.fuse != 0 {
            return Err(INVALID_FIELD);
        }
        let fua = command.cdw(12) >> 30 & 1 != 0;
        Ok(match command.opcode {
            READ => IoCommand::Read { range: range(command), fua },
            WRITE => IoCommand::Write { range: range(command), fua },
            FLUSH => IoCommand::Flush,
            COMPARE => IoCommand::Compare(range(command)),
            WRITE_ZEROES => IoCommand::WriteZeroes { range: range(command), fua },
            VERIFY => IoCommand::Verify(range(command)),
            DATASET_MANAGEMENT => dataset_management(command),
            IO_MANAGEMENT_RECEIVE => handles(command)?,
            COPY => copy(command, fua)?,
            _ => return Err(INVALID_OPCODE),
        })
    }
}

/// Reads SLBA and NLB, which all single-range commands share.
#[inline]
fn range(command: &Command) -> Range {
    Range { first: command.qword(10), lba_count: u64::from(command.low(12)) + 1 }
}

fn dataset_management(command: &Command) -> IoCommand {
    let ranges = usize::from(command.cdw(10) as u8) + 1;
    match command.cdw(11) >> 2 & 1 {
        0 => IoCommand::Manage { ranges },
        _ => IoCommand::Deallocate { ranges },
    }
}

/// Decodes I/O Management Receive, of which only the Reclaim Unit Handle Status is supported.
fn handles(command: &Command) -> Result<IoCommand, Status> {
    match command.cdw(10) as u8 {
        1 => Ok(IoCommand::Handles { bytes: (u64::from(command.cdw(11)) + 1) * 4 }),
        _ => Err(INVALID_FIELD),
    }
}

fn copy(command: &Command, fua: bool) -> Result<IoCommand, Status> {
    let options = command.cdw(12);
    if options >> 8 & 0xf != 0 {
        return Err(INVALID_FIELD);
    }
    let ranges = usize::from(options as u8) + 1;
    Ok(IoCommand::Copy(CopyTo { first: command.qword(10), ranges, fua }))
}
