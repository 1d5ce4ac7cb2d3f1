//! Hugepages: set, checked, given back.
//!
//! All or nothing: the kernel gives as many as it finds, so what it gave is read back for each node, and where that is
//! fewer than was asked for, the numbers from before are put back. How many there were before the first change is on
//! disk before that change. Fewer pages than are in use cannot be had at once: the kernel gives those up when their users
//! end, and that is told.
//!
//! Limits of control groups on hugepages are not looked at.

mod kept;
mod memory;
mod pool;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::args::{HugepagesArgs, PageSize};
use super::operation::{self, Operation};
use super::root::Root;
use crate::failure::{Failure, Result};
use crate::human;
use kept::Record;
use pool::{Pages, Pool};

/// Where it is to be seen that systemd has booted the machine (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// A pool that was seen to.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Outcome {
    #[serde(flatten)]
    pool: Pool,
    /// The number of pages before, without those that were surplus.
    before: u64,
    /// The number now; none where nothing was really done.
    after: Option<u64>,
    /// Those of them that nobody uses.
    free: Option<u64>,
    /// Pages beyond that number which their users still have.
    surplus: Option<u64>,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Which pages: of one node, or of all.
    target: Pool,
    /// How many there are to be.
    pages: u64,
    /// Whether after the next boot, too.
    persist: bool,
}

/// `adit setup hugepages`.
///
/// # Errors
/// More than there is, fewer than were asked for, a change that fails.
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

/// The pools that the request is about, as the kernel keeps them: for each node.
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

/// Whether the memory for it is there; see [`memory`].
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

/// Writes down what was, sets the number, and looks at what came of it.
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

/// Fewer came than were asked for.
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

/// Puts back what this run has found.
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

/// Sets each pool to its number, those that shrink first.
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
            // Surplus pages are all in use.
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

/// Tells the next boot, or the person that it knows otherwise.
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

/// How the kernel is going to spread pages over nodes that have room.
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

/// Puts the numbers of hugepages back to what was recorded, if anything was; says whether there was something to do.
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
    // With the lines for the boot gone, it could not be known any more which numbers a boot has from us.
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
