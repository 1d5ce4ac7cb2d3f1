//! x
use crate::failure::Result;
#[derive(clap::Args)]
pub(crate) struct TestArgs {}
pub(crate) fn run(_: &TestArgs) -> Result<u8> {
    Ok(0)
}
