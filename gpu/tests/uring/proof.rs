//! Rings are made only where real commands carried data; what fails is passed over, with its reason.

use std::sync::Arc;

use adit_driver::spec::Lba;
use adit_gpu::{Carried, EngineChoice, GioUring, Gpu, Options, Place, Pool, Result};
use adit_gpu_emulated::set;

use crate::life::{read, write};
use crate::rig::{LONG, REGIONS, alone, device, options};

const SOFT: &str = "soft:mem=8M,dbbuf=off";

/// Creates rings over a pool that carries data, with other settings once the pool is there.
fn rings(target: &str, place: Place, settings: &str, options: &Options) -> Result<GioUring> {
    let gpu = Gpu::open(0).expect("a GPU");
    let device = device(target);
    let controllers = [Arc::clone(&device.controller)];
    let pool = Pool::allocate(&gpu, &controllers, &REGIONS, Some(place)).expect("a pool");
    set(settings);
    GioUring::init_queue(&gpu, vec![device], pool, options)
}

fn works(uring: &GioUring) {
    uring.pool().write(0, 0, &[7; 512]).expect("written");
    for transfer in [write(9, 0), read(9, 512)] {
        let iocbs = uring.get_iocb([transfer], None).expect("a block");
        uring.issue_io(&iocbs, 0).expect("issued");
        assert!(uring.wait(iocbs, LONG).expect("ended").is_success());
    }
    let mut bytes = [0; 512];
    uring.pool().read(0, 512, &mut bytes).expect("read");
    assert_eq!(bytes, [7; 512]);
}

#[test]
fn rings_that_carry_data_say_what_they_carried_and_leave_the_pool_as_it_was() {
    for (scratch, carried) in [(None, Carried::FromDrive), (Some(Lba(3)), Carried::BothWays)] {
        let _alone = alone("");
        let options = Options { scratch, ..options() };
        let uring = rings(SOFT, Place::Gpu, "", &options).expect("rings");
        let description = uring.description();
        assert_eq!(description.carried, Some(carried));
        assert_eq!(description.places, Some((Place::Gpu, Place::Gpu)));
        assert!(description.passed_over.is_empty(), "{description:?}");
        let mut bytes = vec![1; 8192];
        uring.pool().read(0, 0, &mut bytes).expect("read");
        assert!(bytes.iter().all(|byte| *byte == 0), "a proof has memory of its own");
        works(&uring);
    }
}

#[test]
fn completions_that_are_dropped_in_one_place_are_sent_to_the_next() {
    let _alone = alone("");
    // The granules of the rings of both attempts; what lies between them is the proof's data.
    let uring = rings(SOFT, Place::Gpu, "peer=dropped:2+4", &options()).expect("rings");
    let description = uring.description().clone();
    assert_eq!(description.places, Some((Place::Gpu, Place::Host)), "{description:?}");
    assert_eq!(description.passed_over.len(), 1, "{description:?}");
    let why = &description.passed_over[0];
    assert!(why.starts_with("entries in hbm, completions in hbm: "), "{why}");
    assert!(why.contains("16 of 16 failed"), "{why}");
    works(&uring);
}

#[test]
fn a_pool_that_no_longer_carries_data_is_staged_and_says_why() {
    let _alone = alone("");
    let (engine, host) = (EngineChoice::Auto, Some(Place::Host));
    let options = Options { engine, submission: host, completion: host, ..options() };
    let uring = rings(SOFT, Place::Gpu, "peer=dropped", &options).expect("staged");
    let description = uring.description();
    assert_eq!((description.engine, description.carried), (EngineChoice::Staged, None));
    let whys = &description.why_staged;
    assert!(whys.len() == 1 && whys[0].contains("is dropped on the way"), "{whys:?}");
    works(&uring);
}

#[test]
fn a_success_without_data_is_not_believed() {
    // All reads but those of the host, whose queue is the second; and all writes.
    let cases = [("read:q=1", None, "memory is as it was"), ("write", Some(Lba(3)), "LBA 3")];
    for (commands, scratch, said) in cases {
        let _alone = alone("");
        let target = format!("{SOFT},faults=status(0:0)@{commands}");
        let options = Options { scratch, ..options() };
        let why = rings(&target, Place::Host, "", &options).err().expect("not believed");
        assert!(why.to_string().contains(said), "{why}");
    }
}
