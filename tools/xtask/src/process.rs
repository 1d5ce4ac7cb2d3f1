//! Runs other programs: finds them in `PATH`, captures their output, and reports failures in one sentence.

use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Maximum lines shown of a failed program's output.
const TAIL_LINES: usize = 60;

/// Returns the path of `program`: itself if it names a file, otherwise the first match in `PATH` and in the
/// system's directories, which an ordinary user's `PATH` may lack.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Path::new(program).is_file().then(|| PathBuf::from(program));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Runs `command`; shows its output only on failure.
pub(crate) fn run_quietly(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().context(format_args!("cannot run {name}"))?;
    interrupt::check()?;
    if output.status.success() {
        return Ok(output);
    }
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    Err(Failure::new(format!(
        "{name} failed ({}):\n{}",
        output.status,
        tail(&String::from_utf8_lossy(&said), TAIL_LINES)
    )))
}

/// Runs `command` in the foreground and returns its exit code; 1 if a signal ended it.
pub(crate) fn exit_code(command: &mut Command) -> Result<u8> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().context(format_args!("cannot run {name}"))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Returns the last `count` nonempty lines of `text`.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_last_lines_and_drops_empty_ones() {
        let text: String = (0..40).map(|line| format!("{line}\n\n")).collect();
        let kept = tail(&text, 15);
        assert_eq!(kept.lines().count(), 15);
        assert!(kept.ends_with("39"));
    }

    #[test]
    fn find_knows_sh_and_refuses_what_is_not_there() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-anywhere").is_none());
        assert!(find("./no-such-program").is_none());
    }
}
