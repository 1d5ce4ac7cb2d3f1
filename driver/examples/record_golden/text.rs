//! The text format of recordings: readable, and small if bytes repeat.
//!
//! ```text
//! [identify controller]
//! data: 36 1b f4 1a 67 6f 20*14
//!       00*4072
//! ```
//!
//! An item has a name and fields, a field has a name and bytes; `20*14` is fourteen times `20`. Numbers are
//! little-endian, as on the wire. Lines that begin with `#` are comments. The test contains the reader.

use std::fmt::{self, Write as _};

const TOKENS_PER_LINE: usize = 32;
/// Shortest run written as one token.
const RUN_MIN: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Its name, unique in the recording.
    pub(crate) name: String,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

impl Item {
    pub(crate) fn new(name: &str) -> Item {
        Item { name: name.to_owned(), fields: Vec::new() }
    }

    pub(crate) fn with(mut self, field: &str, bytes: &[u8]) -> Item {
        self.fields.push((field.to_owned(), bytes.to_vec()));
        self
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[{}]", self.name)?;
        for (name, bytes) in &self.fields {
            write!(f, "{name}:")?;
            let indent = format!("\n{:1$}", "", name.len() + 1);
            for (index, token) in tokens(bytes).into_iter().enumerate() {
                if index > 0 && index % TOKENS_PER_LINE == 0 {
                    f.write_str(&indent)?;
                }
                write!(f, " {token}")?;
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

fn tokens(bytes: &[u8]) -> Vec<String> {
    let mut tokens = Vec::new();
    for run in bytes.chunk_by(|a, b| a == b) {
        if run.len() >= RUN_MIN {
            tokens.push(format!("{:02x}*{}", run[0], run.len()));
        } else {
            tokens.extend(run.iter().map(|byte| format!("{byte:02x}")));
        }
    }
    tokens
}
