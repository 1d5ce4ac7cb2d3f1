//! Tests in their own processes.

use std::process::Command;

use crate::load;

const ALONE: &str = "ADIT_ALONE";

/// Runs the body of a test in its own process, for tests that configure the emulated GPU or count its resources. The
/// process has the emulated GPU, configured by `settings`. `test` is the calling test's path:
/// `concat!(module_path!(), "::its_name")`.
///
/// # Panics
/// If the test fails there.
pub fn alone(settings: &str, test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        load();
        return body();
    }
    let name = test.split_once("::").expect("a path that starts with the crate").1;
    let exe = std::env::current_exe().expect("the test's own program");
    let mut command = Command::new(exe);
    command.args([name, "--exact", "--nocapture"]);
    command.env(ALONE, "1").env("ADIT_EMULATED_GPU", settings);
    let output = command.output().expect("started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
}
