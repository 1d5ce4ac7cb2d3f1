//! Kills the run at each step: `restore` always completes it and leaves the machine as before.

use super::*;

/// The ways a process can be killed at a change.
const KILLS: [Fault; 3] = [Fault::KilledBefore, Fault::KilledAmid, Fault::KilledAfter];

/// A machine without bound devices.
fn idle(seed: u64) -> World {
    World::new(&two_drives(), seed)
}

/// A machine with both drives bound.
fn bound(seed: u64) -> World {
    let mut world = idle(seed);
    done(bind(&mut world, &[A, B], None));
    world
}

/// A machine whose first drive had no driver before it was bound.
fn driverless(seed: u64) -> World {
    let mut world = idle(seed);
    world.kernel.unbind_by_hand(A);
    world
}

/// Counts the changes of `work` on the machine made by `make`.
fn changes(make: fn(u64) -> World, work: impl Fn(&mut World, Blow)) -> usize {
    let mut world = make(0);
    work(&mut world, None);
    world.kernel.made().len()
}

/// Returns every way of being killed at every change of `work`.
fn blows(make: fn(u64) -> World, work: impl Fn(&mut World, Blow)) -> impl Iterator<Item = Blow> {
    let count = changes(make, work);
    assert!(count >= 5, "only {count} changes");
    (0..count).flat_map(|at| KILLS.map(|kill| Some((at, kill))))
}

/// Returns the files of an unchanged machine after `boots` more boots.
fn untouched(make: fn(u64) -> World, boots: u32) -> Files {
    let mut world = make(0);
    (0..boots).for_each(|_| world.boot());
    world.snapshot()
}

/// A machine without an IOMMU, whose VFIO supports that.
fn unfenced(seed: u64) -> World {
    let drives = [A, B].map(|bdf| Drive { group: None, ..Drive::new(bdf, 0) });
    let world = World::new(&drives, seed);
    world.kernel.load("vfio-pci");
    world
}

fn bind_both(world: &mut World, blow: Blow) {
    expect(bind_with(world, &both(), blow), blow);
}

/// Requests both drives, even if no driver shows their contents.
fn both() -> BindArgs {
    BindArgs { force_erase_signature: true, ..bind_args(&[A, B]) }
}

fn unbind_all(world: &mut World, blow: Blow) {
    expect(unbind(world, &[], blow), blow);
}

fn restore_all(world: &mut World, blow: Blow) {
    expect(restore(world, blow), blow);
}

fn expect<T>(ended: std::result::Result<Result<T>, Killed>, blow: Blow) {
    match ended {
        Err(Killed) => assert!(blow.is_some()),
        Ok(result) => assert!(result.is_ok(), "{blow:?}: {:?}", result.err()),
    }
}

#[test]
fn a_binding_that_is_killed_is_undone_by_restore() {
    for make in [idle, driverless] {
        let before = untouched(make, 0);
        for (seed, blow) in blows(make, bind_both).enumerate() {
            let mut world = make(seed as u64);
            assert!(bind_with(&mut world, &both(), blow).is_err(), "{blow:?} did not strike");
            restore_all(&mut world, None);
            same(&world, &before, blow);
        }
    }
}

#[test]
fn an_unbinding_that_is_killed_is_completed_by_restore() {
    let before = untouched(idle, 0);
    for work in [unbind_all, restore_all] {
        for (seed, blow) in blows(bound, work).enumerate() {
            let mut world = bound(seed as u64);
            work(&mut world, blow);
            restore_all(&mut world, None);
            same(&world, &before, blow);
        }
    }
}

