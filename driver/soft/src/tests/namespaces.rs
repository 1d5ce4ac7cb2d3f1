//! Several namespaces: creating, attaching and deleting them.

use super::*;

fn manage(opcode: u8, select: u32, nsid: u32) -> Cmd {
    Cmd::new(opcode).nsid(nsid).with(10, select).prp(DATA, 0)
}

impl Rig {
    fn create(&mut self, lbas: u64, format: u8) -> Done {
        let mut page = vec![0; 4096];
        page[..8].copy_from_slice(&lbas.to_le_bytes());
        page[8..16].copy_from_slice(&lbas.to_le_bytes());
        page[26] = format;
        self.poke(DATA, &page);
        self.admin(manage(0x0d, 0, 0))
    }

    fn attach(&mut self, select: u32, nsid: u32) -> Status {
        self.poke(DATA, &[1, 0, 0, 0]);
        self.admin(manage(0x15, select, nsid)).status
    }
}

#[test]
fn namespaces_do_not_see_each_other() {
    let mut rig = Rig::new("mem=3M,lba=512+4096+512");
    for (nsid, lba) in [(1, 512), (2, 4096), (3, 512)] {
        rig.poke(DATA, &pattern(lba, nsid as u8));
        rig.ok(write(0, 1).nsid(nsid));
    }
    for (nsid, lba) in [(1, 512), (2, 4096), (3, 512)] {
        rig.ok(read(0, 1).nsid(nsid));
        assert_eq!(rig.peek(DATA, lba), pattern(lba, nsid as u8));
    }
    assert_eq!(rig.io(read(256, 1).nsid(2)), Status::LBA_OUT_OF_RANGE);
}

#[test]
fn a_namespace_is_deleted_made_attached_and_empty() {
    let mut rig = Rig::new("mem=1M,namespaces=2");
    rig.poke(DATA, &pattern(512, 1));
    rig.ok(write(0, 1).nsid(1));
    assert_eq!(rig.create(8, 0).status, Status::NAMESPACE_INSUFFICIENT_CAPACITY);
    assert_eq!(rig.admin(manage(0x0d, 1, 1)).status, Status::SUCCESS);
    assert_eq!(rig.admin(manage(0x0d, 1, 1)).status, Status::INVALID_NAMESPACE_OR_FORMAT);
    assert_eq!(rig.io(read(0, 1)), Status::INVALID_FIELD_IN_COMMAND);
    let made = rig.create(100, 1);
    assert_eq!((made.status, made.dw0), (Status::SUCCESS, 1));
    assert_eq!(rig.io(read(0, 1)), Status::INVALID_FIELD_IN_COMMAND);
    rig.admin(identify(2, 0));
    assert_eq!((rig.peek_u32(DATA), rig.peek_u32(DATA + 4)), (2, 0));
    rig.admin(identify(0x10, 0));
    assert_eq!((rig.peek_u32(DATA), rig.peek_u32(DATA + 4)), (1, 2));
    assert_eq!(rig.attach(0, 1), Status::SUCCESS);
    assert_eq!(rig.attach(0, 1), Status::NAMESPACE_ALREADY_ATTACHED);
    rig.ok(read(0, 1));
    assert_eq!(rig.peek(DATA, 4096), [0; 4096]);
    assert_eq!(rig.attach(1, 1), Status::SUCCESS);
    assert_eq!(rig.attach(1, 1), Status::NAMESPACE_NOT_ATTACHED);
    assert_eq!(rig.attach(7, 1), Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.attach(0, 9), Status::INVALID_NAMESPACE_OR_FORMAT);
}

#[test]
fn bad_requests_are_refused() {
    let mut rig = Rig::admin_only("mem=1M,namespaces=2");
    assert_eq!(rig.create(8, 2).status, Status::INVALID_FORMAT);
    assert_eq!(rig.create(0, 0).status, Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.admin(manage(0x0d, 5, 0)).status, Status::INVALID_FIELD_IN_COMMAND);
    rig.poke(DATA, &[2, 0, 0, 0]);
    assert_eq!(rig.admin(manage(0x15, 0, 1)).status, Status::CONTROLLER_LIST_INVALID);
    assert_eq!(rig.admin(manage(0x0d, 1, u32::MAX)).status, Status::SUCCESS);
    rig.admin(identify(0x10, 0));
    assert_eq!(rig.peek_u32(DATA), 0);
}
