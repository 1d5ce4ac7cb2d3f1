//! Sets, checks and releases hugepages.
//!
//! A request succeeds fully or not at all: the kernel allocates as many pages as it finds, so the result is
//! read back for each node, and if it is too small, the previous numbers are restored. Those numbers are on
//! disk before the first change. Pages in use cannot be released at once; the kernel frees them when their
//! users end, which is reported.
//!
//! Control groups' hugepage limits are not checked.

mod kept;
mod memory;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::args::{HugepagesArgs, PageSize};
use super::inventory::pool::{self, Pages, Pool};
use super::operation::{self, Operation};
use super::root::{Root, SYSTEMD};
use crate::failure::{Failure, Result};
use crate::human;
use kept::Record;

/// The result for one pool.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Outcome {
    #[serde(flatten)]
    pool: Pool,
    /// The number of pages before, without surplus pages.
    before: u64,
    /// The number of pages now; `None` in a dry run.
    after: Option<u64>,
    /// Unused pages among them.
    free: Option<u64>,
    /// Pages beyond that number that are still in use.
    surplus: Option<u64>,
}

/// The requested number of pages.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// The size of the pages, and the node if not all.
    target: Pool,
    pages: u64,
    /// Whether to set it at boot too.
    persist: bool,
}

/// Runs `adit setup hugepages`.
///
/// # Errors
/// More pages than memory allows, fewer pages than requested, a change that fails.
pub(crate) fn run(root: &Root, args: &HugepagesArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, |operation| {
        if args.release { release_all(operation) } else { set(operation, request(args)?) }
    })
}

fn request(args: &HugepagesArgs) -> Result<Request> {
    let page_bytes: u64 = match args.size {
        PageSize::Mebi2 => 2 << 20,
        PageSize::Gibi1 => 1 << 30,
    };
    let pages = match (args.count, args.bytes) {
        (Some(pages), _) => pages,
        (None, Some(bytes)) => bytes.div_ceil(page_bytes),
        (None, None) => return Err(Failure::usage("give --count, --bytes or --release")),
    };
    let target = Pool { node: args.node, page_bytes };
    Ok(Request { target, pages, persist: args.persist })
}

fn set(operation: &mut Operation, request: Request) -> Result<Vec<Outcome>> {
    let root = operation.root;
    let pools = pools_of(root, request.target)?;
    let before = look(root, &pools);
    check_memory(root, request, &before)?;
    if request.persist && !root.exists(SYSTEMD) {
        return Err(Failure::failed(
            "--persist needs systemd, which has not booted this machine; let your init system run this command, or put \
             'hugepagesz=… hugepages=…' on the kernel's command line",
        ));
    }
    if lasting(&before) == request.pages {
        operation.say(format!(
            "{} has {} already",
            request.target.place(),
            request.target.count(request.pages)
        ))?;
    } else {
        change(operation, request, &before)?;
    }
    let outcomes = outcomes(operation, &before);
    tell(operation, &outcomes)?;
    see_to_boot(operation, request, &before)?;
    Ok(outcomes)
}

/// Returns the kernel's pools for the request, one per node.
fn pools_of(root: &Root, target: Pool) -> Result<Vec<Pool>> {
    let wanted = |pool: &Pool| {
        pool.page_bytes == target.page_bytes && (target.node.is_none() || pool.node == target.node)
    };
    let all = pool::all(root);
    let pools: Vec<Pool> = all.iter().copied().filter(wanted).collect();
    if !pools.is_empty() && root.exists(target.file()) {
        return Ok(pools);
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
    Err(Failure::failed(if all.is_empty() {
        "this kernel has no hugepages (it was built without CONFIG_HUGETLBFS, or /sys hides them, as in a container)"
            .to_owned()
    } else {
        format!(
            "this kernel has no hugepages of {size} here; pages of 1G need a processor that has them ('pdpe1gb' in \
             /proc/cpuinfo), and some kernels also 'hugepagesz=1G' on their command line"
        )
    }))
}

fn look(root: &Root, pools: &[Pool]) -> Vec<(Pool, Pages)> {
    pools.iter().filter_map(|pool| Some((*pool, pool.pages(root)?))).collect()
}

fn lasting(pools: &[(Pool, Pages)]) -> u64 {
    pools.iter().map(|(_, pages)| pages.lasting()).sum()
}

/// Checks that there is enough memory; see [`memory`].
fn check_memory(root: &Root, request: Request, before: &[(Pool, Pages)]) -> Result<()> {
    let Request { target, pages, .. } = request;
    let place = target.place();
    let size = human::capacity(target.page_bytes);
    let there: u64 = before.iter().map(|(_, pages)| pages.total).sum();
    let more = pages.saturating_sub(there);
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
        "{place}: {} more than the {there} that there are would be needed, but there is memory for {possible} (free, or in \
         caches that can be dropped, {} in all; a 32nd of the memory is left to programs); ask for {} at most, or end \
         what uses the memory",
        target.count(more),
        human::capacity(available),
        there.saturating_add(possible),
    )))
}

