//! Tests the return of devices from states that other tools or users caused.

use super::*;

#[test]
fn nothing_recorded_is_no_failure() {
    let mut world = World::new(&two_drives(), 0);
    let before = world.snapshot();
    assert_eq!(done(restore(&mut world, None)), []);
    assert_eq!(done(unbind(&mut world, &[], None)), []);
    same(&world, &before, "");
}

#[test]
fn a_device_without_a_record_is_not_unbound_and_nor_are_the_others() {
    let mut world = World::new(&two_drives(), 1);
    done(bind(&mut world, &[A], None));
    let why = failure(unbind(&mut world, &[A, B], None));
    assert!(why.contains("0000:02:00.0: 'adit setup' has not bound it"), "{why}");
    assert!(why.contains("recorded as bound: 0000:01:00.0"), "{why}");
    assert_eq!(driver(&world, A).as_deref(), Some("vfio-pci"));
}

#[test]
fn after_a_reboot_there_is_nothing_to_bring_back_but_the_record_goes() {
    let mut world = World::new(&two_drives(), 2);
    done(bind(&mut world, &[A, B], None));
    world.boot();
    let booted = {
        let mut fresh = World::new(&two_drives(), 2);
        fresh.boot();
        fresh.snapshot()
    };
    done(restore(&mut world, None));
    assert!(told(&world).iter().all(|change| !change.contains("/sys/")), "{:?}", told(&world));
    same(&world, &booted, "");
}

#[test]
fn what_another_tool_has_bound_since_the_boot_is_not_ours() {
    let mut world = World::new(&two_drives(), 9);
    world.kernel.put("/etc/passwd".as_ref(), "alice:x:1000:1000::/home/alice:/bin/sh\n");
    let args = BindArgs { user: Some("alice".into()), ..bind_args(&[A]) };
    done(bind_with(&mut world, &args, None));
    world.boot();
    world.kernel.load("vfio-pci");
    world.kernel.unbind_by_hand(A);
    take_by_hand(&mut world, A, "vfio-pci");
    let bound = done(bind(&mut world, &[A], None));
    assert_eq!(bound[0].state, BoundState::BoundByOthers);
    // Nothing is unbound, so users of the device do not matter.
    world.kernel.open("/dev/vfio/12");
    let returned = done(restore(&mut world, None));
    assert_eq!(returned[0].sentence(false), "0000:01:00.0 is left alone, and its record removed");
    assert_eq!(
        told(&world),
        [
            "write /var/lib/adit/setup/devices/0000:01:00.0.json",
            "rm /etc/security/limits.d/90-adit-alice.conf",
            "write /var/lib/adit/setup/devices/0000:01:00.0.json",
            "rm /var/lib/adit/setup/devices/0000:01:00.0.json",
        ]
    );
}

#[test]
fn a_driver_that_another_program_bound_is_left() {
    let mut world = World::new(&two_drives(), 3);
    done(bind(&mut world, &[A], None));
    world.kernel.write(&format!("/sys/bus/pci/devices/{A}/driver_override"), "");
    world.kernel.unbind_by_hand(A);
    take_by_hand(&mut world, A, "uio_pci_generic");
    let returned = done(restore(&mut world, None));
    assert_eq!(returned[0].sentence(false), "0000:01:00.0 is left alone, and its record removed");
    assert_eq!(driver(&world, A).as_deref(), Some("uio_pci_generic"));
    assert!(!world.root.exists("/var/lib/adit/setup/devices/0000:01:00.0.json"));
}

#[test]
fn a_driver_override_that_another_program_set_is_reported() {
    let mut world = World::new(&two_drives(), 4);
    done(bind(&mut world, &[A], None));
    let path = format!("/sys/bus/pci/devices/{A}/driver_override");
    world.kernel.write(&path, "uio_pci_generic");
    let why = failure(restore(&mut world, None));
    assert!(why.contains("another tool has set its driver_override to uio_pci_generic"), "{why}");
    world.kernel.write(&path, "");
    done(restore(&mut world, None));
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
}

#[test]
fn a_device_that_is_gone_is_forgotten() {
    let mut world = World::new(&two_drives(), 5);
    done(bind(&mut world, &[A, B], None));
    world.kernel.unplug(B);
    let returned = done(restore(&mut world, None));
    assert_eq!(returned[1].sentence(false), "0000:02:00.0 is forgotten");
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
    assert_eq!(crate::record::addresses(&world.root), []);
}

