//! The statuses this controller returns, by their specification names (NVMe Base 2.0 section 3.3.3.2.1, figures 95 to
//! 99).
//!
//! Do Not Retry is set where the same command can never succeed.

use adit_spec::Status;

const DNR: u16 = 1 << 14;

/// A failure status, or the reply of a successful command.
pub(super) type Answer = std::result::Result<Reply, Status>;

/// How a successful command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Completes now with this dword 0.
    Done(u32),
    /// Completes later, on another event.
    Later,
}

pub(super) const DONE: Answer = Ok(Reply::Done(0));

/// Creates a status that may differ on a retry.
const fn passing(sct: u16, sc: u16) -> Status {
    Status::from_bits(sct << 8 | sc)
}

/// Creates a status that the same command always gets.
const fn lasting(sct: u16, sc: u16) -> Status {
    Status::from_bits(DNR | sct << 8 | sc)
}

pub(super) const SUCCESS: Status = passing(0, 0x00);
pub(super) const INVALID_OPCODE: Status = lasting(0, 0x01);
pub(super) const INVALID_FIELD: Status = lasting(0, 0x02);
pub(super) const DATA_TRANSFER_ERROR: Status = passing(0, 0x04);
pub(super) const ABORT_REQUESTED: Status = passing(0, 0x07);
pub(super) const ABORTED_SQ_DELETION: Status = passing(0, 0x08);
pub(super) const INVALID_NAMESPACE: Status = lasting(0, 0x0b);
pub(super) const COMMAND_SEQUENCE_ERROR: Status = lasting(0, 0x0c);
pub(super) const INVALID_SGL_SEGMENT: Status = lasting(0, 0x0d);
pub(super) const INVALID_SGL_COUNT: Status = lasting(0, 0x0e);
pub(super) const DATA_SGL_LENGTH_INVALID: Status = lasting(0, 0x0f);
pub(super) const SGL_TYPE_INVALID: Status = lasting(0, 0x11);
pub(super) const PRP_OFFSET_INVALID: Status = lasting(0, 0x13);
pub(super) const SGL_GRANULARITY_INVALID: Status = lasting(0, 0x1e);
pub(super) const LBA_OUT_OF_RANGE: Status = lasting(0, 0x80);

pub(super) const COMPLETION_QUEUE_INVALID: Status = lasting(1, 0x00);
pub(super) const INVALID_QUEUE_ID: Status = lasting(1, 0x01);
pub(super) const INVALID_QUEUE_SIZE: Status = lasting(1, 0x02);
pub(super) const EVENT_LIMIT_EXCEEDED: Status = lasting(1, 0x05);
pub(super) const INVALID_VECTOR: Status = lasting(1, 0x08);
pub(super) const INVALID_LOG_PAGE: Status = lasting(1, 0x09);
pub(super) const INVALID_FORMAT: Status = lasting(1, 0x0a);
pub(super) const INVALID_QUEUE_DELETION: Status = passing(1, 0x0c);
pub(super) const FEATURE_NOT_SAVEABLE: Status = lasting(1, 0x0d);
pub(super) const FEATURE_NOT_NAMESPACE_SPECIFIC: Status = lasting(1, 0x0f);
pub(super) const INSUFFICIENT_CAPACITY: Status = lasting(1, 0x15);
pub(super) const NAMESPACE_ID_UNAVAILABLE: Status = lasting(1, 0x16);
pub(super) const ALREADY_ATTACHED: Status = lasting(1, 0x18);
pub(super) const NOT_ATTACHED: Status = lasting(1, 0x1a);
pub(super) const CONTROLLER_LIST_INVALID: Status = lasting(1, 0x1c);
pub(super) const INVALID_PROTECTION: Status = lasting(1, 0x81);
pub(super) const SIZE_LIMIT_EXCEEDED: Status = lasting(1, 0x83);

pub(super) const WRITE_FAULT: Status = passing(2, 0x80);
pub(super) const UNRECOVERED_READ: Status = passing(2, 0x81);
pub(super) const GUARD_CHECK: Status = passing(2, 0x82);
pub(super) const APPLICATION_TAG_CHECK: Status = passing(2, 0x83);
pub(super) const REFERENCE_TAG_CHECK: Status = passing(2, 0x84);
pub(super) const COMPARE_FAILURE: Status = passing(2, 0x85);
