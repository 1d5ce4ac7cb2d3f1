//! `adit completions`: prints what a shell needs to complete command lines.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Result;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  adit completions bash | sudo tee /usr/share/bash-completion/completions/adit
  adit completions zsh > ~/.zfunc/_adit      (a directory of $fpath)
  adit completions fish > ~/.config/fish/completions/adit.fish";

/// Prints a shell's completions for adit
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish"]))]
    shell: String,
}

/// Runs the command; `command` describes all of adit.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn run(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let shell = match args.shell.as_str() {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        _ => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "adit", &mut script);
    Output::Standard.write(&String::from_utf8_lossy(&script))
}