#[test]
fn where_no_device_can_be_seen_nothing_is_forgotten() {
    let mut world = World::new(&two_drives(), 6);
    done(bind(&mut world, &[A], None));
    world.kernel.unplug(A);
    world.kernel.unplug(B);
    let why = failure(restore(&mut world, None));
    assert!(why.contains("no PCI device can be seen"), "{why}");
    assert_eq!(crate::record::addresses(&world.root).len(), 1);
}

#[test]
fn a_damaged_record_is_told_and_the_others_go_back() {
    let mut world = World::new(&two_drives(), 7);
    done(bind(&mut world, &[A, B], None));
    world.kernel.put("/var/lib/adit/setup/devices/0000:01:00.0.json".as_ref(), "{");
    let why = failure(restore(&mut world, None));
    assert!(why.contains("0000:01:00.0.json is damaged"), "{why}");
    assert_eq!(driver(&world, B).as_deref(), Some("nvme"));
}

#[test]
fn a_driver_whose_module_was_removed_is_loaded_again() {
    let mut world = World::new(&two_drives(), 8);
    done(bind(&mut world, &[A, B], None));
    let before = world.root.path("/sys/bus/pci/drivers/nvme");
    std::fs::remove_dir_all(before).expect("the driver's directory");
    done(restore(&mut world, None));
    assert!(told(&world).contains(&"modprobe nvme".to_owned()));
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
}

#[test]
fn without_an_iommu_the_switch_goes_back_with_the_last_device() {
    let drives = [A, B].map(|bdf| Drive { group: None, ..Drive::new(bdf, 0) });
    let mut world = World::new(&drives, 9);
    world.kernel.load("vfio-pci");
    let before = world.snapshot();
    let switch = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    let args = BindArgs { unsafe_no_iommu: true, ..bind_args(&[A, B]) };
    done(bind_with(&mut world, &args, None));
    assert_eq!(world.root.text(switch).as_deref(), Some("Y"));
    done(unbind(&mut world, &[A], None));
    assert_eq!(world.root.text(switch).as_deref(), Some("Y"));
    done(unbind(&mut world, &[B], None));
    same(&world, &before, "");
}

#[test]
fn a_switch_that_is_neither_on_nor_off_is_not_written() {
    let mut world = World::new(&[Drive { group: None, ..Drive::new(A, 0) }], 9);
    world.kernel.load("vfio-pci");
    let args = BindArgs { unsafe_no_iommu: true, ..bind_args(&[A]) };
    done(bind_with(&mut world, &args, None));
    let record = world.root.path("/var/lib/adit/setup/no-iommu.json");
    let text = std::fs::read_to_string(&record).expect("a record");
    std::fs::write(&record, text.replace("\"N\"", "\"N\\nY\"")).expect("written");
    let why = failure(unbind(&mut world, &[A], None));
    assert!(why.contains("no-iommu.json is damaged (the switch is neither Y nor N)"), "{why}");
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"), "the device is back nevertheless");
}

#[test]
fn a_drive_that_a_process_has_open_is_not_unbound_and_the_process_is_named() {
    let mut world = World::new(&two_drives(), 10);
    done(bind(&mut world, &[A, B], None));
    world.kernel.open("/dev/vfio/12");
    let why = failure(unbind(&mut world, &[A, B], None));
    assert!(why.starts_with("0000:01:00.0: in use by fio (pid 77); end that first"), "{why}");
    assert_eq!(told(&world), [""; 0], "none of the two");
    let why = failure(restore(&mut world, None));
    assert!(why.starts_with("0000:01:00.0: in use by fio (pid 77)"), "{why}");
    assert_eq!(driver(&world, A).as_deref(), Some("vfio-pci"));
    assert_eq!(driver(&world, B).as_deref(), Some("nvme"));
    world.kernel.close();
    done(restore(&mut world, None));
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
}

#[test]
fn a_namespace_that_does_not_come_back_is_told_and_no_failure() {
    let mut world = World::new(&two_drives(), 11);
    done(bind(&mut world, &[B], None));
    world.kernel.lost.insert("nvme1n2".into());
    let returned = done(unbind(&mut world, &[B], None));
    assert_eq!(returned[0].sentence(false), "0000:02:00.0 is back: driver nvme, nvme1n1");
    assert_eq!(crate::record::addresses(&world.root), []);
}