/// Records the previous state, sets the number, and checks the result.
fn change(operation: &mut Operation, request: Request, before: &[(Pool, Pages)]) -> Result<()> {
    let old = Record::load(operation.root)?;
    let pools: Vec<Pool> = before.iter().map(|(pool, _)| *pool).collect();
    let record = Record::of_now(operation.root, old.as_ref(), &pools);
    if old.as_ref() != Some(&record) {
        operation.change(record.stored())?;
    }
    let set = operation.change(request.target.set(request.pages));
    if operation.is_dry() {
        return Ok(());
    }
    let after = look(operation.root, &pools);
    let failure = match set {
        Err(why) => refused(request.target, &why),
        Ok(()) if lasting(&after) < request.pages => too_few(request, &after),
        Ok(()) => return Ok(()),
    };
    if operation.is_stuck() {
        return Err(failure
            .and("once the kernel has finished, 'adit setup hugepages --release' puts it back"));
    }
    Err(match undo(operation, before, old.as_ref(), &record) {
        Ok(()) => failure,
        Err(also) => failure.and(also),
    })
}

fn refused(target: Pool, why: &Failure) -> Failure {
    let failure = Failure::failed(why);
    if target.page_bytes < 1 << 30 {
        return failure;
    }
    failure.and("where the kernel cannot do that while it runs, put 'hugepagesz=1G hugepages=N' on its command line")
}

fn too_few(request: Request, after: &[(Pool, Pages)]) -> Failure {
    let Request { target, pages, .. } = request;
    let each: Vec<String> = after
        .iter()
        .filter(|_| after.len() > 1)
        .map(|(pool, pages)| format!("{}: {}", pool.place(), pages.lasting()))
        .collect();
    let each = if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) };
    let size = if target.page_bytes < 1 << 30 { "2M" } else { "1G" };
    Failure::failed(format!(
        "{} could have only {} of {}{each}, as its free memory is in pieces; what was before is put back; ask for fewer, or \
         right after a boot (--persist does), or put 'hugepagesz={size} hugepages={pages}' on the kernel's command line",
        target.place(),
        lasting(after),
        target.count(pages),
    ))
}

/// Restores the state this run found.
fn undo(
    operation: &mut Operation,
    before: &[(Pool, Pages)],
    old: Option<&Record>,
    record: &Record,
) -> Result<()> {
    let numbers: Vec<(Pool, u64)> =
        before.iter().map(|(pool, pages)| (*pool, pages.lasting())).collect();
    put_back(operation, &numbers)?;
    match old {
        Some(old) if old == record => Ok(()),
        Some(old) => operation.change(old.stored()),
        None => operation.change(kept::forgotten()),
    }
}

/// Sets each pool to its number, shrinking pools first.
fn put_back(operation: &mut Operation, numbers: &[(Pool, u64)]) -> Result<()> {
    let root = operation.root;
    let now = |pool: &Pool| pool.pages(root).map(Pages::lasting);
    let mut differing: Vec<(Pool, u64, u64)> =
        numbers.iter().filter_map(|(pool, pages)| Some((*pool, *pages, now(pool)?))).collect();
    differing.retain(|(_, pages, now)| pages != now);
    differing.sort_by_key(|(_, pages, now)| pages > now);
    for (pool, pages, _) in differing {
        operation.change(pool.set(pages))?;
    }
    Ok(())
}

