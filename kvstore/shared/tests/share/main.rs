//! Tests a server and its clients together: calls, waiting, hostile clients.

mod calls;
mod conditions;
mod dead;
mod hostile;
mod peer;
mod rig;
mod streams;
mod waiting;
