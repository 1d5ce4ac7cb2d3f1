//! Tests granting and revoking on a simulated machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;
use crate::record::{Before, Identity, VERSION};
use crate::simulated::{Drive, Fault, Killed, World};

const A: &str = "0000:01:00.0";
const B: &str = "0000:02:00.0";

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
alice:x:1000:1000::/home/alice:/bin/bash
bob:x:1001:1001::/home/bob:/bin/bash
";

/// The ways a process can be killed at a change.
const KILLS: [Fault; 3] = [Fault::KilledBefore, Fault::KilledAmid, Fault::KilledAfter];

type Files = BTreeMap<PathBuf, String>;
type Ended = std::result::Result<Result<Granted>, Killed>;

fn address(bdf: &str) -> PciAddress {
    bdf.parse().expect("an address")
}

fn record(bdf: &str) -> DeviceRecord {
    DeviceRecord {
        version: VERSION,
        bdf: bdf.into(),
        phase: Phase::Bound,
        before: Before { driver: Some("nvme".into()), driver_override: None },
        identity: Identity { ids: "1b36:0010".into(), ..Identity::default() },
        boot_id: "boot-1".into(),
        grant: None,
        with_group: false,
    }
}

/// A machine with two drives bound to vfio-pci by hand, in groups 12 and `group`.
fn by_hand_in(group: u32) -> World {
    let mut world = World::new(&[Drive::new(A, 12), Drive::new(B, group)], 1);
    world.kernel.put(Path::new("/etc/passwd"), PASSWD);
    world.kernel.put(Path::new("/run/udev/control"), "");
    world.kernel.put(Path::new("/bin/udevadm"), "");
    world.kernel.load("vfio-pci");
    for bdf in [A, B] {
        let directory = format!("/sys/bus/pci/devices/{bdf}");
        world.kernel.write(&format!("{directory}/driver_override"), "vfio-pci");
        world.kernel.unbind_by_hand(bdf);
        world.kernel.write("/sys/bus/pci/drivers_probe", bdf);
    }
    world
}

fn by_hand() -> World {
    by_hand_in(13)
}

/// The same machine with records.
fn bound() -> World {
    let world = by_hand();
    for bdf in [A, B] {
        put_record(&world, &record(bdf));
    }
    world
}

fn put_record(world: &World, record: &DeviceRecord) {
    let Change::File { path, content, .. } = record.stored() else { panic!("a record is a file") };
    world.kernel.put(&path, &content);
}

fn grant_to(world: &mut World, bdf: &str, user: &str, blow: Option<(usize, Fault)>) -> Ended {
    world.run(blow, |operation| grant_one(operation, address(bdf), user, false))
}

fn grant_with_group(world: &mut World, bdf: &str, user: &str) -> Ended {
    world.run(None, |operation| grant_one(operation, address(bdf), user, true))
}

fn revoke_of(world: &mut World, bdf: &str, blow: Option<(usize, Fault)>) -> Ended {
    world.run(blow, |operation| revoke_one(operation, address(bdf)))
}

/// Requires success and returns the owner.
fn done(ended: Ended) -> Option<String> {
    ended.expect("not killed").expect("no failure").user
}

fn failure(ended: Ended) -> String {
    ended.expect("not killed").expect_err("a failure").to_string()
}

fn told(world: &World) -> Vec<String> {
    world.kernel.made().iter().map(Change::to_string).collect()
}

/// Returns the machine's files outside sysfs and procfs, and the owners below `/dev`. Excludes the leftover of
/// an interrupted write of a record, which the next write replaces.
fn kept(world: &World) -> Files {
    let passes = |path: &Path| {
        path.starts_with("/sys")
            || path.starts_with("/proc")
            || path.ends_with(format!("{A}.json.new"))
    };
    world.snapshot().into_iter().filter(|(path, _)| !passes(path)).collect()
}

#[test]
fn a_grant_is_recorded_first_and_revoked_without_a_trace() {
    let mut world = bound();
    let before = kept(&world);
    assert_eq!(done(grant_to(&mut world, A, "alice", None)).as_deref(), Some("alice"));
    assert_eq!(
        told(&world),
        [
            "write /var/lib/adit/setup/devices/0000:01:00.0.json",
            "write /run/udev/rules.d/90-adit-0000:01:00.0.rules",
            "udevadm control --reload",
            "write /etc/security/limits.d/90-adit-alice.conf",
            "chown 1000 /dev/vfio/12",
        ]
    );
    let granted = record::load(&world.root, address(A)).expect("a record").expect("a record");
    assert_eq!(granted.grant.as_deref(), Some("alice"));
    let limits = world.root.text("/etc/security/limits.d/90-adit-alice.conf").expect("limits");
    assert_eq!(limits.lines().last(), Some("alice - memlock unlimited"));
    assert_eq!(done(revoke_of(&mut world, A, None)), None);
    assert_eq!(
        told(&world),
        [
            "chown 0 /dev/vfio/12",
            "rm /etc/security/limits.d/90-adit-alice.conf",
            "rm /run/udev/rules.d/90-adit-0000:01:00.0.rules",
            "udevadm control --reload",
            "write /var/lib/adit/setup/devices/0000:01:00.0.json",
        ]
    );
    assert_eq!(kept(&world), before);
}

