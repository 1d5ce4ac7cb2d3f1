//! `adit demo`: shows the driver and the store without a device, in well under a minute.
//!
//! | module | shows |
//! |---|---|
//! | `drive` | blocks that are written to a software controller in random order, read back and checked |
//! | `store` | a process that is killed while it puts KV blocks, and what its store has afterwards |
//! | `contents` | the bytes of both, which identify themselves |
//!
//! `cargo xtask demo` builds it as a program of its own, from as few crates as can show this.

mod contents;
mod drive;
mod store;

pub use store::put_into;

use adit_tools_common::failure::Result;
use adit_tools_common::interrupt::Interrupt;
use adit_tools_common::output::Output;

const INTRODUCTION: &str = "\
A software NVMe controller in this process (soft:mem=64M,lba=4096), driven through its registers, queues and
doorbells as a real one is. Every block is written in random order with a checksum, then read back and checked.

";

const OF_THE_STORE: &str = "
The KV store on the software controller, in a file: KV blocks of a model are put by a second process, which is killed
with SIGKILL while it goes on. What it had committed is restored layer by layer, and compared byte by byte.

";

const WHAT_NEXT: &str = "
The figures are of software only: no flash and no PCIe took part. Next, with the command line, which
'cargo build --release --package adit' builds in a few minutes:
  adit identify soft:mem=1G                        what a controller reports
  adit bench --filename=soft:mem=1G --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5
  adit kv bench --store soft:mem=2G --workload ycsb-a --object-bytes 4k --objects 100000
  adit kv --help                                   a store of your own, in a file or on a drive
  adit setup status                                your drives, and which of them can be handed over
  adit bench --help                                fio's options; on a controller that 'adit setup bind' has handed over:
  adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5
";

/// Runs the demonstration. It starts this program again as `PROGRAM demo --put-into TARGET`, which must call
/// [`put_into`].
///
/// # Errors
/// When a block differs from what was written, which is a bug of ours; when there is no room for the store's file.
pub fn run() -> Result<()> {
    let interrupt = Interrupt::install()?;
    let mut output = Output::Standard;
    output.write(INTRODUCTION)?;
    output.write(&drive::run(&interrupt)?)?;
    output.write(OF_THE_STORE)?;
    output.write(&store::run(&interrupt)?)?;
    output.write(WHAT_NEXT)
}
