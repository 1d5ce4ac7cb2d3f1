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
mod opcode;
mod queues;

pub(super) use opcode::{ABORT, NAMES};

use self::opcode::{
    ASYNC_EVENT_REQUEST, CREATE_IO_CQ, CREATE_IO_SQ, DELETE_IO_CQ, DELETE_IO_SQ,
    DOORBELL_BUFFER_CONFIG, GET_FEATURES, GET_LOG_PAGE, IDENTIFY, NAMESPACE_ATTACHMENT,
    NAMESPACE_MANAGEMENT, SET_FEATURES,
};
use super::command::{Command, Pointer};
use super::controller::Controller;
use super::memory::Dma;
use super::status::{Answer, DONE, INVALID_FIELD, INVALID_OPCODE};

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
