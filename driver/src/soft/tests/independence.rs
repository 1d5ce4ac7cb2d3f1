//! The controller shares no logic with the driver it tests.

use std::path::Path;

/// Modules of this crate that the controller may use.
const ALLOWED: [&str; 5] = ["error", "soft", "spec", "sys", "time"];

fn check(folder: &Path, files: &mut usize) {
    for entry in std::fs::read_dir(folder).expect("sources").map(|entry| entry.expect("entry")) {
        let path = entry.path();
        if path.is_dir() {
            check(&path, files);
            continue;
        }
        *files += 1;
        let text = std::fs::read_to_string(&path).expect("text");
        for use_of in text.split("crate::").skip(1) {
            let module: String = use_of.chars().take_while(|c| c.is_alphanumeric()).collect();
            let is_type = module.starts_with(char::is_uppercase) || module.is_empty();
            assert!(
                is_type || ALLOWED.contains(&module.as_str()),
                "{} uses crate::{module}",
                path.display()
            );
        }
    }
}

#[test]
fn only_wire_types_and_the_ground_floor_are_used() {
    let mut files = 0;
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/soft"), &mut files);
    assert!(files > 20, "only {files} files were looked at");
}
