//! How a request through a reactor can end, and what a client can send.

use crate::error::Error;
use crate::memory::{AnyBuffer, Buffer, IoBuffer};
use crate::queue_pair::{CommandError, Completion, RejectReason};

/// What a request through a reactor owns: nothing (`()`), a [`Buffer`], or several. It comes
/// back as the type it was sent as.
pub trait Data: IoBuffer + Unpin + sealed::Sealed {}

impl Data for () {}
impl Data for Buffer {}
impl Data for Vec<Buffer> {}

pub(super) mod sealed {
    use super::*;

    /// To and from the one type that a poller's queues carry.
    pub trait Sealed: Sized {
        fn into_any(self) -> AnyBuffer;
        fn from_any(any: AnyBuffer) -> Self;
    }

    impl Sealed for () {
        fn into_any(self) -> AnyBuffer {
            AnyBuffer::None
        }

        fn from_any(any: AnyBuffer) {
            let AnyBuffer::None = any else { unreachable!("it was sent as nothing") };
        }
    }

    impl Sealed for Buffer {
        fn into_any(self) -> AnyBuffer {
            AnyBuffer::One(self)
        }

        fn from_any(any: AnyBuffer) -> Buffer {
            let AnyBuffer::One(buffer) = any else { unreachable!("it was sent as a buffer") };
            buffer
        }
    }

    impl Sealed for Vec<Buffer> {
        fn into_any(self) -> AnyBuffer {
            AnyBuffer::Many(self)
        }

        fn from_any(any: AnyBuffer) -> Vec<Buffer> {
            let AnyBuffer::Many(buffers) = any else { unreachable!("it was sent as several") };
            buffers
        }
    }
}

/// A request that was not sent to the device, given back whole.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused<D> {
    /// What the command would have owned.
    pub buffer: D,
    /// Why.
    pub reason: RefuseReason,
}

/// Why a reactor did not take a request, or took it and could not send it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefuseReason {
    /// As many requests as the mailbox holds are waiting to be posted.
    #[error(
        "the reactor's mailbox is full: wait for requests in flight, use submit_wait or \
         submit_async, or give it a larger mailbox_depth"
    )]
    Full,
    /// The command was made by another namespace than the client's.
    #[error("the command is for another namespace: use Client::with_namespace")]
    OtherNamespace,
    /// The reactor was dropped, or the thread of this core ended.
    #[error("the reactor has stopped: start another one")]
    Stopped,
    /// The controller is out of service.
    #[error("{0}")]
    Failed(Error),
    /// No queue of this controller would take it.
    #[error("{0}")]
    Rejected(#[from] RejectReason),
}

/// A request that did not complete.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished<D> {
    /// It was not sent: the buffer is here, and nothing was read or written.
    #[error("{0}")]
    Refused(#[from] Refused<D>),
    /// It was sent and its buffer is not coming back.
    #[error("{0}")]
    Lost(Lost),
}

/// Why a buffer is not coming back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The controller could be neither disabled nor reset, so it may still write the buffer,
    /// which is therefore kept from everybody.
    #[error(
        "{device}: the controller cannot be stopped and may still write the buffer, which is kept from use; reset or remove the device"
    )]
    Stuck {
        /// The target.
        device: String,
    },
    /// The reactor stopped before the command completed, and freed the buffer once the
    /// device could no longer reach it.
    #[error(
        "the reactor stopped before the command completed; drop it only when nothing is in flight, or raise drain_timeout"
    )]
    Stopped,
}

impl<D> From<Refused<D>> for Error {
    fn from(refused: Refused<D>) -> Error {
        match refused.reason {
            RefuseReason::Failed(error) => error,
            reason => Error::invalid("a request to a reactor", reason),
        }
    }
}

impl<D> From<Unfinished<D>> for Error {
    fn from(unfinished: Unfinished<D>) -> Error {
        match unfinished {
            Unfinished::Refused(refused) => refused.into(),
            Unfinished::Lost(Lost::Stuck { device }) => {
                let reason = "it can be neither disabled nor reset".to_owned();
                Error::Failed { device, reason }
            }
            Unfinished::Lost(lost) => Error::invalid("a request to a reactor", lost),
        }
    }
}

/// How a request ended, as the poller says it.
#[derive(Debug)]
pub(super) enum End {
    /// The device completed it, or it was ended with an error.
    Completed(AnyBuffer, Result<u32, CommandError>),
    /// It was never sent.
    Refused(AnyBuffer, RefuseReason),
    /// The buffer is not coming back.
    Lost(Lost),
}

impl End {
    /// The same as the client sees it, with its buffer as the type it was sent as.
    pub(super) fn typed<D: Data>(self) -> Result<Completion<D>, Unfinished<D>> {
        match self {
            End::Completed(any, result) => Ok(Completion { buffer: D::from_any(any), result }),
            End::Refused(any, reason) => {
                Err(Unfinished::Refused(Refused { buffer: D::from_any(any), reason }))
            }
            End::Lost(lost) => Err(Unfinished::Lost(lost)),
        }
    }
}
