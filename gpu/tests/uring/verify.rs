//! Checksums that the GPU compares: of what rings and the staged engine read, intact and not, and misuse.

use std::time::Duration;

use adit_driver::spec::Lba;
use adit_gpu::{
    Check, Direction, EngineChoice, Error, GioUring, Gpu, KernelChoice, Options, Place, Priority,
    Slice, Stream, Transfer,
};

use crate::life::{read, write};
use crate::rig::{LONG, REGIONS, Rig, alone, options};

const SOFT: &str = "soft:mem=8M,dbbuf=off";
/// Bytes that a check of the tests is over, in two slices.
const BYTES: u64 = 8192 + 512;
const CHECKS: u64 = 40;

fn engines() -> [Options; 3] {
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };
    [options(), persistent, Options { engine: EngineChoice::Staged, ..options() }]
}

/// Computes a CRC-32C bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let divide = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| divide(crc));
    !bytes.iter().fold(!0, byte)
}

fn contents(check: u64) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 512 * 7 + check * 101) as u8).collect()
}

/// The slices of a check lie in two regions, in the order of the checks in one of them, in reverse in the other.
fn slices(check: u64) -> [Slice; 2] {
    let second = (CHECKS - 1 - check) * 512;
    [
        Slice { region: 0, offset: check * 8192, bytes: 8192 },
        Slice { region: 1, offset: second, bytes: 512 },
    ]
}

fn checks() -> impl Iterator<Item = Check<[Slice; 2]>> {
    (0..CHECKS).map(|check| Check { slices: slices(check), crc32c: crc32c(&contents(check)) })
}

fn transfer(check: u64, direction: Direction) -> Transfer<[Slice; 2]> {
    Transfer { device: 0, direction, lba: Lba(64 + check * (BYTES / 512)), slices: slices(check) }
}

/// Writes the contents through the pool to the device, and clears the pool.
fn put(rig: &Rig) {
    let pool = rig.uring.pool();
    for check in 0..CHECKS {
        let (bytes, [first, second]) = (contents(check), slices(check));
        pool.write(0, first.offset, &bytes[..8192]).expect("written");
        pool.write(1, second.offset, &bytes[8192..]).expect("written");
    }
    let all = (0..CHECKS).map(|check| transfer(check, Direction::Write));
    let iocbs = rig.uring.get_iocb(all, None).expect("blocks");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
    for (region, bytes) in REGIONS.into_iter().enumerate() {
        pool.write(region, 0, &vec![0; bytes as usize]).expect("written");
    }
}

/// Reads everything back and verifies it in one stream, without the CPU in between; returns the corrupt checks.
fn read_and_verify(rig: &Rig) -> Vec<usize> {
    let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
    let all = (0..CHECKS).map(|check| transfer(check, Direction::Read));
    let iocbs = rig.uring.get_iocb(all, None).expect("blocks");
    rig.uring.wait_cqe(&iocbs, &compute).expect("enqueued");
    let verifying = rig.uring.verify(checks(), &compute).expect("enqueued");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    let verdicts = verifying.wait(LONG).expect("verified");
    assert_eq!(verdicts.checks as u64, CHECKS);
    assert_eq!(verdicts.is_intact(), verdicts.corrupt.is_empty());
    assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
    verdicts.corrupt
}

fn verify_now(rig: &Rig) -> Vec<usize> {
    let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
    rig.uring.verify(checks(), &compute).expect("enqueued").wait(LONG).expect("verified").corrupt
}

#[test]
fn what_was_put_is_intact_and_a_flipped_bit_or_a_swapped_page_is_not() {
    for (options, place) in engines()
        .into_iter()
        .flat_map(|options| [(options.clone(), Place::Host), (options, Place::Gpu)])
    {
        let _alone = alone("");
        let rig = Rig::new(&[SOFT], place, &options);
        put(&rig);
        assert_eq!(verify_now(&rig), (0..CHECKS as usize).collect::<Vec<_>>(), "all is zero");
        assert_eq!(read_and_verify(&rig), [0; 0]);
        let pool = rig.uring.pool();
        let flip = |region: usize, offset: u64| {
            let mut byte = [0];
            pool.read(region, offset, &mut byte).expect("read");
            pool.write(region, offset, &[byte[0] ^ 0x10]).expect("written");
        };
        flip(0, 7 * 8192 + 8191);
        flip(1, slices(9)[1].offset);
        assert_eq!(verify_now(&rig), [7, 9]);
        // Whole pages at each other's places.
        let [mut a, mut b] = [[0; 8192], [0; 8192]];
        pool.read(0, 20 * 8192, &mut a).expect("read");
        pool.read(0, 21 * 8192, &mut b).expect("read");
        pool.write(0, 20 * 8192, &b).expect("written");
        pool.write(0, 21 * 8192, &a).expect("written");
        assert_eq!(verify_now(&rig), [7, 9, 20, 21]);
        assert_eq!(read_and_verify(&rig), [0; 0], "the device still has it");
    }
}

#[test]
fn a_bit_that_flips_on_the_medium_is_found_although_the_command_succeeds() {
    for options in engines() {
        let _alone = alone("");
        let lba = 64 + 5 * (BYTES / 512) + 3;
        let target = format!("{SOFT},faults=rot@read:lba={lba}-{lba}:times=1");
        let rig = Rig::new(&[&target], Place::Host, &options);
        put(&rig);
        assert_eq!(read_and_verify(&rig), [5]);
    }
}

