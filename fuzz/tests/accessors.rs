//! Checks that the target `spec_bytes` covers every accessor of the device's wire types.
//!
//! Reads the sources: a method added to such a type and not to the target fails here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Written or shown by a device; commands, PRPs and SGLs are the host's.
const OF_THE_DEVICE: [&str; 8] = [
    "completion.rs",
    "status.rs",
    "identify",
    "log",
    "feature",
    "register/cmb.rs",
    "register/config.rs",
    "register/properties.rs",
];

fn files(path: PathBuf) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path];
    }
    let entries = std::fs::read_dir(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    entries.flat_map(|entry| files(entry.expect("an entry").path())).collect()
}

/// Returns the names of a source's public methods on `self`, bit fields included, without builders and tests.
fn methods(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().map(str::trim_start).filter(|line| line.starts_with("pub "));
    let named = lines.filter_map(|line| line.split_once("fn ")?.1.split_once('('));
    let on_self = named
        .filter(|(_, arguments)| arguments.starts_with("self") || arguments.starts_with("&self"));
    let names = on_self.map(|(name, _)| name.split('<').next().unwrap_or(name).to_owned());
    let rows = code.lines().filter_map(|line| line.trim_start().split_once(' '));
    let is_field =
        |bits: &str| bits.contains(':') && bits.starts_with(|c: char| c.is_ascii_digit());
    let fields = rows.filter(|(bits, _)| is_field(bits)).filter_map(|(_, row)| row.split_once(':'));
    names
        .filter(|name| !name.starts_with("with_") && !name.starts_with('$'))
        .chain(fields.filter_map(|(names, _)| names.split(' ').next()).map(str::to_owned))
        .collect()
}

#[test]
fn every_accessor_of_device_bytes_is_looked_at() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("a source");
    let target: String = files(root.join("src/spec_bytes")).into_iter().map(read).collect();
    let looked_at: BTreeSet<&str> =
        target.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let spec = root.join("../driver/spec/src");
    let sources = OF_THE_DEVICE.iter().flat_map(|part| files(spec.join(part)));
    let methods: BTreeSet<String> = sources.flat_map(|path| methods(&read(path))).collect();
    assert!(methods.len() > 100, "the sources are read: {}", methods.len());
    let forgotten: Vec<&String> =
        methods.iter().filter(|name| !looked_at.contains(name.as_str())).collect();
    assert!(forgotten.is_empty(), "not looked at: {forgotten:?}");
}

#[test]
fn methods_are_told_from_functions_and_tests() {
    let source = "    pub const fn sct(self) -> u8 {\n    pub fn new(sct: u8) {\n    pub fn with_x(self) {\n\
                  \x20   fn private(&self) {\n    pub fn iter(&self, after: Nsid) {\n\
                  \x20   3:1 szu: u8, \"unit\";\n    0:0 en with_en: bool, \"on\";\n#[cfg(test)]\n    pub fn late(self) {";
    assert_eq!(methods(source), ["sct", "iter", "szu", "en"]);
}
