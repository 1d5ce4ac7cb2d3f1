//! The text that recordings are kept in: readable, and small where bytes repeat.
//!
//! ```text
//! [identify controller]
//! data: 36 1b f4 1a 67 6f 20*14
//!       00*4072
//! ```
//!
//! An item has a name and fields, a field has a name and bytes; `20*14` is fourteen times
//! `20`. Numbers are little-endian, as on the wire. Lines that begin with `#` are comments.

use std::fmt::{self, Write as _};

/// Tokens of a line.
const TOKENS_PER_LINE: usize = 32;
/// Shorter runs are written out.
const RUN_MIN: usize = 4;

/// One thing that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it is; unique in its recording.
    pub name: String,
    /// Its parts by name.
    pub fields: Vec<(String, Vec<u8>)>,
}

impl Item {
    /// An item without fields.
    pub fn new(name: &str) -> Item {
        Item { name: name.to_owned(), fields: Vec::new() }
    }

    /// Adds a field.
    pub fn with(mut self, field: &str, bytes: &[u8]) -> Item {
        self.fields.push((field.to_owned(), bytes.to_vec()));
        self
    }

    /// A field's bytes.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, bytes)| bytes.as_slice())
    }

    /// A field as a number of at most 8 bytes.
    pub fn number(&self, name: &str) -> Option<u64> {
        let bytes = self.field(name).filter(|bytes| bytes.len() <= 8)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
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

/// Reads a recording back.
///
/// # Errors
/// The first line that is none of the format's.
pub fn parse(text: &str) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    for (index, line) in text.lines().enumerate() {
        parse_line(line, &mut items).ok_or_else(|| format!("line {}: {line}", index + 1))?;
    }
    Ok(items)
}

fn parse_line(line: &str, items: &mut Vec<Item>) -> Option<()> {
    if line.is_empty() || line.starts_with('#') {
        return Some(());
    }
    if let Some(name) = line.strip_prefix('[') {
        items.push(Item::new(name.strip_suffix(']')?));
        return Some(());
    }
    let item = items.last_mut()?;
    let bytes = match line.split_once(':') {
        Some((name, bytes)) => {
            item.fields.push((name.to_owned(), Vec::new()));
            bytes
        }
        None => line.strip_prefix(' ')?,
    };
    let field = &mut item.fields.last_mut()?.1;
    for token in bytes.split_whitespace() {
        let (byte, count) = token.split_once('*').unwrap_or((token, "1"));
        let byte = u8::from_str_radix(byte, 16).ok()?;
        let count: usize = count.parse().ok().filter(|count| *count <= 1 << 20)?;
        field.resize(field.len() + count, byte);
    }
    Some(())
}