fn outcomes(operation: &Operation, before: &[(Pool, Pages)]) -> Vec<Outcome> {
    let outcome = |(pool, before): &(Pool, Pages)| {
        let after = Some(*pool).filter(|_| !operation.is_dry());
        let after = after.and_then(|pool| pool.pages(operation.root));
        Outcome {
            pool: *pool,
            before: before.lasting(),
            after: after.map(Pages::lasting),
            // All surplus pages are in use.
            free: after.map(|pages| pages.free),
            surplus: after.map(|pages| pages.surplus),
        }
    };
    before.iter().map(outcome).collect()
}

fn tell(operation: &mut Operation, outcomes: &[Outcome]) -> Result<()> {
    for Outcome { pool, before, after, free, surplus } in outcomes {
        let (Some(after), Some(free), Some(surplus)) = (after, free, surplus) else { continue };
        let place = pool.place();
        operation
            .say(format!("{place}: {}, {free} free (before: {before})", pool.count(*after)))?;
        if *surplus > 0 {
            operation.say(format!(
                "{place}: {} more are in use; the kernel takes each back when its program ends",
                pool.count(*surplus)
            ))?;
        }
    }
    Ok(())
}

/// Sets the pools at boot if requested; otherwise notes that boot sets these pools, if it does.
fn see_to_boot(
    operation: &mut Operation,
    request: Request,
    before: &[(Pool, Pages)],
) -> Result<()> {
    let root = operation.root;
    if request.persist {
        let numbers: Vec<(Pool, u64)> = if operation.is_dry() {
            spread(request.pages, before)
        } else {
            let now = |(pool, _): &(Pool, Pages)| Some((*pool, pool.pages(root)?.lasting()));
            before.iter().filter_map(now).collect()
        };
        return kept::tell_boot(operation, &numbers);
    }
    let at_boot = kept::at_boot(root);
    if before.iter().any(|(pool, _)| at_boot.contains_key(pool)) {
        operation.say(format!(
            "the next boot sets what {} says; with --persist that is changed, too",
            kept::AT_BOOT
        ))?;
    }
    Ok(())
}

/// Returns how the kernel spreads pages over nodes with enough room.
fn spread(pages: u64, pools: &[(Pool, Pages)]) -> Vec<(Pool, u64)> {
    let count = pools.len() as u64;
    let share = |at: usize| pages / count + u64::from((at as u64) < pages % count);
    pools.iter().enumerate().map(|(at, (pool, _))| (*pool, share(at))).collect()
}

fn release_all(operation: &mut Operation) -> Result<Vec<Outcome>> {
    let released = release_recorded(operation)?;
    if released.is_none() {
        operation.say(
            "'adit setup' has changed no number of hugepages, so there is nothing to release",
        )?;
    }
    Ok(released.unwrap_or_default())
}

/// Restores the recorded numbers of hugepages, if any; returns whether there was anything to do.
///
/// # Errors
/// When the record is damaged, or a change fails.
pub(crate) fn release(operation: &mut Operation) -> Result<bool> {
    Ok(release_recorded(operation)?.is_some())
}

fn release_recorded(operation: &mut Operation) -> Result<Option<Vec<Outcome>>> {
    let root = operation.root;
    if !root.is_left(kept::file()) && !root.is_left(kept::AT_BOOT) {
        return Ok(None);
    }
    let record = Record::load(root)?;
    // Without the boot lines, it would be unknown which numbers of a boot are ours.
    let numbers = record.map(|record| record.to_put_back(root)).unwrap_or_default();
    let pools: Vec<Pool> = numbers.iter().map(|(pool, _)| *pool).collect();
    let mut before = look(root, &pools);
    put_back(operation, &numbers)?;
    if root.is_left(kept::AT_BOOT) {
        operation.change(kept::removed_from_boot())?;
    }
    if root.is_left(kept::file()) {
        operation.change(kept::forgotten())?;
    }
    before.retain(|(pool, pages)| !numbers.contains(&(*pool, pages.lasting())));
    let outcomes = outcomes(operation, &before);
    tell(operation, &outcomes)?;
    for outcome in &outcomes {
        let recorded = numbers.iter().find(|(pool, _)| *pool == outcome.pool);
        if let Some((pool, pages)) =
            recorded.filter(|(_, pages)| outcome.after.is_some_and(|after| after < *pages))
        {
            operation.say(format!(
                "{}: there were {} before; the kernel finds no more now, but will after a boot",
                pool.place(),
                pool.count(*pages)
            ))?;
        }
    }
    Ok(Some(outcomes))
}
