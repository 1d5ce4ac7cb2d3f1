//! Tests jobs on several files or devices.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A temporary directory of one test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let path = std::env::temp_dir().join(format!("adit-files-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        TestFolder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Counts a file's blocks of 4 KiB that are not zero.
    fn blocks(&self, name: &str) -> usize {
        let content = fs::read(self.0.join(name)).expect("the file");
        content.chunks(4096).filter(|block| block.iter().any(|byte| *byte != 0)).count()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("what was created");
    }
}

#[test]
fn files_of_its_own_share_the_size_of_the_job() {
    let place = TestFolder::new("nrfiles");
    let (a, b, c) = ("w.0.0", "w.0.1", "w.0.2");
    let job = format!("name=w directory={} nrfiles=3 size=40k bs=4k rw=write", place.0.display());
    let written = run_one(&job);
    assert_eq!((written.ways[Way::Write].ios, written.ways[Way::Write].bytes), (10, 40 << 10));
    assert_eq!([a, b, c].map(|name| place.blocks(name)), [4, 3, 3]);
    // unlink removes all of them.
    run_one(&format!("{job} unlink=1 rw=read"));
    assert_eq!(fs::read_dir(&place.0).expect("there").count(), 0);
}

#[test]
fn several_files_are_verified_over_every_path_and_in_every_order() {
    for path in ["psync", "mmap", "uring"] {
        for service in ["roundrobin", "roundrobin:7", "random", "sequential"] {
            let place = TestFolder::new(&format!("{path}-{service}"));
            let (a, b) = (place.file("a"), place.file("b"));
            let options = format!(
                "filename={path}:{a}:{path}:{b} size=512k bs=4k iodepth=8 verify=crc32c \
                 rw=randwrite file_service_type={service}"
            );
            let job = run_one(&options);
            assert_eq!(
                (job.ways[Way::Write].ios, job.ways[Way::Read].ios),
                (128, 128),
                "{options}"
            );
            assert_eq!(["a", "b"].map(|name| place.blocks(name)), [64, 64], "{options}");
            // Offsets and headers are relative to each file, so a job on a single one verifies it.
            let alone = format!("filename={path}:{b} size=256k bs=4k rw=read verify=crc32c");
            assert_eq!(run_one(&alone).ways[Way::Read].ios, 64);
        }
    }
}

#[test]
fn several_controllers_are_driven_by_one_job() {
    let (one, two) = ("soft:mem=1M,seed=1", "soft:mem=2M,seed=2,lba=4096");
    for service in ["random", "roundrobin"] {
        let job = run_one(&format!(
            "filename={one}:{two} bs=4k iodepth=16 rw=randwrite verify=md5 fsync=5 end_fsync=1 \
             file_service_type={service}"
        ));
        assert_eq!((job.ways[Way::Write].ios, job.ways[Way::Read].ios), (768, 768));
        assert!(job.sync.count() > 768 / 5, "{} flushes", job.sync.count());
        assert_eq!(job.target, format!("{one}:{two}"));
    }
    // Kernel path and driver in one job.
    let place = TestFolder::new("mixed");
    let file = place.file("x");
    let job = run_one(&format!(
        "filename=uring:{file}:{one} size=512k bs=4k iodepth=16 rw=randwrite verify=crc32c"
    ));
    assert_eq!((job.ways[Way::Read].ios, place.blocks("x")), (128, 64));
}

#[test]
fn a_mismatch_names_the_file_that_it_is_in() {
    let place = TestFolder::new("mismatch");
    let (a, b) = (place.file("a"), place.file("b"));
    let options = format!("filename=psync:{a}:psync:{b} size=64k bs=4k verify=crc32c");
    run_one(&format!("{options} rw=write"));
    let mut content = fs::read(&b).expect("there");
    content[8192 + 100] ^= 1;
    fs::write(&b, content).expect("writable");
    let job = run(&[&format!("{options} rw=read")]).jobs.remove(0);
    let failure = job.failure.expect("found").first;
    assert!(failure.contains("block at offset 8192") && failure.contains("psync:"), "{failure}");
    assert!(failure.contains("/b"), "{failure}");
}

#[test]
fn a_size_that_leaves_a_file_without_a_block_is_refused() {
    let said = refusal(&["filename=soft:mem=1M,seed=1:soft:mem=1M,seed=2 size=4k bs=4k"]);
    assert!(said.contains("less than one block"), "{said}");
    let place = TestFolder::new("twice");
    let file = place.file("a");
    let said =
        refusal(&[&format!("filename=psync:{file}:psync:{file} size=64k rw=write verify=crc32c")]);
    assert!(said.contains("writes the same blocks"), "{said}");
}

