//! Admin commands: builders, and accessors for the controller's side (Base 5).

use core::fmt;

use zerocopy::little_endian::U32;

use super::{AdminOpcode, DataPointer, Sqe};
use crate::feature::Fid;
use crate::ids::{Cid, Iova, Nsid, Qid, QueueEntries};
use crate::log::Lid;

/// Controller or Namespace Structure: the data structure that Identify returns (CNS, Base 5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cns(pub u8);

impl Cns {
    /// 00h: Identify Namespace of the NVM command set.
    pub const NAMESPACE: Cns = Cns(0x00);
    /// 01h: Identify Controller.
    pub const CONTROLLER: Cns = Cns(0x01);
    /// 02h: active namespace list.
    pub const ACTIVE_NAMESPACES: Cns = Cns(0x02);
    /// 03h: namespace identification descriptor list.
    pub const NAMESPACE_DESCRIPTORS: Cns = Cns(0x03);
    /// 05h: Identify Namespace of one I/O command set.
    pub const COMMAND_SET_NAMESPACE: Cns = Cns(0x05);
    /// 06h: Identify Controller of one I/O command set.
    pub const COMMAND_SET_CONTROLLER: Cns = Cns(0x06);
    /// 1Ch: combinations of I/O command sets.
    pub const COMMAND_SETS: Cns = Cns(0x1c);
}

impl fmt::Display for Cns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02X}h", self.0)
    }
}

/// Priority class of a submission queue; used with weighted round robin only (QPRIO, Base 5.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePriority {
    /// 00b.
    Urgent,
    /// 01b.
    High,
    /// 10b.
    #[default]
    Medium,
    /// 11b.
    Low,
}

/// Which value of a feature Get Features returns (SEL, Base 5.15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeatureSelect {
    /// 000b: the current value.
    #[default]
    Current,
    /// 001b: the manufacturer's value.
    Default,
    /// 010b: the value kept over resets.
    Saved,
    /// 011b: whether the feature is saveable, changeable and per namespace, as bits.
    SupportedCapabilities,
}

/// Action of Namespace Attachment (SEL, Base 5.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentSelect {
    /// 0h: attach the listed controllers.
    Attach,
    /// 1h: detach the listed controllers.
    Detach,
}

const PC: u32 = 1;
const IEN: u32 = 1 << 1;
const RAE: u32 = 1 << 15;
const SAVE: u32 = 1 << 31;

impl Sqe {
    const fn admin(opcode: AdminOpcode, nsid: Nsid) -> Sqe {
        Sqe::new(opcode.0, nsid)
    }

    /// Builds Identify (Base 5.17), which returns 4096 bytes. Pass `cntid` 0 where the structure does not need it.
    pub const fn identify(cns: Cns, nsid: Nsid, cntid: u16) -> Sqe {
        Sqe::admin(AdminOpcode::IDENTIFY, nsid).with_cdw10((cntid as u32) << 16 | cns.0 as u32)
    }

    /// Builds Create I/O Completion Queue (Base 5.4). The data pointer is the queue; without `vector`, interrupts are
    /// off.
    pub const fn create_io_cq(
        qid: Qid,
        entries: QueueEntries,
        vector: Option<u16>,
        physically_contiguous: bool,
    ) -> Sqe {
        let interrupt = match vector {
            Some(vector) => (vector as u32) << 16 | IEN,
            None => 0,
        };
        Sqe::admin(AdminOpcode::CREATE_IO_CQ, Nsid::NONE)
            .with_cdw10((entries.z() as u32) << 16 | qid.0 as u32)
            .with_cdw11(interrupt | physically_contiguous as u32)
    }

    /// Builds Create I/O Submission Queue (Base 5.5), physically contiguous. The data pointer is the queue.
    pub const fn create_io_sq(
        qid: Qid,
        cqid: Qid,
        entries: QueueEntries,
        priority: QueuePriority,
    ) -> Sqe {
        Sqe::admin(AdminOpcode::CREATE_IO_SQ, Nsid::NONE)
            .with_cdw10((entries.z() as u32) << 16 | qid.0 as u32)
            .with_cdw11((cqid.0 as u32) << 16 | (priority as u32) << 1 | PC)
    }

    /// Builds Delete I/O Completion Queue (Base 5.6); delete its submission queues first.
    pub const fn delete_io_cq(qid: Qid) -> Sqe {
        Sqe::admin(AdminOpcode::DELETE_IO_CQ, Nsid::NONE).with_cdw10(qid.0 as u32)
    }

    /// Builds Delete I/O Submission Queue (Base 5.7).
    pub const fn delete_io_sq(qid: Qid) -> Sqe {
        Sqe::admin(AdminOpcode::DELETE_IO_SQ, Nsid::NONE).with_cdw10(qid.0 as u32)
    }

