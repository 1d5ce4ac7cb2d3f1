//! An Adit store as an object client of Dynamo's KV block manager (`kvbm_engine::object::ObjectClient`, tried with 1.6.1).
//!
//! ```
//! use std::sync::Arc;
//!
//! use adit_dynamo::AditObjects;
//! use adit_kvstore::{FormatStore, OpenOptions, Store};
//! use kvbm_engine::object::ObjectClient;
//!
//! # let path = std::env::temp_dir().join(format!("adit-dynamo-{}.img", std::process::id()));
//! # let name = format!("uring:{}", path.display());
//! let target: adit_driver::Target = name.parse()?;
//! Store::format(&FormatStore { file_bytes: Some(64 << 20), ..FormatStore::new([target.clone()]) })?;
//! let objects: Arc<dyn ObjectClient> = Arc::new(AditObjects::new(Store::open(&OpenOptions::new([target]))?));
//!
//! let (keys, values) = (vec![1u8; 4096], vec![2u8; 4096]);
//! objects.put_object(b"block", &[&keys, &values])?;
//! let (mut first, mut second) = (vec![0; 4096], vec![0; 4096]);
//! objects.get_object(b"block", &mut [&mut first, &mut second])?;
//! assert!(first == keys && second == values);
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::IoSlice;

use adit_kvstore::{Key, Store};
use anyhow::{Result, ensure};
use kvbm_engine::object::ObjectClient;

/// A store that holds Dynamo's blocks. Calls block their thread until the drive has answered.
#[derive(Debug)]
pub struct AditObjects {
    store: Store,
}

impl AditObjects {
    /// Keeps blocks in `store`. Give each model, type of data and rank keys of its own.
    pub fn new(store: Store) -> AditObjects {
        AditObjects { store }
    }
}

impl ObjectClient for AditObjects {
    /// # Errors
    /// A key of more than [`adit_kvstore::KEY_BYTES_MAX`] bytes; the store's.
    fn has_object(&self, key: &[u8]) -> Result<bool> {
        Ok(self.store.exists(Key::new(key)?).wait()?)
    }

    /// # Errors
    /// As [`AditObjects::has_object`], and a store without room for the object.
    fn put_object(&self, key: &[u8], data: &[&[u8]]) -> Result<()> {
        let parts: Vec<IoSlice<'_>> = data.iter().map(|part| IoSlice::new(part)).collect();
        self.store.put(Key::new(key)?, &parts[..]).wait()?;
        Ok(())
    }

    /// # Errors
    /// As [`AditObjects::has_object`]; an object that is not there, or is damaged, which is the same; one of another length than
    /// `data`, which stays as it is then.
    fn get_object(&self, key: &[u8], data: &mut [&mut [u8]]) -> Result<()> {
        let value = self.store.get(Key::new(key)?).wait()?;
        let Some(value) = value else {
            anyhow::bail!("no object {}: compute its block", key.escape_ascii());
        };
        let wanted: usize = data.iter().map(|part| part.len()).sum();
        ensure!(
            wanted == value.len(),
            "object {} has {} bytes, not {wanted}: give each layout keys of its own",
            key.escape_ascii(),
            value.len()
        );
        let mut rest = &value[..];
        for part in data {
            let (these, behind) = rest.split_at(part.len());
            part.copy_from_slice(these);
            rest = behind;
        }
        assert!(rest.is_empty(), "the lengths are equal");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_kvstore::{FormatStore, KEY_BYTES_MAX, OpenOptions};

    #[test]
    fn what_is_not_there_or_of_another_length_is_an_error_and_writes_nothing() {
        let path = std::env::temp_dir().join(format!("adit-dynamo-test-{}.img", std::process::id()));
        let target: adit_driver::Target =
            format!("uring:{}", path.display()).parse().expect("a target");
        let file_bytes = Some(64 << 20);
        Store::format(&FormatStore { file_bytes, ..FormatStore::new([target.clone()]) })
            .expect("formatted");
        let objects = AditObjects::new(Store::open(&OpenOptions::new([target])).expect("open"));
        let mut memory = [7u8; 10];
        let error = objects.get_object(b"a", &mut [&mut memory]).expect_err("a miss");
        assert!(error.to_string().contains("no object a"), "{error}");
        assert!(!objects.has_object(b"a").expect("works"));
        objects.put_object(b"a", &[b"12", b"", b"345"]).expect("room");
        assert!(objects.has_object(b"a").expect("works"));
        let error = objects.get_object(b"a", &mut [&mut memory]).expect_err("longer");
        assert!(error.to_string().contains("has 5 bytes, not 10"), "{error}");
        assert_eq!(memory, [7; 10]);
        let (first, second) = memory.split_at_mut(1);
        objects.get_object(b"a", &mut [first, &mut second[..4]]).expect("there");
        assert_eq!(&memory, b"12345\x07\x07\x07\x07\x07");
        assert!(objects.has_object(&vec![0; KEY_BYTES_MAX + 1]).is_err());
        std::fs::remove_file(&path).expect("it was made");
    }
}
