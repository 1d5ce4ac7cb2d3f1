//! A llama of 4 layers with random weights from a seed, as a GGUF file of 10 MB (the format: ggml's docs/gguf.md, version 3).

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

const LAYERS: u64 = 4;
const EMBEDDING: u64 = 256;
const HEADS: u64 = 8;
const HEADS_KV: u64 = 4;
const FEED_FORWARD: u64 = 512;
/// Three special tokens, 256 of single bytes, and some words.
const VOCABULARY: u64 = 320;
const CONTEXT: u32 = 4096;
const ALIGNMENT: usize = 32;

/// The file's types of values.
mod kind {
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
}

/// Writes the model.
pub(crate) fn write(path: &Path, seed: u64) -> Result<()> {
    let tensors = tensors();
    let metadata = metadata();
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    metadata.iter().for_each(|entry| head.extend(entry));
    let mut offset = 0u64;
    for tensor in &tensors {
        head.extend(string(&tensor.name));
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().for_each(|extent| head.extend(extent.to_le_bytes()));
        head.extend(0u32.to_le_bytes()); // 32-bit floats
        head.extend(offset.to_le_bytes());
        offset += (tensor.values() * 4).next_multiple_of(ALIGNMENT) as u64;
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&head)?;
    let mut random = Random(seed);
    for tensor in &tensors {
        let data: Vec<u8> = (0..tensor.values())
            .flat_map(|_| tensor.scale.map_or(1.0, |scale| scale * random.normal()).to_le_bytes())
            .collect();
        file.write_all(&data)?;
        file.write_all(&vec![0; data.len().next_multiple_of(ALIGNMENT) - data.len()])?;
    }
    file.flush()
}

struct Tensor {
    name: String,
    /// Fastest first.
    shape: Vec<u64>,
    /// The standard deviation of its weights; `None` for ones.
    scale: Option<f32>,
}

impl Tensor {
    fn values(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }
}

fn tensors() -> Vec<Tensor> {
    let tensor = |name: String, shape: &[u64], scale| Tensor { name, shape: shape.to_vec(), scale };
    let mut all = vec![tensor("token_embd.weight".into(), &[EMBEDDING, VOCABULARY], Some(1.0))];
    for layer in 0..LAYERS {
        let keys = EMBEDDING / HEADS * HEADS_KV;
        let mut add = |name: &str, shape: &[u64], scale| {
            all.push(tensor(format!("blk.{layer}.{name}.weight"), shape, scale));
        };
        add("attn_norm", &[EMBEDDING], None);
        add("ffn_norm", &[EMBEDDING], None);
        add("attn_q", &[EMBEDDING, EMBEDDING], Some(0.08));
        add("attn_k", &[EMBEDDING, keys], Some(0.08));
        add("attn_v", &[EMBEDDING, keys], Some(0.08));
        add("attn_output", &[EMBEDDING, EMBEDDING], Some(0.08));
        add("ffn_gate", &[EMBEDDING, FEED_FORWARD], Some(0.08));
        add("ffn_up", &[EMBEDDING, FEED_FORWARD], Some(0.08));
        add("ffn_down", &[FEED_FORWARD, EMBEDDING], Some(0.08));
    }
    all.push(tensor("output_norm.weight".into(), &[EMBEDDING], None));
    all.push(tensor("output.weight".into(), &[EMBEDDING, VOCABULARY], Some(0.3)));
    all
}

fn metadata() -> Vec<Vec<u8>> {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend((0..VOCABULARY - 259).map(|word| format!("w{word}")));
    // Unknown, control, control, bytes, ordinary ones.
    let types = [2, 3, 3].into_iter().chain([6; 256]).chain([1; (VOCABULARY - 259) as usize]);
    let types: Vec<[u8; 4]> = types.map(i32::to_le_bytes).collect();
    let scores = vec![0f32.to_le_bytes(); VOCABULARY as usize];
    let number = |key: &str, value: u32| entry(key, kind::U32, &value.to_le_bytes());
    let tokens: Vec<Vec<u8>> = tokens.iter().map(|token| string(token)).collect();
    vec![
        entry("general.architecture", kind::STRING, &string("llama")),
        number("llama.context_length", CONTEXT),
        number("llama.embedding_length", EMBEDDING as u32),
        number("llama.block_count", LAYERS as u32),
        number("llama.feed_forward_length", FEED_FORWARD as u32),
        number("llama.attention.head_count", HEADS as u32),
        number("llama.attention.head_count_kv", HEADS_KV as u32),
        entry("llama.attention.layer_norm_rms_epsilon", kind::F32, &1e-5f32.to_le_bytes()),
        number("llama.rope.dimension_count", (EMBEDDING / HEADS) as u32),
        number("llama.vocab_size", VOCABULARY as u32),
        entry("tokenizer.ggml.model", kind::STRING, &string("llama")),
        entry("tokenizer.ggml.tokens", kind::ARRAY, &array(kind::STRING, &tokens)),
        entry("tokenizer.ggml.scores", kind::ARRAY, &array(kind::F32, &scores)),
        entry("tokenizer.ggml.token_type", kind::ARRAY, &array(kind::I32, &types)),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        number("tokenizer.ggml.unknown_token_id", 0),
    ]
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key), &kind.to_le_bytes()[..], value].concat()
}

fn array<T: AsRef<[u8]>>(kind: u32, values: &[T]) -> Vec<u8> {
    let mut all = [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
    values.iter().for_each(|value| all.extend(value.as_ref()));
    all
}

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// About normal, with a standard deviation of 1: the sum of twelve uniform ones.
    fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
        (0..12).map(|_| uniform(self.next())).sum::<f32>() - 6.0
    }
}
