//! Adit's development commands.
fn main() {}