#[test]
fn a_second_grant_only_sees_to_the_file_and_a_second_revoke_does_nothing() {
    let mut world = bound();
    done(grant_to(&mut world, A, "alice", None));
    done(grant_to(&mut world, A, "alice", None));
    assert_eq!(told(&world), ["chown 1000 /dev/vfio/12"]);
    done(revoke_of(&mut world, A, None));
    done(revoke_of(&mut world, A, None));
    assert_eq!(told(&world), [""; 0]);
}

#[test]
fn another_user_takes_the_place_of_the_first() {
    for mut world in [bound(), by_hand()] {
        done(grant_to(&mut world, A, "alice", None));
        done(grant_to(&mut world, A, "bob", None));
        let after = kept(&world);
        assert_eq!(after[Path::new("/dev/vfio/12/owner")], "1001");
        assert_eq!(rule::holder(&world.root, address(A)).as_deref(), Some("bob"));
        assert!(!world.root.exists(rule::limits_path("alice")));
        assert!(world.root.exists(rule::limits_path("bob")));
    }
}

#[test]
fn the_right_to_lock_memory_goes_with_the_last_device() {
    for mut world in [bound(), by_hand()] {
        done(grant_to(&mut world, A, "alice", None));
        done(grant_to(&mut world, B, "alice", None));
        done(revoke_of(&mut world, A, None));
        assert!(world.root.exists(rule::limits_path("alice")));
        done(revoke_of(&mut world, B, None));
        assert!(!world.root.exists(rule::limits_path("alice")));
    }
}

#[test]
fn what_was_bound_by_hand_is_granted_and_revoked_by_its_rule_alone() {
    let mut world = by_hand();
    let before = kept(&world);
    assert_eq!(done(grant_to(&mut world, A, "alice", None)).as_deref(), Some("alice"));
    assert!(world.root.names("/var/lib").is_empty(), "no record is made up");
    done(revoke_of(&mut world, A, None));
    assert_eq!(kept(&world), before);
}

#[test]
fn whatever_kills_a_grant_or_a_revoke_the_next_revoke_clears_all_away() {
    for make in [bound, by_hand] {
        let before = kept(&make());
        for at in 0..5 {
            for kill in KILLS {
                let mut world = make();
                let ended = grant_to(&mut world, A, "alice", Some((at, kill)));
                assert!(ended.is_err() || at == 4, "{at} {kill:?} did not strike");
                done(revoke_of(&mut world, A, None));
                assert_eq!(kept(&world), before, "granting, {at} {kill:?}");
                done(grant_to(&mut world, A, "alice", None));
                let ended = revoke_of(&mut world, A, Some((at, kill)));
                assert!(ended.is_err() || at == 4, "{at} {kill:?} did not strike");
                done(revoke_of(&mut world, A, None));
                assert_eq!(kept(&world), before, "revoking, {at} {kill:?}");
            }
        }
    }
}

#[test]
fn a_grant_that_was_killed_is_completed_by_the_next() {
    let whole = {
        let mut world = bound();
        done(grant_to(&mut world, A, "bob", None));
        kept(&world)
    };
    // From alice to bob: revoked, then granted.
    for at in 0..10 {
        for kill in KILLS {
            let mut world = bound();
            done(grant_to(&mut world, A, "alice", None));
            let ended = grant_to(&mut world, A, "bob", Some((at, kill)));
            assert!(ended.is_err(), "{at} {kill:?} did not strike");
            done(grant_to(&mut world, A, "bob", None));
            assert_eq!(kept(&world), whole, "{at} {kill:?}");
        }
    }
}

#[test]
fn after_a_boot_the_file_is_the_users_again() {
    let mut world = bound();
    done(grant_to(&mut world, A, "alice", None));
    world.boot();
    done(grant_to(&mut world, A, "alice", None));
    let told_now = told(&world);
    assert_eq!(
        told_now,
        ["write /run/udev/rules.d/90-adit-0000:01:00.0.rules"],
        "a rule ends with its boot"
    );
    let mut world = by_hand();
    world.kernel.put(Path::new("/sys/bus/pci/devices/0000:01:00.0/vfio-dev/vfio3/dev"), "1:1");
    world.kernel.put(Path::new("/dev/vfio/devices/vfio3"), "");
    done(grant_to(&mut world, A, "alice", None));
    let owners = ["chown 1000 /dev/vfio/12", "chown 1000 /dev/vfio/devices/vfio3"];
    assert!(told(&world).ends_with(&owners.map(str::to_owned)), "{:?}", told(&world));
}

