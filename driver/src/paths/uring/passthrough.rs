//! NVMe commands through the kernel's driver, as defined in `linux/nvme_ioctl.h`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use zerocopy::{Immutable, IntoBytes};

use crate::spec::{Nsid, Sqe, Status};

/// `NVME_IOCTL_ID`: `_IO('N', 0x40)`.
const IOCTL_ID: libc::Ioctl = 0x4e40;
/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const IOCTL_ADMIN: libc::Ioctl = 0xc048_4e41;
/// `NVME_URING_CMD_IO`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub(super) const URING_CMD_IO: u32 = 0xc048_4e80;

/// `struct nvme_uring_cmd` and `struct nvme_passthru_cmd`, which differ only in whether the last word is a
/// result.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10_to_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Passthrough>() == 72);

impl Passthrough {
    /// Builds the command for `sqe` with its data at `at` in this process and `timeout_ms`, or 0 for the
    /// kernel's default.
    #[inline]
    pub(super) fn new(sqe: &Sqe, at: *const u8, bytes: u32, timeout_ms: u32) -> Passthrough {
        let words = [sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13, sqe.cdw14, sqe.cdw15];
        Passthrough {
            opcode: sqe.cdw0.get() as u8,
            nsid: sqe.nsid.get(),
            cdw2: sqe.cdw2.get(),
            cdw3: sqe.cdw3.get(),
            address: at.expose_provenance() as u64,
            data_bytes: bytes,
            cdw10_to_15: words.map(|word| word.get()),
            timeout_ms,
            ..Passthrough::default()
        }
    }

    /// Returns the payload of io_uring's big submission queue entry.
    #[inline]
    pub(super) fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..size_of::<Passthrough>()].copy_from_slice(self.as_bytes());
        bytes
    }
}

/// Returns the namespace of a character or block device of the NVMe driver.
///
/// # Errors
/// The system's error, for example if it is no such device.
pub(super) fn nsid(file: &File) -> io::Result<Nsid> {
    // SAFETY: the request takes no argument.
    let nsid = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ID) };
    u32::try_from(nsid).map(Nsid).map_err(|_| io::Error::last_os_error())
}

/// Runs an Identify command, whose data goes to `data`.
///
/// # Errors
/// The system's error; the status as text if the controller refused.
pub(super) fn identify(file: &File, sqe: &Sqe, data: &mut [u8; 4096]) -> io::Result<()> {
    let mut command = Passthrough::new(sqe, data.as_mut_ptr(), 4096, 0);
    // SAFETY: the request reads and writes the 72 bytes of its argument and, for an Identify, the 4096 of
    // `data`, which is borrowed mutably until it returns.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ADMIN, &raw mut command) };
    match result {
        0 => Ok(()),
        status if status > 0 => Err(io::Error::other(Status::from_bits(status as u16).to_string())),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Lba, LbaCount};
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_kernels_header() {
        assert_eq!(offset_of!(Passthrough, nsid), 4);
        assert_eq!(offset_of!(Passthrough, metadata), 16);
        assert_eq!(offset_of!(Passthrough, address), 24);
        assert_eq!(offset_of!(Passthrough, metadata_bytes), 32);
        assert_eq!(offset_of!(Passthrough, data_bytes), 36);
        assert_eq!(offset_of!(Passthrough, cdw10_to_15), 40);
        assert_eq!(offset_of!(Passthrough, timeout_ms), 64);
    }

    #[test]
    fn a_read_is_carried_as_its_words_and_where_its_data_goes() {
        let count = LbaCount::new(8).expect("a count");
        let sqe = Sqe::read(Nsid(3), Lba(0x1_2345_6789), count);
        let byte = 0u8;
        let bytes = Passthrough::new(&sqe, &raw const byte, 4096, 5000).to_bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!((bytes[0], word(4)), (2, 3), "opcode and namespace");
        let address = u64::from_le_bytes(bytes[24..32].try_into().expect("8 bytes"));
        assert_eq!(address, (&raw const byte).addr() as u64);
        assert_eq!((word(36), word(40), word(44), word(48)), (4096, 0x2345_6789, 1, 7));
        assert_eq!((word(64), word(68), word(72), word(76)), (5000, 0, 0, 0));
    }

    #[test]
    fn what_is_no_namespace_is_refused_by_the_system() {
        let file = File::open("/dev/null").expect("a device");
        assert!(nsid(&file).is_err());
        assert!(identify(&file, &Sqe::flush(Nsid(1)), &mut [0; 4096]).is_err());
    }
}
