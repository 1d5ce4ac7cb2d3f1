//! `adit completions`: what a shell needs to complete adit's command line, made from the same description as the help.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};

use crate::Cli;
use crate::failure::Result;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  adit completions bash | sudo tee /etc/bash_completion.d/adit
  adit completions zsh | sudo tee /usr/local/share/zsh/site-functions/_adit
  adit completions fish > ~/.config/fish/completions/adit.fish";

/// The shells that are completed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShellName {
    Bash,
    Zsh,
    Fish,
}

/// Prints what a shell needs to complete adit's command line
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: ShellName,
}

/// Runs the command.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "adit", &mut script);
    Output::Standard.write(&String::from_utf8_lossy(&script))
}
