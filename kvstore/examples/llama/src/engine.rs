//! llama.cpp, with a cache of prompts before it.

use std::num::NonZeroU32;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::context::session::LlamaStateSeqFlags;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;

use crate::cache::{PromptCache, STEP};

/// Tokens of one call of llama.cpp at most.
const BATCH: usize = 512;
/// The only sequence.
const SEQUENCE: i32 = 0;

/// A model, and the hash of its file.
#[derive(Debug)]
pub(crate) struct Model {
    backend: LlamaBackend,
    model: LlamaModel,
    fingerprint: blake3::Hash,
    name: String,
}

impl Model {
    /// Loads a GGUF file.
    ///
    /// # Errors
    /// No such file, or none that llama.cpp reads.
    pub(crate) fn load(path: &Path) -> Result<Model> {
        let shown = path.display();
        let mut hasher = blake3::Hasher::new();
        hasher.update_mmap(path).with_context(|| format!("reading {shown}"))?;
        let mut backend = LlamaBackend::init()?;
        backend.void_logs();
        let model = LlamaModel::load_from_file(&backend, path, &LlamaModelParams::default())
            .with_context(|| format!("loading {shown}, which should be a GGUF file"))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Model { backend, model, fingerprint: hasher.finalize(), name })
    }

    /// The hash of its file.
    pub(crate) fn fingerprint(&self) -> blake3::Hash {
        self.fingerprint
    }
}

/// A prompt as it comes in.
#[derive(Debug)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<i32>),
}

/// A prompt, and the terms of its continuation.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) prompt: Prompt,
    pub(crate) max_tokens: usize,
    /// 0 takes the likeliest token.
    pub(crate) temperature: f32,
    pub(crate) seed: u32,
}

/// A continuation.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) text: String,
    pub(crate) tokens: Vec<i32>,
    pub(crate) prompt_tokens: usize,
    /// Of these, restored from the store.
    pub(crate) cached_tokens: usize,
    /// Whether the model ended it, rather than the limit.
    pub(crate) is_ended: bool,
    pub(crate) times: Times,
}

/// How long the steps took.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Looking for a state, reading and verifying it, and giving it to llama.cpp.
    pub(crate) restore: Duration,
    /// Computing the rest of the prompt, and beginning to store its states.
    pub(crate) prefill: Duration,
    /// From the request to the first token.
    pub(crate) first_token: Duration,
    pub(crate) total: Duration,
}

/// A model at work on one sequence at a time.
pub(crate) struct Engine<'a> {
    model: &'a Model,
    context: LlamaContext<'a>,
    cache: PromptCache,
}

