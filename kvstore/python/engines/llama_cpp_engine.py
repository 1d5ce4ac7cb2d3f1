"""llama-cpp-python with the store as its prompt cache; as a program, a process that completes prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LAYERS, EMBEDDING, HEADS, HEADS_KV, FEED_FORWARD, CONTEXT = 2, 128, 8, 4, 256, 1024
# Three special tokens, 256 of single bytes, and some words.
SPECIAL, WORDS = 3, 61
VOCABULARY = SPECIAL + 256 + WORDS
ANSWER_TOKENS = 16
STORE_GB = 0.0625


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return tokens that look random and depend on the seed from the first on."""
    return [SPECIAL + (at * 7919 + seed * 104_729) % (VOCABULARY - SPECIAL) for at in range(length)]


def write_model(path: Path, seed: int) -> None:
    """Write a small model with random weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS_KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_vocab_size(VOCABULARY)
    _add_tokens(writer)
    _add_tensors(writer, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: gguf.GGUFWriter) -> None:
    kinds = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"]
    tokens += [f"<0x{byte:02X}>".encode() for byte in range(256)]
    tokens += [f"word{number}".encode() for number in range(WORDS)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCABULARY)
    special = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    writer.add_token_types([*special, *[kinds.BYTE] * 256, *[kinds.NORMAL] * WORDS])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _add_tensors(writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
    def add(name: str, rows: int, columns: int, scale: float = 0.1) -> None:
        values = random.standard_normal((rows, columns)) * scale
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    key_rows = EMBEDDING // HEADS * HEADS_KV
    add("token_embd", VOCABULARY, EMBEDDING, 1.0)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(EMBEDDING, np.float32))
        shapes = {
            "attn_q": EMBEDDING,
            "attn_k": key_rows,
            "attn_v": key_rows,
            "attn_output": EMBEDDING,
        }
        shapes |= {"ffn_gate": FEED_FORWARD, "ffn_up": FEED_FORWARD}
        for name, rows in shapes.items():
            add(f"{block}.{name}", rows, EMBEDDING)
        add(f"{block}.ffn_down", EMBEDDING, FEED_FORWARD)
    writer.add_tensor("output_norm.weight", np.ones(EMBEDDING, np.float32))
    add("output", VOCABULARY, EMBEDDING, 0.5)


class Counted:
    """A model that counts the tokens that it computes."""

    def __init__(self, model: Path, place: str, **settings: Any) -> None:
        from llama_cpp import Llama

        # Threads that wait for each other are slow where cores are shared.
        settings = {"n_ctx": CONTEXT, "n_threads": 1, "verbose": False, **settings}
        self.llama = Llama(str(model), **settings)
        self.computed = 0
        self._eval = self.llama.eval
        self.llama.eval = self._count
        self.cache = None
        if place:
            from adit.llama_cpp import PromptCache

            target = place if place.startswith("serve:") else f"uring:{place}"
            self.cache = PromptCache(target, self.llama, size_gb=STORE_GB)
            self.llama.set_cache(self.cache)

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        """Complete a prompt; return the answer, and how many tokens of both were computed."""
        self.computed = 0
        self.llama.create_completion(tokens, max_tokens=ANSWER_TOKENS, temperature=0.0, seed=1)
        whole = self.llama.input_ids[: self.llama.n_tokens].tolist()
        assert whole[: len(tokens)] == tokens
        return {"answer": whole[len(tokens) :], "computed": self.computed}

    def close(self) -> None:
        """Close the cache and the model."""
        if self.cache is not None:
            self.cache.close()
        self.llama.close()

    def _count(self, tokens: Sequence[int]) -> None:
        self.computed += len(tokens)
        self._eval(tokens)


def main() -> None:
    """Complete prompts that come as lines, by a model, the store's file or a server's target, and settings."""
    model, place, settings = sys.argv[1:]
    counted = Counted(Path(model), place, **json.loads(settings))
    for line in sys.stdin:
        print(json.dumps(counted.answer(json.loads(line))), flush=True)
    counted.close()


if __name__ == "__main__":
    main()
