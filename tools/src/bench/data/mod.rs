//! What written blocks hold, and whether what is read is what was written.

mod stamp;
