//! The user a device is granted to.
//!
//! The name becomes part of a file name, of a udev rule run as root and of a line of limits.d, so characters
//! with a meaning there are refused. This includes names from directory services (`DOMAIN\user`,
//! `user@domain`).

use crate::failure::{Failure, Result};
use crate::names::is_user;
use adit_guard::root::Root;

/// An existing user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
}

impl User {
    /// Finds the user `name` with the machine's user database, or in `/etc/passwd` of a recorded machine.
    ///
    /// # Errors
    /// When the user does not exist, or the name cannot be put into a rule.
    pub(super) fn find(root: &Root, name: &str) -> Result<User> {
        if !is_user(name) {
            return Err(Failure::usage(format!(
                "user {name:?}: a name of letters, digits, '_', '-' and '.' is needed, as others mean something else in \
                 udev's rules and limits.d; give the device to a local user with such a name"
            )));
        }
        let uid = if root.is_live() { uid_of(name)? } else { uid_in_passwd(root, name) };
        let unknown = || {
            Failure::usage(format!(
                "there is no user '{name}' on this machine; 'getent passwd' lists those that there are"
            ))
        };
        uid.map(|uid| User { name: name.to_owned(), uid }).ok_or_else(unknown)
    }
}

fn uid_of(name: &str) -> Result<Option<u32>> {
    let found = nix::unistd::User::from_name(name);
    let found = found.map_err(|why| {
        Failure::failed(format!("cannot look up user '{name}': {why}; try 'getent passwd {name}'"))
    })?;
    Ok(found.map(|user| user.uid.as_raw()))
}

fn uid_in_passwd(root: &Root, name: &str) -> Option<u32> {
    let text = root.text("/etc/passwd")?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "\
/etc/passwd:
    root:x:0:0:root:/root:/bin/bash
    alice:x:1000:1000:Alice,,,:/home/alice:/bin/bash
    broken:x:many:1:::
    short
";

    #[test]
    fn a_user_is_found_by_name() {
        let root = Root::recorded(PASSWD).expect("a recording");
        let alice = User { name: "alice".into(), uid: 1000 };
        assert_eq!(User::find(&root, "alice").expect("she is there"), alice);
        for unknown in ["alic", "bob", "broken", "short"] {
            let why = User::find(&root, unknown).expect_err(unknown);
            assert_eq!(why.code(), crate::failure::USAGE);
            assert!(why.to_string().contains(&format!("no user '{unknown}'")), "{why}");
        }
    }

    #[test]
    fn this_machine_is_asked_for_its_users() {
        let root = Root::open(None).expect("this machine");
        assert_eq!(User::find(&root, "root").expect("everywhere").uid, 0);
        User::find(&root, "adit-no-such-user").expect_err("nowhere");
    }

    #[test]
    fn what_means_more_than_a_name_is_refused() {
        for name in [
            "alice",
            "a",
            "_apt",
            "a.b",
            "a-b",
            "systemd-network",
            "4a",
            "www-data",
            &"x".repeat(128),
        ] {
            assert!(is_user(name), "{name}");
        }
        let bad = [
            "",
            ".",
            "..",
            "-a",
            "1000",
            "a b",
            "a\"b",
            "a\nb",
            "a/b",
            "../a",
            "@users",
            "%users",
            "*",
            "a$",
            "a%k",
            "a,b",
            "a#b",
            "a:b",
            "DOMAIN\\a",
            "a@b",
            "ä",
            "a\0",
            "a;b",
        ];
        for name in bad.into_iter().chain([&*"x".repeat(129)]) {
            assert!(!is_user(name), "{name}");
            let why =
                User::find(&Root::recorded(PASSWD).expect("a recording"), name).expect_err(name);
            assert_eq!(why.code(), crate::failure::USAGE);
        }
    }
}
