//! Helpers of these tests.

pub(crate) mod interrupt;
pub(crate) mod keys;
pub(crate) mod kv;
pub(crate) mod softnvme;

use std::process::Output;

/// How a program ended, and its output as text.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}