#[test]
fn loops_and_what_is_to_be_moved_go_round_all_files() {
    let job = run_one("filename=soft:mem=1M,seed=1:soft:mem=1M,seed=2 bs=64k rw=read loops=3");
    assert_eq!(job.ways[Way::Read].ios, 96);
    let more = "filename=soft:mem=1M,seed=1:null: size=2m bs=64k rw=randread io_size=5m";
    assert_eq!(run_one(more).ways[Way::Read].ios, 80);
}

#[test]
fn durable_writes_say_so_and_nothing_else_does() {
    use std::sync::Mutex;
    for (sync, is_durable) in
        [("none", false), ("0", false), ("sync", true), ("1", true), ("dsync", true)]
    {
        let (bus, seen) = (bus(), Arc::new(Mutex::new(Vec::new())));
        let sink = seen.clone();
        bus.with_controller(move |controller| {
            controller.set_hook(move |sqe: &Sqe, qid: Qid| {
                if !qid.is_admin() {
                    sink.lock().expect("whole").push((sqe.opcode() == WRITE, sqe.fua()));
                }
                Verdict::Run
            });
        });
        run_on(&bus, &request(&[&format!("{VERIFIED} rw=write size=64k sync={sync}")]));
        let seen = seen.lock().expect("whole");
        assert_eq!(seen.iter().filter(|(writes, _)| *writes).count(), 16);
        assert!(seen.iter().all(|(writes, fua)| *fua == (*writes && is_durable)), "{sync}");
    }
    let place = TestFolder::new("durable");
    for (path, sync) in [("psync", "dsync"), ("psync", "sync"), ("uring", "dsync"), ("mmap", "1")] {
        let file = place.file(path);
        run_one(&format!("filename={path}:{file} size=64k rw=write verify=crc32c sync={sync}"));
    }
}

#[test]
fn the_controller_checks_the_tags_that_are_asked_for() {
    let place = TestFolder::new("protection");
    let file = place.file("disk");
    let job = |options: &str| {
        let job = format!(
            "filename=soft:file={file},size=1M,pi=1 size=64k bs=4k randrepeat=1 iodepth=4 {options}"
        );
        run(&[&job]).jobs.remove(0).failure.map(|failure| failure.first)
    };
    assert_eq!(job("rw=write apptag=0x5678"), None);
    let found = job("rw=read pi_chk=guard,APPTAG apptag=0x5679").expect("another tag");
    assert!(found.contains("Application Tag Check Error"), "{found}");
    assert_eq!(job("rw=read pi_chk=GUARD,REFTAG,APPTAG apptag=0x5678"), None);
    assert_eq!(job("rw=read pi_chk=APPTAG apptag=0x5679 apptag_mask=0xff00"), None);
    assert_eq!(job("rw=read pi_chk=GUARD,REFTAG apptag=1"), None, "it is not asked for");
    let said = refusal(&["filename=soft:mem=1M rw=read pi_chk=GUARD"]);
    assert!(said.contains("has no protection information"), "{said}");
    let said = refusal(&["filename=soft:mem=1M,pi=3 rw=read pi_chk=REFTAG"]);
    assert!(said.contains("type 3"), "{said}");
}

#[test]
fn what_may_not_overlap_is_no_deeper_than_there_are_blocks() {
    let options =
        "filename=soft:mem=1M rw=randrw size=16k io_size=1m bs=4k norandommap=1 iodepth=16";
    let deep = |options: &str| {
        let job = run_one(options);
        assert_eq!(job.ways[Way::Read].ios + job.ways[Way::Write].ios, 256);
        job.depths.depth_percent()[3..].iter().sum::<f64>()
    };
    assert!(deep(options) > 50.0);
    assert_eq!(deep(&format!("{options} serialize_overlap=1")), 0.0);
}

#[test]
fn each_file_is_as_long_as_asked_whatever_the_blocks() {
    for path in ["psync", "mmap", "io_uring"] {
        for (rw, direct) in [("write", 0), ("randread", 0), ("randrw", 1)] {
            let place = TestFolder::new(&format!("filesize-{path}-{rw}"));
            let folder = place.0.display();
            let job = run_one(&format!(
                "name=l directory={folder} nrfiles=2 filesize=30k bs=4k rw={rw} ioengine={path} direct={direct}"
            ));
            assert_eq!(job.ways.0.iter().map(|way| way.ios).sum::<u64>(), 14, "{path} {rw}");
            let lengths = ["l.0.0", "l.0.1"]
                .map(|name| fs::metadata(place.0.join(name)).expect("the file").len());
            assert_eq!(lengths, [30 << 10; 2], "{path} {rw}");
        }
    }
}
