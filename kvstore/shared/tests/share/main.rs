//! Tests a server and its clients together: calls, waiting, hostile clients.

mod calls;
mod conditions;
mod dead;
mod hostile;
mod limits;
mod lost;
mod peer;
mod raw;
mod removals;
mod rig;
mod streams;
mod verify;
mod waiting;