    /// Builds Get Log Page (Base 5.16) for `bytes` of log `lid` from byte `offset`.
    ///
    /// With `rae`, the log's asynchronous event stays pending. Returns `None` if `bytes` is 0, or if `bytes` or
    /// `offset` is not a multiple of 4.
    pub const fn get_log_page(
        lid: Lid,
        nsid: Nsid,
        bytes: u32,
        offset: u64,
        rae: bool,
    ) -> Option<Sqe> {
        if bytes == 0 || !bytes.is_multiple_of(4) || !offset.is_multiple_of(4) {
            return None;
        }
        let numd_z = bytes / 4 - 1;
        let flags = if rae { RAE } else { 0 };
        Some(Sqe {
            cdw10: U32::new((numd_z & 0xffff) << 16 | flags | lid.0 as u32),
            cdw11: U32::new(numd_z >> 16),
            cdw12: U32::new(offset as u32),
            cdw13: U32::new((offset >> 32) as u32),
            ..Sqe::admin(AdminOpcode::GET_LOG_PAGE, nsid)
        })
    }

    /// Builds Set Features (Base 5.27); with `save`, the value survives resets.
    pub const fn set_features(fid: Fid, nsid: Nsid, cdw11: u32, save: bool) -> Sqe {
        let sv = if save { SAVE } else { 0 };
        Sqe::admin(AdminOpcode::SET_FEATURES, nsid).with_cdw10(sv | fid.0 as u32).with_cdw11(cdw11)
    }

    /// Builds Get Features (Base 5.15); `cdw11` is 0 for most features.
    pub const fn get_features(fid: Fid, nsid: Nsid, cdw11: u32, select: FeatureSelect) -> Sqe {
        let sel = (select as u32) << 8;
        Sqe::admin(AdminOpcode::GET_FEATURES, nsid).with_cdw10(sel | fid.0 as u32).with_cdw11(cdw11)
    }

    /// Builds Abort (Base 5.1) of command `cid` on submission queue `sqid`.
    pub const fn abort(sqid: Qid, cid: Cid) -> Sqe {
        Sqe::admin(AdminOpcode::ABORT, Nsid::NONE).with_cdw10((cid.0 as u32) << 16 | sqid.0 as u32)
    }

    /// Builds Asynchronous Event Request (Base 5.2). It stays outstanding until an event occurs.
    pub const fn async_event_request() -> Sqe {
        Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, Nsid::NONE)
    }

    /// Builds Doorbell Buffer Config (Base 5.8) from the pages of shadow doorbells and event indices.
    pub const fn doorbell_buffer_config(shadow: Iova, event_index: Iova) -> Sqe {
        Sqe::admin(AdminOpcode::DOORBELL_BUFFER_CONFIG, Nsid::NONE)
            .with_dptr(DataPointer::Prp { prp1: shadow, prp2: event_index })
    }

    /// Builds Namespace Attachment (Base 5.22); the data is a controller list.
    pub const fn namespace_attachment(nsid: Nsid, select: AttachmentSelect) -> Sqe {
        Sqe::admin(AdminOpcode::NAMESPACE_ATTACHMENT, nsid).with_cdw10(select as u32)
    }
}

/// Accessors for the controller's side.
impl Sqe {
    /// CNS of Identify.
    pub const fn cns(&self) -> Cns {
        Cns(self.cdw10.get() as u8)
    }

    /// Queue identifier of the four queue commands.
    pub const fn qid(&self) -> Qid {
        Qid(self.cdw10.get() as u16)
    }

    /// Queue size of the two queue creations; `None` for the invalid wire value 0.
    pub const fn queue_entries(&self) -> Option<QueueEntries> {
        QueueEntries::new((self.cdw10.get() >> 16) + 1)
    }

    /// Log page identifier of Get Log Page.
    pub const fn lid(&self) -> Lid {
        Lid(self.cdw10.get() as u8)
    }

    /// Feature identifier of Set Features and Get Features.
    pub const fn fid(&self) -> Fid {
        Fid(self.cdw10.get() as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queue_creation_golden_dwords() {
        let entries = QueueEntries::new(64).unwrap();
        let cq = Sqe::create_io_cq(Qid(3), entries, Some(2), true);
        assert_eq!(
            [cq.cdw0.get(), cq.cdw10.get(), cq.cdw11.get()],
            [0x05, 0x003f_0003, 0x0002_0003]
        );
        let sq = Sqe::create_io_sq(Qid(3), Qid(3), entries, QueuePriority::Medium);
        assert_eq!(
            [sq.cdw0.get(), sq.cdw10.get(), sq.cdw11.get()],
            [0x01, 0x003f_0003, 0x0003_0005]
        );
        assert_eq!(Sqe::create_io_cq(Qid(3), entries, None, true).cdw11.get(), 1);
        assert_eq!(Sqe::default().queue_entries(), None);
    }

    #[test]
    fn log_page_lengths_are_dwords() {
        assert_eq!(Sqe::get_log_page(Lid::SMART_HEALTH, Nsid::ALL, 0, 0, false), None);
        assert_eq!(Sqe::get_log_page(Lid::SMART_HEALTH, Nsid::ALL, 6, 0, false), None);
        assert_eq!(Sqe::get_log_page(Lid::SMART_HEALTH, Nsid::ALL, 8, 2, false), None);
        let sqe = Sqe::get_log_page(Lid::SMART_HEALTH, Nsid::ALL, 512, 0, true).unwrap();
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get()), (0x007f_8002, 0));
        let sqe = Sqe::get_log_page(Lid::SMART_HEALTH, Nsid::ALL, !3, 0, true).unwrap();
        assert_eq!((sqe.cdw10.get() >> 16, sqe.cdw11.get()), (0xfffe, 0x3fff));
    }

