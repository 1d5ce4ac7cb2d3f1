//! Refusals: missing, short, truncated and read-only files; too many requests in flight.

use std::fs::OpenOptions;

use adit_driver::paths::{CommandQueue, Operation, Request};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, CommandError, Device, DeviceOptions, Errno, RejectReason, Target};

use super::rig::{PATHS, TestFile, carry_out, queue};

const EBADF: i32 = 9;
const EIO: i32 = 5;

fn refusal(target: &Target, options: &DeviceOptions) -> String {
    Device::open(target, options).expect_err("must be refused").to_string()
}

#[test]
fn a_missing_file_is_refused_with_what_to_do() {
    for path in PATHS {
        let file = TestFile::new();
        let message = refusal(&file.target(path), &DeviceOptions::default());
        assert!(message.contains("No such file") && message.contains("size="), "{message}");
        assert!(!file.path().exists(), "nothing is created unasked");
    }
    let nowhere = "psync:/nonexistent/directory/file".parse().expect("a target");
    let sized = DeviceOptions { file_bytes: Some(4096), ..DeviceOptions::default() };
    assert!(refusal(&nowhere, &sized).contains("create the directory first"));
}

#[test]
fn what_is_no_file_is_refused() {
    let of = |text: &str| text.parse::<Target>().expect("a target");
    let options = DeviceOptions { writes: false, ..DeviceOptions::default() };
    let zero = refusal(&of("psync:/dev/zero,direct=off"), &options);
    assert!(zero.contains("neither a regular file nor a block device: give one"), "{zero}");
    let pipe = TestFile::new();
    nix::unistd::mkfifo(pipe.path(), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let refused = refusal(&pipe.target("psync:FILE,direct=off"), &options);
    assert!(refused.contains("neither a regular file"), "{refused}");
    let file = TestFile::new();
    std::fs::write(file.path(), b"short").expect("a file");
    let short = refusal(&file.target("psync:FILE"), &options);
    assert!(short.contains("give its size"), "{short}");
}

#[test]
fn a_file_that_is_too_short_grows_and_a_longer_one_stays() {
    for path in PATHS {
        let file = TestFile::new();
        std::fs::write(file.path(), vec![7u8; 8192]).expect("a file");
        assert_eq!(file.open(path, 1 << 20).info().bytes, 1 << 20, "{path}");
        assert_eq!(file.open(path, 4096).info().bytes, 1 << 20, "{path}");
        let content = std::fs::read(file.path()).expect("the file");
        assert!(content[..8192].iter().all(|byte| *byte == 7), "{path}: what was there stays");
    }
}

#[test]
fn nothing_is_written_where_writing_was_not_asked_for() {
    for path in PATHS {
        let file = TestFile::new();
        std::fs::write(file.path(), vec![7u8; 1 << 16]).expect("a file");
        let options = DeviceOptions { writes: false, ..DeviceOptions::default() };
        let device = Device::open(&file.target(path), &options).expect("a device");
        assert!(!device.info().deallocates, "{path}");
        let buffer = device.allocate(4096).expect("memory");
        let mut queue = queue(&device, 4, &[&buffer]);
        let written = carry_out(&device, &mut queue, Operation::Write(Lba(0)), buffer);
        assert_eq!(written.result, Err(CommandError::System(Errno(EBADF))), "{path}");
        let read = carry_out(&device, &mut queue, Operation::Read(Lba(0)), written.buffer);
        assert_eq!(read.result, Ok(0), "{path}");
        assert!(read.buffer.iter().all(|byte| *byte == 7), "{path}");
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_open_gives_errors_and_not_a_crash() {
    for path in PATHS {
        let file = TestFile::new();
        let device = file.open(path, 1 << 20);
        let buffer = device.allocate(8192).expect("memory");
        let mut queue = queue(&device, 4, &[&buffer]);
        let cut = OpenOptions::new().write(true).open(file.path()).expect("the file");
        cut.set_len(4096).expect("cutting it");
        let read = carry_out(&device, &mut queue, Operation::Read(Lba(0)), buffer);
        let expected = match path.starts_with("mmap") {
            true => CommandError::System(Errno(EIO)),
            false => CommandError::Short { moved: 4096, asked: 8192 },
        };
        assert_eq!(read.result, Err(expected), "{path}");
        assert!(
            !expected.is_retryable() && queue.check().is_ok(),
            "{path}: the file is still there"
        );
    }
}

#[test]
fn too_many_in_flight_are_given_back() {
    for path in PATHS {
        let file = TestFile::new();
        let device = file.open(path, 1 << 20);
        let mut queue = queue::<Buffer>(&device, 3, &[]);
        let depth = device.info().queue_depth_max.min(3) as usize;
        let memory = || device.allocate(4096).expect("memory");
        for _ in 0..depth {
            let request = Request { operation: Operation::Read(Lba(0)), buffer: memory() };
            queue.post(device.now(), request).expect("room");
        }
        let buffer = memory();
        let at = buffer.as_ptr();
        let request = Request { operation: Operation::Read(Lba(0)), buffer };
        let rejected = queue.post(device.now(), request).expect_err("no room");
        assert_eq!((rejected.reason, rejected.buffer.as_ptr()), (RejectReason::Full, at), "{path}");
        queue.ring();
        let mut ended = 0;
        while ended < depth {
            ended += queue.poll(device.now(), |completion| assert_eq!(completion.result, Ok(0)));
        }
        let again = Request { operation: Operation::Read(Lba(0)), buffer: rejected.buffer };
        queue.post_again(device.now(), again).expect("there is room again");
        assert_eq!(queue.stats().retries, 1, "{path}");
    }
}

#[test]
fn requests_outside_the_file_are_given_back() {
    for path in PATHS {
        let file = TestFile::new();
        let device = file.open(path, 1 << 20);
        let lbas = device.info().bytes / u64::from(device.info().lba_bytes);
        let mut queue = queue::<Buffer>(&device, 3, &[]);
        let buffer = device.allocate(4096).expect("memory");
        let request = Request { operation: Operation::Write(Lba(lbas - 1)), buffer };
        let fits = device.info().lba_bytes == 4096;
        match queue.post(device.now(), request) {
            Err(rejected) => {
                assert!(!fits && matches!(rejected.reason, RejectReason::OutOfRange { .. }));
            }
            Ok(()) => assert!(fits, "{path}"),
        }
    }
}
