//! Completion queues written by a device, and the feature values and events it reports there.

use std::hint::black_box;

use adit_driver::spec::feature::{AsyncEvent, AsyncEventConfig, NumberOfQueues, Timestamp};
use adit_driver::spec::{Cqe, Fid, Lid, Status, View};

use super::{look, show};

pub(super) fn completion(bytes: &[u8]) {
    for entry in bytes.chunks_exact(size_of::<Cqe>()).take(16) {
        let Some(cqe) = Cqe::view(entry) else { continue };
        show(cqe, None);
        look!(cqe; phase, status, cid, sqid, sqhd, to_dwords);
        assert_eq!(Cqe::from_dwords(cqe.to_dwords()), *cqe, "dwords are the bytes");
        status(cqe.status());
    }
}

fn status(status: Status) {
    show(&status, Some(&status));
    show(&status.code_type(), None);
    look!(status; bits, sc, sct, code_type, crd, more, dnr, code, is_success, is_retryable, name);
    assert!(!status.is_success() || !status.is_retryable(), "success is not sent again");
    assert_eq!(Status::from_bits(status.bits()), status);
}

pub(super) fn features(bytes: &[u8]) {
    for dword in bytes.chunks_exact(4).take(16) {
        let dword = u32::from_le_bytes(dword.try_into().expect("four bytes"));
        values(dword);
        event(dword);
        let [fid, lid, ..] = dword.to_le_bytes();
        show(&Fid(fid), Some(&Fid(fid)));
        show(&Lid(lid), Some(&Lid(lid)));
        black_box((Fid(fid).name(), Lid(lid).name()));
    }
    if let Some(timestamp) = Timestamp::view(bytes) {
        show(timestamp, None);
        look!(timestamp; ms);
    }
}

fn values(dword: u32) {
    show(&AsyncEventConfig(dword), None);
    look!(AsyncEventConfig(dword); critical_warning);
    let queues = NumberOfQueues(dword);
    show(&queues, None);
    look!(queues; submission, completion, pairs);
    assert!(queues.pairs() > 0, "what a driver divides by");
}

fn event(dword: u32) {
    let event = AsyncEvent::from_dword(dword);
    show(&event, Some(&event));
    look!(event; event_type, info, log_page, name);
    assert_eq!(AsyncEvent::from_dword(event.0), event);
}
