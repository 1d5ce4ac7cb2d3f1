//! The driver against a misbehaving software controller, in virtual time: overdue, lost, repeated, corrupt and refused
//! commands, and removal. Each case ends with every buffer back exactly once and nothing left mapped.
#![allow(missing_docs)]

#[path = "support/rig.rs"]
mod rig;

#[path = "faults/bring_up.rs"]
mod bring_up;
#[path = "faults/events.rs"]
mod events;
#[path = "faults/failures.rs"]
mod failures;
#[path = "faults/ladder.rs"]
mod ladder;
#[path = "faults/protocol.rs"]
mod protocol;
#[path = "faults/queues.rs"]
mod queues;
#[path = "faults/recover.rs"]
mod recover;
#[path = "faults/requests.rs"]
mod requests;
#[path = "faults/teardown.rs"]
mod teardown;