#[test]
fn restore_takes_back_what_only_a_rule_tells_of() {
    let mut world = by_hand();
    let before = kept(&world);
    done(grant_to(&mut world, A, "alice", None));
    assert!(world.run(None, withdraw_all).expect("not killed").expect("no failure"));
    assert_eq!(kept(&world), before);
    assert!(!world.run(None, withdraw_all).expect("not killed").expect("nothing left"));
}

#[test]
fn a_group_has_one_owner() {
    let mut world = by_hand_in(12);
    done(grant_with_group(&mut world, A, "alice"));
    let why = failure(grant_to(&mut world, B, "bob", None));
    assert!(why.contains("same IOMMU group (12) and is alice's"), "{why}");
    assert!(why.contains("adit setup revoke 0000:01:00.0"), "{why}");
    done(grant_to(&mut world, B, "alice", None));
    done(revoke_of(&mut world, A, None));
    assert_eq!(kept(&world)[Path::new("/dev/vfio/12/owner")], "1000", "it is B's, too");
    done(revoke_of(&mut world, B, None));
    assert!(!kept(&world).contains_key(Path::new("/dev/vfio/12/owner")));
}

#[test]
fn a_neighbour_that_was_granted_to_none_goes_along_only_where_that_is_asked_for() {
    let mut world = by_hand_in(12);
    put_record(&world, &record(A));
    let before = kept(&world);
    let why = failure(grant_to(&mut world, A, "alice", None));
    assert!(why.contains("so alice could also open 0000:02:00.0; add --with-group"), "{why}");
    assert_eq!((told(&world), kept(&world)), (Vec::new(), before));
    done(grant_with_group(&mut world, A, "alice"));
    let granted = record::load(&world.root, address(A)).expect("a record").expect("a record");
    assert!(granted.with_group, "it is remembered for the next boot");
    done(grant_to(&mut world, A, "alice", None));
    done(revoke_of(&mut world, A, None));
    failure(grant_to(&mut world, A, "alice", None));
    // The group's file does not open devices without a VFIO driver; root needs no grant.
    assert_eq!(done(grant_to(&mut world, A, "root", None)), None);
    world.kernel.unbind_by_hand(B);
    done(grant_to(&mut world, A, "alice", None));
}

#[test]
fn what_cannot_be_granted_is_refused_with_a_reason_and_nothing_is_written() {
    let mut world = bound();
    let driver = world.root.path("/sys/devices/pci0000:00/0000:02:00.0/driver");
    std::fs::remove_file(driver).expect("a link");
    let other = record::DeviceRecord { phase: Phase::Binding, ..record(A) };
    std::fs::remove_file(world.root.path(format!("/var/lib/adit/setup/devices/{B}.json")))
        .expect("a record");
    let cases = [
        (A, "carol", "there is no user 'carol'"),
        (A, "x\", RUN+=\"/bin/sh", "a name of letters, digits"),
        (
            B,
            "alice",
            "0000:02:00.0: it is not bound; run 'sudo adit setup bind 0000:02:00.0' first",
        ),
        ("0000:09:00.0", "alice", "0000:09:00.0: there is no such PCI device"),
    ];
    let before = kept(&world);
    for (bdf, user, expected) in cases {
        let why = failure(grant_to(&mut world, bdf, user, None));
        assert!(why.contains(expected), "{why}");
    }
    assert_eq!(kept(&world), before);
    put_record(&world, &other);
    let why = failure(grant_to(&mut world, A, "alice", None));
    assert!(why.contains("run 'sudo adit setup restore' first"), "{why}");
}

#[test]
fn root_needs_no_grant() {
    let mut world = bound();
    assert_eq!(done(grant_to(&mut world, A, "root", None)), None);
    assert_eq!(told(&world), [""; 0]);
}

#[test]
fn without_an_iommu_only_root_may() {
    for (name, file) in [("vfio-noiommu", "x"), ("other", "noiommu-12")] {
        let mut world = bound();
        world.kernel.put(Path::new("/sys/kernel/iommu_groups/12/name"), name);
        world.kernel.put(&Path::new("/dev/vfio").join(file), "");
        let why = failure(grant_to(&mut world, A, "alice", None));
        assert!(why.contains("CAP_SYS_RAWIO"), "{why}");
        assert_eq!(told(&world), [""; 0]);
    }
}

#[test]
fn that_udev_cannot_be_told_is_no_failure() {
    let mut world = bound();
    let fault = Fault::Refused(nix::errno::Errno::ECONNREFUSED);
    done(grant_to(&mut world, A, "alice", Some((2, fault))));
    assert_eq!(kept(&world)[Path::new("/dev/vfio/12/owner")], "1000");
    world.kernel.put(Path::new("/run/udev/rules.d/90-adit-0000:01:00.0.rules"), "edited");
    done(revoke_of(&mut world, A, None));
    assert!(world.root.names("/run/udev/rules.d").is_empty());
    assert!(world.root.names("/etc/security/limits.d").is_empty());
}
