//! The controller's state between commands. No file here knows the controller.
//!
//! | file | holds |
//! |---|---|
//! | `events` | asynchronous events and the requests for them |
//! | `features` | values that the host sets and reads back |
//! | `statistics` | counters and the error log |
//! | `placements` | the handles of data placement |
//! | `life` | enable, disable, power and pauses |

pub(crate) mod events;
pub(crate) mod features;
pub(crate) mod life;
mod placements;
pub(crate) mod statistics;

pub(crate) use events::Events;
pub(crate) use features::Features;
pub(crate) use life::Life;
pub(crate) use placements::Placements;
pub(crate) use statistics::Statistics;
