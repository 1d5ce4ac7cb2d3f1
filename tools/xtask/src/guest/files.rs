//! Host files that are copied into the guest unchanged, such as job files.

use super::archive::Archive;
use crate::failure::{Context, Failure, Result};
use crate::workspace;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Default directory of copied files: the one in which the command runs.
const HOME: &str = "/root";

/// One `--copy`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    source: PathBuf,
    /// Its path in the guest.
    place: String,
}

impl Copy {
    /// Parses `FILE[:GUEST]`.
    ///
    /// # Errors
    /// When the file exists neither in the current directory nor in the repository.
    pub(crate) fn find(text: &str) -> Result<Self> {
        let (file, place) = text
            .rsplit_once(":/")
            .map_or((text, None), |(file, place)| (file, Some(format!("/{place}"))));
        let places = [PathBuf::from(file), workspace::root().join(file)];
        let found = places.into_iter().find(|place| place.exists());
        let source = found.ok_or_else(|| {
            Failure::usage(format!(
                "--copy {file}: no such file, neither here nor in the repository"
            ))
        })?;
        let name = source.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| Failure::usage(format!("--copy {file}: it has no name")))?;
        Ok(Self { source, place: place.unwrap_or_else(|| format!("{HOME}/{name}")) })
    }

    /// Adds the file, or everything below the directory.
    pub(crate) fn add_to(&self, archive: &mut Archive) -> Result<()> {
        let mut open = vec![(self.source.clone(), self.place.clone())];
        while let Some((source, place)) = open.pop() {
            if !source.is_dir() {
                add_file(&source, &place, archive)?;
                continue;
            }
            archive.directory(&place);
            let cannot = format!("cannot list {}", source.display());
            for entry in fs::read_dir(&source).context(&cannot)? {
                let entry = entry.context(&cannot)?;
                open.push((
                    entry.path(),
                    format!("{place}/{}", entry.file_name().to_string_lossy()),
                ));
            }
        }
        Ok(())
    }
}

fn add_file(source: &Path, place: &str, archive: &mut Archive) -> Result<()> {
    let cannot = format!("cannot read {}", source.display());
    let content = fs::read(source).context(&cannot)?;
    let permissions = fs::metadata(source).context(&cannot)?.permissions().mode() & 0o777;
    archive.file(place, permissions, &content);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_repository_is_found_from_anywhere_and_gets_its_place() {
        let named = Copy::find("tools/xtask/Cargo.toml:/jobs/x.toml").unwrap();
        assert_eq!(named.place, "/jobs/x.toml");
        assert_eq!(Copy::find("tools/xtask/Cargo.toml").unwrap().place, "/root/Cargo.toml");
        let missing = Copy::find("no/such/file").unwrap_err();
        assert_eq!(missing.code(), 2);
    }

    #[test]
    fn a_directory_comes_with_all_below_it() {
        let mut archive = Archive::default();
        Copy::find("tools/xtask/src:/jobs").unwrap().add_to(&mut archive).unwrap();
        let bytes = archive.finish();
        let has = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
        assert!(has("jobs/main.rs\0") && has("jobs/guest/files.rs\0"));
        assert!(has(include_str!("files.rs")));
    }
}
