//! Commands as a caller builds them.

use super::outcome::RejectReason;
use crate::memory::{Buffer, DomainId, IoBuffer};
use crate::namespace::{Namespace, OverLimit};
use crate::spec::{
    Cid, CopyRange, DsmRange, IoOpcode, Iova, Lba, LbaCount, RangeCount, SglDescriptor, Sqe,
};
use crate::transfer::Unplannable;

/// A command and the buffer it will own.
///
/// [`Namespace`]'s methods (`read`, `write`, `flush`, ...) and [`Command::raw`] build commands; nothing
/// happens until a queue takes one.
#[derive(Debug)]
#[must_use = "a command does nothing until it is submitted"]
pub struct Command<'n, B> {
    pub(crate) body: Body<'n>,
    pub(crate) buffer: B,
}

/// A command without its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'n> {
    /// LBAs to or from the buffer; split into as many commands as the limits require.
    Transfer(LbaCommand<'n>),
    /// One command, sent unchanged; the buffer, if any, is its data.
    Raw { sqe: Sqe, bounds: Option<Bounds> },
    /// An invalid command, rejected with this reason on submission.
    Refused(RejectReason),
}

/// Known limits of a raw command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The controller of the namespace it was built for, if any.
    pub(crate) domain: Option<DomainId>,
    /// Data bytes, at most the buffer's length.
    pub(crate) bytes: u64,
}

/// A command over LBAs, as many as the buffer holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LbaCommand<'n> {
    pub(crate) namespace: &'n Namespace,
    pub(crate) opcode: IoOpcode,
    pub(crate) lba: Lba,
    /// CDW12 bits 31:16 (limited retry, FUA, protection information, directive), and CDW13 above them.
    pub(crate) control: u64,
}

impl LbaCommand<'_> {
    /// Encodes the command for `count` (1 to 65536) of its LBAs, with their protection's `tags`, as the 64-bit
    /// words of its entry (NVM Command Set 1.0 section 3.2), without an identifier. The compiler would not
    /// recombine the 16 fields of an [`Sqe`].
    #[inline(always)]
    pub(crate) fn qwords(&self, lba: Lba, count: u64, pointer: Pointer, tags: u64) -> [u64; 8] {
        debug_assert!((1..=65536).contains(&count), "limits keep a command to what NLB can say");
        debug_assert!(self.control & NLB == 0, "the count of LBAs has its bits for itself");
        debug_assert!(pointer.psdt & !PSDT == 0, "a pointer says nothing else of CDW0");
        let cdw0 = u32::from(self.opcode.0) | pointer.psdt;
        let nsid = u64::from(self.namespace.nsid().0);
        let [dptr0, dptr1] = pointer.words;
        let cdw12 = self.control | (count - 1);
        [u64::from(cdw0) | nsid << 32, 0, 0, dptr0, dptr1, lba.0, cdw12, tags]
    }
}

/// A command's data pointer: PSDT's bits and two words. [`crate::spec::DataPointer`] expresses the same as an
/// enum, which costs a round trip through the stack on the hot path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointer {
    psdt: u32,
    words: [u64; 2],
}

impl Pointer {
    #[inline(always)]
    pub(crate) fn prps(prp1: Iova, prp2: Iova) -> Pointer {
        debug_assert!(prp1.0.is_multiple_of(4), "PRP1 is a multiple of 4");
        debug_assert!(prp2.0.is_multiple_of(8), "PRP2 is a page or an entry of a list");
        Pointer { psdt: 0, words: [prp1.0, prp2.0] }
    }

    #[inline(always)]
    pub(crate) fn data_block(iova: Iova, len_bytes: u32) -> Pointer {
        debug_assert!(len_bytes > 0, "a data block has data");
        Pointer::sgl(SglDescriptor::data_block(iova, len_bytes))
    }

    #[inline(always)]
    pub(crate) fn sgl(descriptor: SglDescriptor) -> Pointer {
        debug_assert!(descriptor.len_bytes() > 0, "a descriptor names memory");
        Pointer { psdt: PSDT_SGL, words: descriptor.to_words().map(|word| word.get()) }
    }
}

/// CDW0 bits 15:14 = 01b: the data pointer is an SGL.
const PSDT_SGL: u32 = 1 << 14;

/// CDW12 bit 30: Force Unit Access.
const FUA: u64 = 1 << 30;

/// CDW12 bits 23:20: a directive of type Data Placement.
const DATA_PLACEMENT: u64 = 2 << 20;

/// Where CDW13 bits 31:16, the identifier of a directive, are above CDW12.
const DSPEC_SHIFT: u32 = 48;

/// CDW0 bits 15:14: how the data pointer points.
const PSDT: u32 = 3 << 14;

/// CDW12 bits 15:0: the count of LBAs.
const NLB: u64 = 0xffff;

const _: () = assert!(PSDT_SGL & !PSDT == 0 && FUA & NLB == 0);
const _: () = assert!(size_of::<DsmRange>() == 16, "a range to deallocate has 16 bytes");
const _: () = assert!(size_of::<CopyRange>() == 32, "a range to copy has 32 bytes");

