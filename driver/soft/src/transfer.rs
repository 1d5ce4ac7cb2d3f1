//! The data of one command: the pieces of host memory that its PRPs or SGL name.
//!
//! Rebuilt per command in retained buffers, so that commands do not allocate.

use super::command::{Command, Pointer};
use super::memory::Dma;
use super::options::SglSupport;
use super::status::{DATA_TRANSFER_ERROR, INVALID_FIELD};
use super::{prp, sgl};
use adit_spec::{Iova, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DmaRange {
    pub(super) at: Iova,
    pub(super) len: u64,
}

/// Controller limits for the walkers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// CC.MPS in bytes.
    pub(super) page_bytes: u64,
    /// Longest transfer in bytes (MDTS).
    pub(super) bytes_max: u64,
    /// Supported SGLs.
    pub(super) sgl: SglSupport,
}

/// The data of the current command: runs in order, of which adjacent ones are merged.
#[derive(Debug, Default)]
pub(super) struct DmaRanges(Vec<DmaRange>);

impl DmaRanges {
    pub(super) fn push(&mut self, at: u64, len: u64) {
        if len == 0 {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.at.0.checked_add(last.len) == Some(at) => last.len += len,
            _ => self.0.push(DmaRange { at: Iova(at), len }),
        }
    }

    /// Reads the PRPs or SGL of `command` for `len` bytes.
    pub(super) fn map(
        &mut self,
        command: &Command,
        len: u64,
        rules: Rules,
        dma: &Dma<'_>,
    ) -> Result<&[DmaRange], Status> {
        self.0.clear();
        if len > rules.bytes_max {
            return Err(INVALID_FIELD);
        }
        match command.pointer {
            Pointer::Prp(prp) => prp::walk(dma, rules.page_bytes, prp, len, self)?,
            Pointer::Sgl(first) if rules.sgl != SglSupport::Off => {
                sgl::walk(dma, rules.sgl, &first, len, self)?;
            }
            Pointer::Sgl(_) | Pointer::Reserved => return Err(INVALID_FIELD),
        }
        Ok(&self.0)
    }

    /// Maps the command's data and fills it from `data`.
    pub(super) fn send(
        &mut self,
        command: &Command,
        data: &[u8],
        rules: Rules,
        dma: &Dma<'_>,
    ) -> Result<(), Status> {
        let mut rest = data;
        for piece in self.map(command, data.len() as u64, rules, dma)? {
            let (now, later) = rest.split_at(piece.len as usize);
            dma.write(piece.at, now).map_err(|_| DATA_TRANSFER_ERROR)?;
            rest = later;
        }
        Ok(())
    }

    /// Maps the command's data and reads it into `data`.
    pub(super) fn receive(
        &mut self,
        command: &Command,
        data: &mut [u8],
        rules: Rules,
        dma: &Dma<'_>,
    ) -> Result<(), Status> {
        let mut rest = data;
        for piece in self.map(command, rest.len() as u64, rules, dma)? {
            let (now, later) = rest.split_at_mut(piece.len as usize);
            dma.read(piece.at, now).map_err(|_| DATA_TRANSFER_ERROR)?;
            rest = later;
        }
        Ok(())
    }
}
