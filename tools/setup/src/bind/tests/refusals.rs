//! Tests refusals and their reasons, and that nothing is changed then.

use super::*;

/// Runs `bind` on a machine that `prepare` has made unfit; returns why it refuses.
fn refused(devices: &[&str], prepare: impl FnOnce(&mut World)) -> String {
    let mut world = World::new(&two_drives(), 0);
    prepare(&mut world);
    let before = world.snapshot();
    let message = failure(bind(&mut world, devices, None));
    assert_eq!(told(&world), [""; 0]);
    same(&world, &before, "");
    message
}

fn mount(world: &mut World, name: &str) {
    let line = format!("36 22 259:0 / /srv rw - ext4 /dev/{name} rw\n");
    world.kernel.put("/proc/self/mountinfo".as_ref(), &line);
    world.kernel.in_use.insert(name.to_owned());
}

fn sign(world: &mut World, name: &str) {
    let signature = format!(
        r#"[{{"device":"{name}","offset":"0x438","type":"ext4","uuid":null,"label":null,"usage":"filesystem"}}]"#
    );
    world.kernel.put_signatures(name, &signature);
}

#[test]
fn a_device_that_is_not_there() {
    let why = refused(&["0000:09:00.0"], |_| {});
    assert!(why.contains("0000:09:00.0: there is no such PCI device"), "{why}");
}

#[test]
fn a_device_that_is_no_nvme_controller() {
    let why = refused(&["0000:00:1f.0"], |world| {
        world.kernel.put("/sys/bus/pci/devices/0000:00:1f.0/class".as_ref(), "0x060100\n");
    });
    assert!(why.contains("no NVMe controller (class 0x060100)"), "{why}");
}

#[test]
fn a_drive_in_use_or_with_a_signature_and_then_none_of_them() {
    let why = refused(&[A, B], |world| mount(world, "nvme0n1"));
    assert!(why.contains(A) && why.contains("mounted") && !why.contains(B), "{why}");
    let why = refused(&[A, B], |world| {
        mount(world, "nvme0n1");
        sign(world, "nvme1n2");
    });
    assert!(why.contains("nvme0n1 is mounted"), "{why}");
    assert!(why.contains("nvme1n2") && why.contains("ext4"), "{why}");
    assert!(why.contains("--force-erase-signature"), "{why}");
}

#[test]
fn a_drive_in_use_is_not_taken_by_force_either() {
    let mut world = World::new(&two_drives(), 0);
    mount(&mut world, "nvme0n1");
    sign(&mut world, "nvme0n1");
    let args = BindArgs { force_erase_signature: true, ..bind_args(&[A]) };
    let why = failure(bind_with(&mut world, &args, None));
    assert!(why.contains("mounted") && !why.contains("ext4; "), "{why}");
    assert_eq!(told(&world), [""; 0]);
}

#[test]
fn a_drive_that_only_the_kernel_knows_to_be_in_use() {
    let why = refused(&[A, B], |world| {
        world.kernel.in_use.insert("nvme1n2".into());
    });
    assert!(why.contains(B) && why.contains("the kernel has nvme1n2 in use"), "{why}");
}

#[test]
fn another_tools_driver_override() {
    let why = refused(&[A], |world| {
        world.kernel.write(&format!("/sys/bus/pci/devices/{A}/driver_override"), "uio_pci_generic");
    });
    assert!(why.contains("uio_pci_generic"), "{why}");
}

#[test]
fn a_drive_that_does_not_show_what_it_holds() {
    let why = refused(&[A], |world| world.kernel.unbind_by_hand(A));
    assert!(why.contains("no driver has it") && why.contains("drivers_probe"), "{why}");
    let why = refused(&[A], |world| {
        let state = format!("/sys/devices/pci0000:00/{A}/nvme/nvme0/state");
        world.kernel.put(state.as_ref(), "resetting\n");
    });
    assert!(why.contains("'resetting', not live"), "{why}");
    let why = refused(&[A], |world| {
        let wipefs = world.root.path("/recorded/wipefs/nvme0n1");
        std::fs::remove_file(wipefs).expect("what wipefs would print");
    });
    assert!(why.contains("nvme0n1 cannot be inspected"), "{why}");
}

#[test]
fn an_unknown_user() {
    let mut world = World::new(&two_drives(), 0);
    let args = BindArgs { user: Some("alcie".into()), ..bind_args(&[A]) };
    let why = failure(bind_with(&mut world, &args, None));
    assert!(why.contains("alcie"), "{why}");
    assert_eq!(told(&world), [""; 0]);
}

#[test]
fn a_damaged_record() {
    let why = refused(&[A], |world| {
        let record = "/var/lib/adit/setup/devices/0000:01:00.0.json";
        world.kernel.put(record.as_ref(), "{");
    });
    assert!(why.contains("0000:01:00.0.json is damaged"), "{why}");
}

#[test]
fn a_machine_without_an_iommu() {
    let drives = [Drive { group: None, ..Drive::new(A, 0) }];
    let mut world = World::new(&drives, 0);
    let before = world.snapshot();
    failure(bind(&mut world, &[A], None));
    same(&world, &before, "");

    let args = BindArgs { unsafe_no_iommu: true, ..bind_args(&[A]) };
    world.kernel.has_no_iommu = false;
    let why = failure(bind_with(&mut world, &args, None));
    assert!(why.contains("CONFIG_VFIO_NOIOMMU"), "{why}");
    same(&world, &before, "");
}

