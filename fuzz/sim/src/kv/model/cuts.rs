//! Power cuts that take the data of an object and leave its record.

use super::tests::{hit, model, put};
use super::*;

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
fn a_cut_may_leave_the_record_of_a_durable_put_that_is_not_acknowledged_without_its_data() {
    for (crash, is_listed) in [(Crash::Cut, true), (Crash::Kill { recorded: 0 }, false)] {
        let mut model = model();
        // An earlier life, after which the key is known to be new.
        model.crash(Durability::Durable, Crash::Kill { recorded: 0 });
        let version = model.version(100, None);
        model.begin(0, Some(version));
        model.crash(Durability::Durable, crash);
        let begin = model.tick();
        assert!(model.miss(0, begin, Time::ZERO, false).is_ok());
        model.settle(0, None).expect("one moment");
        let later = model.tick();
        assert_eq!(model.may_have(0, 100, later), is_listed, "{crash:?}");
    }
}
