//! Builds QEMU's command line, and watches QEMU until it ends.
//!
//! The guest has two serial ports: the console, which goes to a file and is shown only on errors, and one on
//! QEMU's standard output with the command's output and the guest's report.

use super::arguments::{DEFAULT_IOMMU, GuestArgs};
use super::controllers::Controllers;
use super::counter;
use super::monitor::{self, Monitor};
use super::output::{Report, Splitter};
use super::packages::Kernel;
use super::rules::Rule;
use super::scratch::Scratch;
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::process::{self, tail};
use crate::progress::Progress;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

const PROGRAM: &str = "qemu-system-x86_64";
const CONSOLE: &str = "console.log";
const ERRORS: &str = "qemu.log";

/// Placeholder for a new image file in a `--qemu-arg`.
const IMAGE: &str = "{image}";

/// The beginning of the failure of a guest that hung at boot, or of a guest or QEMU that ended by itself.
pub(crate) const DIED: &str = "the guest died";

/// The outcome of a guest.
pub(crate) struct GuestOutcome {
    /// The command's exit code.
    pub exit: u8,
    /// DMA faults in the guest's kernel log, unless allowed.
    pub faults: Vec<String>,
}

/// What the terminal shows while the guest runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// That it boots; afterwards, the command's output.
    UntilBooted,
    /// Nothing; the caller shows progress.
    Silently,
}

/// Time limit until a guest reaches its command: 30 times as long as on an idle machine. Emulated kernels
/// occasionally hang at boot, waiting for an interrupt that another of their processors has lost.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Maximum lines of a log to show; enough for a kernel panic with its call trace.
const EVIDENCE_LINES: usize = 50;

/// Interval between checks of Ctrl-C and the time limit.
const TICK: Duration = Duration::from_millis(50);

/// `tsc`: the alternative is the emulated HPET, which leaves the guest on each read. `multipath=N`: names block
/// devices nvmeXnY regardless of the subsystem. `no_timer_check`: a busy host delays the emulated timer, and
/// the kernel would give up. `poll_queues=1`: lets io_uring poll for completions on the kernel's drives;
/// modprobe passes it to the module. The hugepages are 2 MiB each; `init_on_alloc=0`: otherwise the kernel
/// clears all of them at boot. `cryptomgr.notests` and `mitigations=off`: skip work that is slow under
/// emulation.
const KERNEL_LINE: &str = "console=ttyS0 quiet loglevel=3 panic=-1 intel_iommu=on amd_iommu=on iommu=pt hugepages=256 \
                           tsc=reliable clocksource=tsc no_timer_check nvme_core.multipath=N nvme.poll_queues=1 \
                           log_buf_len=4M init_on_alloc=0 cryptomgr.notests mitigations=off";

