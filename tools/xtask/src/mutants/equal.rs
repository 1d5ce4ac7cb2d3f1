//! The list of changes that may survive, and its violations.

use crate::failure::{Failure, Result};

/// A change that no test can detect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Equal {
    /// cargo-mutants' name of it, without line and column: `driver/src/queue_pair/ring.rs: replace | with ^ in
    /// Ring::push`. For two such changes in one function, it is listed twice.
    name: String,
    reason: String,
}

/// Parses the list: a line with the name, then indented lines with the reason; lines that begin with `#` are
/// comments.
pub(super) fn parse(text: &str) -> Result<Vec<Equal>> {
    let mut all: Vec<Equal> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("    "), all.last_mut()) {
            (None, _) => all.push(Equal { name: line.to_owned(), reason: String::new() }),
            (Some(reason), Some(equal)) => equal.reason += reason,
            (Some(_), None) => {
                return Err(Failure::new(format!("equal.txt: a reason of nothing: {line}")));
            }
        }
    }
    match all.iter().find(|equal| equal.reason.is_empty()) {
        Some(Equal { name, .. }) => {
            Err(Failure::new(format!("equal.txt: no reason is given for {name}")))
        }
        None => Ok(all),
    }
}

/// Returns survivors that `equal` does not list and, if all changes to `files` were tried, listed names that
/// did not survive.
pub(super) fn offences(
    equal: &[Equal],
    survivors: &[String],
    files: &[String],
    is_whole: bool,
) -> Vec<String> {
    let mut expected: Vec<&str> = equal.iter().map(|equal| equal.name.as_str()).collect();
    let mut offences = Vec::new();
    for survivor in survivors {
        let name = without_place(survivor);
        match expected.iter().position(|expected| *expected == name) {
            Some(at) => drop(expected.remove(at)),
            None => offences.push(format!(
                "SURVIVES {survivor}\n    kill it by a test, or name it in equal.txt with the reason why it does the same"
            )),
        }
    }
    let was_tried =
        |name: &&str| is_whole && files.iter().any(|file| name.starts_with(&format!("{file}: ")));
    let gone = expected.into_iter().filter(was_tried);
    offences
        .extend(gone.map(|name| format!("CAUGHT OR GONE {name}\n    remove it from equal.txt")));
    offences
}

/// Removes the position, because lines move: `a.rs:1:2: change` becomes `a.rs: change`.
fn without_place(name: &str) -> String {
    let (place, change) = name.split_once(": ").unwrap_or((name, ""));
    let file = place.split(':').next().unwrap_or(place);
    format!("{file}: {change}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# A comment.\na.rs: replace | with ^ in sqe\n    no bit\n    in common\n\nb.rs: replace f with ()\n    why\n";

    fn told(survivors: &[&str], files: &[&str], is_whole: bool) -> Vec<String> {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        offences(&parse(LIST).expect("a list"), &owned(survivors), &owned(files), is_whole)
    }

    #[test]
    fn a_survivor_is_excused_once_by_its_name_on_any_line() {
        let known = "a.rs:7:9: replace | with ^ in sqe";
        assert_eq!(told(&[known], &["a.rs"], true), [""; 0]);
        let twice = told(&[known, "a.rs:8:9: replace | with ^ in sqe"], &["a.rs"], true);
        assert_eq!(twice.len(), 1);
        assert!(twice[0].starts_with("SURVIVES a.rs:8:9: "), "{}", twice[0]);
        assert_eq!(told(&["a.rs:7:9: replace | with ^ in other"], &[], true).len(), 1);
    }

    #[test]
    fn what_is_listed_and_was_caught_offends_if_it_was_tried() {
        let caught = told(&[], &["b.rs"], true);
        assert_eq!(
            caught,
            ["CAUGHT OR GONE b.rs: replace f with ()\n    remove it from equal.txt"]
        );
        assert_eq!(told(&[], &["b.rs"], false), [""; 0]);
    }

    #[test]
    fn a_list_without_reasons_is_refused_and_ours_is_not() {
        let refused = parse("a.rs: replace f with ()\nb.rs: g\n    why\n").expect_err("no reason");
        assert!(refused.to_string().ends_with("for a.rs: replace f with ()"), "{refused}");
        assert!(parse("    a reason\n").is_err());
        assert!(parse(include_str!("equal.txt")).is_ok());
    }
}