impl<'n, B: IoBuffer> Command<'n, B> {
    pub(crate) fn transfer(
        namespace: &'n Namespace,
        opcode: IoOpcode,
        lba: Lba,
        buffer: B,
    ) -> Self {
        let control = u64::from(namespace.prinfo().control);
        debug_assert!(control & NLB == 0, "the count of LBAs has its bits for itself");
        Command { body: Body::Transfer(LbaCommand { namespace, opcode, lba, control }), buffer }
    }

    /// Builds a command from its 64-byte entry, with `buffer` as its data. Submission fills in the identifier
    /// and the data pointer. The data must be expressible as PRPs (contiguous, or pieces of whole pages).
    ///
    /// # Safety
    /// The driver does not examine what the command does. It must transfer exactly as many bytes as `buffer`
    /// holds: that length decides whether PRP2 is a page or a list of pages, and a controller told another
    /// length mistakes one for the other. Its other pointers, such as the metadata pointer, must name memory
    /// the caller owns. On a protected namespace ([`Namespace::protection`]) the caller also answers for the
    /// metadata: without PRACT they are transferred too.
    #[allow(unsafe_code)]
    pub unsafe fn raw(sqe: Sqe, buffer: B) -> Command<'static, B> {
        // Measured now: any replacement of the buffer must hold as much.
        let bytes = (0..buffer.segment_count()).map(|index| buffer.segment(index).len).sum();
        let bounds = Some(Bounds { domain: None, bytes });
        debug_assert!(bytes == 0 || buffer.segment_count() > 0, "bytes lie in segments");
        Command { body: Body::Raw { sqe, bounds }, buffer }
    }

    /// Creates a raw command whose data is all of `buffer`.
    pub(crate) fn whole(sqe: Sqe, buffer: B) -> Command<'static, B> {
        Command { body: Body::Raw { sqe, bounds: None }, buffer }
    }

    /// Turns the command into one that is rejected on submission if the check failed.
    pub(crate) fn unless_over(self, checked: Result<(), OverLimit>) -> Self {
        match checked {
            Ok(()) => self,
            Err(over) => Command { body: Body::Refused(over.into()), buffer: self.buffer },
        }
    }

    /// Sets Force Unit Access: a write completes only once it is on the medium, a read comes from there (NVM
    /// Command Set 1.0, Read and Write, CDW12 bit 30). Affects only reads, writes and compares.
    pub fn fua(mut self) -> Self {
        match &mut self.body {
            Body::Transfer(transfer) => {
                transfer.control |= FUA;
                debug_assert!(
                    transfer.control & NLB == 0,
                    "the count of LBAs has its bits for itself"
                );
            }
            // The driver does not know what this bit means to another command.
            Body::Raw { .. } | Body::Refused(_) => {}
        }
        self
    }

    /// Writes through the reclaim unit handle of this placement identifier, one of
    /// [`crate::Device::placement_handles`] (Flexible Data Placement, NVM Command Set 1.1, Write, DTYPE and DSPEC). Affects
    /// only writes.
    #[inline(always)]
    pub fn placed(mut self, identifier: u16) -> Self {
        if let Body::Transfer(transfer) = &mut self.body
            && transfer.opcode == IoOpcode::WRITE
        {
            transfer.control |= DATA_PLACEMENT | u64::from(identifier) << DSPEC_SHIFT;
            debug_assert!(transfer.control & NLB == 0, "a directive leaves the count of LBAs");
        }
        self
    }

    /// Replaces the buffer, for example by the buffer with a tag.
    pub fn map_buffer<C: IoBuffer>(self, f: impl FnOnce(B) -> C) -> Command<'n, C> {
        Command { body: self.body, buffer: f(self.buffer) }
    }
}

