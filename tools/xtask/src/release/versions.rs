//! One version everywhere: in each crate, in what they require of each other, and in the changelog.

use crate::failure::{Failure, Result};
use serde_json::Value;

/// Returns the names of the crates that may be published.
pub(super) fn published(metadata: &Value) -> Vec<String> {
    let members = members(metadata).filter(|package| package["publish"].is_null());
    members.filter_map(|package| Some(package["name"].as_str()?.to_owned())).collect()
}

/// Returns the workspace's version, which the wheel takes from its crate.
///
/// # Errors
/// Each place that has another one.
pub(super) fn check(metadata: &Value, changelog: &str) -> Result<String> {
    let first = members(metadata).next().and_then(|package| package["version"].as_str());
    let version = first.ok_or_else(|| Failure::new("cargo metadata names no crate"))?;
    let mut faults = Vec::new();
    for package in members(metadata) {
        let name = &package["name"];
        if package["version"] != version {
            faults.push(format!("{name} has version {}", package["version"]));
        }
        let is_published = package["publish"].is_null();
        for required in package["dependencies"].as_array().into_iter().flatten() {
            // What only tests use is left out of a package.
            let is_ours = required["path"].is_string() && required["kind"] != "dev";
            if is_published && is_ours && required["req"] != format!("^{version}") {
                let (of, req) = (&required["name"], &required["req"]);
                faults.push(format!("{name} requires {of} {req}, not ^{version}"));
            }
        }
    }
    if !changelog.lines().any(|line| is_heading(line, version)) {
        faults.push(format!("CHANGELOG.md has no heading '## {version}'"));
    }
    if faults.is_empty() {
        return Ok(version.to_owned());
    }
    Err(Failure::new(format!("version {version} is not that of all:\n  {}", faults.join("\n  "))))
}

/// Returns whether a line is the heading of a version, with or without brackets and a date.
fn is_heading(line: &str, version: &str) -> bool {
    let title = line.strip_prefix("## ").map(|title| title.trim_start_matches('['));
    let rest = title.and_then(|title| title.strip_prefix(version));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([']', ' ', ':', ',']))
}

/// Returns the workspace's packages.
fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let ids = metadata["workspace_members"].as_array().map(Vec::as_slice).unwrap_or_default();
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().filter(|package| ids.contains(&package["id"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workspace(tool_version: &str, required: &str) -> Value {
        let needs = json!([
            { "name": "low", "path": "/w/low", "req": required, "kind": null },
            { "name": "tool", "path": "/w/tool", "req": "*", "kind": "dev" },
            { "name": "libc", "req": "^0.2", "kind": null },
        ]);
        json!({
            "workspace_members": ["low", "high", "tool"],
            "packages": [
                { "id": "low", "name": "low", "version": "0.1.0", "publish": null, "dependencies": [] },
                { "id": "high", "name": "high", "version": "0.1.0", "publish": null, "dependencies": needs },
                { "id": "tool", "name": "tool", "version": tool_version, "publish": [], "dependencies": [] },
                { "id": "libc", "name": "libc", "version": "0.2.9", "publish": null, "dependencies": [] },
            ],
        })
    }

    #[test]
    fn only_crates_of_the_workspace_that_may_be_published_are() {
        assert_eq!(published(&workspace("0.1.0", "^0.1.0")), ["low", "high"]);
    }

    #[test]
    fn each_place_with_another_version_is_named() {
        let told = |workspace: &Value, log| check(workspace, log).map_err(|why| why.to_string());
        let log = "# Changelog\n\n## 0.1.0: first\n";
        assert_eq!(told(&workspace("0.1.0", "^0.1.0"), log), Ok("0.1.0".to_owned()));
        let why = told(&workspace("0.2.0", "^0.0.9"), "## 0.1.01\n").expect_err("three faults");
        for part in [
            "\"tool\" has version \"0.2.0\"",
            "requires \"low\" \"^0.0.9\"",
            "no heading '## 0.1.0'",
        ] {
            assert!(why.contains(part), "{why}");
        }
        assert!(
            ["## 0.1.0", "## [0.1.0] - 2026-11-29"].iter().all(|line| is_heading(line, "0.1.0"))
        );
    }
}
