//! What the model allows and forbids.

use super::*;

fn model() -> Model {
    Model::new(9, 1, vec![(Key::from(1u64), 0), (Key::from(2u64), 0)], false)
}

/// Puts a version of 100 bytes; returns it and its bytes.
fn put(model: &mut Model, key: usize) -> (Version, Vec<u8>) {
    let version = model.version(100, None);
    let begin = model.begin(key, Some(version));
    model.end(key, begin, Ended::Acknowledged, None);
    let bytes = bytes_of(model, version);
    (version, bytes)
}

fn bytes_of(model: &Model, version: Version) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    content::fill(&mut bytes, model.content(version), 0);
    bytes
}

fn hit(model: &mut Model, key: usize, bytes: &[u8]) -> Result<Version, String> {
    let begin = model.tick();
    let found = Found { bytes, part: &Part::All };
    let hit = model.hit(key, (&found, None), begin, Time::ZERO)?;
    Ok(hit.expect("contents tell versions apart"))
}

#[test]
fn only_the_last_version_may_be_read_and_a_miss_is_noticed() {
    let mut model = model();
    let (_, old) = put(&mut model, 0);
    let (new, bytes) = put(&mut model, 0);
    assert_eq!(hit(&mut model, 0, &bytes), Ok(new));
    assert!(hit(&mut model, 0, &old).expect_err("it is over").contains("which is over"));
    assert!(hit(&mut model, 1, &bytes).expect_err("another key").contains("version 2 of"));
    let begin = model.tick();
    assert!(
        model.miss(0, begin, Time::ZERO, false).is_err()
            && model.miss(1, begin, Time::ZERO, false).is_ok()
    );
    model.excuse();
    assert!(model.miss(0, begin, Time::ZERO, false).is_ok());
}

#[test]
fn what_overlaps_may_be_read_either_way() {
    let mut model = model();
    let (_, old) = put(&mut model, 0);
    let read = model.tick();
    let (_, new) = put(&mut model, 0);
    for bytes in [&old, &new] {
        let found = Found { bytes, part: &Part::All };
        assert!(model.hit(0, (&found, None), read, Time::ZERO).is_ok());
    }
}

#[test]
fn a_put_that_is_not_answered_never_replaces_a_later_one_that_is() {
    let mut model = model();
    let slow = model.version(100, None);
    let begin = model.begin(0, Some(slow));
    let (_, new) = put(&mut model, 0);
    let bytes = bytes_of(&model, slow);
    assert!(hit(&mut model, 0, &bytes).is_err() && hit(&mut model, 0, &new).is_ok());
    model.end(0, begin, Ended::Acknowledged, None);
    assert!(hit(&mut model, 0, &bytes).is_err() && hit(&mut model, 0, &new).is_ok());
}

#[test]
fn a_put_during_a_sweep_goes_or_stays() {
    let mut model = model();
    let begin = model.begin_swept(0);
    let (_, bytes) = put(&mut model, 0);
    model.end(0, begin, Ended::Acknowledged, None);
    assert!(hit(&mut model, 0, &bytes).is_ok());
    assert!(model.miss(0, Moment::MAX, Time::ZERO, false).is_ok());
}

/// The record of an eviction is not durable when a read misses the object, so a cut may bring it back.
#[test]
fn a_miss_of_an_object_that_may_be_evicted_does_not_end_it() {
    for may_evict in [false, true] {
        let mut model = Model { may_evict, ..model() };
        put(&mut model, 0);
        model.crash(Durability::Durable, Crash::Cut);
        let begin = model.begin_swept(0);
        let (_, bytes) = put(&mut model, 0);
        model.end(0, begin, Ended::Acknowledged, None);
        model.crash(Durability::Durable, Crash::Cut);
        model.settle(0, None).expect("it was swept, or evicted");
        model.crash(Durability::Durable, Crash::Cut);
        assert_eq!(hit(&mut model, 0, &bytes).is_ok(), may_evict);
    }
}

#[test]
fn a_durable_crash_keeps_what_was_acknowledged_and_maybe_what_was_not() {
    let mut model = model();
    let (_, first) = put(&mut model, 0);
    let (_, second) = put(&mut model, 0);
    let third = model.version(100, None);
    model.begin(0, Some(third));
    model.crash(Durability::Durable, Crash::Cut);
    assert!(hit(&mut model, 0, &first).is_err() && hit(&mut model, 0, &second).is_ok());
    let bytes = bytes_of(&model, third);
    assert_eq!(hit(&mut model, 0, &bytes), Ok(third));
    model.settle(0, Some(third)).expect("one moment");
    assert!(hit(&mut model, 0, &second).is_err());
    assert!(model.miss(0, Moment::MAX, Time::ZERO, false).is_err());
}

#[test]
fn a_restart_goes_back_to_one_moment_after_the_last_commit() {
    let mut model = model();
    let (_, first) = put(&mut model, 0);
    let commit = model.tick();
    let (_, second) = put(&mut model, 0);
    let (other, _) = put(&mut model, 1);
    model.committed(0, commit);
    model.crash(Durability::Restart, Crash::Kill { recorded: 0 });
    assert!(hit(&mut model, 0, &second).is_ok());
    let version = hit(&mut model, 0, &first).expect("it was there after the commit");
    model.settle(0, Some(version)).expect("one moment");
    let refused = model.settle(1, Some(other)).expect_err("that was later");
    assert!(refused.contains("others of its shard"), "{refused}");
}

