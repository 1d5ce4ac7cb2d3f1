//! Prints what sets the number of hugepages, now and at each boot.
//!
//! The kernel allocates as many pages as it finds, so the script reads the number back. A request for more than
//! the memory that is free or can be dropped ([`memory`]) is refused, because the kernel would evict all else.
//!
//! Control groups' hugepage limits are not checked.

mod memory;

use super::args::{HugepagesArgs, PageSize};
use super::inventory::pool::{self, Pages, Pool};
use super::script::{Script, ScriptFile};
use crate::failure::{Failure, Result};
use crate::human;
use adit_guard::root::Root;

/// Read by systemd-tmpfiles at boot (tmpfiles.d(5)).
const AT_BOOT: &str = "/etc/tmpfiles.d/adit-hugepages.conf";

/// Runs `adit setup hugepages`.
///
/// # Errors
/// A node or page size that the kernel does not have, more pages than memory allows.
pub(crate) fn run(root: &Root, args: &HugepagesArgs, json: bool) -> Result<()> {
    let page_bytes: u64 = match args.size {
        PageSize::Mebi2 => 2 << 20,
        PageSize::Gibi1 => 1 << 30,
    };
    let pages = match (args.count, args.bytes) {
        (Some(pages), _) => pages,
        (None, Some(bytes)) => bytes.div_ceil(page_bytes),
        (None, None) => return Err(Failure::usage("give --count or --bytes")),
    };
    let target = Pool { node: args.node, page_bytes };
    let now = pages_now(root, target)?;
    check_memory(root, target, pages, now)?;
    script(target, pages, now, args.persist).print(json)
}

/// Returns what sets `target` to a number of pages, at boot too with `persist`.
fn script(target: Pool, pages: u64, now: Pages, persist: bool) -> Script {
    let file = target.file();
    let file = file.display();
    let wanted = format!("{} on {}", target.count(pages), target.place());
    let size = if target.page_bytes < 1 << 30 { "2M" } else { "1G" };
    let mut script = Script {
        notes: vec![
            format!("Sets {wanted}; now: {}, {} free.", now.lasting(), now.free),
            format!(
                "If the last line prints fewer than {pages}, the free memory is in pieces: ask for fewer, or right after a \
                 boot, or put 'hugepagesz={size} hugepages={pages}' on the kernel's command line."
            ),
        ],
        files: Vec::new(),
        commands: vec![format!("echo {pages} > {file}"), format!("cat {file}")],
        undo: vec![format!("echo {} > {file}", now.lasting())],
    };
    if persist {
        // '!' restricts the line to boot; without it, any package could trigger systemd-tmpfiles.
        let content = format!("w! {file} - - - - {pages}\n");
        script.files.push(ScriptFile { path: AT_BOOT, content });
        script.undo.push(format!("rm {AT_BOOT}"));
    }
    script
}

/// Returns the pages of `target` now, summed over all nodes if it names none.
fn pages_now(root: &Root, target: Pool) -> Result<Pages> {
    if let Some(pages) = target.pages(root) {
        return Ok(pages);
    }
    let nodes = pool::nodes(root);
    if let Some(node) = target.node.filter(|node| !nodes.contains(node)) {
        let list: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        return Err(Failure::usage(match &*list {
            [] => "this kernel has no NUMA nodes; leave --node out".to_owned(),
            _ => format!("there is no node {node}; there are: {}", list.join(", ")),
        }));
    }
    let size = human::capacity(target.page_bytes);
    Err(Failure::failed(if pool::all(root).is_empty() {
        "this kernel has no hugepages (it was built without CONFIG_HUGETLBFS, or /sys hides them, as in a container)"
            .to_owned()
    } else {
        format!(
            "this kernel has no hugepages of {size} here; pages of 1G need a processor that has them ('pdpe1gb' in \
             /proc/cpuinfo), and some kernels also 'hugepagesz=1G' on their command line"
        )
    }))
}

/// Checks that there is enough memory; see [`memory`].
fn check_memory(root: &Root, target: Pool, pages: u64, now: Pages) -> Result<()> {
    let place = target.place();
    let size = human::capacity(target.page_bytes);
    let more = pages.saturating_sub(now.total);
    if more == 0 {
        return Ok(());
    }
    let Some(available) = memory::available(root, target.node) else {
        let file = pool::meminfo(target.node);
        return Err(Failure::failed(format!(
            "{place}: {} does not tell how much memory is free, so no page of {size} is asked for",
            file.display()
        )));
    };
    let possible = available / target.page_bytes;
    if more <= possible {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{place}: {} more than the {} that there are would be needed, but there is memory for {possible} (free, or in \
         caches that can be dropped, {} in all; a 32nd of the memory is left to programs); ask for {} at most, or end \
         what uses the memory",
        target.count(more),
        now.total,
        human::capacity(available),
        now.total.saturating_add(possible),
    )))
}