/// Returns QEMU's arguments for this guest.
pub(crate) fn arguments(
    guest: &GuestArgs,
    kernel: &Kernel,
    initramfs: &Path,
    controllers: &Controllers,
    scratch: &Scratch,
) -> Result<Vec<String>> {
    let console = scratch.path(CONSOLE).to_string_lossy().into_owned();
    let kernel_line = KERNEL_LINE.to_owned() + &counter::kernel_word();
    let mut list: Vec<String> =
        ["-machine", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max"]
            .into_iter()
            .chain(["-display", "none", "-nodefaults", "-no-reboot", "-append", &kernel_line])
            .chain(["-m", &guest.mem, "-smp", &guest.cpus.to_string()])
            .chain([
                "-kernel",
                &kernel.image.to_string_lossy(),
                "-initrd",
                &initramfs.to_string_lossy(),
            ])
            .chain([
                "-chardev",
                &format!("file,id=console,path={}", console.replace(',', ",,")),
                "-serial",
                "chardev:console",
            ])
            .chain(["-chardev", "file,id=output,path=/dev/stdout", "-serial", "chardev:output"])
            .map(str::to_owned)
            .collect();
    if let Some(iommu) = iommu(guest) {
        list.extend(["-device".into(), iommu.to_owned()]);
    }
    if !guest.qmp.is_empty() {
        list.extend(monitor::ARGUMENTS.map(str::to_owned));
    }
    for (index, argument) in guest.qemu_arg.iter().enumerate() {
        list.extend(split_argument(&with_image(argument, index, guest.disk_size, scratch)?));
    }
    for controller in controllers.vfio.iter().chain(&controllers.kernel) {
        controller.add_to(&mut list, |name| scratch.sparse_image(name, guest.disk_size))?;
    }
    Ok(list)
}

/// Returns the IOMMU to add: `None` if that is requested, or if QEMU's arguments already contain one.
fn iommu(guest: &GuestArgs) -> Option<&str> {
    let brought = guest.qemu_arg.iter().any(|argument| argument.contains("-iommu"));
    let wanted = guest.iommu != "none" && !(brought && guest.iommu == DEFAULT_IOMMU);
    wanted.then_some(guest.iommu.as_str())
}

/// Replaces [`IMAGE`] in `argument` by the path of a new image file.
fn with_image(argument: &str, index: usize, bytes: u64, scratch: &Scratch) -> Result<String> {
    if !argument.contains(IMAGE) {
        return Ok(argument.to_owned());
    }
    let image = scratch.sparse_image(&format!("argument{index}"), bytes)?;
    Ok(argument.replace(IMAGE, &image.to_string_lossy()))
}

/// Splits `-device x y` into two arguments; anything that does not begin with `-` stays one.
fn split_argument(argument: &str) -> Vec<String> {
    match argument.split_once(' ') {
        Some((option, value)) if option.starts_with('-') => {
            vec![option.to_owned(), value.to_owned()]
        }
        _ => vec![argument.to_owned()],
    }
}

/// How to watch a running QEMU.
pub(crate) struct Watch<'a> {
    /// Kill it after this long.
    pub limit_s: u64,
    /// Separates the command's output from the guest's report.
    pub marker: &'a str,
    /// Commands for the monitor, and when to send them.
    pub rules: &'a [Rule],
    /// What the terminal shows meanwhile.
    pub waiting: Waiting,
}

/// Runs QEMU to its end; passes the command's output to `sink`.
pub(crate) fn run(
    arguments: &[String],
    watch: &Watch,
    scratch: &Scratch,
    sink: &mut dyn Write,
) -> Result<GuestOutcome> {
    let mut qemu = Qemu::start(arguments, watch, scratch)?;
    let mut splitter = Splitter::new(watch.marker);
    let watched = qemu.watch(watch, &mut splitter, sink).and_then(|()| {
        let report = splitter.report();
        // If the guest died, unfinished rules mean nothing.
        if report.is_some() { qemu.finish() } else { Ok(()) }?;
        Ok(report)
    });
    match watched {
        Ok(report) => finish(report, scratch),
        Err(failure) if failure.code() == 1 => {
            Err(Failure::new(format!("{failure}{}", evidence(scratch))))
        }
        Err(failure) => Err(failure),
    }
}

fn finish(report: Option<Report>, scratch: &Scratch) -> Result<GuestOutcome> {
    match report {
        Some(Report { result: Ok(exit), faults }) => Ok(GuestOutcome { exit, faults }),
        Some(Report { result: Err(why), .. }) => {
            Err(Failure::new(format!("the guest could not be set up: {why}{}", evidence(scratch))))
        }
        None => Err(Failure::new(format!("{DIED} before its command ended{}", evidence(scratch)))),
    }
}

/// Returns the last lines of QEMU's messages and of the guest's console.
fn evidence(scratch: &Scratch) -> String {
    let part = |title: &str, file: &str| match tail(&scratch.read(file), EVIDENCE_LINES) {
        text if text.is_empty() => String::new(),
        text => format!("\n--- {title} ---\n{text}"),
    };
    part("QEMU", ERRORS) + &part("the guest's console", CONSOLE)
}

/// A running QEMU, killed on drop.
struct Qemu {
    child: Child,
    /// Present if there are rules to carry out.
    monitor: Option<Monitor>,
    output: Receiver<Vec<u8>>,
}

impl Qemu {
    fn start(arguments: &[String], watch: &Watch, scratch: &Scratch) -> Result<Self> {
        let errors = File::create(scratch.path(ERRORS)).context("cannot create QEMU's log file")?;
        let mut command = tied_to_parent(PROGRAM);
        let aloud = watch.waiting == Waiting::UntilBooted;
        let (monitor, input) = match watch.rules {
            [] => (None, Stdio::null()),
            rules => {
                let (monitor, theirs) = Monitor::open(rules, aloud)?;
                (Some(monitor), Stdio::from(theirs))
            }
        };
        command.args(arguments).stdin(input).stdout(Stdio::piped()).stderr(errors);
        // A process group of its own: Ctrl-C reaches only xtask, which then ends QEMU and removes its files.
        command.process_group(0);
        let mut child = command.spawn().context(format_args!("cannot run {PROGRAM}"))?;
        let stdout = child.stdout.take().expect("its standard output was asked for");
        let (sender, output) = sync_channel(16);
        std::thread::spawn(move || pump(stdout, &sender));
        Ok(Self { child, monitor, output })
    }

