//! The data of a reactor's requests, and the ways they end.

use crate::error::Error;
use crate::memory::{AnyBuffer, Buffer, IoBuffer};
use crate::queue_pair::{CommandError, Completion, RejectReason};

/// Data that a reactor's request can own: none (`()`), a [`Buffer`], or several. It returns as the type it
/// was sent as.
pub trait Data: IoBuffer + Unpin + sealed::Sealed {}

impl Data for () {}
impl Data for Buffer {}
impl Data for Vec<Buffer> {}

pub(super) mod sealed {
    use crate::memory::{AnyBuffer, Buffer};

    /// Conversion to and from the single type that a poller's queues carry.
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

/// A request that was not sent to the device, returned whole.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused<D> {
    /// The request's buffer.
    pub buffer: D,
    /// The reason.
    pub reason: RefuseReason,
}

/// Why a reactor refused a request, or could not send it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefuseReason {
    /// The mailbox is full of requests waiting to be posted.
    #[error(
        "the reactor's mailbox is full: wait for requests in flight, use submit_wait or \
         submit_async, or give it a larger mailbox_depth"
    )]
    Full,
    /// The command was built by a namespace other than the client's.
    #[error("the command is for another namespace: use Client::with_namespace")]
    OtherNamespace,
    /// The reactor was dropped, or this core's thread ended.
    #[error("the reactor has stopped: start another one")]
    Stopped,
    /// The controller is out of service.
    #[error("{0}")]
    Failed(Error),
    /// No queue of this controller takes it.
    #[error("{0}")]
    Rejected(#[from] RejectReason),
}

/// A request that did not complete.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished<D> {
    /// It was not sent: the buffer is here, and nothing was read or written.
    #[error("{0}")]
    Refused(#[from] Refused<D>),
    /// It was sent, and its buffer will not return.
    #[error("{0}")]
    Lost(Lost),
}

/// Why a buffer will not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The controller could be neither disabled nor reset. It may still write the buffer, which is therefore
    /// withheld.
    #[error(
        "{device}: the controller cannot be stopped and may still write the buffer, which is kept from use; reset or remove the device"
    )]
    Stuck {
        /// The target.
        device: String,
    },
    /// The reactor stopped before the command completed, and freed the buffer once the device could no longer
    /// access it.
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

/// A request's end, as the poller reports it.
#[derive(Debug)]
pub(super) enum End {
    /// The device completed it, or it was ended with an error.
    Completed(AnyBuffer, Result<u32, CommandError>),
    /// It was never sent.
    Refused(AnyBuffer, RefuseReason),
    /// The buffer will not return.
    Lost(Lost),
}

impl End {
    /// Converts to the client's view, with the buffer as the type it was sent as.
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
