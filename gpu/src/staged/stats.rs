//! Counters of the staged engine, which only grow.

/// Counters, summed over all lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Contexts that ended, successful or not.
    pub(crate) contexts: u64,
    /// Finished control blocks.
    pub(crate) blocks: u64,
    /// Bytes of the contexts that succeeded.
    pub(crate) bytes: u64,
    /// Copies enqueued on the GPU.
    pub(crate) copies: u64,
    /// Marks behind them, which the CPU polls: one per batch.
    pub(crate) marks: u64,
    /// Chunks that reached their second stage: the copy of a read, the command of a write.
    pub(crate) second_stage: u64,
    /// Those that did so while another chunk was in its first.
    pub(crate) overlapped: u64,
    pub(crate) retries: u64,
    /// Completions of abandoned commands.
    pub(crate) late: u64,
    /// Doorbell rings.
    pub(crate) rings: u64,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Stats) {
        self.contexts += other.contexts;
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.copies += other.copies;
        self.marks += other.marks;
        self.second_stage += other.second_stage;
        self.overlapped += other.overlapped;
        self.retries += other.retries;
        self.late += other.late;
        self.rings += other.rings;
    }
}
