//! Tests which commands a controller gets.

use std::sync::Mutex;

use super::*;

/// Runs a job on a controller; returns command dwords 10 to 13 of each I/O command with this opcode.
fn seen(controller: &str, options: &str, opcode: u8) -> Vec<[u32; 4]> {
    let bus = SoftBus::new(controller.parse().expect("options"), Drive::Thread).expect("a bus");
    let all = Arc::new(Mutex::new(Vec::new()));
    let noted = all.clone();
    let hook = move |sqe: &Sqe, qid: Qid| {
        if !qid.is_admin() && sqe.opcode() == opcode {
            let dwords = sqe.to_dwords();
            noted.lock().expect("whole").push([10, 11, 12, 13].map(|at| dwords[at]));
        }
        Verdict::Run
    };
    bus.with_controller(|controller| controller.set_hook(hook));
    let outcome = run_on(&bus, &request(&[&format!("filename=soft:mem=4M {options}")]));
    assert!(outcome.jobs[0].failure.is_none(), "{:?}", outcome.jobs[0].failure);
    all.lock().expect("whole").clone()
}

#[test]
fn writes_go_through_the_handles_that_were_asked_for() {
    let handles = |options: &str| -> Vec<u32> {
        let job = format!("rw=write bs=4k number_ios=12 {options}");
        let writes = seen("mem=4M,fdp=4", &job, WRITE);
        let placed = |[_, _, cdw12, cdw13]: &[u32; 4]| {
            let is_placed = cdw12 >> 20 & 0xf == 2;
            if is_placed { cdw13 >> 16 } else { u32::MAX }
        };
        writes.iter().map(placed).collect()
    };
    assert_eq!(handles("fdp=1"), [0, 1, 2, 3].repeat(3));
    assert_eq!(handles("dataplacement=fdp plids=1,3"), [1, 3].repeat(6));
    assert_eq!(handles("fdp=1 fdp_pli=2"), [2; 12]);
    assert_eq!(handles("plids=2"), [u32::MAX; 12], "only with fdp");
    let random = handles("fdp=1 plid_select=random sync=dsync");
    assert!(random.iter().all(|handle| *handle < 4) && random != handles("fdp=1"), "{random:?}");
    assert_eq!(random, handles("fdp=1 plid_select=random"), "by the job's seed");
    assert_eq!(seen("mem=4M,fdp=4", "rw=read bs=4k number_ios=4 fdp=1", 2)[0][3], 0, "reads");
}

#[test]
fn a_plain_job_sends_the_same_commands_as_one_whose_options_ask_for_more() {
    const READ: u8 = 2;
    for (options, opcode, count) in [
        ("rw=randread bs=4k size=1m", READ, 256),
        ("rw=randread bs=4k norandommap=1 size=1m loops=3", READ, 768),
        ("rw=read bsrange=4k-16k size=1m number_ios=50", READ, 50),
        ("rw=randwrite bs=8k size=1m zero_buffers=1", WRITE, 128),
    ] {
        let sent = |more: &str| seen("mem=4M", &format!("{options} iodepth=7 {more}"), opcode);
        let plain = sent("");
        assert_eq!(plain.len(), count, "{options}");
        // The first asks for a look at each batch, the others for one at each I/O.
        for more in
            ["iodepth_batch_complete_max=7", "max_latency=1m", "serialize_overlap=1 rate_iops=1g"]
        {
            assert_eq!(plain, sent(more), "{options} {more}");
        }
    }
}

#[test]
fn handles_that_are_not_there_are_refused_before_the_first_write() {
    let job = "rw=write bs=4k fdp=1";
    let said = refusal(&[&format!("filename=soft:mem=4M {job}")]);
    assert!(said.contains("has no reclaim unit handles"), "{said}");
    let said = refusal(&[&format!("filename=null: {job}")]);
    assert!(said.contains("use a vfio: target"), "{said}");
    let said = refusal(&[&format!("filename=soft:mem=4M,fdp=2 {job} plids=2")]);
    assert!(said.contains("plids=2") && said.contains("2 reclaim unit handles"), "{said}");
    run_one(&format!("filename=soft:mem=4M,fdp=2 {job} numjobs=1"));
}