impl Namespace {
    /// Creates a command to this namespace whose data is the first `bytes` of `buffer`.
    pub(crate) fn fixed<B>(&self, sqe: Sqe, bytes: usize, buffer: B) -> Command<'static, B> {
        debug_assert_eq!(sqe.nsid(), self.nsid(), "a command is for the namespace that built it");
        debug_assert_eq!(sqe.cid(), Cid(0), "the queue gives a command its identifier");
        let bounds = Some(Bounds { domain: Some(self.domain()), bytes: bytes as u64 });
        Command { body: Body::Raw { sqe, bounds }, buffer }
    }

    /// Reads as many LBAs from `lba` as fill `buffer`.
    #[inline(always)]
    pub fn read<B: IoBuffer>(&self, lba: Lba, buffer: B) -> Command<'_, B> {
        Command::transfer(self, IoOpcode::READ, lba, buffer)
    }

    /// Writes `buffer` to the LBAs from `lba`.
    #[inline(always)]
    pub fn write<B: IoBuffer>(&self, lba: Lba, buffer: B) -> Command<'_, B> {
        Command::transfer(self, IoOpcode::WRITE, lba, buffer)
    }

    /// Compares the medium from `lba` with `buffer`; a difference ends with status Compare Failure. A
    /// protected namespace is rejected on submission: the controller would also compare the protection
    /// information, which the host does not have.
    pub fn compare<B: IoBuffer>(&self, lba: Lba, buffer: B) -> Command<'_, B> {
        if self.protection().is_some() {
            return Command { body: Body::Refused(RejectReason::Protected), buffer };
        }
        Command::transfer(self, IoOpcode::COMPARE, lba, buffer)
    }

    /// Makes all earlier writes durable.
    pub fn flush(&self) -> Command<'static, ()> {
        self.fixed(Sqe::flush(self.nsid()), 0, ())
    }

    /// Zeroes `count` LBAs from `lba` without a transfer; with `deallocate` the controller may also release
    /// them (DEAC). A length above the controller's limit (WZSL) is rejected on submission.
    pub fn write_zeroes(
        &self,
        lba: Lba,
        count: LbaCount,
        deallocate: bool,
    ) -> Command<'static, ()> {
        let sqe = Sqe::write_zeroes(self.nsid(), lba, count).with_deac(deallocate);
        let sqe = self.prinfo().on_zeroes(sqe);
        debug_assert_eq!(sqe.nlb(), count, "the count of LBAs has its bits for itself");
        let checked = self.command_limits().check_write_zeroes(self.bytes_of(count));
        self.fixed(sqe, 0, ()).unless_over(checked)
    }

    /// Makes the controller read `count` LBAs from `lba` and check their protection, without a transfer. A
    /// length above the controller's limit (VSL) is rejected on submission.
    pub fn verify(&self, lba: Lba, count: LbaCount) -> Command<'static, ()> {
        let sqe = self.prinfo().on_verify(Sqe::verify(self.nsid(), lba, count));
        debug_assert_eq!(sqe.nlb(), count, "the count of LBAs has its bits for itself");
        let checked = self.command_limits().check_verify(self.bytes_of(count));
        self.fixed(sqe, 0, ()).unless_over(checked)
    }

    fn bytes_of(&self, count: LbaCount) -> u64 {
        let bytes = u64::from(count.get()) << self.limits().lba_shift;
        debug_assert!(bytes >= self.limits().lba_bytes(), "a count is one LBA or more");
        bytes
    }

    /// Deallocates the LBAs of `ranges` (1 to 256). `buffer` carries the ranges and must hold 16 bytes for
    /// each. More than the controller takes in one command (DMRL, DMRSL, DMSL) is rejected on submission.
    ///
    /// # Errors
    /// [`Unplannable::Ranges`] if there are none, too many, or more than fit in `buffer`.
    pub fn deallocate(
        &self,
        ranges: &[DsmRange],
        mut buffer: Buffer,
    ) -> Result<Command<'static, Buffer>, Unplannable> {
        let size = size_of::<DsmRange>();
        let count = range_count(ranges.len(), buffer.len() / size)?;
        for (range, bytes) in ranges.iter().zip(buffer.chunks_exact_mut(size)) {
            bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(range));
        }
        assert!(size_of_val(ranges) <= buffer.len(), "the buffer holds all ranges");
        assert_eq!(count.get() as usize, ranges.len(), "the command counts all ranges");
        let sqe = Sqe::dataset_management(self.nsid(), count, true);
        let checked = self.command_limits().check_ranges(ranges);
        Ok(self.fixed(sqe, size_of_val(ranges), buffer).unless_over(checked))
    }

    /// Copies the LBAs of `sources` (1 to 256), in order, to the LBAs from `destination`. `buffer` carries
    /// the sources and must hold 32 bytes for each.
    ///
    /// # Errors
    /// [`Unplannable::Ranges`] if there are none, too many, or more than fit in `buffer`.
    pub fn copy(
        &self,
        destination: Lba,
        sources: &[CopyRange],
        mut buffer: Buffer,
    ) -> Result<Command<'static, Buffer>, Unplannable> {
        let size = size_of::<CopyRange>();
        let count = range_count(sources.len(), buffer.len() / size)?;
        for (source, bytes) in sources.iter().zip(buffer.chunks_exact_mut(size)) {
            let source = self.prinfo().on_source(*source);
            bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&source));
        }
        assert!(size_of_val(sources) <= buffer.len(), "the buffer holds all sources");
        assert_eq!(count.get() as usize, sources.len(), "the command counts all sources");
        let sqe = Sqe::copy(self.nsid(), destination, count);
        Ok(self.fixed(self.prinfo().on_copy(sqe), size_of_val(sources), buffer))
    }
}

/// Checks a number of ranges against the specification's 256 and the buffer's size.
fn range_count(ranges: usize, room: usize) -> Result<RangeCount, Unplannable> {
    let count = u32::try_from(ranges).ok().and_then(RangeCount::new).filter(|_| ranges <= room);
    debug_assert!(count.is_none() || (1..=256).contains(&ranges), "a command has 1 to 256 ranges");
    count.ok_or(Unplannable::Ranges { ranges, room: room.min(256) })
}