#[test]
fn what_a_commit_covers_is_there_in_some_version_after_a_cut() {
    let mut model = model();
    let (_, first) = put(&mut model, 0);
    let commit = model.tick();
    let (_, second) = put(&mut model, 0);
    let (other, _) = put(&mut model, 1);
    model.committed(0, commit);
    model.crash(Durability::Restart, Crash::Cut);
    let begin = model.tick();
    assert!(model.miss(0, begin, Time::ZERO, false).is_err());
    assert!(model.miss(1, begin, Time::ZERO, false).is_ok(), "it replaced nothing");
    assert!(hit(&mut model, 0, &second).is_ok());
    // The cut may have taken the data of the second version alone.
    model.settle(1, Some(other)).expect("one moment");
    let version = hit(&mut model, 0, &first).expect("it was there at the commit");
    model.settle(0, Some(version)).expect("it is also of a later moment");
}

#[test]
fn a_crash_may_leave_the_record_of_a_durable_put_that_is_not_acknowledged_without_its_data() {
    let kill = Crash::Kill { recorded: 0 };
    let restart = (Durability::Restart, kill, false);
    let durable = [Crash::Cut, kill].map(|crash| (Durability::Durable, crash, true));
    for (durability, crash, is_listed) in durable.into_iter().chain([restart]) {
        let mut model = model();
        // An earlier life, after which the key is known to be new.
        model.crash(durability, kill);
        let version = model.version(100, None);
        model.begin(0, Some(version));
        model.crash(durability, crash);
        let begin = model.tick();
        assert!(model.miss(0, begin, Time::ZERO, false).is_ok());
        model.settle(0, None).expect("one moment");
        let later = model.tick();
        assert_eq!(model.may_have(0, 100, later), is_listed, "{durability:?}: {crash:?}");
    }
}

#[test]
fn a_kill_leaves_what_was_acknowledged_longer_ago_than_a_record_waits() {
    let mut model = model();
    let (_, first) = put(&mut model, 0);
    let (_, second) = put(&mut model, 0);
    let recorded = model.tick();
    let (_, third) = put(&mut model, 0);
    model.crash(Durability::Restart, Crash::Kill { recorded });
    assert!(hit(&mut model, 0, &first).is_err());
    assert!(hit(&mut model, 0, &second).is_ok() && hit(&mut model, 0, &third).is_ok());
    let begin = model.tick();
    assert!(model.miss(0, begin, Time::ZERO, false).is_err(), "no data is lost");
}

#[test]
fn an_object_that_may_have_expired_says_nothing_of_the_moment_of_its_delete() {
    for expires in [None, Some(Time::from_ns(50))] {
        let mut model = model();
        let version = model.version(100, expires);
        let begin = model.begin(0, Some(version));
        model.end(0, begin, Ended::Acknowledged, expires);
        let (old, _) = put(&mut model, 1);
        let commit = model.tick();
        model.committed(0, commit);
        model.crash(Durability::Restart, Crash::Cut);
        let commit = model.tick();
        model.committed(0, commit);
        put(&mut model, 1);
        let begin = model.begin(0, None);
        model.end(0, begin, Ended::Acknowledged, None);
        model.crash(Durability::Restart, Crash::Kill { recorded: 0 });
        model.settle(0, None).expect("the first");
        assert_eq!(model.settle(1, Some(old)).is_ok(), expires.is_some());
    }
}

#[test]
fn a_volatile_store_is_empty_and_an_expired_object_gone() {
    let mut model = model();
    let (_, bytes) = put(&mut model, 0);
    model.crash(Durability::Volatile, Crash::Cut);
    assert!(hit(&mut model, 0, &bytes).is_err());
    let version = model.version(100, Some(Time::from_ns(50)));
    let begin = model.begin(0, Some(version));
    model.end(0, begin, Ended::Acknowledged, Some(Time::from_ns(60)));
    let begin = model.tick();
    assert!(model.miss(0, begin, Time::from_ns(49), false).is_err());
    assert!(model.miss(0, begin, Time::from_ns(50), false).is_ok());
    let bytes = bytes_of(&model, version);
    let found = Found { bytes: &bytes, part: &Part::All };
    assert!(model.hit(0, (&found, None), begin, Time::from_ns(70)).is_ok(), "a little late");
    assert!(model.hit(0, (&found, None), begin, Time::from_ns(3_000_000_000)).is_err());
}

#[test]
fn damage_brings_back_any_version_of_the_keys_it_strikes_and_of_no_others() {
    let mut model = model();
    let [(_, old), (_, new)] = [0, 0].map(|key| put(&mut model, key));
    let [(_, other_old), (_, other_new)] = [1, 1].map(|key| put(&mut model, key));
    model.crash(Durability::Durable, Crash::Cut);
    model.damaged(0);
    assert!(hit(&mut model, 0, &old).is_ok() && hit(&mut model, 0, &new).is_ok());
    assert!(model.miss(0, Moment::MAX, Time::ZERO, false).is_ok());
    assert!(hit(&mut model, 1, &other_old).is_err() && hit(&mut model, 1, &other_new).is_ok());
    assert!(model.miss(1, Moment::MAX, Time::ZERO, false).is_err());
}

#[test]
fn a_write_that_failed_without_effect_never_shows() {
    let mut model = model();
    let (_, old) = put(&mut model, 0);
    let version = model.version(100, None);
    let begin = model.begin(0, Some(version));
    model.end(0, begin, Ended::Void, None);
    let bytes = bytes_of(&model, version);
    assert!(hit(&mut model, 0, &bytes).is_err() && hit(&mut model, 0, &old).is_ok());
}
