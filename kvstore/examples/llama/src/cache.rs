//! The KV of prompts in the store.
//!
//! The state of a sequence of tokens is an object. Its key is a hash of all that the state depends on: the model and every
//! token so far. So a state can only be found by the very tokens that it is of, and nothing has to be compared.
//!
//! A state ends before a prompt's last token, whose logits give the next: the same prompt finds it. Others end at multiples of
//! [`STEP`] tokens, where longer prompts with this beginning look. The store verifies each state that it reads: damage is a miss.

use adit_kvstore::store::{Pending, Put, Value};
use adit_kvstore::{Key, Store};
use anyhow::Result;

/// Tokens between two places at which longer prompts look for a state.
pub(crate) const STEP: usize = 16;

/// The states of one model's prompts.
#[derive(Debug)]
pub(crate) struct PromptCache {
    store: Store,
    /// Begins every hash.
    model: blake3::Hasher,
    /// The last put, whose error the next one reports.
    storing: Option<Pending<Put>>,
}

impl PromptCache {
    /// Looks in `store` for prompts of the model with this hash.
    pub(crate) fn new(store: Store, fingerprint: blake3::Hash) -> PromptCache {
        let mut model = blake3::Hasher::new();
        model.update(b"adit-llama 1");
        model.update(fingerprint.as_bytes());
        PromptCache { store, model, storing: None }
    }

    /// Returns the longest stored beginning of `tokens`: its length, at most `tokens.len() - 1`, and its state.
    ///
    /// # Errors
    /// A failure of the store. Damaged data is none: it is a miss.
    pub(crate) fn longest(&self, tokens: &[i32]) -> Result<Option<(usize, Value)>> {
        for (end, key) in self.keys(tokens).into_iter().rev() {
            if let Some(state) = self.store.get(key).wait()? {
                return Ok(Some((end, state)));
            }
        }
        Ok(None)
    }

    /// Where states of a prompt of `tokens` tokens are stored: before its last, and at 256, 1024, 4096, ... for prompts that
    /// only begin alike. These together are less than half of the last.
    pub(crate) fn places(tokens: usize) -> Vec<usize> {
        let last = tokens.saturating_sub(1);
        let shared =
            (4..).map(|power| 4usize.saturating_pow(power)).take_while(|at| *at <= last / 2);
        shared.chain((last > 0).then_some(last)).collect()
    }

    /// Begins to store the state of these tokens, which `fill` writes into the store's memory.
    ///
    /// # Errors
    /// Why this state, or the one before it, was not stored.
    pub(crate) fn store(
        &mut self,
        tokens: &[i32],
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<()> {
        assert!(!tokens.is_empty(), "a state is of tokens");
        let before = self.storing.take().map(Pending::wait);
        let mut memory = self.store.buffer(bytes).wait()?;
        let filled = fill(&mut memory);
        assert_eq!(filled, bytes, "a state has the size that was announced");
        let key = self.hash(tokens);
        self.storing = Some(self.store.put(key, memory));
        before.transpose()?;
        Ok(())
    }

    /// The ends and keys of the beginnings of `tokens` that may be there and leave at least one token, shortest first.
    fn keys(&self, tokens: &[i32]) -> Vec<(usize, Key)> {
        let mut hasher = self.model.clone();
        let mut end = 0;
        let steps = tokens[..tokens.len().saturating_sub(1)].chunks(STEP);
        let keys = steps.map(|step| {
            end += step.len();
            (end, key(&mut hasher, step))
        });
        keys.collect()
    }

    fn hash(&self, tokens: &[i32]) -> Key {
        key(&mut self.model.clone(), tokens)
    }
}

/// Returns the key behind these further tokens.
fn key(hasher: &mut blake3::Hasher, tokens: &[i32]) -> Key {
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    Key::new(hasher.finalize().as_bytes()).expect("32 bytes are a key")
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::Target;
    use adit_kvstore::{FormatStore, OpenOptions};

    /// A store in a file, which is removed at the end.
    struct Rig {
        store: Store,
        path: std::path::PathBuf,
    }

    impl Rig {
        fn new(name: &str) -> Rig {
            let path =
                std::env::temp_dir().join(format!("adit-llama-{name}-{}", std::process::id()));
            let target: Target = format!("uring:{}", path.display()).parse().expect("a target");
            let file_bytes = Some(64 << 20);
            let format = FormatStore { file_bytes, ..FormatStore::new([target.clone()]) };
            Store::format(&format).expect("formatted");
            Rig { store: Store::open(&OpenOptions::new([target])).expect("open"), path }
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            self.store.clone().close().wait().expect("closed");
            std::fs::remove_file(&self.path).expect("it was made");
        }
    }

    fn cache(store: &Store, model: &[u8]) -> PromptCache {
        PromptCache::new(store.clone(), blake3::hash(model))
    }

    #[test]
    fn the_longest_beginning_is_found_and_a_token_is_left() {
        let rig = Rig::new("longest");
        let mut cache = cache(&rig.store, b"model");
        let tokens: Vec<i32> = (0..100).collect();
        for (end, byte) in [(16, 1u8), (48, 3), (99, 6)] {
            cache
                .store(&tokens[..end], 5000, |memory| {
                    memory.fill(byte);
                    memory.len()
                })
                .expect("room");
        }
        cache.storing.take().expect("a put").wait().expect("stored");
        let found = |tokens: &[i32]| {
            cache
                .longest(tokens)
                .expect("a working store")
                .map(|(end, state)| (end, state[0], state.len()))
        };
        assert_eq!(found(&tokens), Some((99, 6, 5000)), "the same prompt");
        assert_eq!(found(&tokens[..99]), Some((48, 3, 5000)), "the last token is computed");
        assert_eq!(found(&tokens[..49]), Some((48, 3, 5000)));
        assert_eq!(found(&tokens[..48]), Some((16, 1, 5000)));
        assert_eq!(found(&tokens[..16]), None);
        let mut other = tokens.clone();
        other[20] = 7;
        assert_eq!(found(&other), Some((16, 1, 5000)), "equal up to token 20");
        other[0] = 7;
        assert_eq!(found(&other), None);
    }

    #[test]
    fn models_share_nothing() {
        let rig = Rig::new("models");
        let tokens = [1; 32];
        let mut first = cache(&rig.store, b"a model");
        first.store(&tokens[..16], 10, |memory| memory.len()).expect("room");
        first.storing.take().expect("a put").wait().expect("stored");
        assert!(first.longest(&tokens).expect("works").is_some());
        assert!(cache(&rig.store, b"another").longest(&tokens).expect("works").is_none());
    }

    #[test]
    fn states_end_where_prompts_may_differ_and_before_the_last_token() {
        assert!(PromptCache::places(0).is_empty() && PromptCache::places(1).is_empty());
        assert_eq!(PromptCache::places(2), [1]);
        assert_eq!(PromptCache::places(512), [511]);
        assert_eq!(PromptCache::places(1000), [256, 999]);
        assert_eq!(PromptCache::places(4000), [256, 1024, 3999]);
    }
}
