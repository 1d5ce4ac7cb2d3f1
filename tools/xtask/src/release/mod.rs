//! `cargo xtask release`: makes and checks what a release consists of, and publishes nothing.
//!
//! Checks come first: one version everywhere, licences that `deny.toml` allows, the rules of the text with its links. Then
//! come the artefacts: a package of each library crate, which cargo builds alone; the wheel, which is installed and
//! imported where nothing else is; `adit` without libraries beyond the C library; and the checksums of all.

mod licences;
mod versions;

use crate::deps::{self, PIP, VENV};
use crate::failure::{Context, Failure, Result};
use crate::needs::Needs;
use crate::process;
use crate::progress::Progress;
use crate::python::{self, GLIBC, Profile};
use crate::tidy;
use crate::workspace;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CHECKSUMS: &str = "SHA256SUMS";
/// What the archive has beside `adit`.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

const EXAMPLES: &str = "\
Examples:
  cargo xtask release                      into target/release-files
  cargo xtask release --folder dist        into a folder of your choice
  cd dist && sha256sum --check SHA256SUMS

Nothing is published: 'cargo publish --workspace' and 'twine upload dist/*.whl' do that.";

/// `cargo xtask release`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReleaseArgs {
    /// Where the files go; an earlier release's are replaced [default: release-files in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,

    /// Package what is not committed, too
    #[arg(long)]
    allow_dirty: bool,
}

/// Checks and makes a release; returns 0 if all of it is in order.
pub(crate) fn run(arguments: &ReleaseArgs) -> Result<u8> {
    deps::ensure(deps::TO_BUILD.iter().chain([&PIP, &VENV]))?;
    let target = workspace::target_directory()?;
    let folder = arguments.folder.clone().unwrap_or_else(|| target.join("release-files"));
    check_place(&folder)?;
    let metadata = metadata()?;
    let version = check(&metadata)?;
    fs::create_dir_all(&folder).context(folder.display())?;
    let tools = target.join("python");
    let mut files = package(&metadata, &version, &folder, arguments.allow_dirty)?;
    files.push(wheel(&tools, &version, &folder)?);
    files.push(program(&tools, &version, &folder)?);
    files.push(checksums(&files, &folder)?);
    for file in &files {
        let bytes = fs::metadata(file).context(file.display())?.len();
        println!("{:>9} KiB  {}", bytes.div_ceil(1024), file.display());
    }
    println!("release: ok. {version}, {} files; nothing was published", files.len());
    Ok(0)
}

/// Refuses a folder with files that are not an earlier release's.
fn check_place(folder: &Path) -> Result<()> {
    let is_ours = |name: &str| {
        name == CHECKSUMS || [".crate", ".whl", ".tar.gz"].iter().any(|end| name.ends_with(end))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(is_ours) {
            let (folder, name) = (folder.display(), name.display());
            let why = format!("--folder {folder}: it holds {name}; name a new folder");
            return Err(Failure::usage(why));
        }
        fs::remove_file(entry.path()).context(entry.path().display())?;
    }
    Ok(())
}

/// Returns what cargo knows about the workspace and all of its dependencies.
fn metadata() -> Result<Value> {
    let mut command = workspace::cargo();
    let how = ["metadata", "--format-version", "1", "--all-features", "--locked"];
    let told = process::run_quietly(command.args(how))?;
    serde_json::from_slice(&told.stdout).context("cargo metadata")
}

/// Returns the version of the release.
fn check(metadata: &Value) -> Result<String> {
    let read = |name: &str| {
        let file = workspace::root().join(name);
        fs::read_to_string(&file).context(file.display())
    };
    let version = versions::check(metadata, &read("CHANGELOG.md")?)?;
    let count = licences::check(metadata, &read("deny.toml")?)?;
    println!("version {version} everywhere; licences of {count} packages allowed");
    // A link that leads nowhere is one of the faults that it finds.
    if tidy::run(&tidy::TidyArgs::rules())? != 0 {
        return Err(Failure::new("the rules of the text are broken: see above"));
    }
    Ok(version)
}

/// Packages the library crates, each built from its package on those before it. Returns the packages.
fn package(metadata: &Value, version: &str, folder: &Path, dirty: bool) -> Result<Vec<PathBuf>> {
    let names = versions::published(metadata);
    let _progress = Progress::start(format!("packaging and building {} crates", names.len()));
    let mut command = workspace::cargo();
    command.args(["package", "--quiet", "--locked"]);
    command.args(names.iter().map(|name| format!("--package={name}")));
    if dirty {
        command.arg("--allow-dirty");
    }
    process::run_quietly(&mut command)?;
    let packages = workspace::target_directory()?.join("package");
    let take = |name: &String| copy(&packages.join(format!("{name}-{version}.crate")), folder);
    names.iter().map(take).collect()
}

