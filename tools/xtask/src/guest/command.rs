//! The command that runs in the guest: quotes its words for the shell, and turns `{0}`, `{k0}` and `{g0}` into
//! shell variables. The guest's first process sets those once it knows the devices.

use crate::failure::{Failure, Result};

/// Numbers of controllers that can be referred to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Devices {
    /// Bound to vfio-pci: `{0}`, `{1}`, …
    pub vfio: usize,
    /// Left to the kernel: `{k0}`, `{g0}`, …
    pub kernel: usize,
}

/// Returns the shell line that runs `words`. If the first word is one of `programs`, the names copied into
/// [`PROGRAMS`], it becomes a path, because busybox's shell prefers its own applets to programs in `PATH`.
pub(crate) fn shell_line(
    words: &[String],
    devices: Devices,
    programs: &[String],
) -> Result<String> {
    let mut quoted = Vec::with_capacity(words.len());
    for (index, word) in words.iter().enumerate() {
        if index == 0 && programs.contains(word) {
            quoted.push(quote(&format!("{PROGRAMS}/{word}")));
        } else {
            quoted.push(substitute(word, devices)?);
        }
    }
    Ok(quoted.join(" "))
}

/// The guest's directory of copied programs.
pub(crate) const PROGRAMS: &str = "/usr/local/bin";

/// Returns whether any of `words` calls `program`, alone or within a shell text.
pub(crate) fn mentions(words: &[String], program: &str) -> bool {
    let part_of_name = |byte: char| byte.is_alphanumeric() || matches!(byte, '_' | '-' | '.' | '/');
    words.iter().any(|word| word.split(|byte| !part_of_name(byte)).any(|name| name == program))
}

/// Quotes `text` as one shell word.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn substitute(word: &str, devices: Devices) -> Result<String> {
    let mut shell = String::new();
    let mut rest = word;
    let mut literal = 0;
    while let Some(open) = rest[literal..].find('{').map(|at| at + literal) {
        let Some((variable, length)) = placeholder(&rest[open..], devices)? else {
            literal = open + 1;
            continue;
        };
        // `${0}` belongs to the shell.
        if rest[..open].ends_with('$') {
            literal = open + length;
            continue;
        }
        if open > 0 {
            shell.push_str(&quote(&rest[..open]));
        }
        shell.push_str(&format!("\"${variable}\""));
        rest = &rest[open + length..];
        literal = 0;
    }
    if !rest.is_empty() || shell.is_empty() {
        shell.push_str(&quote(rest));
    }
    Ok(shell)
}

/// Returns the variable for the placeholder at the start of `text`, and the placeholder's length.
fn placeholder(text: &str, devices: Devices) -> Result<Option<(String, usize)>> {
    let Some((inside, _)) = text[1..].split_once('}') else {
        return Ok(None);
    };
    let (letter, digits) = match inside.as_bytes().first() {
        Some(b'k' | b'g') => inside.split_at(1),
        _ => ("", inside),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Ok(None);
    }
    let (prefix, count, flag) = match letter {
        "k" => ("BLOCK", devices.kernel, "--kernel-nvme"),
        "g" => ("GENERIC", devices.kernel, "--kernel-nvme"),
        _ => ("TARGET", devices.vfio, "--nvme"),
    };
    match digits.parse::<usize>() {
        Ok(index) if index < count => Ok(Some((format!("{prefix}_{index}"), inside.len() + 2))),
        _ => Err(Failure::usage(format!(
            "{{{inside}}} in the command needs more {flag} options: there are {count}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: Devices = Devices { vfio: 2, kernel: 1 };

    fn line(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        shell_line(&words, DEVICES, &["fio".to_owned()]).unwrap()
    }

    #[test]
    fn words_are_quoted() {
        assert_eq!(line(&["echo", "it's $HOME", ""]), r"'echo' 'it'\''s $HOME' ''");
    }

    #[test]
    fn placeholders_are_replaced_alone_and_inside_words() {
        assert_eq!(line(&["{0}"]), r#""$TARGET_0""#);
        assert_eq!(line(&["--filename={1},sgl=off"]), r#"'--filename='"$TARGET_1"',sgl=off'"#);
        assert_eq!(line(&["{k0}{g0}"]), r#""$BLOCK_0""$GENERIC_0""#);
    }

    #[test]
    fn braces_that_are_no_placeholder_stay() {
        assert_eq!(
            line(&["{print}{", "${0}", "a{}b", "é{0}"]),
            r#"'{print}{' '${0}' 'a{}b' 'é'"$TARGET_0""#
        );
        assert_eq!(line(&["${1} {1}"]), r#"'${1} '"$TARGET_1""#);
    }

    #[test]
    fn a_device_that_is_not_there_is_a_usage_error() {
        for word in ["{2}", "{k1}", "x{g7}", "{99999999999999999999}"] {
            let failure = shell_line(&[word.to_owned()], DEVICES, &[]).unwrap_err();
            assert_eq!(failure.code(), 2, "{word}");
        }
    }

    #[test]
    fn a_copied_program_is_called_by_its_path() {
        assert_eq!(line(&["fio", "fio"]), "'/usr/local/bin/fio' 'fio'");
    }

    #[test]
    fn mentions_sees_whole_names_only() {
        let says = |text: &str| mentions(&[text.to_owned()], "adit");
        assert!(says("adit"));
        assert!(says("adit bench & wait;(adit identify)"));
        assert!(!says("/tmp/adit-files adit.log my-adit"));
    }
}