#[test]
fn checks_end_with_their_verdicts_in_order_however_many_slots_they_take() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &options());
    let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
    let byte = |at: u64| [Slice { region: 0, offset: at, bytes: 1 }];
    let (right, wrong) = (crc32c(&[0]), crc32c(&[1]));
    let is_wrong = |at: u64| at.is_multiple_of(1000) || at == 2047;
    let all = (0..5000)
        .map(|at| Check { slices: byte(at), crc32c: if is_wrong(at) { wrong } else { right } });
    let verdicts = rig.uring.verify(all, &compute).expect("enqueued").wait(LONG).expect("verified");
    let expected = (0..5000).filter(|at| is_wrong(*at)).map(|at| at as usize).collect::<Vec<_>>();
    assert_eq!((verdicts.checks, verdicts.corrupt), (5000, expected));
    let none = rig.uring.verify([] as [Check<[Slice; 0]>; 0], &compute).expect("nothing to do");
    assert_eq!(none.wait(LONG).expect("nothing").checks, 0);
    let empty = Check { slices: [] as [Slice; 0], crc32c: 0 };
    assert!(
        rig.uring.verify([empty], &compute).expect("enqueued").wait(LONG).expect("ok").is_intact()
    );
}

fn refused(uring: &GioUring, slices: &[Slice], stream: &Stream) -> Error {
    uring.verify([Check { slices, crc32c: 0 }], stream).expect_err("not possible")
}

#[test]
fn checks_outside_the_pool_or_of_another_gpus_stream_are_refused() {
    for options in engines() {
        let _alone = alone("gpus=2");
        let rig = Rig::new(&[SOFT], Place::Host, &options);
        let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        for (region, offset, bytes) in
            [(0, REGIONS[0], 1), (0, u64::MAX, 2), (1, 1, REGIONS[1]), (2, 0, 1)]
        {
            let error = refused(&rig.uring, &[Slice { region, offset, bytes }], &compute);
            assert!(error.is_usage(), "{error:?}");
        }
        let many = vec![Slice { region: 0, offset: 0, bytes: 1 }; 2049];
        let error = refused(&rig.uring, &many, &compute);
        assert!(error.is_usage() && error.to_string().contains("at most 2048"), "{error}");
        let other = Stream::new(&Gpu::open(1).expect("a GPU"), Priority::Normal).expect("a stream");
        let error = refused(&rig.uring, &many[..1], &other);
        assert!(error.is_usage() && error.to_string().contains("a stream of GPU 1"), "{error}");
        assert!(compute.is_idle().expect("a stream"), "nothing was enqueued");
    }
}

#[test]
fn slots_come_back_once_their_checks_have_ended() {
    for options in engines() {
        let _alone = alone("no-green,free-waits,patience=3000");
        let rig = Rig::new(&[SOFT], Place::Host, &Options { blocks: 2, ..options });
        let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        let one = || [Check { slices: [Slice { region: 0, offset: 0, bytes: 0 }], crc32c: 0 }];
        let iocbs = rig.uring.get_iocb([write(0, 0)], None).expect("a block");
        // With the staged engine, the first call loads the kernel.
        assert!(rig.uring.verify(one(), &compute).expect("ok").wait(LONG).expect("ok").is_intact());
        rig.uring.wait_cqe(&iocbs, &compute).expect("enqueued");
        let first = rig.uring.verify(one(), &compute).expect("enqueued");
        drop(rig.uring.verify(one(), &compute).expect("enqueued"));
        let error = rig.uring.verify(one(), &compute).expect_err("both slots are in use");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let error = first.wait(Duration::ZERO).expect_err("its stream waits");
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        compute.synchronize(LONG).expect("done");
        let both = [(); 2].map(|()| rig.uring.verify(one(), &compute).expect("both are free"));
        for verifying in both {
            assert!(verifying.wait(LONG).expect("verified").is_intact());
        }
        assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
    }
}

#[test]
fn dropping_the_rings_waits_for_checks_that_read_the_pool() {
    for options in engines() {
        let _alone = alone("no-green,free-waits,patience=3000");
        let rig = Rig::new(&[SOFT], Place::Host, &options);
        let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        let none = [] as [Check<[Slice; 0]>; 0];
        rig.uring.verify(none, &compute).expect("ok").wait(LONG).expect("the kernel is loaded");
        let never = rig.uring.get_iocb([read(1, 0)], None).expect("a block");
        rig.uring.wait_cqe(&never, &compute).expect("enqueued");
        let kept = rig.uring.verify(checks(), &compute).expect("enqueued");
        drop(rig.uring.verify(checks(), &compute).expect("enqueued"));
        drop(rig);
        assert!(compute.is_idle().expect("a stream"), "the checks have ended");
        assert_eq!(kept.wait(LONG).expect("verified").corrupt.len(), CHECKS as usize);
        drop(never);
    }
}

#[test]
fn a_kernel_that_fails_says_nothing_about_the_bytes() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &options());
    let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
    adit_gpu_emulated::set("fail=cuLaunchKernel:700:1");
    let error = rig.uring.verify(checks(), &compute).expect_err("it was not launched");
    assert!(matches!(error, Error::Cuda { call: "cuLaunchKernel", .. }), "{error:?}");
    adit_gpu_emulated::set("");
    assert_eq!(verify_now(&rig).len(), CHECKS as usize, "the next call works");
}
