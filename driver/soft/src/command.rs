//! A parsed submission queue entry (NVMe Base 2.0 section 3.3.3.1).

use adit_spec::Qid;

pub(super) type SqeBytes = [u8; 64];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pointer {
    /// PRP entries 1 and 2.
    Prp([u64; 2]),
    /// The first SGL descriptor.
    Sgl([u8; 16]),
    /// PSDT says 11b.
    Reserved,
}

/// The fields that all commands share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    pub(super) opcode: u8,
    /// Nonzero for part of a fused operation.
    pub(super) fuse: u8,
    pub(super) cid: u16,
    pub(super) sqid: Qid,
    pub(super) nsid: u32,
    pub(super) pointer: Pointer,
    /// SLBA as the host sent it, even if a fault redirects the command.
    pub(super) named_lba: u64,
    cdw10_15: [u32; 6],
}

impl Command {
    pub(super) fn parse(entry: &SqeBytes, sqid: Qid) -> Command {
        let dword = |index: usize| dword(entry, index);
        let cdw0 = dword(0);
        let qword = |index: usize| u64::from(dword(index)) | u64::from(dword(index + 1)) << 32;
        Command {
            opcode: cdw0 as u8,
            fuse: (cdw0 >> 8) as u8 & 3,
            cid: (cdw0 >> 16) as u16,
            sqid,
            nsid: dword(1),
            pointer: match cdw0 >> 14 & 3 {
                0 => Pointer::Prp([qword(6), qword(8)]),
                1 | 2 => Pointer::Sgl(descriptor(entry)),
                _ => Pointer::Reserved,
            },
            named_lba: qword(10),
            cdw10_15: std::array::from_fn(|index| dword(10 + index)),
        }
    }

    /// Redirects the command to another SLBA.
    pub(super) fn at_lba(mut self, slba: u64) -> Command {
        (self.cdw10_15[0], self.cdw10_15[1]) = (slba as u32, (slba >> 32) as u32);
        self
    }

    #[inline]
    pub(super) fn cdw(&self, number: usize) -> u32 {
        self.cdw10_15[number - 10]
    }

    /// Returns the command dwords `number` and `number + 1` as one value.
    #[inline]
    pub(super) fn qword(&self, number: usize) -> u64 {
        u64::from(self.cdw(number)) | u64::from(self.cdw(number + 1)) << 32
    }

    /// Returns the lower half of a command dword.
    #[inline]
    pub(super) fn low(&self, number: usize) -> u16 {
        self.cdw(number) as u16
    }

    /// Returns the upper half of a command dword.
    #[inline]
    pub(super) fn high(&self, number: usize) -> u16 {
        (self.cdw(number) >> 16) as u16
    }
}

fn dword(entry: &SqeBytes, index: usize) -> u32 {
    let (dwords, _) = entry.as_chunks();
    u32::from_le_bytes(dwords[index])
}

fn descriptor(entry: &SqeBytes) -> [u8; 16] {
    std::array::from_fn(|index| entry[24 + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_from_their_places() {
        let entry: SqeBytes = std::array::from_fn(|index| index as u8);
        let command = Command::parse(&entry, Qid(3));
        assert_eq!((command.opcode, command.fuse, command.cid), (0, 1, 0x0302));
        assert_eq!(command.nsid, 0x0706_0504);
        assert_eq!(command.pointer, Pointer::Prp([0x1f1e_1d1c_1b1a_1918, 0x2726_2524_2322_2120]));
        assert_eq!(command.qword(10), 0x2f2e_2d2c_2b2a_2928);
        assert_eq!((command.low(15), command.high(15)), (0x3d3c, 0x3f3e));
    }

    #[test]
    fn psdt_chooses_the_pointer() {
        let mut entry: SqeBytes = [0; 64];
        entry[24] = 9;
        for (psdt, sgl) in [(0, false), (1, true), (2, true), (3, false)] {
            entry[1] = psdt << 6;
            let pointer = Command::parse(&entry, Qid(0)).pointer;
            assert_eq!(matches!(pointer, Pointer::Sgl(d) if d[0] == 9), sgl);
        }
        assert_eq!(Command::parse(&entry, Qid(0)).pointer, Pointer::Reserved);
    }
}
