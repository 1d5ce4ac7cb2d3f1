//! Tests that failures in the middle are undone, and that what cannot be undone is reported.

use nix::errno::Errno;

use super::*;

/// Counts the changes needed to bind both drives.
fn changes() -> usize {
    let mut world = World::new(&two_drives(), 0);
    done(bind(&mut world, &[A, B], None));
    world.kernel.made().len()
}

#[test]
fn each_change_that_is_refused_is_undone_with_all_before_it() {
    for at in 0..changes() {
        for why in [Errno::EIO, Errno::EROFS, Errno::EACCES, Errno::ENOSPC] {
            let mut world = World::new(&two_drives(), at as u64);
            let before = world.snapshot();
            let message = failure(bind(&mut world, &[A, B], Some((at, Fault::Refused(why)))));
            assert!(message.contains("cannot do '"), "{message}");
            assert!(message.contains("everything is as it was before"), "{message}");
            same(&world, &before, at);
        }
    }
}

#[test]
fn the_switch_for_no_iommu_is_undone_too() {
    let args = BindArgs { unsafe_no_iommu: true, ..bind_args(&[A]) };
    for at in 0..7 {
        let mut world = World::new(&[Drive { group: None, ..Drive::new(A, 0) }], at as u64);
        world.kernel.load("vfio-pci");
        let before = world.snapshot();
        let blow = Some((at, Fault::Refused(Errno::EIO)));
        let message = failure(bind_with(&mut world, &args, blow));
        assert!(message.contains("everything is as it was before"), "{message}");
        same(&world, &before, at);
    }
}

#[test]
fn a_grant_that_fails_is_undone_with_its_device() {
    let args = BindArgs { user: Some("alice".into()), ..bind_args(&[A]) };
    let machine = || {
        let world = World::new(&two_drives(), 0);
        world.kernel.put("/etc/passwd".as_ref(), "alice:x:1000:1000::/home/alice:/bin/sh\n");
        world
    };
    let mut world = machine();
    done(bind_with(&mut world, &args, None));
    let count = world.kernel.made().len();
    assert!(count > changes() / 2 + 2, "granting makes changes, too");
    for at in 0..count {
        let mut world = machine();
        let before = world.snapshot();
        failure(bind_with(&mut world, &args, Some((at, Fault::Refused(Errno::EIO)))));
        same(&world, &before, at);
    }
}

#[test]
fn a_wish_to_end_is_heeded_between_any_two_changes() {
    // Nothing can be interrupted after the last change.
    for at in 0..changes() - 1 {
        let mut world = World::new(&two_drives(), at as u64);
        let before = world.snapshot();
        let ended = bind(&mut world, &[A, B], Some((at, Fault::Interrupted)));
        let failure = ended.expect("not killed").expect_err("interrupted");
        assert_eq!(failure.code(), crate::failure::INTERRUPTED);
        assert_eq!(failure.to_string(), "interrupted; everything is as it was before");
        same(&world, &before, at);
    }
}

#[test]
fn a_write_that_hangs_in_the_kernel_is_left_for_restore() {
    let mut world = World::new(&two_drives(), 1);
    let before = world.snapshot();
    let message = failure(bind(&mut world, &[A], Some((3, Fault::Hangs))));
    assert!(message.contains("driver/unbind"), "{message}");
    assert!(message.contains("'adit setup restore' brings everything back"), "{message}");
    assert_eq!(world.kernel.made().len(), 4, "nothing is tried on a device that hangs");
    done(restore(&mut world, None));
    same(&world, &before, "");
}

#[test]
fn a_device_that_vfio_pci_does_not_take_goes_back() {
    let mut world = World::new(&two_drives(), 2);
    world.kernel.broken.insert("vfio-pci");
    let before = world.snapshot();
    let message = failure(bind(&mut world, &[A], None));
    assert!(message.contains("vfio-pci did not take it; 'dmesg' may say why"), "{message}");
    same(&world, &before, "");
}

#[test]
fn what_cannot_be_undone_either_is_told_and_restored_later() {
    let mut world = World::new(&two_drives(), 3);
    let before = world.snapshot();
    world.kernel.broken.extend(["vfio-pci", "nvme"]);
    let message = failure(bind(&mut world, &[A], None));
    assert!(message.contains("bringing it back failed too"), "{message}");
    assert!(message.contains("run 'adit setup restore'"), "{message}");
    let message = failure(restore(&mut world, None));
    assert!(message.contains("/sys/bus/pci/drivers/nvme/bind"), "{message}");
    world.kernel.broken.clear();
    done(restore(&mut world, None));
    same(&world, &before, "");
}

#[test]
fn a_module_that_is_missing_is_named_with_its_package() {
    let mut world = World::new(&two_drives(), 4);
    world.kernel.installed.remove("vfio-pci");
    let before = world.snapshot();
    let message = failure(bind(&mut world, &[A], None));
    assert!(message.contains("linux-modules-extra-6.1.0-18-amd64"), "{message}");
    same(&world, &before, "");
}

#[test]
fn one_device_that_cannot_go_back_does_not_keep_the_others() {
    let mut world = World::new(&two_drives(), 5);
    done(bind(&mut world, &[A, B], None));
    // The first write of the driver's name for A.
    let message = failure(restore(&mut world, Some((3, Fault::Refused(Errno::EIO)))));
    assert!(message.contains(A) && !message.contains(B), "{message}");
    assert_eq!(driver(&world, A), None);
    assert_eq!(driver(&world, B).as_deref(), Some("nvme"));
    done(restore(&mut world, None));
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
}

#[test]
fn what_is_opened_after_the_first_look_is_not_taken() {
    // The first two changes are the module and A's record; the last check of B follows the binding of A.
    for (at, bdf, file) in [(0, A, "/dev/nvme0n1"), (3, B, "/dev/ng1n2"), (4, B, "/dev/nvme1")] {
        let mut world = World::new(&two_drives(), at as u64);
        let before = world.snapshot();
        let message = failure(bind(&mut world, &[A, B], Some((at, Fault::Opened(file)))));
        assert!(message.contains(bdf) && message.contains("open in process 77 (fio)"), "{message}");
        world.kernel.close();
        same(&world, &before, "");
    }
}
