//! Namespace list: up to 1024 namespace identifiers in ascending order (CNS 02h and 10h, Base 5.17.2.2).

use thiserror::Error;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::Nsid;

/// Namespace list (Base 5.17.2.2). Unused entries, all at the end, are 0.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NamespaceList {
    /// The entries.
    pub nsids: [U32; 1024],
}

const _: () = assert!(size_of::<NamespaceList>() == super::IDENTIFY_BYTES);

/// A namespace list that does not ascend strictly, or contains a reserved identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("entry {index} of the namespace list is {found}, which may not follow {previous}")]
pub struct NamespaceListError {
    /// Index of the entry.
    pub index: usize,
    /// The entry before it, or the identifier that the list was to start after.
    pub previous: Nsid,
    /// The entry.
    pub found: Nsid,
}

impl NamespaceList {
    /// Iterates over the identifiers, checking that they ascend from `after`: the NSID given to Identify, or
    /// [`Nsid::NONE`].
    ///
    /// Ends at the first 0 and after the first error. A full list of 1024 may continue: query again from the last
    /// identifier.
    pub fn iter(&self, after: Nsid) -> impl Iterator<Item = Result<Nsid, NamespaceListError>> {
        let mut previous = Some(after);
        let entries = self.nsids.iter().map(|nsid| Nsid(nsid.get())).enumerate();
        entries.take_while(|(_, nsid)| *nsid != Nsid::NONE).map_while(move |(index, found)| {
            let last = previous.take()?;
            if found <= last || !found.is_specific() {
                return Some(Err(NamespaceListError { index, previous: last, found }));
            }
            previous = Some(found);
            Some(Ok(found))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn list(nsids: &[u32]) -> NamespaceList {
        let mut list = NamespaceList::new_zeroed();
        for (to, &from) in list.nsids.iter_mut().zip(nsids) {
            *to = from.into();
        }
        list
    }

    #[test]
    fn stops_at_zero() {
        let nsids: Result<Vec<_>, _> = list(&[1, 2, 7, 0, 9]).iter(Nsid::NONE).collect();
        assert_eq!(nsids, Ok(vec![Nsid(1), Nsid(2), Nsid(7)]));
        assert_eq!(list(&[]).iter(Nsid::NONE).count(), 0);
    }

    #[test]
    fn disorder_is_an_error_and_the_end() {
        let disordered = list(&[1, 5, 5, 6]);
        let mut nsids = disordered.iter(Nsid::NONE);
        assert_eq!(nsids.by_ref().filter(Result::is_ok).count(), 2);
        let error = NamespaceListError { index: 2, previous: Nsid(5), found: Nsid(5) };
        assert_eq!(disordered.iter(Nsid::NONE).nth(2), Some(Err(error)));
        assert_eq!(disordered.iter(Nsid::NONE).count(), 3);
    }

    #[test]
    fn the_start_counts_too() {
        assert!(list(&[3]).iter(Nsid(3)).next().unwrap().is_err());
        assert_eq!(list(&[4]).iter(Nsid(3)).next(), Some(Ok(Nsid(4))));
        assert!(list(&[0xffff_ffff]).iter(Nsid::NONE).next().unwrap().is_err());
    }

    #[test]
    fn a_full_list_has_1024() {
        let nsids: Vec<u32> = (1..=1024).collect();
        assert_eq!(list(&nsids).iter(Nsid::NONE).filter(Result::is_ok).count(), 1024);
    }
}
