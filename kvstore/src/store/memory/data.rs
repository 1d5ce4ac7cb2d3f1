//! The data of a put or a part: in registered memory, or waiting for it.

use adit_driver::memory::AnyBuffer;

use super::copy_mode::CopyMode;
use super::lent::{BounceSplit, DeviceReach, Origin};
use super::payload::{Form, Payload};
use super::pool::{Counts, PoolBuffer};
use super::unfinished::Unfinished;
use crate::error::Error;

/// A request's data.
pub(crate) enum Data {
    Registered(RegisteredData),
    /// Data to copy once memory is free.
    Unregistered(Unregistered<'static>),
}

/// Data in registered memory.
pub(crate) struct RegisteredData {
    pub(crate) memory: AnyBuffer,
    /// The length of the data, without the padding in `memory`.
    pub(crate) bytes: u64,
    pub(crate) origin: Origin,
}

/// Data without registered memory.
pub(crate) struct Unregistered<'a> {
    payload: Payload<'a>,
    /// The part to copy: all bytes, or a part of the caller's memory.
    split: BounceSplit,
}

impl<'a> Unregistered<'a> {
    /// Returns the length of the data in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.payload.bytes()
    }

    /// Returns how many bytes of memory are missing, and for which device, or for any.
    pub(crate) fn lacks(&self) -> (usize, Option<u8>) {
        (self.split.through, self.split.device)
    }

    /// Returns the data as the caller passed them.
    pub(crate) fn into_payload(self) -> Payload<'a> {
        self.payload
    }

    /// Drops the data and returns the memory that the caller lent.
    pub(crate) fn into_lent(self) -> AnyBuffer {
        self.payload.into_lent()
    }

    /// Copies the data, or the part that needs it, to `buffer`, whose length is that of [`Self::lacks`].
    pub(crate) fn register(self, mut buffer: PoolBuffer, counts: &Counts) -> RegisteredData {
        match self.payload.0 {
            Form::Pooled(own) => RegisteredData::pooled(own),
            Form::Bytes(plain) => {
                plain.copy_to(&mut buffer);
                counts.count_copy(buffer.len());
                RegisteredData::pooled(buffer)
            }
            Form::Lent { memory, bytes } => {
                let (memory, origin) = self.split.carry(memory, Some(buffer), counts);
                RegisteredData { memory, bytes, origin }
            }
        }
    }

    /// Copies borrowed bytes to the heap, so that the data can wait.
    fn into_owned(self, counts: &Counts) -> Unregistered<'static> {
        let (payload, copied) = self.payload.into_owned();
        counts.count_copy(copied);
        Unregistered { payload, split: self.split }
    }
}

impl RegisteredData {
    fn pooled(buffer: PoolBuffer) -> RegisteredData {
        let bytes = buffer.len() as u64;
        let (run, pool) = buffer.into_cleared_parts();
        RegisteredData { memory: AnyBuffer::One(run), bytes, origin: Origin::pooled(pool) }
    }
}

impl DeviceReach {
    /// Like [`DeviceReach::register_unless`], but data that find no room wait for it, plain bytes on the heap. Of
    /// several that keep their order, the plain bytes behind data that wait (`is_short`) wait, too.
    ///
    /// # Errors
    /// [`Error::Invalid`], with the caller's memory, if there never will be enough room.
    pub(crate) fn register(
        &self,
        payload: Payload<'_>,
        device: Option<u8>,
        is_short: &mut bool,
    ) -> Result<Data, Unfinished> {
        match self.register_unless(payload, device, *is_short) {
            Ok(registered) => Ok(Data::Registered(registered)),
            Err((data, Some(never))) => Err(Unfinished::with(never, data.into_lent())),
            Err((data, None)) => {
                *is_short = true;
                Ok(Data::Unregistered(data.into_owned(&self.pools.counts)))
            }
        }
    }

    /// Puts data into registered memory, if there is room now: into memory for `device`, or for any device. Plain bytes
    /// wait all the same if it `is_short`.
    ///
    /// # Errors
    /// The data if there is no room; with the reason if there never will be.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(crate) fn register_unless<'a>(
        &self,
        payload: Payload<'a>,
        device: Option<u8>,
        is_short: bool,
    ) -> Result<RegisteredData, (Unregistered<'a>, Option<Error>)> {
        let counts = &self.pools.counts;
        let (split, payload, waits) = match payload.0 {
            Form::Pooled(buffer) => return Ok(RegisteredData::pooled(buffer)),
            Form::Bytes(plain) => {
                let bytes = plain.len() as u64;
                let payload = Payload(Form::Bytes(plain));
                (BounceSplit::copied(bytes, device), payload, is_short && bytes > 0)
            }
            Form::Lent { memory, bytes } => match self.split(&memory, bytes, device) {
                None => return Ok(self.lend_whole(memory, bytes, device)),
                Some(split) if split.through == 0 && bytes > 0 => {
                    let (memory, origin) = split.carry(memory, None, counts);
                    return Ok(RegisteredData { memory, bytes, origin });
                }
                Some(split) => (split, Payload::lent(memory, bytes), false),
            },
        };
        let data = Unregistered { payload, split };
        if let Err(never) = self.pools.check(split.through as u64) {
            return Err((data, Some(never)));
        }
        match if waits { None } else { self.pools.take(split.through, split.device) } {
            Some(buffer) => Ok(data.register(buffer, counts)),
            None => Err((data, None)),
        }
    }

    /// Takes registered memory that devices can use unchanged, or that no device knows. Copies it if that costs less
    /// and there is room.
    fn lend_whole(&self, memory: AnyBuffer, bytes: u64, device: Option<u8>) -> RegisteredData {
        let timed = self.begin_put(&memory, bytes, device);
        let is_copied = timed.as_ref().is_some_and(|timed| timed.mode == CopyMode::Copied);
        let run = is_copied.then(|| self.pools.take(bytes as usize, device)).flatten();
        let (memory, origin) = match run {
            Some(run) => {
                BounceSplit::copied(bytes, device).carry(memory, Some(run), &self.pools.counts)
            }
            None => {
                self.pools.counts.count_in_place(bytes as usize);
                (memory, Origin::default())
            }
        };
        RegisteredData { memory, bytes, origin: origin.timed(timed) }
    }
}
