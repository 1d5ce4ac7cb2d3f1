//! Lines of code, words of comments, functions and assertions of a file.

/// Counts of the product's code, without the tests at a file's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Lines that are neither blank nor comments.
    pub(crate) code: usize,
    /// Words of comments.
    pub(crate) comment_words: usize,
    /// Functions with a body.
    pub(crate) functions: usize,
    /// `assert!` and its kin, in debug builds or always.
    pub(crate) assertions: usize,
}

impl Lines {
    /// Adds the counts of a Python file; the documentation of its items counts as comments.
    pub(crate) fn add_python(&mut self, text: &str) {
        let mut is_documentation = false;
        for line in text.lines().map(str::trim) {
            let quotes = line.matches("\"\"\"").count();
            let begins = line.starts_with("\"\"\"");
            if is_documentation || begins || line.starts_with('#') {
                self.comment_words += line.split_whitespace().count();
            } else if !line.is_empty() {
                self.code += 1;
                self.functions +=
                    usize::from(line.starts_with("def ") || line.starts_with("async def "));
                self.assertions += usize::from(line.starts_with("assert "));
            }
            is_documentation ^= quotes == 1 && (is_documentation || begins);
        }
    }

    /// Adds the counts of a Rust or C++ file.
    pub(crate) fn add(&mut self, text: &str) {
        for line in lines_before_tests(text).into_iter().map(str::trim) {
            if let Some(comment) = line.strip_prefix("//") {
                let words = comment.trim_start_matches(['/', '!']).split_whitespace();
                self.comment_words += words.count();
            } else if !line.is_empty() {
                self.code += 1;
                self.functions += usize::from(function_name(line).is_some());
                self.assertions += assertions(line);
            }
        }
    }
}

/// Returns the lines of a file before its tests.
pub(crate) fn lines_before_tests(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|two| {
        two[0].trim() == "#[cfg(test)]"
            && two[1].trim_start().starts_with("mod ")
            && two[1].ends_with('{')
    });
    lines.truncate(tests.unwrap_or(lines.len()));
    lines
}

/// Returns the modules in files of their own that the file at `path` compiles only for tests, as paths without
/// an extension.
pub(crate) fn test_modules(path: &str, text: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = match file {
        "mod.rs" | "lib.rs" | "main.rs" => folder,
        _ => path.trim_end_matches(".rs"),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let tests = lines.windows(2).filter(|two| two[0] == "#[cfg(test)]");
    let names = tests.filter_map(|two| two[1].strip_suffix(';')?.split_once("mod "));
    names.map(|(_, name)| format!("{folder}/{name}")).collect()
}

/// Returns the name in a line that starts a function.
pub(crate) fn function_name(line: &str) -> Option<&str> {
    let qualifies = |word: &&str| {
        word.starts_with("pub")
            || word.ends_with(')')
            || matches!(*word, "const" | "async" | "unsafe" | "extern" | "\"C\"")
    };
    let mut words = line.split_whitespace().skip_while(qualifies);
    let name = words.next().filter(|word| *word == "fn").and_then(|_| words.next())?;
    name.split(['(', '<']).next()
}

/// Returns a line's code without comments and string contents.
pub(crate) fn code(line: &str) -> String {
    let unquoted: String = line.replace("\\\"", "").split('"').step_by(2).collect();
    unquoted.split("//").next().unwrap_or_default().to_owned()
}

/// Counts the assertions in a line of code: `assert!` and its kin, and calls of functions named `assert_…`.
pub(crate) fn assertions(line: &str) -> usize {
    let code = code(line);
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    let is_assertion = |at: &usize| {
        let before = code[..*at].strip_suffix("debug_").unwrap_or(&code[..*at]);
        let name = code[*at..].split(|c| !joins(c)).next().unwrap_or_default();
        let after = &code[at + name.len()..];
        let is_called = after.starts_with("!(") || name.contains('_') && after.starts_with('(');
        is_called && !before.ends_with(joins) && !before.ends_with("fn ")
    };
    code.match_indices("assert").map(|(at, _)| at).filter(is_assertion).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_for_tests_lie_beside_the_root_or_below_their_file() {
        let text = "mod a;\n#[cfg(test)]\npub(crate) mod b;\n#[cfg(test)]\nmod c {\n}\n";
        assert_eq!(test_modules("x/src/lib.rs", text), ["x/src/b"]);
        assert_eq!(test_modules("x/src/y.rs", text), ["x/src/y/b"]);
    }

    #[test]
    fn pythons_documentation_is_no_code() {
        let mut lines = Lines::default();
        lines.add_python(
            "\"\"\"One line.\"\"\"\n# two words\n\ndef f():\n    \"\"\"Two\n    lines.\n    \"\"\"\n    \
             assert g\n    x = \"\"\"y\"\"\"\n",
        );
        assert_eq!(lines, Lines { code: 3, comment_words: 8, functions: 1, assertions: 1 });
    }

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