#[test]
fn what_was_granted_is_taken_back_too() {
    let args = BindArgs { user: Some("alice".into()), ..bind_args(&[A, B]) };
    let make: fn(u64) -> World = |seed| {
        let world = idle(seed);
        world.kernel.put("/etc/passwd".as_ref(), "alice:x:1000:1000::/home/alice:/bin/sh\n");
        world
    };
    let work = |world: &mut World, blow| expect(bind_with(world, &args, blow), blow);
    let before = untouched(make, 0);
    for (seed, first) in blows(make, work).enumerate() {
        let mut world = make(seed as u64);
        assert!(bind_with(&mut world, &args, first).is_err(), "{first:?} did not strike");
        let second = Some((seed % 13, KILLS[seed % 3]));
        let _ = restore(&mut world, second);
        restore_all(&mut world, None);
        same(&world, &before, (first, second));
    }
}

#[test]
fn the_switch_for_no_iommu_goes_back_too() {
    let args = BindArgs { unsafe_no_iommu: true, ..bind_args(&[A, B]) };
    let work = |world: &mut World, blow| expect(bind_with(world, &args, blow), blow);
    let before = untouched(unfenced, 0);
    for (seed, first) in blows(unfenced, work).enumerate() {
        let mut world = unfenced(seed as u64);
        assert!(bind_with(&mut world, &args, first).is_err(), "{first:?} did not strike");
        let second = Some((seed % 11, KILLS[seed % 3]));
        let _ = restore(&mut world, second);
        restore_all(&mut world, None);
        same(&world, &before, (first, second));
    }
}

#[test]
fn a_reboot_after_the_kill_changes_nothing_of_that() {
    for make in [idle, driverless] {
        let before = untouched(make, 1);
        for (seed, blow) in blows(make, bind_both).enumerate() {
            let mut world = make(seed as u64);
            bind_both(&mut world, blow);
            world.boot();
            restore_all(&mut world, None);
            same(&world, &before, blow);
        }
    }
}

#[test]
fn a_restore_that_is_killed_too_is_completed_by_the_next() {
    // Only one of the two drives, to limit the number of cases.
    let bind_one = |world: &mut World, blow| expect(bind(world, &[B], blow), blow);
    let before = untouched(idle, 0);
    for (seed, first) in blows(idle, bind_one).enumerate() {
        for at in 0..6 {
            let second = Some((at, KILLS[(seed + at) % KILLS.len()]));
            let mut world = idle((seed * 100 + at) as u64);
            bind_one(&mut world, first);
            let ended = restore(&mut world, second);
            if ended.is_err() {
                restore_all(&mut world, None);
            }
            same(&world, &before, (first, second));
        }
    }
}

#[test]
fn a_kill_and_a_reboot_in_the_middle_of_restore() {
    let before = untouched(idle, 1);
    for (seed, blow) in blows(bound, restore_all).enumerate() {
        let mut world = bound(seed as u64);
        restore_all(&mut world, blow);
        world.boot();
        restore_all(&mut world, None);
        same(&world, &before, blow);
    }
}

#[test]
fn after_a_kill_bind_says_what_is_to_be_done_first() {
    for (seed, blow) in blows(idle, bind_both).enumerate() {
        let mut world = idle(seed as u64);
        bind_both(&mut world, blow);
        let (all, a) = (world.snapshot(), driver(&world, A));
        match bind(&mut world, &[A], None).expect("not killed") {
            // Either nothing was begun, or everything was done.
            Ok(bound) => assert_eq!(bound.len(), 1),
            Err(why) => {
                assert!(why.to_string().contains("run 'adit setup restore' first"), "{why}");
                assert_eq!((world.snapshot(), driver(&world, A)), (all, a));
            }
        }
    }
}

#[test]
#[should_panic(expected = "are not as they were")]
fn canary_without_a_restore_the_machine_differs() {
    let mut world = idle(0);
    bind_both(&mut world, Some((4, Fault::KilledAfter)));
    same(&world, &untouched(idle, 0), "no restore");
}

#[test]
#[should_panic(expected = "was taken without a claim")]
fn canary_the_machine_itself_holds_the_law_of_claims() {
    let mut world = idle(0);
    let unbind = Change::Write {
        path: format!("/sys/bus/pci/devices/{A}/driver/unbind").into(),
        value: A.into(),
    };
    let _ = world.run(None, |operation| operation.change(unbind));
}
