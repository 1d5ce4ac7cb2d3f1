//! Verifies what arrived, by the checksums that come with the plan: on the GPU, behind the data in the same stream. The
//! CPU reads the bytes only where it stages them because no device code can be loaded.

use std::time::Duration;

use adit_gpu::{EngineChoice, GioUring, Pages, Slice, Stream, Verifying};
use adit_kvstore::store::{LocalLease, Transfers};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};

/// A layer's checks, by what makes them.
#[derive(Debug)]
pub(super) enum Checking {
    Gpu(Verifying),
    /// The reason why the GPU did not.
    Cpu(String),
}

/// The result of the checks.
#[derive(Debug)]
pub(super) struct Checked {
    /// Why the CPU compared the checksums, if it did.
    why_cpu: Option<String>,
    checks: usize,
    blocks: u32,
}

/// The pages of a plan's items, and where they lie.
#[derive(Clone, Copy)]
pub(super) struct Arriving<'a> {
    pub(super) uring: &'a GioUring,
    pub(super) pages: Pages<'a>,
    pub(super) plan: &'a Transfers<LocalLease>,
    /// KV blocks, which are numbered like the plan's items.
    pub(super) blocks: u32,
}

impl Checking {
    /// Lets the GPU verify what arrives, behind the wait for it in `stream`.
    ///
    /// # Errors
    /// Failures to begin; where CPU threads stage the data, the CPU then compares as well.
    pub(super) fn begin(arriving: Arriving<'_>, stream: &Stream) -> Result<Checking> {
        let is_staged = arriving.uring.description().engine == EngineChoice::Staged;
        match arriving.uring.verify(arriving.checks(), stream) {
            Ok(verifying) => Ok(Checking::Gpu(verifying)),
            Err(why) if is_staged && !why.is_usage() => Ok(Checking::Cpu(why.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the verdicts. Every block has arrived.
    ///
    /// # Errors
    /// The misses: blocks that are not what was put; failures of the GPU.
    pub(super) fn end(self, arriving: Arriving<'_>, timeout: Duration) -> Result<Checked> {
        let checks = arriving.owners().count();
        let (corrupt, why_cpu) = match self {
            Checking::Gpu(verifying) => {
                let verdicts = verifying.wait(timeout)?;
                assert_eq!(verdicts.checks, checks, "each has a verdict");
                let owners = arriving.owners().collect::<Vec<_>>();
                (verdicts.corrupt.iter().map(|check| owners[*check]).collect::<Vec<_>>(), None)
            }
            Checking::Cpu(why) => (arriving.corrupt()?, Some(why)),
        };
        arriving.refuse_misses(corrupt)?;
        Ok(Checked { why_cpu, checks, blocks: arriving.blocks })
    }
}

impl<'a> Arriving<'a> {
    /// Returns the checks of all blocks in order, with their places in the pool.
    fn checks(
        self,
    ) -> impl Iterator<Item = adit_gpu::Check<impl Iterator<Item = Slice> + use<'a>>> {
        let item = move |block| self.plan.item(block).expect("the plan has every block");
        (0..self.blocks).flat_map(move |block| {
            item(block).checks().map(move |check| {
                let (offset, bytes) = (check.range.start, check.range.end - check.range.start);
                let slices = self.pages.split(Slice { region: block, offset, bytes });
                adit_gpu::Check { slices, crc32c: check.crc32c }
            })
        })
    }

    /// Returns the block of each check.
    fn owners(self) -> impl Iterator<Item = u32> + use<'a> {
        let checks = move |block| self.plan.item(block).map_or(0, |item| item.checks().len());
        (0..self.blocks).flat_map(move |block| std::iter::repeat_n(block, checks(block)))
    }

    /// Returns the blocks that are not what was put, by reading them.
    fn corrupt(self) -> Result<Vec<u32>> {
        let mut corrupt = Vec::new();
        for block in 0..self.blocks {
            let item = self.plan.item(block).expect("the plan has every block");
            if !item.is_intact(&self.pages.read(self.uring.pool(), block)?) {
                corrupt.push(block);
            }
        }
        Ok(corrupt)
    }

    /// # Errors
    /// The blocks that are a miss.
    fn refuse_misses(self, mut misses: Vec<u32>) -> Result<()> {
        // Several checks of a block, one after the other, make one miss.
        misses.dedup();
        let Some(first) = misses.first() else { return Ok(()) };
        Err(Failure::failed(format!(
            "{} of {} KV blocks are not what was put, which makes them misses; the first is KV block {first}",
            misses.len(),
            self.blocks
        )))
    }
}

impl Checked {
    /// Describes the checks.
    pub(super) fn text(&self) -> String {
        let (checks, blocks) = (self.checks, self.blocks);
        let by = match &self.why_cpu {
            None => "compared by the GPU".to_owned(),
            Some(why) => format!("compared by the CPU, since {}", crate::human::printable(why)),
        };
        format!("{blocks} KV blocks, by the store's checksums, {checks} {by}")
    }

    /// Describes the checks for programs.
    pub(super) fn json(&self) -> Value {
        let by = if self.why_cpu.is_none() { "gpu" } else { "cpu" };
        json!({ "checksums": self.checks, "compared_by": by, "misses": 0 })
    }
}
