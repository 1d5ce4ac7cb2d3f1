//! Reads a recording.

use adit_driver::spec::{Iova, Status};

use crate::text::Item;

/// A recording. Accessors fail the test if a part is missing.
pub(crate) struct Recording {
    items: Vec<Item>,
}

impl Recording {
    pub(crate) fn of_qemu() -> Recording {
        let items = parse(include_str!("qemu.txt")).expect("the recording is well-formed");
        Recording { items }
    }

    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    pub(crate) fn item(&self, name: &str) -> &Item {
        let found = self.items.iter().find(|item| item.name == name);
        found.unwrap_or_else(|| panic!("'{name}' was not recorded"))
    }

    pub(crate) fn data(&self, name: &str) -> &[u8] {
        bytes(self.item(name), "data")
    }

    pub(crate) fn dw0(&self, name: &str) -> u32 {
        number(self.item(name), "dw0") as u32
    }

    pub(crate) fn status(&self, name: &str) -> Status {
        status(self.item(name))
    }

    pub(crate) fn register(&self, name: &str) -> u64 {
        number(self.item(&format!("register {name}")), "value")
    }

    /// Returns the address of the commands' memory.
    pub(crate) fn arena(&self) -> Iova {
        Iova(number(self.item("arena"), "iova"))
    }
}

pub(crate) fn field<'a>(item: &'a Item, name: &str) -> Option<&'a [u8]> {
    item.fields.iter().find(|(field, _)| field == name).map(|(_, bytes)| bytes.as_slice())
}

pub(crate) fn bytes<'a>(item: &'a Item, name: &str) -> &'a [u8] {
    field(item, name).unwrap_or_else(|| panic!("'{}' has no {name}", item.name))
}

/// Returns a field as a number of at most 8 bytes.
pub(crate) fn number(item: &Item, name: &str) -> u64 {
    let bytes = bytes(item, name);
    assert!(bytes.len() <= 8, "{name} of '{}' is no number", item.name);
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(crate) fn status(item: &Item) -> Status {
    Status::from_bits(number(item, "status") as u16)
}

fn parse(text: &str) -> Result<Vec<Item>, String> {
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
    let fields = &mut items.last_mut()?.fields;
    let tokens = match line.split_once(':') {
        Some((name, tokens)) => {
            fields.push((name.to_owned(), Vec::new()));
            tokens
        }
        None => line.strip_prefix(' ')?,
    };
    let bytes = &mut fields.last_mut()?.1;
    for token in tokens.split_whitespace() {
        let (byte, count) = token.split_once('*').unwrap_or((token, "1"));
        let count: usize = count.parse().ok()?;
        bytes.resize(bytes.len() + count, u8::from_str_radix(byte, 16).ok()?);
    }
    Some(())
}

#[test]
fn a_recording_reads_back_as_it_was_written() {
    let item = Item::new("a").with("data", &[1, 1, 1, 1, 1, 2, 3, 3]).with("status", &[0, 0x40]);
    assert_eq!(item.to_string(), "[a]\ndata: 01*5 02 03 03\nstatus: 00 40\n");
    let long = Item::new("b").with("data", &(0..200).collect::<Vec<u8>>());
    let text = format!("# comment\n{item}\n{long}");
    assert_eq!(parse(&text), Ok(vec![item, long]));
    assert_eq!(parse("[a]\ndata: 1g"), Err("line 2: data: 1g".to_owned()));
}

#[test]
fn names_are_unique() {
    let recording = Recording::of_qemu();
    let mut names: Vec<_> = recording.items().iter().map(|item| &item.name).collect();
    names.sort();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}
