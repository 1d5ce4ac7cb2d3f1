//! Type names that several files declare: one noun should mean one thing.

use std::collections::BTreeMap;

/// Counts the files that declare each type name.
#[derive(Debug, Default)]
pub(super) struct Names {
    files: BTreeMap<String, usize>,
}

impl Names {
    /// Adds the types of a file.
    pub(super) fn add(&mut self, lines: &[&str]) {
        let mut names: Vec<&str> = lines.iter().filter_map(|line| type_name(line)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            *self.files.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// Returns the names that more than `most` files declare, with their number, most first.
    pub(super) fn repeated(&self, most: usize) -> Vec<(&str, usize)> {
        let files = self.files.iter().map(|(name, files)| (name.as_str(), *files));
        let mut repeated: Vec<_> = files.filter(|(_, files)| *files > most).collect();
        repeated.sort_by_key(|(_, files)| std::cmp::Reverse(*files));
        repeated
    }
}

/// Returns the name of the type that a line declares.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().filter(|word| !word.starts_with("pub"));
    let keyword = words.next()?;
    let name = words.next().filter(|_| matches!(keyword, "struct" | "enum" | "union" | "trait"))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_once_a_file_and_only_where_it_is_declared() {
        let mut names = Names::default();
        names.add(&["pub(crate) struct State<T> {", "    enum State {", "impl State {"]);
        names.add(&["struct State;", "// struct Other", "pub trait Other {"]);
        assert_eq!(names.repeated(1), [("State", 2)]);
        assert_eq!(names.repeated(0), [("State", 2), ("Other", 1)]);
    }
}
