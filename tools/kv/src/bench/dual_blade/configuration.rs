//! The configurations of Dual-Blade's table III.

use std::str::FromStr;

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

/// One configuration, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Configurations {
    All,
    One(Configuration),
}

impl Configurations {
    pub(super) fn list(self) -> Vec<Configuration> {
        match self {
            Configurations::All => Configuration::ALL.to_vec(),
            Configurations::One(one) => vec![one],
        }
    }
}

impl FromStr for Configurations {
    type Err = String;

    fn from_str(text: &str) -> Result<Configurations, String> {
        if text == "all" {
            return Ok(Configurations::All);
        }
        let found = Configuration::ALL.into_iter().find(|one| one.name() == text);
        found.map(Configurations::One).ok_or_else(|| {
            format!("'{text}' is not a configuration: use all, mmap, fadvise, direct or dual")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_named_one_by_one_or_all() {
        assert_eq!("all".parse::<Configurations>().expect("all").list().len(), 4);
        let dual = "dual".parse::<Configurations>().expect("it is one");
        assert_eq!(dual.list(), [Configuration::Dual]);
        assert!("best".parse::<Configurations>().expect_err("none").contains("fadvise"));
    }
}
