//! Lines of code, words of comments, functions and assertions of a file.

/// What is counted of the product's code; tests at a file's end are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// Lines that are neither blank nor comments.
    pub(super) code: usize,
    /// Words of comments.
    pub(super) comment_words: usize,
    /// Functions with a body.
    pub(super) functions: usize,
    /// `assert!` and its kin, in debug builds or always.
    pub(super) assertions: usize,
}

impl Lines {
    /// Adds a file's.
    pub(super) fn add(&mut self, text: &str) {
        for line in product(text).lines().map(str::trim) {
            if let Some(comment) = line.strip_prefix("//") {
                let words = comment.trim_start_matches(['/', '!']).split_whitespace();
                self.comment_words += words.count();
            } else if !line.is_empty() {
                self.code += 1;
                self.functions += usize::from(is_function(line));
                self.assertions += line.matches("assert").filter(|_| is_assertion(line)).count();
            }
        }
    }
}

/// A file's text up to its tests, which come last.
pub(super) fn product(text: &str) -> &str {
    let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    &text[..tests]
}

fn is_function(line: &str) -> bool {
    let before = line.split_once("fn ").map(|(before, _)| before);
    let qualifiers = ["const", "async", "unsafe", "extern", "\"C\""];
    before.is_some_and(|before| {
        before.split_whitespace().all(|word| {
            word.starts_with("pub") || word.ends_with(')') || qualifiers.contains(&word)
        })
    })
}

fn is_assertion(line: &str) -> bool {
    let names = ["assert!(", "assert_eq!(", "assert_ne!("];
    names.iter().any(|name| line.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comments_functions_and_assertions_are_counted_and_tests_are_not() {
        let mut lines = Lines::default();
        lines.add(
            "//! Two words\n\npub(crate) const fn f(x: u8) {\n    // three more words\n    \
             debug_assert_eq!(x, 1, \"so\");\n    assert!(x > 0);\n}\nlet g = |fn_: u8| fn_;\n\
             #[cfg(test)]\nmod tests {\n    fn t() { assert!(true) }\n}\n",
        );
        let expected = Lines { code: 5, comment_words: 5, functions: 1, assertions: 2 };
        assert_eq!(lines, expected);
    }
}
