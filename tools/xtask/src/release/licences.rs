//! Licences of all dependencies, by the list that `cargo deny` reads.

use crate::failure::{Failure, Result};
use serde_json::Value;

/// Returns how many packages there are, all of whose licences are allowed.
///
/// # Errors
/// Each package whose licence is not.
pub(super) fn check(metadata: &Value, deny: &str) -> Result<usize> {
    let allowed = allowed(deny)?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut faults = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence, &allowed) {
            faults.push(format!("{} {}: {licence}", package["name"], package["version"]));
        }
    }
    if faults.is_empty() {
        return Ok(packages.len());
    }
    let faults = faults.join("\n  ");
    Err(Failure::new(format!("deny.toml does not allow the licences of\n  {faults}")))
}

/// Returns the list `allow` of deny.toml, which has one licence a line.
fn allowed(deny: &str) -> Result<Vec<&str>> {
    let list = deny.split_once("\nallow = [\n").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) =
        list.ok_or_else(|| Failure::new("deny.toml has no list 'allow' of licences"))?;
    Ok(list.split('"').skip(1).step_by(2).collect())
}

/// Returns whether an expression of SPDX can be met by these licences. `/` is how old packages write OR.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = text.split_whitespace().peekable();
    let met = any(&mut words, allowed);
    met && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any(words, allowed);
        return met & words.next_if_eq(&")").is_some();
    }
    let Some(name) = words.next() else { return false };
    if words.next_if_eq(&"WITH").is_none() {
        return allowed.contains(&name);
    }
    let exception = words.next().unwrap_or_default();
    allowed.contains(&format!("{name} WITH {exception}").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DENY: &str =
        "[licenses]\nallow = [\n    \"MIT\",\n    \"Apache-2.0 WITH LLVM-exception\",\n]\n";

    #[test]
    fn an_expression_is_met_by_one_way_through_it() {
        let allowed = allowed(DENY).expect("a list");
        let met = ["MIT", "GPL-3.0 OR MIT", "Unlicense/MIT", "(GPL-3.0 OR MIT) AND MIT"];
        let more = ["Apache-2.0 WITH LLVM-exception OR GPL-3.0"];
        assert!(met.iter().chain(&more).all(|text| is_allowed(text, &allowed)));
        let not =
            ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "none", "", "(MIT", "MIT)", "MIT GPL-3.0"];
        assert!(not.iter().all(|text| !is_allowed(text, &allowed)));
    }

    #[test]
    fn packages_with_other_licences_are_named() {
        let package =
            |name, licence| json!({ "name": name, "version": "1.0.0", "license": licence });
        let good = json!({ "packages": [package("a", Some("MIT"))] });
        assert_eq!(check(&good, DENY).expect("allowed"), 1);
        let bad = json!({ "packages": [package("b", Some("GPL-3.0")), package("c", None)] });
        let why = check(&bad, DENY).expect_err("two").to_string();
        assert!(
            why.contains("\"b\" \"1.0.0\": GPL-3.0") && why.contains("\"c\" \"1.0.0\": none"),
            "{why}"
        );
        assert!(check(&good, "[licenses]\n").is_err(), "no list");
    }
}
