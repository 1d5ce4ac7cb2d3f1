//! The configurations of Dual-Blade's table III.

/// The paths that a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Configuration {
    /// All tensors in a mapped file, as the engines do it: the kernel decides what stays in memory.
    Mmap,
    /// All tensors in files under the page cache; those of direct layers leave it after each use (`posix_fadvise`).
    Fadvise,
    /// All tensors past the page cache.
    Direct,
    /// Some layers through the page cache, the others past it.
    Dual,
}

impl Configuration {
    pub(super) const ALL: [Configuration; 4] =
        [Configuration::Mmap, Configuration::Fadvise, Configuration::Direct, Configuration::Dual];

    /// Returns its name, as the command line spells it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Configuration::Mmap => "mmap",
            Configuration::Fadvise => "fadvise",
            Configuration::Direct => "direct",
            Configuration::Dual => "dual",
        }
    }

    /// Returns whether it reads past the page cache, so that commands and their order say something.
    pub(super) fn is_direct(self) -> bool {
        matches!(self, Configuration::Direct | Configuration::Dual)
    }
}

/// Returns the one that is named, or all of them.
pub(super) fn listed(text: &str) -> Result<&'static [Configuration], String> {
    if text == "all" {
        return Ok(&Configuration::ALL);
    }
    let found = Configuration::ALL.iter().find(|one| one.name() == text);
    found.map(std::slice::from_ref).ok_or_else(|| {
        format!("'{text}' is not a configuration: use all, mmap, fadvise, direct or dual")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_named_one_by_one_or_all() {
        assert_eq!(listed("all").expect("all").len(), 4);
        assert_eq!(listed("dual").expect("it is one"), [Configuration::Dual]);
        assert!(listed("best").expect_err("none").contains("fadvise"));
    }
}
