//! Queries answered instead of running jobs: `--version`, `--cmdhelp` and `--enghelp`.

use std::fmt::Write;

use clap::ValueEnum;

use super::others;
use super::table::{self, OptionSpec};
use super::workload;
use super::written::canonical;
use super::{Engine, RunOptions};
use crate::failure::{Failure, Result};

/// Returns the answer, or `None` if the command line asks for a run.
///
/// # Errors
/// When there is no such option or engine.
pub(super) fn answer(run: &RunOptions) -> Result<Option<String>> {
    if run.version {
        return Ok(Some(format!("adit-{}\n", env!("CARGO_PKG_VERSION"))));
    }
    if let Some(name) = &run.cmdhelp {
        return about_option(name).map(Some);
    }
    run.enghelp.as_deref().map(about_engine).transpose()
}

fn about_option(name: &str) -> Result<String> {
    if name == "all" {
        let line = |spec: &OptionSpec| format!("{:<28}: {}\n", spec.name, spec.help);
        return Ok(table::options().map(line).collect());
    }
    let option = canonical(name);
    if let Some(spec) = table::find(&option) {
        return Ok(explained(spec));
    }
    let other = others::find(&option)
        .ok_or_else(|| Failure::usage(format!("--cmdhelp={name}: {}", table::unknown(&option))))?;
    Ok(format!("{option:>20}: {}\n", other.explained().unwrap_or_else(|| other.refusal())))
}

fn explained(spec: &OptionSpec) -> String {
    let mut text = format!("{:>20}: {}\n", spec.name, spec.help);
    for alias in &spec.aliases {
        writeln!(text, "{:>20}: {alias}", "alias").expect("memory");
    }
    writeln!(text, "{:>20}: {}", "value", spec.value).expect("memory");
    text
}

fn about_engine(name: &str) -> Result<String> {
    if name.is_empty() {
        let engines = Engine::value_variants().iter().filter_map(Engine::to_possible_value);
        let names = engines.zip(Engine::value_variants()).flat_map(|(known, engine)| {
            let line = |name| format!("\t{name} ({}:)\n", engine.path().kind());
            known.get_name_and_aliases().map(line).collect::<Vec<_>>()
        });
        return Ok(format!("Available IO engines:\n{}", names.collect::<String>()));
    }
    let engine =
        workload::engine(name).map_err(|why| Failure::usage(format!("--enghelp={name}: {why}")))?;
    let path = engine.path().kind();
    Ok(format!(
        "{name}: opens a plain path like the target {path}:; it has no options of its own\n"
    ))
}
