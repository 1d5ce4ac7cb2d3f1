//! Who imports whom within a crate, by the names after `crate::`.

use std::collections::BTreeMap;

/// The imports between a crate's modules of the first level.
#[derive(Debug, Default)]
pub(super) struct Imports {
    /// From a module to those it names, each with a file that does.
    edges: BTreeMap<String, BTreeMap<String, String>>,
}

impl Imports {
    /// Adds those of the file at `path`, counted from the crate's `src`.
    pub(super) fn add(&mut self, path: &str, lines: &[&str]) {
        let edges = self.edges.entry(module(path).to_owned()).or_default();
        for line in lines.iter().filter(|line| !line.trim_start().starts_with("//")) {
            for after in line.split("crate::").skip(1) {
                let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                edges.entry(name.unwrap_or_default().to_owned()).or_insert_with(|| path.to_owned());
            }
        }
    }

    /// Imports from a layer of one above it, where `layers` has them from the lowest up.
    pub(super) fn upward(&self, layers: &[&str]) -> Vec<String> {
        let height = |name: &str| layers.iter().position(|layer| *layer == name);
        let is_upward = |(from, to): &(&str, &str)| {
            height(from).zip(height(to)).is_some_and(|(from, to)| from < to)
        };
        let arrow = |(from, to): (&str, &str)| format!("{from} -> {to} ({})", self.edges[from][to]);
        self.arrows().filter(is_upward).map(arrow).collect()
    }

    /// Every import of another module of the crate; the crate's root is none.
    fn arrows<'a>(&'a self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let of = |(from, to): (&'a String, &'a BTreeMap<String, String>)| {
            to.keys().map(move |to| (from.as_str(), to.as_str()))
        };
        let is_module =
            |name: &str| self.edges.contains_key(name) && !["lib", "main"].contains(&name);
        let is_arrow =
            move |(from, to): &(&str, &str)| from != to && is_module(from) && is_module(to);
        self.edges.iter().flat_map(of).filter(is_arrow)
    }
}

/// Returns the module of the first level that a file belongs to, by its path from the crate's `src`.
pub(super) fn module(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upward_imports_are_found_and_the_root_is_no_module() {
        let mut imports = Imports::default();
        imports.add("low.rs", &["use crate::high::A;", "use crate::Error;"]);
        imports.add("high/mod.rs", &["use crate::low;", "// crate::top is only named"]);
        imports.add("top.rs", &["use crate::high;"]);
        imports.add("lib.rs", &["pub use crate::top;"]);
        assert_eq!(imports.upward(&["low", "high", "top"]), ["low -> high (low.rs)"]);
        assert_eq!(imports.upward(&[]), Vec::<String>::new());
    }
}
