//! The test binaries of the workspace, from cargo's build messages.

use crate::failure::{Context, Result};
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A test binary.
pub(super) struct Binary {
    /// The package's name.
    pub(super) package: String,
    /// `lib` for unit tests of a library, otherwise the target's name.
    pub(super) target: String,
    pub(super) program: PathBuf,
    /// The package's directory, in which cargo runs tests.
    pub(super) directory: PathBuf,
}

impl Binary {
    /// Returns its name: `adit-driver lib`.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }
}

/// Builds all tests and the programs they start; returns the tests sorted by name.
pub(super) fn build() -> Result<Vec<Binary>> {
    let _progress = Progress::start("building the tests");
    let how = ["test", "--quiet", "--workspace", "--no-run", "--message-format", "json"];
    let output = process::run_quietly(workspace::cargo().args(how))?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// Parses the test binaries from cargo's messages, one JSON object per line.
fn parse(messages: &str) -> Result<Vec<Binary>> {
    let mut binaries = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's messages")?;
        binaries.extend(binary(&message));
    }
    binaries.sort_by_key(Binary::name);
    Ok(binaries)
}

/// Returns the binary of a message; `None` for other messages.
fn binary(message: &Value) -> Option<Binary> {
    let program = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_path_buf();
    let package = package(message["package_id"].as_str()?, &directory)?;
    let target = &message["target"];
    let name = if target["kind"][0] == "lib" { "lib" } else { target["name"].as_str()? };
    Some(Binary { package, target: name.to_owned(), program: program.into(), directory })
}

/// Returns the name in `path+file:///…/driver#adit-driver@0.1.0`, or in `path+file:///…/fuzz#0.1.0`, where it
/// is that of the directory.
fn package(id: &str, directory: &Path) -> Option<String> {
    let (_, package) = id.rsplit_once('#')?;
    match package.split_once('@') {
        Some((name, _)) => Some(name.to_owned()),
        None => Some(directory.file_name()?.to_str()?.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, kind: &str, name: &str, is_test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/w/tools/xtask/Cargo.toml",
            "target": { "kind": [kind], "name": name }, "profile": { "test": is_test },
            "executable": format!("/w/target/{name}"),
        })
        .to_string()
    }

    #[test]
    fn test_binaries_are_told_from_all_else_that_cargo_builds() {
        let lines = [
            message("path+file:///w/driver#adit-driver@0.1.0", "test", "faults", true),
            message("path+file:///w/driver#adit-driver@0.1.0", "lib", "adit_driver", true),
            message("path+file:///w/tools/xtask#0.1.0", "bin", "xtask", true),
            message("path+file:///w/tools#adit@0.1.0", "bin", "adit", false),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let binaries = parse(&lines.join("\n")).expect("JSON");
        let names: Vec<String> = binaries.iter().map(Binary::name).collect();
        assert_eq!(names, ["adit-driver faults", "adit-driver lib", "xtask xtask"]);
        assert_eq!(binaries[0].program, Path::new("/w/target/faults"));
        assert_eq!(binaries[0].directory, Path::new("/w/tools/xtask"));
        assert!(parse("no JSON").is_err());
    }
}
