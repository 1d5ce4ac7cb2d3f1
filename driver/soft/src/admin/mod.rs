//! Admin commands (NVMe Base 2.0 section 5).
//!
//! | file | commands |
//! |---|---|
//! | `queues` | Create and Delete I/O queues, Abort, Doorbell Buffer Config |
//! | `identify` | Identify |
//! | `features` | Get and Set Features |
//! | `log` | Get Log Page |
//! | `events` | Asynchronous Event Request |
//! | `namespaces` | Namespace Management and Attachment |

mod events;
mod features;
mod identify;
mod log;
mod namespaces;
mod queues;

pub(super) use events::Events;
pub(super) use features::Features;
pub(super) use log::Statistics;

use super::command::{Command, Pointer};
use super::controller::Controller;
use super::memory::Dma;
use super::status::{Answer, DONE, INVALID_FIELD, INVALID_OPCODE};

const DELETE_IO_SQ: u8 = 0x00;
const CREATE_IO_SQ: u8 = 0x01;
const GET_LOG_PAGE: u8 = 0x02;
const DELETE_IO_CQ: u8 = 0x04;
const CREATE_IO_CQ: u8 = 0x05;
const IDENTIFY: u8 = 0x06;
pub(super) const ABORT: u8 = 0x08;
const SET_FEATURES: u8 = 0x09;
const GET_FEATURES: u8 = 0x0a;
const ASYNC_EVENT_REQUEST: u8 = 0x0c;
const NAMESPACE_MANAGEMENT: u8 = 0x0d;
const NAMESPACE_ATTACHMENT: u8 = 0x15;
const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;

/// Opcodes of all supported admin commands.
const SUPPORTED: [u8; 13] = [
    DELETE_IO_SQ,
    CREATE_IO_SQ,
    GET_LOG_PAGE,
    DELETE_IO_CQ,
    CREATE_IO_CQ,
    IDENTIFY,
    ABORT,
    SET_FEATURES,
    GET_FEATURES,
    ASYNC_EVENT_REQUEST,
    NAMESPACE_MANAGEMENT,
    NAMESPACE_ATTACHMENT,
    DOORBELL_BUFFER_CONFIG,
];

/// Names in fault plans.
pub(super) const NAMES: [(u8, &str); 13] = [
    (DELETE_IO_SQ, "delete-sq"),
    (CREATE_IO_SQ, "create-sq"),
    (GET_LOG_PAGE, "get-log"),
    (DELETE_IO_CQ, "delete-cq"),
    (CREATE_IO_CQ, "create-cq"),
    (IDENTIFY, "identify"),
    (ABORT, "abort"),
    (SET_FEATURES, "set-features"),
    (GET_FEATURES, "get-features"),
    (ASYNC_EVENT_REQUEST, "event-request"),
    (NAMESPACE_MANAGEMENT, "manage-namespace"),
    (NAMESPACE_ATTACHMENT, "attach-namespace"),
    (DOORBELL_BUFFER_CONFIG, "doorbell-buffer"),
];

impl Controller {
    pub(super) fn admin(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        // Over PCIe, admin commands use PRPs and are never fused (Base 2.0 section 3.3.3.1).
        if command.fuse != 0 || !matches!(command.pointer, Pointer::Prp(_)) {
            return Err(INVALID_FIELD);
        }
        match command.opcode {
            DELETE_IO_SQ => self.delete_submission_queue(command, dma),
            CREATE_IO_SQ => self.create_submission_queue(command),
            GET_LOG_PAGE => self.get_log_page(command, dma),
            DELETE_IO_CQ => self.delete_completion_queue(command),
            CREATE_IO_CQ => self.create_completion_queue(command),
            IDENTIFY => self.identify(command, dma),
            ABORT => self.abort(command, dma),
            SET_FEATURES => self.set_features(command, dma),
            GET_FEATURES => self.get_features(command, dma),
            ASYNC_EVENT_REQUEST => self.async_event_request(command),
            NAMESPACE_MANAGEMENT => self.namespace_management(command, dma),
            NAMESPACE_ATTACHMENT => self.namespace_attachment(command, dma),
            DOORBELL_BUFFER_CONFIG if self.options.dbbuf => {
                self.doorbell_buffer_config(command, dma)
            }
            _ => Err(INVALID_OPCODE),
        }
    }

    /// Sends the first `len` bytes of the data page.
    fn send_page(&mut self, command: &Command, len: usize, dma: &Dma<'_>) -> Answer {
        let rules = self.rules();
        self.transfer.send(command, &self.page[..len], rules, dma)?;
        DONE
    }
}

/// Writes little-endian bytes at `offset`.
pub(crate) fn put<const N: usize>(page: &mut [u8], offset: usize, bytes: [u8; N]) {
    page[offset..offset + N].copy_from_slice(&bytes);
}

/// Writes ASCII text, padded with spaces (Base 2.0 section 1.4.2).
fn put_text(page: &mut [u8], offset: usize, len: usize, text: &str) {
    let field = &mut page[offset..offset + len];
    field.fill(b' ');
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}
