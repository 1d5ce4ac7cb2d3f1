//! The command line of `cargo xtask vm`, also used by the test matrix.

use super::rules::Rule;
use crate::failure::{Failure, Result};
use clap::Parser;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Each --nvme and --kernel-nvme is 'OPTS[;NSOPTS…]': OPTS go to QEMU's `-device nvme,…`, each NSOPTS to a `-device \
nvme-ns,…` of its own with an empty image file. Without NSOPTS there is one plain namespace; with the word `none` in \
their place there is no namespace.

In a --qemu-arg, {image} stands for the path of a new empty image file, for block devices of one's own.

Each --qmp is a rule; they are carried out one after the other: 'TEXT => COMMAND' tells QEMU COMMAND once the guest's \
command has said TEXT, 'COMMAND' alone at once, 'event NAME WORD…' waits for QEMU's event NAME with these words in its \
data. COMMAND is a line for QEMU's human monitor, or a QMP command as JSON. A rule that was not carried out when the \
guest ends is a failure, and so is a command that QEMU refuses.

The kernel's drives have a queue for polled completions (nvme.poll_queues=1), for io_uring's hipri.

In COMMAND, {0}, {1} stand for `vfio:BDF` of the first and second --nvme, {k0} and {g0} for the block device and the \
generic character device (/dev/nvme0n1, /dev/ng0n1) of the first --kernel-nvme. `adit` is built first, optimized and with every \
assertion, and comes with wipefs. Busybox's programs are there; its shell prefers them to a --with program of the same name.

The exit code is COMMAND's, or 1 when the guest fails or its IOMMU refused a DMA access, or 2 for a wrong command line.

Examples:
  cargo xtask vm --nvme mdts=7 -- adit identify {0}
  cargo xtask vm --nvme '' --nvme '' -- sh -c 'adit identify {0}; adit identify {1}'

  # 4 KiB blocks, queues in the controller's memory, every block verified
  cargo xtask vm \\
      --nvme 'cmb_size_mb=64;logical_block_size=4096,physical_block_size=4096' \\
      -- adit bench --filename={0},queues=cmb --rw=randrw --bs=16k \\
      --iodepth=32 --size=64M --verify=crc32c

  # the kernel's driver, for comparison
  cargo xtask vm --kernel-nvme '' --with fio \\
      -- fio --name=r --filename={k0} --rw=randread --direct=1 \\
      --ioengine=io_uring --time_based --runtime=3

  # a job file, over the kernel's driver and ours
  cargo xtask vm --kernel-nvme '' --nvme '' --copy benches/jobs \\
      -- adit bench jobs/paths.fio --targets uring:{k0},uring-cmd:{g0},{0}

  # another IOMMU; a controller behind a port
  cargo xtask vm --iommu intel-iommu,caching-mode=on,aw-bits=39 --nvme '' -- \\
      adit identify {0}
  cargo xtask vm --qemu-arg '-device pcie-root-port,id=rp0' --nvme bus=rp0 -- \\
      adit identify {0}

  # the same controller unplugged under load
  cargo xtask vm --qemu-arg '-device pcie-root-port,id=rp0' --nvme bus=rp0 \\
      --qmp 'Jobs: 1 => device_del nvme0' --qmp 'event DEVICE_DELETED nvme0' \\
      -- adit bench --filename={0} --time_based --runtime=60 --eta=always";