    #[test]
    fn selections_golden_dwords() {
        use FeatureSelect::{Current, Default, Saved, SupportedCapabilities};
        let dwords = [Current, Default, Saved, SupportedCapabilities]
            .map(|select| Sqe::get_features(Fid(0), Nsid::NONE, 0, select).cdw10.get());
        assert_eq!(dwords, [0, 0x100, 0x200, 0x300]);
        use AttachmentSelect::{Attach, Detach};
        let dwords =
            [Attach, Detach].map(|select| Sqe::namespace_attachment(Nsid(1), select).cdw10.get());
        assert_eq!(dwords, [0, 1]);
        use QueuePriority::{High, Low, Medium, Urgent};
        let dwords = [Urgent, High, Medium, Low].map(|priority| {
            Sqe::create_io_sq(Qid(1), Qid(2), QueueEntries::MIN, priority).cdw11.get()
        });
        assert_eq!(dwords, [0x2_0001, 0x2_0003, 0x2_0005, 0x2_0007]);
    }

    #[test]
    fn commands_without_parameters() {
        assert_eq!(Sqe::async_event_request().admin_opcode(), AdminOpcode::ASYNC_EVENT_REQUEST);
        let dbbuf = Sqe::doorbell_buffer_config(Iova(0x1000), Iova(0x2000));
        assert_eq!((dbbuf.prp1(), dbbuf.prp2()), (Iova(0x1000), Iova(0x2000)));
    }

    proptest! {
        #[test]
        fn identify_round_trips(cns: u8, nsid: u32, cntid: u16) {
            let sqe = Sqe::identify(Cns(cns), Nsid(nsid), cntid);
            prop_assert_eq!((sqe.cns(), sqe.nsid()), (Cns(cns), Nsid(nsid)));
            prop_assert_eq!(sqe.cdw10.get() >> 16, u32::from(cntid));
        }

        #[test]
        fn queues_round_trip(qid: u16, entries in 2u32..=65536, vector: u16, pc: bool) {
            let entries = QueueEntries::new(entries).unwrap();
            let sqe = Sqe::create_io_cq(Qid(qid), entries, Some(vector), pc);
            prop_assert_eq!((sqe.qid(), sqe.queue_entries()), (Qid(qid), Some(entries)));
            prop_assert_eq!(sqe.cdw11.get(), u32::from(vector) << 16 | IEN | u32::from(pc));
            prop_assert_eq!((Sqe::delete_io_cq(Qid(qid)).qid(), Sqe::delete_io_sq(Qid(qid)).qid()), (Qid(qid), Qid(qid)));
        }

        #[test]
        fn log_pages_round_trip(lid: u8, dwords in 1u32..1 << 30, offset: u64, rae: bool) {
            let bytes = dwords * 4;
            let sqe = Sqe::get_log_page(Lid(lid), Nsid::ALL, bytes, offset & !3, rae);
            let [numd, flags] = sqe.map_or([0; 2], |sqe| {
                [sqe.cdw10.get() >> 16 | sqe.cdw11.get() << 16, sqe.cdw10.get() & 0xffff]
            });
            prop_assert_eq!(numd + 1, bytes / 4);
            prop_assert_eq!(flags, u32::from(lid) | if rae { RAE } else { 0 });
            let sqe = sqe.expect("whole dwords");
            let wire_offset = u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32;
            prop_assert_eq!((sqe.lid(), wire_offset), (Lid(lid), offset & !3));
        }

        #[test]
        fn features_and_abort_round_trip(fid: u8, cdw11: u32, save: bool, sqid: u16, cid: u16) {
            let set = Sqe::set_features(Fid(fid), Nsid::NONE, cdw11, save);
            prop_assert_eq!((set.fid(), set.cdw11.get()), (Fid(fid), cdw11));
            prop_assert_eq!(set.cdw10.get() & SAVE != 0, save);
            let abort = Sqe::abort(Qid(sqid), Cid(cid));
            prop_assert_eq!(abort.cdw10.get(), u32::from(cid) << 16 | u32::from(sqid));
        }
    }
}
