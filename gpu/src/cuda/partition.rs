//! Divides the GPU: some streaming multiprocessors for I/O, the rest for compute.
//!
//! Green contexts (CUDA 12.5, which has streams of them) make the parts: a kernel in a stream of one runs on its
//! multiprocessors alone. The parts share caches, memory and copy engines, and streams outside both may run anywhere.
//! Without green contexts, the parts are streams of high and low priority over the whole GPU, and the reason is kept.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::library::{NON_BLOCKING, Resource, code};
use super::stream::{Priority, Stream};
use crate::{Error, Result};
use cudarc::driver::sys::{CUdevResourceDesc, CUgreenCtx, CUstream};
use std::ptr;
use std::sync::Arc;

/// The kind of resource that is divided.
const SM: u32 = 1;
/// Allows groups of any size that the hardware supports, without thread block clusters, which the device code does not
/// use.
const IGNORE_SM_COSCHEDULING: u32 = 1;
/// Required by the driver for every green context.
const DEFAULT_STREAM: u32 = 1;
/// Both parts, and how they are separated.
#[derive(Debug)]
pub struct Partitions {
    /// For I/O: the requested number of multiprocessors, or the next that the hardware can partition.
    pub io: Partition,
    /// For compute: the rest.
    pub compute: Partition,
    pub kind: PartitionKind,
}

/// How the parts are separated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionKind {
    /// By green contexts: each has its own multiprocessors.
    Green,
    /// By priorities alone.
    Priority {
        /// Why not by green contexts.
        why: String,
    },
}

#[derive(Debug)]
pub struct Partition {
    gpu: Arc<Gpu>,
    sms: u32,
    /// None with priorities only; `usual` is then the priority of its streams unless they ask for one.
    context: Option<Arc<GreenContext>>,
    usual: Priority,
}

/// A green context, destroyed when its partition and all its streams are gone.
#[derive(Debug)]
pub(super) struct GreenContext {
    gpu: Arc<Gpu>,
    raw: CUgreenCtx,
}

// SAFETY: a green context is a handle that any thread may use.
unsafe impl Send for GreenContext {}
// SAFETY: as above.
unsafe impl Sync for GreenContext {}

impl Gpu {
    /// Partitions off about `sms` streaming multiprocessors. Never fails: priorities are the fallback.
    pub(crate) fn partition(self: &Arc<Gpu>, sms: u32) -> Partitions {
        green(self, sms).unwrap_or_else(|why| {
            let all = self.info().sm_count;
            let part = |sms, usual| Partition { gpu: self.clone(), sms, context: None, usual };
            Partitions {
                io: part(sms.clamp(1, all.max(1)), Priority::High),
                compute: part(all, Priority::Low),
                kind: PartitionKind::Priority { why: why.to_string() },
            }
        })
    }
}

impl Partition {
    /// Returns the number of its multiprocessors. With priorities only: the requested number, or all.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// Creates a stream of it. With priorities only, a stream of normal priority gets the part's.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`].
    pub fn stream(&self, priority: Priority) -> Result<Stream> {
        let Some(context) = &self.context else {
            let priority = if priority == Priority::Normal { self.usual } else { priority };
            return Stream::new(&self.gpu, priority);
        };
        let Some(create) = self.gpu.cuda().cuGreenCtxStreamCreate else {
            return Err(unavailable("the driver has no cuGreenCtxStreamCreate"));
        };
        let _bound = self.gpu.bind()?;
        let priority = priority.number(&self.gpu)?;
        let mut raw: CUstream = ptr::null_mut();
        // SAFETY: it writes one handle, which is given back when the stream is dropped; the stream keeps the context.
        let result = unsafe { create(&mut raw, context.raw, NON_BLOCKING, priority) };
        self.gpu.cuda().check("make a stream of a partition", "cuGreenCtxStreamCreate", result)?;
        Ok(Stream::green(&self.gpu, raw, context.clone()))
    }
}

impl Drop for GreenContext {
    fn drop(&mut self) {
        let Ok(_bound) = self.gpu.bind() else { return };
        let Some(destroy) = self.gpu.cuda().cuGreenCtxDestroy else { return };
        // SAFETY: it was made here, and no stream of it is left: each keeps it.
        let result = unsafe { destroy(self.raw) };
        if result != code::SUCCESS {
            tracing::warn!(result, "a green context was not destroyed");
        }
    }
}

