//! The `adit` command: hands NVMe controllers to user space, inspects and measures them.
//!
//! Exit codes: 0 success, 1 failure, 2 error in the command line, 3 the machine lacks what the command needs
//! (such as a GPU), 130 interrupted. A failure is one sentence on standard error. Each command has a module of
//! its own; `failure`, `output`, `human`, `units` and `interrupt` serve them all.

mod completions;
mod demo;
mod identify;
mod log;
mod man;
mod softnvme;

use std::error::Error as _;
use std::process::ExitCode;

use adit_bench::BenchCommand;
use adit_gpu_tools::GpuCommand;
use adit_kv::KvCommand;
use adit_setup::SetupArgs;
use adit_tools_common::{failure, human, interrupt, output};
use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use completions::CompletionsArgs;
use demo::DemoArgs;
use failure::Result;
use identify::IdentifyArgs;
use log::LogArgs;
use man::ManArgs;
use output::LogLines;
use softnvme::options::SoftnvmeArgs;

const EXAMPLES: &str = "\
Targets:
  vfio:0000:01:00.0                        a controller bound to vfio-pci
  vfio-user:/run/x/cntrl                   a controller served over a vfio-user socket
  soft:mem=1G, soft:file=disk.img,size=4G  the software controller, in this process
  Options follow by comma: ns=N, sgl=off, dbbuf=off, queues=cmb.

Examples:
  adit demo
  adit identify soft:mem=1G
  adit log soft:mem=1G --smart
  adit setup status
  adit kv format uring:kv.img --size 4G
  adit gpu doctor
  adit softnvme --socket /tmp/drive --media mem=1G
  adit bench --filename=soft:mem=1G --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5

Exit codes:
  0    done
  1    failed
  2    error in the command line
  3    this machine lacks what the command needs, such as a GPU
  130  interrupted";

/// NVMe from user space: hands drives over, inspects and measures them
#[derive(Parser)]
#[command(name = "adit", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Identify(IdentifyArgs),
    Log(LogArgs),
    Setup(Box<SetupArgs>),
    /// Runs fio's jobs over any path to a device, and reports as fio does
    Bench(Box<BenchCommand>),
    /// Keeps objects on devices: formats, puts, gets, checks and measures a store
    Kv(KvCommand),
    /// Lets a GPU read and write drives by itself: examines, tests, measures and traces it
    Gpu(GpuCommand),
    Softnvme(Box<SoftnvmeArgs>),
    Demo(DemoArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

#[allow(unsafe_code)]
fn main() -> ExitCode {
    // SAFETY: only the operator names servers, by targets, and says by that that they are controllers: 'vfio-user:' in the
    // documentation of targets.
    unsafe { adit_driver::bus::vfio_user::trust_servers() };
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    log_to_standard_error();
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(&failure);
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Identify(args) => identify::run(args),
        Command::Log(args) => log::run(args),
        Command::Setup(args) => adit_setup::run(args),
        Command::Bench(args) => adit_bench::command(args),
        Command::Kv(args) => adit_kv::run(args),
        Command::Gpu(args) => adit_gpu_tools::run(args),
        Command::Softnvme(args) => softnvme::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::Man(args) => man::run(args, Cli::command()),
    }
}

/// Reports an error in the command line, or prints the requested help.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::DisplayVersion => {
            // A closed pipe is no failure.
            drop(error.print());
        }
        _ => tell(&sentence(error)),
    }
    ExitCode::from(error.exit_code() as u8)
}

/// Prints a message on standard error.
fn tell(what: &dyn std::fmt::Display) {
    output::remark(&format!("adit: {what}"));
}

/// Formats clap's error on one line.
fn sentence(error: &clap::Error) -> String {
    if let (ErrorKind::ValueValidation, Some(reason)) = (error.kind(), error.source()) {
        // Our own reasons are whole sentences; the context names their option.
        let option =
            error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
        let option = option.split([' ', '=', '[']).next().filter(|name| name.starts_with("--"));
        return format!("{}{reason}", option.map(|name| format!("{name}: ")).unwrap_or_default());
    }
    if let (ErrorKind::UnknownArgument, Some(option)) = (error.kind(), unknown_of_bench(error)) {
        return adit_bench::unknown_option(&option);
    }
    let rendered = error.render().to_string();
    let lines = rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let text = lines.collect::<Vec<_>>().join(" ").replace(" tip: ", "; ");
    format!("{}; see '{} --help'", text.trim_start_matches("error: "), named(words()))
}

/// Returns the words of the command line after the program's name.
fn words() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

/// Returns the full name of the command that these words name, such as `adit kv put`.
fn named(words: impl Iterator<Item = String>) -> String {
    let mut command = Cli::command();
    let mut name = command.get_name().to_owned();
    for word in words {
        if let Some(found) = command.find_subcommand(&word) {
            command = found.clone();
            name = format!("{name} {word}");
        }
    }
    name
}

/// Returns the message for an option unknown to `adit bench`, if that is the error.
fn unknown_of_bench(error: &clap::Error) -> Option<String> {
    let option = error.get(ContextKind::InvalidArg)?.to_string();
    let mut words = words();
    let is_bench = words.next().as_deref() == Some("bench");
    let has_own = matches!(words.next().as_deref(), Some("report" | "compare"));
    (is_bench && !has_own && option.starts_with('-')).then_some(option)
}

/// Logs the driver's warnings and errors, one line each.
fn log_to_standard_error() {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(|| LogLines)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .init();
}
