//! Registers shown by a device.

use std::hint::black_box;

use adit_driver::spec::Qid;
use adit_driver::spec::register::{
    Aqa, Cap, Cc, Cmbloc, Cmbmsc, Cmbsts, Cmbsz, Crto, Csts, Version, doorbell_cq, doorbell_sq,
};

use super::{look, show};

pub(super) fn all(bytes: &[u8]) {
    for raw in bytes.chunks_exact(8).take(16) {
        let raw = u64::from_le_bytes(raw.try_into().expect("eight bytes"));
        properties(raw);
        configuration(raw as u32);
        memory_buffer(raw);
    }
}

fn properties(raw: u64) {
    let cap = Cap(raw);
    show(&cap, None);
    look!(cap; mqes_z, cqr, ams, to_500ms, to, dstrd, nssrs, css, css_nvm, mpsmin, mpsmax,
        page_size_min, page_size_max, pmrs, cmbs, crms_crwms);
    for qid in [Qid(0), Qid(1), Qid(u16::MAX)] {
        let (sq, cq) = (doorbell_sq(qid, cap.dstrd()), doorbell_cq(qid, cap.dstrd()));
        assert!(sq >= 0x1000 && (cq > sq || cq == u32::MAX), "behind the registers, or nowhere");
    }
    let version = Version(raw as u32);
    show(&version, Some(&version));
    look!(version; mjr, mnr, ter);
    let crto = Crto(raw as u32);
    show(&crto, None);
    look!(crto; crwmt_500ms, crwmt);
}

fn configuration(raw: u32) {
    let cc = Cc(raw);
    show(&cc, Some(&cc));
    look!(cc; en, css, mps, page_size, ams, shn, iosqes, iocqes, crime);
    let csts = Csts(raw);
    show(&csts, Some(&csts));
    look!(csts; rdy, cfs, shst, nssro, pp, is_all_ones);
    let aqa = Aqa(raw);
    show(&aqa, None);
    look!(aqa; asqs_z, acqs_z);
}

fn memory_buffer(raw: u64) {
    let (place, size) = (Cmbloc(raw as u32), Cmbsz((raw >> 32) as u32));
    show(&place, None);
    look!(place; bir, ofst);
    black_box(place.offset_bytes(size));
    show(&size, None);
    look!(size; sqs, cqs, lists, rds, wds, szu, sz, unit_bytes, size_bytes);
    show(&Cmbmsc(raw), None);
    show(&Cmbsts(raw as u32), None);
    look!(Cmbsts(raw as u32); cbai);
}
