//! Tests grants and drives that share an IOMMU group and thus one file.

use super::*;

/// Two drives in one group, and a user alice.
fn one_group(seed: u64) -> World {
    let world = World::new(&[Drive::new(A, 12), Drive::new(B, 12)], seed);
    world.kernel.put("/etc/passwd".as_ref(), "alice:x:1000:1000::/home/alice:/bin/sh\n");
    world
}

fn for_alice(devices: &[&str]) -> BindArgs {
    BindArgs { user: Some("alice".into()), ..bind_args(devices) }
}

fn owner(world: &World) -> Option<String> {
    world.snapshot().get(&PathBuf::from("/dev/vfio/12/owner")).cloned()
}

#[test]
fn drives_that_are_granted_together_need_no_more() {
    let mut world = one_group(0);
    done(bind_with(&mut world, &for_alice(&[A, B]), None));
    assert_eq!(owner(&world).as_deref(), Some("1000"));
}

#[test]
fn a_neighbour_bound_without_a_user_is_not_opened_by_another_grant_unasked() {
    let mut world = one_group(1);
    done(bind(&mut world, &[A, B], None));
    let before = world.snapshot();
    let why = failure(bind_with(&mut world, &for_alice(&[A]), None));
    assert!(why.contains("alice could also open 0000:02:00.0; add --with-group"), "{why}");
    assert_eq!(told(&world), [""; 0]);
    same(&world, &before, "");

    done(bind_with(&mut world, &BindArgs { with_group: true, ..for_alice(&[A]) }, None));
    assert_eq!(owner(&world).as_deref(), Some("1000"));
    // The agreement is permanent, so binding at boot does not ask again.
    world.boot();
    done(bind_with(&mut world, &recorded_args(), None));
    assert_eq!(owner(&world).as_deref(), Some("1000"));
    assert_eq!(driver(&world, B).as_deref(), Some("vfio-pci"));
}

#[test]
fn a_drive_is_not_bound_into_a_granted_group_unasked() {
    let mut world = one_group(2);
    world.kernel.unbind_by_hand(B);
    done(bind_with(&mut world, &for_alice(&[A]), None));
    let before = world.snapshot();
    // Its contents are not visible without a driver.
    let alone = BindArgs { force_erase_signature: true, ..bind_args(&[B]) };
    let why = failure(bind_with(&mut world, &alone, None));
    assert!(why.contains("so alice could also open 0000:02:00.0; add --user alice"), "{why}");
    assert_eq!(told(&world), [""; 0]);
    same(&world, &before, "");

    done(bind_with(&mut world, &BindArgs { with_group: true, ..alone }, None));
    assert_eq!(driver(&world, B).as_deref(), Some("vfio-pci"));
}
