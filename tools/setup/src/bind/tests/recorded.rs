//! Tests `bind --recorded`, as at boot.

use super::*;

/// A machine rebooted with its drives recorded as bound.
fn booted(seed: u64) -> World {
    let mut world = World::new(&two_drives(), seed);
    done(bind(&mut world, &[A, B], None));
    world.boot();
    world
}

#[test]
fn what_was_bound_is_bound_again_and_goes_back_in_the_end() {
    let mut world = booted(0);
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
    let bound = done(bind_with(&mut world, &recorded_args(), None));
    assert_eq!(bound.len(), 2);
    assert_eq!(driver(&world, A).as_deref(), Some("vfio-pci"));
    let again = done(bind_with(&mut world, &recorded_args(), None));
    assert!(again.iter().all(|one| one.state == BoundState::AlreadyBound));
    done(restore(&mut world, None));
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
}

#[test]
fn nothing_recorded_is_no_failure() {
    let mut world = World::new(&two_drives(), 1);
    assert_eq!(done(bind_with(&mut world, &recorded_args(), None)), []);
}

#[test]
fn another_drive_at_the_address_is_left_and_the_others_go_on() {
    let mut world = booted(2);
    let serial = format!("/sys/devices/pci0000:00/{A}/nvme/nvme0/serial");
    world.kernel.put(serial.as_ref(), "OTHER\n");
    let why = failure(bind_with(&mut world, &recorded_args(), None));
    assert!(why.contains("serial number OTHER, recorded was 0000:01:00.0"), "{why}");
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
    assert_eq!(driver(&world, B).as_deref(), Some("vfio-pci"));
}

#[test]
fn a_drive_whose_serial_number_cannot_be_read_is_left() {
    let mut world = booted(7);
    world.kernel.unbind_by_hand(A);
    let why = failure(bind_with(&mut world, &recorded_args(), None));
    assert!(why.contains("serial number unknown, recorded was 0000:01:00.0"), "{why}");
    assert_eq!(driver(&world, A), None);
}

#[test]
fn a_drive_that_is_gone_is_told() {
    let mut world = booted(8);
    world.kernel.unplug(A);
    let why = failure(bind_with(&mut world, &recorded_args(), None));
    assert!(why.contains("not in the machine any more"), "{why}");
    assert_eq!(driver(&world, B).as_deref(), Some("vfio-pci"));
}

#[test]
fn what_came_into_use_meanwhile_is_left_and_stays_recorded() {
    let mut world = booted(3);
    world.kernel.in_use.insert("nvme0n1".into());
    let why = failure(bind_with(&mut world, &recorded_args(), None));
    assert!(why.contains("the kernel has nvme0n1 in use"), "{why}");
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
    assert_eq!(crate::record::addresses(&world.root).len(), 2);
}

#[test]
fn what_fails_at_one_boot_is_tried_at_the_next() {
    let mut world = booted(4);
    world.kernel.broken.insert("vfio-pci");
    let before = world.snapshot();
    failure(bind_with(&mut world, &recorded_args(), None));
    same(&world, &before, "");
    world.kernel.broken.clear();
    done(bind_with(&mut world, &recorded_args(), None));
    assert_eq!(driver(&world, A).as_deref(), Some("vfio-pci"));
}

#[test]
fn what_was_cut_off_goes_back_instead() {
    for blow in [Fault::KilledBefore, Fault::KilledAfter] {
        let mut world = World::new(&two_drives(), 5);
        assert!(bind(&mut world, &[A], Some((3, blow))).is_err());
        world.boot();
        assert_eq!(done(bind_with(&mut world, &recorded_args(), None)), []);
        assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
        assert_eq!(crate::record::addresses(&world.root), []);
    }
}

#[test]
fn a_person_may_bind_again_what_an_earlier_boot_had_bound() {
    let mut world = booted(6);
    let bound = done(bind(&mut world, &[A], None));
    assert_eq!(bound[0].state, BoundState::Bound);
    done(restore(&mut world, None));
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
}
