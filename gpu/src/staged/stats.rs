//! What the staged engine has counted. All counters only grow.

/// See the module; the sum over all lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Contexts that ended, however they did.
    pub(crate) contexts: u64,
    /// Control blocks that are over.
    pub(crate) blocks: u64,
    /// Bytes of the contexts that succeeded.
    pub(crate) bytes: u64,
    /// Copies that were asked of the GPU.
    pub(crate) copies: u64,
    /// Marks behind them: what the CPU looks at, one for a batch.
    pub(crate) marks: u64,
    /// Chunks that came into their second stage: the copy of a read, the command of a write.
    pub(crate) second_stage: u64,
    /// Those of them that came while another chunk was in its first.
    pub(crate) overlapped: u64,
    /// Commands that were sent again.
    pub(crate) retries: u64,
    /// Completions of commands that had been given up.
    pub(crate) late: u64,
    /// Times the device was told of commands.
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