    /// Passes the command's output on until QEMU closes its own.
    fn watch(
        &mut self,
        watch: &Watch,
        splitter: &mut Splitter,
        sink: &mut dyn Write,
    ) -> Result<()> {
        let began = Instant::now();
        let until_booted = watch.waiting == Waiting::UntilBooted;
        let mut progress = until_booted.then(|| Progress::start("booting the guest"));
        loop {
            interrupt::check()?;
            self.monitor.as_mut().map_or(Ok(()), Monitor::step)?;
            if let Some(why) = overdue(began.elapsed(), watch.limit_s, splitter.booted()) {
                return Err(Failure::new(why));
            }
            let bytes = match self.output.recv_timeout(TICK) {
                Ok(bytes) => splitter.feed(&bytes),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if splitter.booted() {
                progress.take();
            }
            if let Some(monitor) = &mut self.monitor {
                monitor.hear(&bytes);
            }
            sink.write_all(&bytes)
                .and_then(|()| sink.flush())
                .context("cannot pass the guest's output on")?;
        }
    }
}

/// Returns why a guest that has run for this long must be killed, if so.
fn overdue(elapsed: Duration, limit_s: u64, booted: bool) -> Option<String> {
    if elapsed >= Duration::from_secs(limit_s) {
        return Some(format!("the guest took longer than {limit_s} s and was killed (--timeout)"));
    }
    let hung = !booted && elapsed >= BOOT_LIMIT;
    hung.then(|| format!("{DIED}: its kernel has not booted in {} s", BOOT_LIMIT.as_secs()))
}

impl Qemu {
    /// Ends QEMU and checks that every rule was carried out.
    fn finish(mut self) -> Result<()> {
        let monitor = self.monitor.take();
        drop(self);
        monitor.map_or(Ok(()), Monitor::finish)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a command for `program` that the kernel kills if this process dies first.
fn tied_to_parent(program: &str) -> Command {
    if process::find("setpriv").is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

fn pump(mut stdout: ChildStdout, sender: &SyncSender<Vec<u8>>) {
    let mut buffer = [0; 16384];
    while let Ok(length @ 1..) = stdout.read(&mut buffer) {
        if sender.send(buffer[..length].to_vec()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_hangs_in_its_boot_has_died_and_one_that_takes_long_has_not() {
        let told = |seconds, booted| overdue(Duration::from_secs(seconds), 900, booted);
        assert_eq!(told(119, false), None);
        assert!(told(120, false).unwrap().starts_with(DIED));
        assert_eq!(told(899, true), None);
        assert!(told(900, true).unwrap().contains("--timeout"));
        assert!(told(900, false).unwrap().contains("--timeout"));
    }

    #[test]
    fn an_argument_gets_an_image_where_it_asks_for_one() {
        let cache = std::env::temp_dir().join(format!("adit-xtask-image-{}", std::process::id()));
        let scratch = Scratch::create(&cache).unwrap();
        let plain = with_image("-snapshot", 0, 1 << 20, &scratch).unwrap();
        let node = with_image(r#"{"filename":"{image}"}"#, 3, 1 << 20, &scratch).unwrap();
        let image = scratch.path("argument3.img");
        assert_eq!((plain.as_str(), node), ("-snapshot", format!("{{\"filename\":{image:?}}}")));
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 1 << 20);
        assert!(!scratch.path("argument0.img").exists());
        drop(scratch);
        std::fs::remove_dir(&cache).unwrap();
    }

    #[test]
    fn arguments_split_at_the_first_space_after_an_option() {
        assert_eq!(
            split_argument("-device pcie-root-port,id=rp0"),
            ["-device", "pcie-root-port,id=rp0"]
        );
        assert_eq!(split_argument("-blockdev {\"a\": 1}"), ["-blockdev", "{\"a\": 1}"]);
        assert_eq!(split_argument("{\"a\": 1}"), ["{\"a\": 1}"]);
        assert_eq!(split_argument("-snapshot"), ["-snapshot"]);
    }
}