fn unavailable(why: impl ToString) -> Error {
    let fix =
        "install driver 555 or newer for green contexts; streams of high and low priority are used";
    Error::unavailable("a partition of the GPU", why, fix)
}

fn green(gpu: &Arc<Gpu>, sms: u32) -> Result<Partitions> {
    let all = gpu.info().sm_count;
    if sms == 0 || sms >= all {
        return Err(unavailable(format!("{sms} of {all} multiprocessors leave one part empty")));
    }
    if gpu.cuda().cuGreenCtxStreamCreate.is_none() || gpu.cuda().cuGreenCtxDestroy.is_none() {
        return Err(unavailable("the driver has no cuGreenCtxStreamCreate, which CUDA 12.5 has"));
    }
    let _bound = gpu.bind()?;
    let (io, compute) = divide(gpu, sms)?;
    let part = |resource: Resource, usual| -> Result<Partition> {
        let context = Some(Arc::new(context(gpu, resource)?));
        Ok(Partition { gpu: gpu.clone(), sms: resource.sm_count, context, usual })
    };
    Ok(Partitions {
        io: part(io, Priority::High)?,
        compute: part(compute, Priority::Low)?,
        kind: PartitionKind::Green,
    })
}

/// Divides the multiprocessors: `sms` of them or a few more, and the rest.
fn divide(gpu: &Gpu, sms: u32) -> Result<(Resource, Resource)> {
    let Some(ask) = gpu.cuda().cuDeviceGetDevResource else {
        return Err(unavailable("the driver has no cuDeviceGetDevResource, which CUDA 12.4 has"));
    };
    let mut whole = Resource::NOTHING;
    // SAFETY: it writes one resource.
    let result = unsafe { ask(gpu.device(), &mut whole, SM) };
    gpu.cuda().check("ask for the GPU's multiprocessors", "cuDeviceGetDevResource", result)?;
    let usual = split(gpu, &whole, sms, 0);
    let divided = match usual {
        Ok((ref io, _)) if io.sm_count == sms => usual,
        // The usual groups are larger than requested.
        usual => split(gpu, &whole, sms, IGNORE_SM_COSCHEDULING).or(usual),
    };
    let (io, compute) = divided?;
    if io.sm_count == 0 || compute.sm_count == 0 {
        return Err(unavailable(format!(
            "{sms} multiprocessors cannot be set apart: one part would be empty"
        )));
    }
    Ok((io, compute))
}

fn split(gpu: &Gpu, whole: &Resource, sms: u32, flags: u32) -> Result<(Resource, Resource)> {
    let Some(split) = gpu.cuda().cuDevSmResourceSplitByCount else {
        return Err(unavailable(
            "the driver has no cuDevSmResourceSplitByCount, which CUDA 12.4 has",
        ));
    };
    let (mut io, mut rest) = (Resource::NOTHING, Resource::NOTHING);
    let mut groups = 1;
    // SAFETY: it reads one resource, and writes one group, for that is how many there is room for, and the rest.
    let result = unsafe { split(&mut io, &mut groups, whole, &mut rest, flags, sms) };
    gpu.cuda().check(
        format_args!("set {sms} multiprocessors apart"),
        "cuDevSmResourceSplitByCount",
        result,
    )?;
    Ok((io, rest))
}

fn context(gpu: &Arc<Gpu>, mut resource: Resource) -> Result<GreenContext> {
    let (Some(describe), Some(create)) =
        (gpu.cuda().cuDevResourceGenerateDesc, gpu.cuda().cuGreenCtxCreate)
    else {
        return Err(unavailable("the driver has no cuGreenCtxCreate, which CUDA 12.4 has"));
    };
    let mut description: CUdevResourceDesc = ptr::null_mut();
    // SAFETY: it reads one resource and writes one handle.
    let result = unsafe { describe(&mut description, &mut resource, 1) };
    gpu.cuda().check("describe a partition", "cuDevResourceGenerateDesc", result)?;
    let mut raw: CUgreenCtx = ptr::null_mut();
    // SAFETY: it writes one handle, which is given back when the context is dropped.
    let result = unsafe { create(&mut raw, description, gpu.device(), DEFAULT_STREAM) };
    gpu.cuda().check("make a green context", "cuGreenCtxCreate", result)?;
    Ok(GreenContext { gpu: gpu.clone(), raw })
}