impl<'a> Engine<'a> {
    /// Makes a context of so many tokens, computed by so many threads: `None` is one for each core.
    ///
    /// # Errors
    /// llama.cpp's, such as too little memory.
    pub(crate) fn new(
        model: &'a Model,
        (tokens, threads): (u32, Option<u16>),
        cache: PromptCache,
    ) -> Result<Engine<'a>> {
        let cores = || available_parallelism().map_or(1, |cores| cores.get() as i32);
        let threads = threads.map_or_else(cores, i32::from);
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(tokens))
            .with_n_batch(BATCH as u32)
            .with_n_threads(threads)
            .with_n_threads_batch(threads);
        let context = model.model.new_context(&model.backend, params)?;
        let mut engine = Engine { model, context, cache };
        // The first tokens of a context are slow: memory is touched, graphs are laid out.
        engine.decode(&[0; 8], 0)?;
        engine.context.clear_kv_cache();
        Ok(engine)
    }

    pub(crate) fn name(&self) -> &str {
        &self.model.name
    }

    /// Continues a prompt.
    ///
    /// # Errors
    /// A prompt that is empty, too long or has unknown tokens; llama.cpp's. A failure of the store is logged, and the prompt
    /// computed.
    pub(crate) fn complete(&mut self, wish: &Wish) -> Result<Completion> {
        let started = Instant::now();
        let prompt = self.tokens_of(&wish.prompt)?;
        let room = self.context.n_ctx() as usize;
        if prompt.len() + wish.max_tokens > room {
            bail!(
                "{} tokens and max_tokens {} exceed the context of {room} (--context)",
                prompt.len(),
                wish.max_tokens
            );
        }
        self.context.clear_kv_cache();
        let cached_tokens = self.restore(&prompt);
        let restore = started.elapsed();
        self.prefill(&prompt, cached_tokens)?;
        let prefill = started.elapsed() - restore;
        let mut completion = self.generate(&prompt, wish, started)?;
        if let Err(error) = self.store_conversation(prompt, &completion.tokens) {
            eprintln!("adit-llama: the KV of an answer is not stored: {error:#}");
        }
        completion.cached_tokens = cached_tokens;
        completion.times.restore = restore;
        completion.times.prefill = prefill;
        completion.times.total = started.elapsed();
        Ok(completion)
    }

    fn tokens_of(&self, prompt: &Prompt) -> Result<Vec<i32>> {
        let tokens: Vec<i32> = match prompt {
            Prompt::Text(text) => {
                let tokens = self.model.model.vocab().tokenize(text.as_bytes(), true, false);
                tokens.into_iter().map(|token| token.0).collect()
            }
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        let known = 0..self.model.model.n_vocab();
        ensure!(!tokens.is_empty(), "the prompt is empty: give at least one token");
        if let Some(token) = tokens.iter().find(|token| !known.contains(token)) {
            bail!("token {token} is not the model's, which has 0 to {}", known.end - 1);
        }
        Ok(tokens)
    }

    /// Gives llama.cpp the longest stored beginning of a prompt; returns its length.
    fn restore(&mut self, prompt: &[i32]) -> usize {
        let found = match self.cache.longest(prompt) {
            Ok(Some(found)) => found,
            Ok(None) => return 0,
            Err(error) => {
                eprintln!("adit-llama: computing a prompt that could not be looked up: {error:#}");
                return 0;
            }
        };
        let (tokens, state) = found;
        if self.set_state(&state) {
            return tokens;
        }
        // Such as one of another version of llama.cpp; what it left half done goes.
        self.context.clear_kv_cache();
        0
    }

    #[allow(unsafe_code)]
    fn set_state(&mut self, state: &[u8]) -> bool {
        // SAFETY: the bytes are those that llama.cpp wrote: the store verified them, and their key names model and tokens.
        unsafe { self.context.state_seq_set_data_ext(state, SEQUENCE, LlamaStateSeqFlags::empty()) }
    }

    /// Computes what is not `done` of a prompt, and stores the states of its places on the way.
    fn prefill(&mut self, prompt: &[i32], done: usize) -> Result<()> {
        assert!(done < prompt.len(), "the last token is computed: its logits give the next");
        let mut from = done;
        let places = PromptCache::places(prompt.len());
        for end in places.into_iter().filter(|end| *end > done).chain([prompt.len()]) {
            self.decode(&prompt[from..end], from)?;
            from = end;
            if end < prompt.len()
                && let Err(error) = self.store(&prompt[..end])
            {
                eprintln!("adit-llama: the KV of a prompt is not stored: {error:#}");
            }
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    fn store(&mut self, tokens: &[i32]) -> Result<()> {
        let flags = LlamaStateSeqFlags::empty();
        let bytes = self.context.state_seq_get_size_ext(SEQUENCE, flags);
        let context = &self.context;
        self.cache.store(tokens, bytes, |memory| {
            assert_eq!(memory.len(), bytes, "the memory that was asked for");
            // SAFETY: llama.cpp writes as many bytes as it said the state has.
            unsafe { context.state_seq_get_data_ext(memory.as_mut_ptr(), SEQUENCE, flags) }
        })
    }

    /// Stores the state of a prompt and its answer, up to a step: the next turn of the conversation begins with both.
    fn store_conversation(&mut self, prompt: Vec<i32>, answer: &[i32]) -> Result<()> {
        let said = [&prompt[..], answer].concat();
        // The last token was not computed.
        let end = said.len().saturating_sub(1) / STEP * STEP;
        if end < prompt.len() {
            return Ok(());
        }
        self.context.kv_cache_seq_rm(SEQUENCE, Some(u32::try_from(end)?), None)?;
        self.store(&said[..end])
    }

    /// Computes tokens that begin at a position; the last one's logits are there afterwards.
    fn decode(&mut self, tokens: &[i32], position: usize) -> Result<()> {
        let mut batch = LlamaBatch::new(BATCH, 1);
        for (part, first) in tokens.chunks(BATCH).zip((position..).step_by(BATCH)) {
            batch.clear();
            for (at, token) in (first..).zip(part) {
                let is_last = at + 1 == position + tokens.len();
                batch.add(LlamaToken(*token), i32::try_from(at)?, &[SEQUENCE], is_last)?;
            }
            self.context.decode(&mut batch)?;
        }
        Ok(())
    }

    fn generate(&mut self, prompt: &[i32], wish: &Wish, started: Instant) -> Result<Completion> {
        let mut sampler = match wish.temperature {
            0.0 => LlamaSampler::greedy(),
            warm => LlamaSampler::chain_simple([
                LlamaSampler::temp(warm),
                LlamaSampler::dist(wish.seed),
            ]),
        };
        let vocab = self.model.model.vocab();
        let (mut tokens, mut text, mut is_ended) = (Vec::new(), Vec::new(), false);
        let mut times = Times::default();
        while tokens.len() < wish.max_tokens {
            let token = sampler.sample(&self.context, -1);
            if tokens.is_empty() {
                times.first_token = started.elapsed();
            }
            is_ended = vocab.is_eog(token);
            if is_ended {
                break;
            }
            tokens.push(token.0);
            text.extend(vocab.token_to_piece(token, false, None));
            if tokens.len() < wish.max_tokens {
                self.decode(&[token.0], prompt.len() + tokens.len() - 1)?;
            }
        }
        Ok(Completion {
            text: String::from_utf8_lossy(&text).into_owned(),
            tokens,
            prompt_tokens: prompt.len(),
            cached_tokens: 0,
            is_ended,
            times,
        })
    }
}
