//! Commands as the host gives them to device code: transfers are cut into contexts, which name memory by a table.

pub mod cut;
pub mod layout;
pub mod outcome;
pub mod table;