/// The guest to boot and the command to run in it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GuestArgs {
    /// An NVMe controller bound to vfio-pci (may be the empty string: QEMU's defaults)
    #[arg(long, value_name = "OPTS[;NSOPTS…]")]
    pub(super) nvme: Vec<String>,

    /// An NVMe controller left to the kernel's driver
    #[arg(long, value_name = "OPTS[;NSOPTS…]")]
    pub(super) kernel_nvme: Vec<String>,

    /// A program to copy in with its libraries: a name in PATH, or a path; mdadm and the like are fetched if need be
    #[arg(long, value_name = "BINARY")]
    pub(super) with: Vec<String>,

    /// A file or directory to copy in, at GUEST or below /root; a relative one is looked for here, then in the repository
    #[arg(long, value_name = "FILE[:GUEST]")]
    pub(super) copy: Vec<String>,

    /// A kernel module that modprobe can load with its dependencies; those of vfio and nvme are always included
    #[arg(long, value_name = "NAME")]
    pub(super) module: Vec<String>,

    /// An example of adit-driver to build and copy in, such as stray_dma
    #[arg(long, value_name = "NAME")]
    pub(super) example: Vec<String>,

    /// An integration test to build and copy in under its own name, such as shard
    #[arg(long, value_name = "NAME")]
    pub(super) test: Vec<String>,

    /// Copy in the emulated CUDA driver, to the place of the GPU's own
    #[arg(long)]
    pub(super) gpu: bool,

    /// An argument for QEMU, placed before the controllers; one that begins with `-` is split at its first space
    #[arg(long, value_name = "A", allow_hyphen_values = true)]
    pub(super) qemu_arg: Vec<String>,

    /// A command to QEMU's monitor while the guest runs, and when to send it
    #[arg(long, value_name = "TEXT => COMMAND", value_parser = Rule::parse)]
    pub(super) qmp: Vec<Rule>,

    /// The IOMMU device, or `none` [default unless a --qemu-arg brings one]
    #[arg(long, value_name = "DEVICE", default_value = DEFAULT_IOMMU)]
    pub(super) iommu: String,

    /// The guest's memory
    #[arg(long, default_value = "2G")]
    pub(super) mem: String,

    /// The guest's processors
    #[arg(long, default_value_t = 2)]
    pub(super) cpus: u8,

    /// The size of each namespace's (sparse) image file
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub(super) disk_size: u64,

    /// Kill the guest after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) timeout: u64,

    /// Do not fail when the IOMMU refused a DMA access of a device
    #[arg(long)]
    pub(super) allow_dmar: bool,

    /// A kernel other than the distribution's: a directory with boot/vmlinuz-VERSION and lib/modules/VERSION
    #[arg(long, value_name = "DIR")]
    pub(super) kernel: Option<PathBuf>,

    /// The command and its words
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

pub(super) const DEFAULT_IOMMU: &str = "intel-iommu,intremap=on,caching-mode=on,aw-bits=48";

/// A guest's arguments as typed after `cargo xtask vm`.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct CommandLine {
    #[command(flatten)]
    guest: GuestArgs,
}

impl GuestArgs {
    /// Parses the words that follow `cargo xtask vm`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        CommandLine::try_parse_from(words)
            .map(|line| line.guest)
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Parses bytes, with an optional K, M, G or T.
fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let (digits, shift) = match text.chars().last().map(|unit| unit.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        Some('T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("{text} is not a size such as 512M or 1G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_repeat_and_the_command_keeps_its_own() {
        let words = [
            "--nvme",
            "",
            "--nvme=mdts=7",
            "--qemu-arg",
            "-snapshot",
            "--",
            "fio",
            "--name=x",
            "-v",
        ];
        let arguments = GuestArgs::parse(&words).unwrap();
        assert_eq!(arguments.nvme, ["", "mdts=7"]);
        assert_eq!(arguments.qemu_arg, ["-snapshot"]);
        assert_eq!(arguments.command, ["fio", "--name=x", "-v"]);
        assert_eq!(arguments.disk_size, 1 << 30);
    }

    #[test]
    fn a_command_is_required() {
        assert!(GuestArgs::parse(&["--nvme", ""]).is_err());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("64m"), Ok(64 << 20));
        assert_eq!(parse_size("2T"), Ok(2 << 40));
        assert!(parse_size("big").is_err() && parse_size("").is_err() && parse_size("é").is_err());
        assert!(parse_size("99999999999T").is_err());
    }
}
