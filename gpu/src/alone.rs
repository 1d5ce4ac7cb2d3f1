//! Runs tests in their own processes: those that configure the emulated GPU or count its resources.

use std::process::Command;

const ALONE: &str = "ADIT_ALONE";

/// Runs `body` in its own process, with the emulated GPU configured by `settings`. `test` is the calling test's path:
/// `concat!(module_path!(), "::its_name")`.
pub(crate) fn run(settings: &str, test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        adit_gpu_emulated::load();
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
