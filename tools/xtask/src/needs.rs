//! What a built program needs of the system that runs it: shared libraries, and a version of the GNU C library.

use crate::failure::{Failure, Result};
use crate::process;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Libraries of the GNU C library and of GCC's runtime, which every system with either has.
const LIBRARIES: [&str; 6] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
];

/// What a program needs of the system.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) libraries: BTreeSet<String>,
    /// The newest version of the GNU C library's symbols.
    pub(crate) glibc: (u32, u32),
}

impl Needs {
    /// Reads a program's headers.
    pub(crate) fn of(program: &Path) -> Result<Needs> {
        let told = process::run_quietly(Command::new("objdump").arg("-p").arg(program))?;
        Ok(Needs::parse(&String::from_utf8_lossy(&told.stdout)))
    }

    /// Reads what `objdump -p` prints of a program.
    fn parse(told: &str) -> Needs {
        let mut needs = Needs::default();
        for line in told.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["NEEDED", library] = words[..] {
                needs.libraries.insert(library.to_owned());
            }
            let version =
                words.last().and_then(|word| word.strip_prefix("GLIBC_")?.split_once('.'));
            let number = |text: &str| text.split('.').next()?.parse().ok();
            if let Some((major, minor)) =
                version.and_then(|(major, minor)| Some((number(major)?, number(minor)?)))
            {
                needs.glibc = needs.glibc.max((major, minor));
            }
        }
        needs
    }

    /// Fails if a bare machine with this version of the GNU C library lacks any of it.
    pub(crate) fn check(&self, glibc_max: (u32, u32)) -> Result<()> {
        if let Some(other) = self.libraries.iter().find(|name| !LIBRARIES.contains(&name.as_str()))
        {
            return Err(Failure::new(format!("adit needs {other}, which bare machines lack")));
        }
        let ((major, minor), (most_major, most_minor)) = (self.glibc, glibc_max);
        if self.glibc > glibc_max {
            return Err(Failure::new(format!(
                "adit needs glibc {major}.{minor}, and machines that run it may have {most_major}.{most_minor}: \
                 build it on an older system"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = "
Dynamic Section:
  NEEDED               libgcc_s.so.1
  NEEDED               libc.so.6
Version References:
  required from libgcc_s.so.1:
    0x0b792650 0x00 05 GCC_3.0
  required from libc.so.6:
    0x06969188 0x00 04 GLIBC_2.2.5
    0x069691b4 0x00 03 GLIBC_2.34
    0x09691a75 0x00 02 GLIBC_2.9
";

    #[test]
    fn what_a_program_needs_is_read_and_checked() {
        let needs = Needs::parse(TOLD);
        assert_eq!(needs.glibc, (2, 34));
        assert_eq!(needs.libraries.len(), 2);
        assert!(needs.check((2, 35)).is_ok());
        let refused =
            |told: String| Needs::parse(&told).check((2, 35)).expect_err("refused").to_string();
        let newer = refused(TOLD.replace("GLIBC_2.9", "GLIBC_2.38"));
        assert!(newer.contains("needs glibc 2.38") && newer.contains("2.35"), "{newer}");
        let other = refused(TOLD.replace("libgcc_s.so.1\n", "libhwloc.so.15\n"));
        assert!(other.contains("needs libhwloc.so.15"), "{other}");
    }
}
