//! `adit kv export` and `adit kv import`: the objects of a store as a stream, for backups and for moving.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use adit_kvstore::Store;
use adit_kvstore::store::{ImportWith, Imported};
use adit_kvstore::stream::Counts;
use clap::Args;
use serde_json::json;

use super::any_store::POOL_BYTES;
use super::key;
use super::passing::Passing;
use super::store_arg::StoreArg;
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output;
use crate::whole_file::WholeFile;

const EXPORT_EXAMPLES: &str = "\
Examples:
  adit kv export uring:kv.img backup.kvx
  From one machine to another:
    adit kv export vfio:0000:01:00.0 - | ssh other adit kv import uring:kv.img -
  The objects of one model, compressed:
    adit kv export uring:kv.img - --prefix model/7b/ | zstd > 7b.kvx.zst

A stream has each object's key, bytes, tenant, expiry and layout, with checksums; not the quotas of tenants. The \
store is open meanwhile: a server exports its own by Store::export. docs/design/kv-stream.md has the format.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  adit kv import uring:kv.img backup.kvx
  zstd -dc 7b.kvx.zst | adit kv import uring:kv.img -
  After an import that was interrupted:
    adit kv import uring:kv.img backup.kvx --keep

Each object appears whole or not at all, and replaces one with its key unless --keep is given. Of a stream that is \
cut off or damaged, the objects before that are stored. Objects that have expired since are passed over.";

/// Writes a store's objects to a file or a pipe, for a backup or another store
#[derive(Args, Clone, Debug)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The file to write, which appears once it is complete; standard output for '-'
    file: PathBuf,

    /// Only keys with this prefix: text, or 0x0123 for bytes
    // The full path makes clap take the bytes as one value.
    #[arg(long, value_name = "KEY", default_value = "", value_parser = key::bytes)]
    prefix: std::vec::Vec<u8>,

    /// Prints JSON; not with '-'
    #[arg(long)]
    json: bool,
}

/// Stores the objects that 'adit kv export' wrote
#[derive(Args, Clone, Debug)]
#[command(after_help = IMPORT_EXAMPLES)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The file to read; standard input for '-'
    file: PathBuf,

    /// Only keys with this prefix: text, or 0x0123 for bytes
    // The full path makes clap take the bytes as one value.
    #[arg(long, value_name = "KEY", default_value = "", value_parser = key::bytes)]
    prefix: std::vec::Vec<u8>,

    /// Keeps objects that are there, as after an import that was interrupted
    #[arg(long)]
    keep: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Runs `adit kv export`.
///
/// # Errors
/// When the store cannot be read, or the file cannot be written.
pub(crate) fn export(args: &ExportArgs) -> Result<()> {
    let name = match is_standard(&args.file) {
        true => "standard output".to_owned(),
        false => args.file.display().to_string(),
    };
    if is_standard(&args.file) && args.json {
        return Err(Failure::usage(
            "--json prints to standard output, where the stream goes: name a file",
        ));
    }
    let failed = |why: io::Error| Failure::failed(format!("{name}: {why}"));
    let interrupt = Interrupt::install()?;
    let store = args.store.all().open_own(POOL_BYTES)?;
    let mut keeps_nothing = false;
    let exported = if is_standard(&args.file) {
        store.export(&args.prefix, Passing::new(io::stdout().lock(), None, &interrupt))
    } else {
        let mut file = WholeFile::create(&args.file).map_err(failed)?;
        keeps_nothing = file.replaces();
        let exported = store.export(&args.prefix, Passing::new(&mut file, None, &interrupt));
        if exported.is_ok() {
            file.finish().map_err(failed)?;
        }
        exported
    };
    store.close().wait()?;
    let left = match keeps_nothing {
        true => format!("{name} is as it was before"),
        false => format!("what {name} has lacks its end, which an import reports"),
    };
    let Counts { objects, bytes, .. } = match exported {
        Err(_) if interrupt.requested() => {
            return Err(Failure::stopped(format!("interrupted: {left}")));
        }
        exported => exported.map_err(|why| Failure::from(why).and(left))?,
    };
    // With standard output, only the stream goes there.
    let text = || match is_standard(&args.file) {
        true => String::new(),
        false => format!("{name}: {objects} objects of {}\n", human::capacity(bytes)),
    };
    output::report(args.json, || json!({ "objects": objects, "bytes": bytes }), text)
}

/// Runs `adit kv import`.
///
/// # Errors
/// When the stream cannot be read to its end, or an object cannot be stored.
pub(crate) fn import(args: &ImportArgs) -> Result<()> {
    let name = args.file.display();
    let failed = |why: io::Error| Failure::failed(format!("{name}: {why}"));
    let (from, all): (Box<dyn Read>, Option<u64>) = if is_standard(&args.file) {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(&args.file).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        (Box::new(file), about.is_file().then_some(about.len()))
    };
    let interrupt = Interrupt::install()?;
    let store = args.store.all().open_own(POOL_BYTES)?;
    let evicted = |store: &Store| store.stats().wait().map(|stats| stats.evictions.objects());
    let before = evicted(&store)?;
    let from = BufReader::with_capacity(1 << 20, Passing::new(from, all, &interrupt));
    let with = ImportWith { prefix: args.prefix.clone(), keeps: args.keep };
    let (ended, told) = match store.import(from, with) {
        Err(why) => (Err(why), Imported::default()),
        Ok(mut import) => (import.run(), import.told()),
    };
    let evicted = evicted(&store)? - before;
    store.close().wait()?;
    if evicted > 0 {
        tracing::warn!(
            "{evicted} objects were evicted to make room, some of the stream's perhaps: format a larger store, or for more \
             objects, if all have to stay"
        );
    }
    report(args, told, evicted)?;
    let Err(why) = ended else { return Ok(()) };
    let left =
        format!("{} objects are stored; '--keep' goes on from there", told.objects + told.kept);
    if interrupt.requested() {
        return Err(Failure::stopped(format!("interrupted: {left}")));
    }
    let failure = Failure::from(why);
    Err(if told == Imported::default() { failure } else { failure.and(left) })
}

fn report(args: &ImportArgs, told: Imported, evicted: u64) -> Result<()> {
    let Imported { objects, bytes, kept, expired, declined } = told;
    let report = || {
        json!({
            "objects": objects, "bytes": bytes, "kept": kept, "expired": expired, "declined": declined,
            "evicted": evicted,
        })
    };
    let mut text = format!("stored {objects} objects of {}", human::capacity(bytes));
    for (count, what) in [(kept, "kept as they were"), (expired, "expired"), (declined, "declined")]
    {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    output::report(args.json, report, || text + "\n")
}
