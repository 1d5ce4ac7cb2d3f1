//! Namespace Identification Descriptor list (CNS 03h, Base 5.17.2.3): type, length and value, ended by a length of 0.

use core::fmt;

use thiserror::Error;

/// One Namespace Identification Descriptor (Base 5.17.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor<'a> {
    /// NIDT 1h: IEEE Extended Unique Identifier, big-endian.
    Eui64([u8; 8]),
    /// NIDT 2h: Namespace Globally Unique Identifier, big-endian.
    Nguid([u8; 16]),
    /// NIDT 3h: Namespace UUID, in the byte order of RFC 4122.
    Uuid([u8; 16]),
    /// NIDT 4h: Command Set Identifier; 0 is the NVM command set.
    Csi(u8),
    /// A type that the specification does not define.
    Other {
        /// Namespace Identifier Type.
        nidt: u8,
        /// Namespace Identifier.
        nid: &'a [u8],
    },
}

/// A Namespace Identification Descriptor list that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NamespaceDescriptorError {
    /// The length (NIDL) does not match the type (NIDT).
    #[error(
        "namespace descriptor of type {nidt} has {nidl} bytes, which is not the length of that type"
    )]
    Length {
        /// Namespace Identifier Type.
        nidt: u8,
        /// Namespace Identifier Length in bytes.
        nidl: u8,
    },
    /// The descriptor runs past the end of the list.
    #[error("namespace descriptor at byte {offset} goes on past the end of the list")]
    Truncated {
        /// Offset of the descriptor into the list in bytes.
        offset: usize,
    },
}

/// Iterator over a descriptor list; it ends after the first error.
#[derive(Clone, Debug)]
pub struct NamespaceDescriptors<'a> {
    list: &'a [u8],
    offset: usize,
}

const HEADER_BYTES: usize = 4;

impl<'a> NamespaceDescriptors<'a> {
    /// Iterates over `list`, the data of Identify with CNS 03h.
    pub const fn new(list: &'a [u8]) -> NamespaceDescriptors<'a> {
        NamespaceDescriptors { list, offset: 0 }
    }

    fn rest(&self) -> &'a [u8] {
        self.list.get(self.offset..).unwrap_or_default()
    }

    fn parse(nidt: u8, nid: &'a [u8]) -> Option<NamespaceDescriptor<'a>> {
        match nidt {
            1 => nid.try_into().ok().map(NamespaceDescriptor::Eui64),
            2 => nid.try_into().ok().map(NamespaceDescriptor::Nguid),
            3 => nid.try_into().ok().map(NamespaceDescriptor::Uuid),
            4 => <[u8; 1]>::try_from(nid).ok().map(|[csi]| NamespaceDescriptor::Csi(csi)),
            _ => Some(NamespaceDescriptor::Other { nidt, nid }),
        }
    }
}

impl<'a> Iterator for NamespaceDescriptors<'a> {
    type Item = Result<NamespaceDescriptor<'a>, NamespaceDescriptorError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&[nidt, nidl, _, _], rest) = self.rest().split_first_chunk::<HEADER_BYTES>()?;
        if nidl == 0 {
            self.offset = self.list.len();
            return None;
        }
        let offset = self.offset;
        self.offset = self.list.len();
        let Some(nid) = rest.get(..usize::from(nidl)) else {
            return Some(Err(NamespaceDescriptorError::Truncated { offset }));
        };
        let Some(descriptor) = NamespaceDescriptors::parse(nidt, nid) else {
            return Some(Err(NamespaceDescriptorError::Length { nidt, nidl }));
        };
        self.offset = offset + HEADER_BYTES + nid.len();
        Some(Ok(descriptor))
    }
}

impl fmt::Display for NamespaceDescriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamespaceDescriptor::Eui64(id) => write!(f, "eui64 {:016x}", u64::from_be_bytes(*id)),
            NamespaceDescriptor::Nguid(id) => write!(f, "nguid {:032x}", u128::from_be_bytes(*id)),
            NamespaceDescriptor::Uuid(id) => {
                let id = u128::from_be_bytes(*id);
                let (time, version) = (id >> 96, id >> 64);
                write!(
                    f,
                    "uuid {:08x}-{:04x}-{:04x}",
                    time as u32,
                    (version >> 16) as u16,
                    version as u16
                )?;
                write!(f, "-{:04x}-{:012x}", (id >> 48) as u16, id & 0xffff_ffff_ffff)
            }
            NamespaceDescriptor::Csi(csi) => write!(f, "csi {csi:02x}h"),
            NamespaceDescriptor::Other { nidt, nid } => write!(f, "type {nidt:02x}h {nid:02x?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(descriptors: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (nidt, nid) in descriptors {
            bytes.extend([*nidt, nid.len() as u8, 0, 0]);
            bytes.extend(*nid);
        }
        bytes.resize(4096, 0);
        bytes
    }

    #[test]
    fn all_types() {
        let id: [u8; 16] = core::array::from_fn(|index| index as u8);
        let bytes = list(&[(1, &[9; 8]), (2, &[7; 16]), (3, &id), (4, &[0]), (9, &[1, 2])]);
        let descriptors: Result<Vec<_>, _> = NamespaceDescriptors::new(&bytes).collect();
        use NamespaceDescriptor::{Csi, Eui64, Nguid, Other, Uuid};
        let other = Other { nidt: 9, nid: &[1, 2] };
        assert_eq!(descriptors, Ok(vec![Eui64([9; 8]), Nguid([7; 16]), Uuid(id), Csi(0), other]));
        assert_eq!(Uuid(id).to_string(), "uuid 00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn a_wrong_length_ends_the_list() {
        let bytes = list(&[(4, &[0]), (3, &[1; 8]), (4, &[0])]);
        let descriptors: Vec<_> = NamespaceDescriptors::new(&bytes).collect();
        assert_eq!(descriptors[1..], [Err(NamespaceDescriptorError::Length { nidt: 3, nidl: 8 })]);
    }

    #[test]
    fn a_descriptor_past_the_end_is_truncated() {
        let bytes = [4, 1, 0, 0, 0, 3, 16, 0, 0, 1, 2];
        let descriptors: Vec<_> = NamespaceDescriptors::new(&bytes).collect();
        assert_eq!(descriptors[1..], [Err(NamespaceDescriptorError::Truncated { offset: 5 })]);
        assert_eq!(NamespaceDescriptors::new(&[4, 1]).count(), 0);
    }
}
