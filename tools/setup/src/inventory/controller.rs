//! A controller as the kernel's NVMe driver shows it.

use std::path::{Path, PathBuf};

use adit_guard::root::Root;

/// A controller of the kernel's driver.
pub(super) struct Controller {
    /// Its name, such as `nvme0`.
    pub(super) name: String,
    /// Its directory below the function's.
    pub(super) directory: PathBuf,
}

impl Controller {
    pub(super) fn of(root: &Root, function: &Path) -> Option<Controller> {
        let name = root.names(function.join("nvme")).into_iter().next()?;
        let directory = function.join("nvme").join(&name);
        Some(Controller { name, directory })
    }

    /// Returns an attribute without padding blanks.
    pub(super) fn text(&self, root: &Root, name: &str) -> Option<String> {
        root.text(self.directory.join(name)).filter(|text| !text.is_empty())
    }
}