#[test]
fn a_group_with_another_live_device_unless_both_are_asked_for() {
    let mut world = World::new(&[Drive::new(A, 7), Drive::new(B, 7)], 0);
    let before = world.snapshot();
    failure(bind(&mut world, &[A], None));
    assert_eq!(told(&world), [""; 0]);
    done(bind(&mut world, &[A, B], None));
    assert_eq!(driver(&world, B).as_deref(), Some("vfio-pci"));
    done(restore(&mut world, None));
    same(&world, &before, "");
}

#[test]
fn a_signature_is_erased_by_force_with_a_way_back() {
    let mut world = World::new(&two_drives(), 0);
    sign(&mut world, "nvme1n2");
    let args = BindArgs { force_erase_signature: true, ..bind_args(&[B]) };
    done(bind_with(&mut world, &args, None));
    let directory = "/var/lib/adit/setup/erased/0000:02:00.0-1";
    let told = told(&world);
    // Steps that can fail come first.
    assert_eq!(told[0], "modprobe vfio-pci");
    assert_eq!(told[1], format!("write {directory}/README"));
    assert_eq!(told[2], format!("env HOME={directory} wipefs --all --backup /dev/nvme1n2"));
    assert_eq!(told.iter().filter(|line| line.contains("wipefs")).count(), 1);
    let readme = world.root.text(format!("{directory}/README")).expect("how to put it back");
    assert!(readme.contains("serial number 0000:02:00.0"), "{readme}");
    let remedy = format!(
        "dd if={directory}/wipefs-nvme1n2-0x00000438.bak of=/dev/nvme1n2 bs=1 seek=1080 conv=notrunc"
    );
    assert!(readme.contains(&remedy), "{readme}");
    // The next run does not overwrite these copies.
    done(restore(&mut world, None));
    sign(&mut world, "nvme1n1");
    done(bind_with(&mut world, &args, None));
    assert!(super::told(&world)[0].contains("erased/0000:02:00.0-2/"), "{:?}", super::told(&world));
}

#[test]
fn partitions_are_erased_before_the_table_that_numbers_them_and_put_back_after_it() {
    let mut world = World::new(&two_drives(), 0);
    let partition = format!("/sys/devices/pci0000:00/{A}/nvme/nvme0/nvme0n1/nvme0n1p1/partition");
    world.kernel.put(partition.as_ref(), "1\n");
    sign(&mut world, "nvme0n1");
    sign(&mut world, "nvme0n1p1");
    let args = BindArgs { force_erase_signature: true, ..bind_args(&[A]) };
    done(bind_with(&mut world, &args, None));
    let told = told(&world);
    assert!(told[2].ends_with("/dev/nvme0n1p1") && told[3].ends_with("/dev/nvme0n1"), "{told:?}");
    let readme = world.root.text("/var/lib/adit/setup/erased/0000:01:00.0-1/README");
    let readme = readme.expect("how to put it back");
    let of: Vec<&str> = readme.lines().filter_map(|line| line.split(" of=").nth(1)).collect();
    assert!(of[0].starts_with("/dev/nvme0n1 ") && of[1].starts_with("/dev/nvme0n1p1 "), "{readme}");
    assert_eq!(readme.matches("blockdev --rereadpt /dev/nvme0n1\n").count(), 1, "{readme}");
}

#[test]
fn what_comes_into_use_before_it_is_erased_keeps_its_signature() {
    let mut world = World::new(&two_drives(), 0);
    sign(&mut world, "nvme0n1");
    world.kernel.in_use.insert("nvme0n1".into());
    let args = BindArgs { force_erase_signature: true, ..bind_args(&[A]) };
    let why = failure(bind_with(&mut world, &args, None));
    assert!(why.contains("in use") && why.contains("everything is as it was before"), "{why}");
    assert!(told(&world).is_empty(), "{:?}", told(&world));
    assert_eq!(driver(&world, A).as_deref(), Some("nvme"));
}

#[test]
fn a_failure_after_an_erasing_tells_where_the_copies_are() {
    let args = BindArgs { force_erase_signature: true, ..bind_args(&[A]) };
    let attempt = |at: usize| {
        let mut world = World::new(&two_drives(), 0);
        sign(&mut world, "nvme0n1");
        let blow = Some((at, Fault::Refused(nix::errno::Errno::EIO)));
        let why = failure(bind_with(&mut world, &args, blow));
        (why, told(&world))
    };
    let (why, _) = attempt(0);
    assert!(why.contains("modprobe") && why.ends_with("everything is as it was before"), "{why}");
    for at in 2..7 {
        let (why, told) = attempt(at);
        assert!(told[1].contains("erased/0000:01:00.0-1/README"), "{told:?}");
        assert!(why.contains("but the signatures is as it was before"), "{at}: {why}");
        assert!(why.contains("erased/0000:01:00.0-1/README says how"), "{at}: {why}");
    }
}
