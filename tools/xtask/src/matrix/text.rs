//! Reads the cases from their texts, `cases/*.cases`:
//!
//! ```text
//! # A comment.
//! == NAME
//! --nvme=mdts=7 --gpu
//! $ adit identify {0}
//! > this | and this
//! 1$ adit identify vfio:0000:00:0f.0
//!   echo never
//! ```
//!
//! A guest's name is followed by its options of `cargo xtask vm`, each as one word, and by its steps. A step begins with
//! the exit code that it must have, 0 if there is none, and `$`; what it must say follows behind `>`, with `\n` for a
//! line break. Indented lines continue a step, or an option that is too long for a line.

use super::case::{Case, Step};

/// Returns the cases of a text, which is part of this program.
pub(super) fn parse(text: &'static str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("== ") {
            cases.push(Case { name, guest: Vec::new(), steps: Vec::new() });
        } else {
            let added = cases.last_mut().and_then(|case| add(case, line));
            added.unwrap_or_else(|| panic!("a case has no such line: {line}"));
        }
    }
    cases
}

/// Adds a line to a case; returns `None` if there is no such line.
fn add(case: &mut Case, line: &str) -> Option<()> {
    if line.starts_with("--") {
        case.guest.extend(line.replace(" --", "\n--").lines().map(str::to_owned));
    } else if let Some(more) = line.strip_prefix("  ") {
        match case.steps.last_mut() {
            Some(step) => step.shell += &format!("\n{more}"),
            None => *case.guest.last_mut()? += more,
        }
    } else if let Some(says) = line.strip_prefix("> ") {
        let says = says.split(" | ").map(|fragment| fragment.replace("\\n", "\n"));
        case.steps.last_mut()?.says.extend(says);
    } else {
        let (exit, shell) = line.split_once("$ ")?;
        let exit = if exit.is_empty() { 0 } else { exit.parse().ok()? };
        case.steps.push(Step { shell: shell.to_owned(), exit, says: Vec::new() });
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_steps_and_what_they_say_are_read() {
        let text = "# A comment.\n== one\n--qmp=a => b --nvme=x,\n  y --gpu\n$ f {0} &&\n  g\n> a | \\nb\n\n\
                    == other\n130$ echo $ 1\n";
        let cases = parse(text);
        assert_eq!(cases[0].guest, ["--qmp=a => b", "--nvme=x,y --gpu"]);
        let [step] = &cases[0].steps[..] else { panic!("one step") };
        assert_eq!((step.shell.as_str(), step.exit), ("f {0} &&\ng", 0));
        assert_eq!(step.says, ["a", "\nb"]);
        assert_eq!((cases[1].name, cases[1].steps[0].exit), ("other", 130));
        assert_eq!(cases[1].steps[0].shell, "echo $ 1");
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for text in ["$ too early\n", "== a\nwords\n", "== a\n300$ f\n", "== a\n> nothing\n"] {
            let panicked = std::panic::catch_unwind(|| parse(text)).err().expect(text);
            let told = panicked.downcast_ref::<String>().expect("a sentence");
            assert!(told.contains(text.lines().last().expect("a line")), "{told}");
        }
    }
}
