//! Namespace Management and Attachment (NVMe Base 2.0 sections 5.23 and 5.22).

use crate::command::Command;
use crate::controller::Controller;
use crate::memory::Dma;
use crate::status::{
    ALREADY_ATTACHED, Answer, CONTROLLER_LIST_INVALID, DONE, INSUFFICIENT_CAPACITY, INVALID_FIELD,
    INVALID_FORMAT, INVALID_NAMESPACE, NAMESPACE_ID_UNAVAILABLE, NOT_ATTACHED, Reply, WRITE_FAULT,
};
use adit_spec::Status;

const CREATE_OR_ATTACH: u32 = 0;
const DELETE_OR_DETACH: u32 = 1;

impl Controller {
    pub(super) fn namespace_management(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        match command.cdw(10) & 0xf {
            CREATE_OR_ATTACH => self.create_namespace(command, dma),
            DELETE_OR_DETACH => self.delete_namespaces(command.nsid),
            _ => Err(INVALID_FIELD),
        }
    }

    fn create_namespace(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let rules = self.rules();
        self.transfer.receive(command, &mut self.page[..], rules, dma)?;
        let (words, _) = self.page.as_chunks();
        let (size, capacity) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        let lba_shift = match self.page[26] & 0xf {
            0 => 9,
            1 => 12,
            _ => return Err(INVALID_FORMAT),
        };
        let has_protection = self.page[29] != 0;
        // Only unshared, fully provisioned namespaces of the NVM command set.
        if size == 0 || size != capacity || has_protection || command.cdw(11) >> 24 != 0 {
            return Err(INVALID_FIELD);
        }
        if self.namespaces.free_nsid().is_none() {
            return Err(NAMESPACE_ID_UNAVAILABLE);
        }
        let made = self.namespaces.create(size, lba_shift).ok_or(INSUFFICIENT_CAPACITY)?;
        let (nsid, offset, bytes) = (made.nsid, made.offset, made.bytes);
        self.media.erase(offset, bytes).map_err(|_| WRITE_FAULT)?;
        Ok(Reply::Done(nsid.0))
    }

    fn delete_namespaces(&mut self, nsid: u32) -> Answer {
        if nsid != u32::MAX {
            self.delete_namespace(nsid)?;
            return DONE;
        }
        while let Some(nsid) = self.namespaces.all().first().map(|namespace| namespace.nsid) {
            self.delete_namespace(nsid.0)?;
        }
        DONE
    }

    fn delete_namespace(&mut self, nsid: u32) -> Result<(), Status> {
        let gone = self.namespaces.remove(nsid).ok_or(INVALID_NAMESPACE)?;
        if gone.is_attached {
            self.namespace_changed(nsid);
        }
        Ok(())
    }

    pub(super) fn namespace_attachment(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let rules = self.rules();
        self.transfer.receive(command, &mut self.page[..], rules, dma)?;
        // The list must name exactly this controller, 0.
        if self.page[..4] != [1, 0, 0, 0] {
            return Err(CONTROLLER_LIST_INVALID);
        }
        let namespace = self.namespaces.find_mut(command.nsid).ok_or(INVALID_NAMESPACE)?;
        match (command.cdw(10) & 0xf, namespace.is_attached) {
            (CREATE_OR_ATTACH, true) => Err(ALREADY_ATTACHED),
            (DELETE_OR_DETACH, false) => Err(NOT_ATTACHED),
            (CREATE_OR_ATTACH | DELETE_OR_DETACH, _) => {
                namespace.is_attached ^= true;
                DONE
            }
            _ => Err(INVALID_FIELD),
        }
    }
}
