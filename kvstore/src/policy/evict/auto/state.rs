//! How often an object was used, and what it comes behind.

/// The used object that a new one comes behind, with new ones between them or without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ancestor {
    /// There is none.
    #[default]
    None,
    /// One that was used once or twice: a conversation goes on.
    Used,
    /// One that was used more often: a prompt that many share.
    Shared,
}

/// The state of an object, in four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockState(u8);

impl BlockState {
    /// New, without a used ancestor.
    pub(super) const FRESH: BlockState = BlockState(1);
    /// Used once, or evicted or declined before.
    pub(super) const USED: BlockState = BlockState(5);
    /// Used six times or more.
    pub(super) const HOT: BlockState = BlockState(10);

    /// Returns the state of a new object by what it comes behind. The last one of a run that came together is seldom
    /// used: a request that goes on fills its last block.
    pub(super) fn new(ancestor: Ancestor, is_last: bool) -> BlockState {
        match (ancestor, is_last) {
            (Ancestor::None, true) => BlockState(0),
            (Ancestor::None, false) => BlockState::FRESH,
            (_, true) => BlockState(2),
            (Ancestor::Used, false) => BlockState(3),
            (Ancestor::Shared, false) => BlockState(4),
        }
    }

    /// Returns whether the object was used, evicted or declined before.
    pub(super) fn is_used(self) -> bool {
        self.0 >= BlockState::USED.0
    }

    /// Returns the state after a use.
    pub(super) fn used(self) -> BlockState {
        if self.0 < BlockState::USED.0 {
            BlockState::USED
        } else {
            BlockState((self.0 + 1).min(BlockState::HOT.0))
        }
    }

    /// Returns what it is to new objects behind it.
    pub(super) fn as_ancestor(self) -> Ancestor {
        match self.0 {
            0..5 => Ancestor::None,
            5..7 => Ancestor::Used,
            _ => Ancestor::Shared,
        }
    }

    /// Returns its class: uses from the third to the fifth are alike, and all beyond.
    pub(super) fn class(self) -> usize {
        match self.0 {
            0..8 => self.0.into(),
            8..10 => 7,
            _ => 8,
        }
    }

    /// Returns the bits of a mark. Those of an object that was restored are 0.
    pub(super) fn to_mark(self) -> u32 {
        u32::from(self.0 ^ BlockState::USED.0)
    }

    pub(super) fn from_mark(mark: u32) -> BlockState {
        BlockState((mark as u8 & 15) ^ BlockState::USED.0)
    }
}

impl Default for BlockState {
    fn default() -> BlockState {
        BlockState::FRESH
    }
}