/// Builds the wheel, and imports it in an environment that has nothing else.
fn wheel(tools: &Path, version: &str, folder: &Path) -> Result<PathBuf> {
    let wheel = python::build(tools, Profile::Release)?;
    let venv = tools.join("release");
    let _progress = Progress::start("installing the wheel");
    python::make_venv(&venv)?;
    let name = wheel.to_str().ok_or_else(|| Failure::new("the wheel's path is not UTF-8"))?;
    python::pip_install(&venv, ["--no-deps", "--no-index", name])?;
    let mut import = Command::new(venv.join("bin/python"));
    let script = "import adit, importlib.metadata; print(importlib.metadata.version('adit'), adit.Store.__name__)";
    let told = process::run_quietly(import.args(["-I", "-c", script]))?;
    let told = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    if told != format!("{version} Store") {
        let why = format!("the wheel says '{told}' when it is imported, not '{version} Store'");
        return Err(Failure::new(why));
    }
    copy(&wheel, folder)
}

/// Builds `adit`, and packs it with its texts.
fn program(tools: &Path, version: &str, folder: &Path) -> Result<PathBuf> {
    let built = python::build_adit(tools)?;
    let name = format!("adit-{version}-{}-linux", std::env::consts::ARCH);
    let inside = workspace::target_directory()?.join("release-archive").join(&name);
    fs::create_dir_all(&inside).context(inside.display())?;
    let adit = inside.join("adit");
    process::run_quietly(Command::new("strip").arg("-o").arg(&adit).arg(built))?;
    let needs = Needs::of(&adit)?;
    needs.check(GLIBC)?;
    let told = process::run_quietly(Command::new(&adit).arg("--version"))?;
    let told = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    if told != format!("adit {version}") {
        return Err(Failure::new(format!("adit --version says '{told}', not 'adit {version}'")));
    }
    for text in TEXTS {
        copy(&workspace::root().join(text), &inside)?;
    }
    let libraries = needs.libraries.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    println!("adit needs glibc {}.{} or later: {libraries}", needs.glibc.0, needs.glibc.1);
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--numeric-owner", "--file"]);
    tar.arg(&archive).arg("--directory").arg(inside.parent().expect("it has one")).arg(&name);
    process::run_quietly(&mut tar)?;
    Ok(archive)
}

/// Writes the checksums of the files, as `sha256sum --check` reads them.
fn checksums(files: &[PathBuf], folder: &Path) -> Result<PathBuf> {
    let names = files.iter().filter_map(|file| file.file_name());
    let mut sum = Command::new("sha256sum");
    let told = process::run_quietly(sum.current_dir(folder).arg("--").args(names))?;
    let list = folder.join(CHECKSUMS);
    fs::write(&list, told.stdout).context(list.display())?;
    Ok(list)
}

/// Copies a file into a folder; returns the copy.
fn copy(file: &Path, folder: &Path) -> Result<PathBuf> {
    let name = file.file_name().ok_or_else(|| Failure::new("a file has a name"))?;
    let copy = folder.join(name);
    fs::copy(file, &copy).context(file.display())?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_release_is_replaced_and_other_files_are_refused_and_kept() {
        let folder = std::env::temp_dir().join(format!("adit-release-{}", std::process::id()));
        assert!(check_place(&folder).is_ok(), "a new one");
        fs::create_dir_all(&folder).expect("a directory");
        let old = ["adit-0.0.1.crate", "adit-0.0.1.whl", "adit.tar.gz", CHECKSUMS];
        old.iter().for_each(|name| fs::write(folder.join(name), "").expect("a file"));
        assert!(check_place(&folder).is_ok());
        assert_eq!(fs::read_dir(&folder).expect("a directory").count(), 0);
        fs::write(folder.join("letter"), "").expect("a file");
        let refused = check_place(&folder).expect_err("not ours");
        assert!(folder.join("letter").exists());
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(refused.code(), 2);
        assert!(refused.to_string().contains("it holds letter; name a new folder"), "{refused}");
    }

    #[test]
    fn checksums_are_those_of_the_files_by_their_names() {
        let folder = std::env::temp_dir().join(format!("adit-sums-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a directory");
        let file = folder.join("a.crate");
        fs::write(&file, "abc").expect("a file");
        let list = checksums(&[file], &folder).expect("sha256sum");
        let text = fs::read_to_string(list).expect("a file");
        fs::remove_dir_all(&folder).expect("removed");
        let expected =
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.crate\n";
        assert_eq!(text, expected);
    }
}
