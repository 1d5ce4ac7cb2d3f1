//! The state of an object: how often it was used, and which kind of object precedes it in its sequence.

/// The nearest used object before a new one in its sequence; new ones may lie between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ancestor {
    /// No used object precedes it.
    #[default]
    None,
    /// The ancestor was used once or twice: a conversation continues.
    Used,
    /// The ancestor was used more often: a prompt is shared.
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

    /// Returns the state of a new object by its ancestor. The last block of a run put together is rarely used, because
    /// a continuing request stores a fuller block instead.
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

    /// Returns the ancestor that an object of this state is to its new successors.
    pub(super) fn as_ancestor(self) -> Ancestor {
        match self.0 {
            0..5 => Ancestor::None,
            5..7 => Ancestor::Used,
            _ => Ancestor::Shared,
        }
    }

    /// Returns the class; the third to the fifth use share one, as do all later uses.
    pub(super) fn class(self) -> usize {
        match self.0 {
            0..8 => self.0.into(),
            8..10 => 7,
            _ => 8,
        }
    }

    /// Returns the bits of a mark; they are 0 for [`BlockState::USED`], the state of a restored object.
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
