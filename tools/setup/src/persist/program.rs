//! The program a boot runs: this one, if only root can change it.

use std::path::Path;

use crate::failure::{Failure, Result};
use crate::rights::{self, Rights};
use adit_guard::root::Root;

/// Its assumed path on a recorded machine.
const USUAL: &str = "/usr/local/bin/adit";

/// Returns the path of this program.
///
/// # Errors
/// When a user other than root could replace it, or its name has a special meaning for systemd.
pub(super) fn path(root: &Root) -> Result<String> {
    if !root.is_live() {
        return Ok(USUAL.to_owned());
    }
    let path = std::env::current_exe();
    let path = path.map_err(|why| {
        Failure::failed(format!("cannot find out where this program is: {why}; is /proc mounted?"))
    })?;
    check(&path, Rights::of)
}

/// Returns the program's path as text, if only root can write to it and to every directory above it.
fn check(program: &Path, rights: impl Fn(&Path) -> Option<Rights>) -> Result<String> {
    let refuse = |why: String| Err(Failure::failed(format!("{why}, {}", remedy(program))));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte);
    let Some(text) = program.to_str().filter(|text| text.bytes().all(is_plain)) else {
        return refuse(format!("the name {} means something else in a unit", program.display()));
    };
    if let Some(why) = rights::of_others(program, rights) {
        return refuse(why);
    }
    Ok(text.to_owned())
}

/// Returns how to fix a program that must not run at boot.
fn remedy(program: &Path) -> String {
    let danger = "and root would run what is there at every boot";
    if program == Path::new(USUAL) {
        return danger.to_owned();
    }
    format!(
        "{danger}; install it first: 'sudo install {} {USUAL}', then run '{USUAL} setup persist'",
        program.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAFE: Rights = Rights { uid: 0, gid: 0, mode: 0o40755 };

    /// Checks a program on a machine where everything except `odd` is root's.
    fn checked(program: &str, odd: &str, rights: Option<Rights>) -> Result<String> {
        check(Path::new(program), |path| if path == Path::new(odd) { rights } else { Some(SAFE) })
    }

    #[test]
    fn a_program_of_roots_is_taken() {
        let path = checked("/usr/local/bin/adit", "", None).expect("it is root's");
        assert_eq!(path, "/usr/local/bin/adit");
        let wheel = Rights { mode: 0o40775, ..SAFE };
        checked("/usr/local/bin/adit", "/usr/local/bin", Some(wheel)).expect("root's own group");
    }

    #[test]
    fn what_others_can_replace_is_refused_with_what_to_do() {
        let sticky = Rights { mode: 0o41777, ..SAFE };
        let staff = Rights { gid: 50, mode: 0o42775, ..SAFE };
        let users = Rights { uid: 1000, ..SAFE };
        for (program, odd, rights) in [
            ("/tmp/adit", "/tmp", Some(sticky)),
            ("/usr/local/bin/adit", "/usr/local/bin", Some(staff)),
            ("/home/alice/target/adit", "/home/alice", Some(users)),
            ("/opt/adit", "/opt/adit", Some(Rights { mode: 0o100757, ..SAFE })),
            ("/opt/adit (deleted)", "/none", None),
            ("/opt/adit", "/opt/adit", None),
        ] {
            let why = checked(program, odd, rights).expect_err(program).to_string();
            let install = why.contains(&format!("sudo install {program} /usr/local/bin/adit"));
            assert_eq!(install, program != USUAL, "{why}");
            assert!(program.contains(' ') || why.contains(&format!("can change {odd} (")), "{why}");
        }
    }

    #[test]
    fn a_name_that_systemd_would_expand_is_refused() {
        for program in ["/opt/a%h/adit", "/opt/a b/adit", "/opt/a$b/adit", "/opt/\"adit", "/ö/adit"]
        {
            let why = checked(program, "", None).expect_err(program).to_string();
            assert!(why.contains("means something else in a unit"), "{why}");
        }
    }

    #[test]
    fn a_recorded_machine_has_it_in_the_usual_place() {
        assert_eq!(path(&Root::recorded("/etc/").expect("a recording")).expect("no check"), USUAL);
    }
}
