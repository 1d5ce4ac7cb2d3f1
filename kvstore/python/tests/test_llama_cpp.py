"""The interface of llama-cpp-python's prompt caches."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from conftest import anywhere
from engines import Llama, LlamaState
from test_lmcache import damage

Make = Callable[..., Any]
CONTEXT = 256


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, place: str) -> Make:
    """Return what makes caches on one drive."""
    engines.llama_cpp(monkeypatch)
    cache = importlib.import_module("adit.llama_cpp").PromptCache

    def make(model: object = None, **options: Any) -> Any:
        return cache(place, model or Llama(), size_gb=0.25, **options)

    return make


def state(tokens: list[int], nbytes: int = 100_000) -> LlamaState:
    random = np.random.default_rng(len(tokens))
    ids = np.zeros(CONTEXT, dtype=np.intc)
    ids[: len(tokens)] = tokens
    scores = random.random((len(tokens), 32), dtype=np.float32)
    return LlamaState(ids, scores, len(tokens), random.bytes(nbytes), nbytes, 4294967295)


def same(one: LlamaState, other: LlamaState) -> bool:
    fields = ("n_tokens", "llama_state", "llama_state_size", "seed")
    return (
        all(getattr(one, name) == getattr(other, name) for name in fields)
        and np.array_equal(one.input_ids, other.input_ids)
        and one.input_ids.dtype == other.input_ids.dtype
        and np.array_equal(one.scores, other.scores)
        and one.scores.dtype == other.scores.dtype
    )


@anywhere
def test_prompts_survive_a_restart(make: Make) -> None:
    cache, tokens = make(), list(range(100))
    assert tokens not in cache
    with pytest.raises(KeyError):
        cache[tokens]
    cache[tokens] = state(tokens)
    assert tokens in cache and same(cache[tokens], state(tokens)) and cache.cache_size > 100_000
    cache.close()
    cache = make()
    assert same(cache[tokens], state(tokens))
    cache.close()


def test_the_longest_beginning_is_found(make: Make) -> None:
    cache = make()
    prompt = list(range(150))
    shorter, longer = prompt[:70], prompt[:130] + [7] * 20
    for kept in (shorter, longer):
        cache[kept] = state(kept)
    assert same(cache[prompt], state(longer)), "it may go on otherwise"
    assert same(cache[prompt[:128] + [9] * 20], state(longer))
    assert same(cache[prompt[:20]], state(longer)), "or be longer"
    assert [1] * 50 not in cache and prompt[:5] not in cache
    cache[prompt[:5]] = state(prompt[:5])
    assert prompt[:5] not in cache, "what is so short is sooner computed"
    # If the longest has gone, the next is found only by marks that are its own.
    digest = importlib.import_module("adit.llama_cpp")._digest(np.array(longer, dtype=np.int32))
    assert cache.store.delete(cache._space + b"s" + digest)
    assert prompt not in cache
    cache.close()


def test_a_state_without_its_last_token_is_found(make: Make) -> None:
    """llama.cpp samples the last token of a completion and does not compute it."""
    cache = make()
    for length in (8, 16, 17, 32, 64, 100):
        prompt = list(range(1000 * length, 1000 * length + length))
        cache[prompt] = state(prompt[:-1])
        is_long = length > 8
        assert (prompt in cache) is is_long
        if is_long:
            assert same(cache[prompt], state(prompt[:-1]))
            assert same(cache[prompt + [1] * 50], state(prompt[:-1]))
    cache.close()


@anywhere
def test_states_longer_than_the_pool_are_kept(make: Make) -> None:
    cache = make(pool_bytes=8 << 20)
    tokens = list(range(40))
    cache[tokens] = state(tokens, 30_000_001)
    assert same(cache[tokens], state(tokens, 30_000_001))
    cache.close()


@anywhere
def test_other_models_and_settings_have_other_prompts(make: Make) -> None:
    tokens = list(range(40))
    cache = make()
    cache[tokens] = state(tokens)
    cache.close()
    others = [
        Llama(n_ctx=128),
        Llama(rope_freq_base=10_000.0),
        Llama(metadata={"general.name": "x"}),
        Llama(kv_overrides={"llama.expert_used_count": 3}),
        Llama(model_path="x"),
        Llama(_logits_all=False),
        "text",
    ]
    for other in others:
        cache = make(other)
        assert tokens not in cache
        cache.close()
    cache = make(Llama(n_threads=1))
    assert tokens in cache
    cache.close()


def test_a_model_whose_file_has_other_bytes_has_other_prompts(make: Make, tmp_path: Path) -> None:
    tokens, path = list(range(40)), tmp_path / "tiny.gguf"
    path.write_bytes(bytes((3 << 20) + 5))
    cache = make(Llama(model_path=str(path)))
    cache[tokens] = state(tokens)
    cache.close()
    for at, nbytes, is_there in ((0, 1, False), (1 << 20, 8192, False), ((3 << 20) + 4, 1, False), (5000, 1, True)):
        changed = bytearray((3 << 20) + 5)
        changed[at : at + nbytes] = b"x" * nbytes
        path.write_bytes(changed)
        cache = make(Llama(model_path=str(path)))
        assert (tokens in cache) is is_there, "one page of each 6 KiB is compared"
        cache.close()


def test_a_part_of_a_split_model_and_an_adapter_have_other_prompts_too(make: Make, tmp_path: Path) -> None:
    tokens, lora = list(range(40)), tmp_path / "lora.gguf"
    parts = [tmp_path / f"tiny-0000{number}-of-00002.gguf" for number in (1, 2)]
    for path in (*parts, lora):
        path.write_bytes(bytes(10_000))
    settings = Llama(model_path=str(parts[0]), lora_path=str(lora))
    cache = make(settings)
    cache[tokens] = state(tokens)
    cache.close()
    for path in (parts[1], lora):
        path.write_bytes(b"x" + bytes(9_999))
        cache = make(settings)
        assert tokens not in cache, path.name
        cache.close()
        path.write_bytes(bytes(10_000))
    cache = make(settings)
    assert tokens in cache
    cache.close()


def test_scores_are_kept_with_logits_all_only(make: Make) -> None:
    cache, tokens = make(Llama(_logits_all=False)), list(range(100))
    kept = state(tokens)
    cache[tokens] = kept
    loaded = cache[tokens]
    assert loaded.scores.shape == kept.scores.shape and not loaded.scores.any()
    kept.scores = loaded.scores
    assert same(loaded, kept)
    cache.close()


def test_a_corrupt_prompt_is_a_miss(make: Make, tmp_path: Path) -> None:
    tokens = list(range(40))
    cache = make()
    cache[tokens] = state(tokens)
    cache.close()
    damage({"target": f"uring:{tmp_path / 'kv.img'}"}, state(tokens).llama_state[20_000:40_000])
    cache = make()
    with pytest.raises(KeyError):
        cache[tokens]
    cache.close()


def test_a_mark_of_another_prompt_is_a_miss(make: Make) -> None:
    cache, tokens, other = make(), list(range(40)), [9] * 40
    module = importlib.import_module("adit.llama_cpp")
    marks = [[key for _, key in module._marks(cache._space, module._tokens(each))] for each in (tokens, other)]
    cache[other] = state(other)
    for key, another in zip(*marks):
        cache.store.put(key, cache.store.get(another))
    assert tokens in cache
    with pytest.raises(KeyError):
        cache[tokens]
    for key in marks[0]:
        cache.store.put(key, b"no mark")
    assert tokens not in cache and same(cache[other], state(other))
    cache.close()


def test_a_state_of_another_prompt_is_not_kept(make: Make) -> None:
    cache, tokens = make(), list(range(40))
    cache[tokens] = state([9] * 40)
    assert tokens not in cache and cache.store.scan()[0] == []
    cache.close()


def test_a_full_store_is_logged_and_the_prompt_is_not_kept(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cache, tokens = make(capacity_bytes=1 << 20), list(range(40))
    cache[tokens] = state(tokens, 10_000_000)
    assert tokens not in cache and "keeping a prompt failed" in caplog.text
    cache.close()


@anywhere
@pytest.mark.parametrize("call", ["put", "get_into"])
def test_memory_of_a_call_that_was_interrupted_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    cache, tokens = make(), list(range(40))
    cache[tokens] = state(tokens)
    lent: list[Any] = []

    def interrupted(_: bytes, memory: memoryview, **__: object) -> None:
        lent.append(memory)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        store = types.SimpleNamespace(put=interrupted, get_into=interrupted)
        patch.setattr(cache, "_candidates", lambda _: iter([(32, b"name", 100_000)]))
        room = cache._room

        def then_interrupt(nbytes: int) -> memoryview:
            memory: memoryview = room(nbytes)
            patch.setattr(cache, "store", store)
            return memory

        patch.setattr(cache, "_room", then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            if call == "put":
                cache[tokens] = state(tokens)
            else:
                cache[tokens]
    (memory,) = lent
    before = bytes(memory)
    other = [7] * 40
    cache[other] = state(other, 90_000)
    assert bytes(memory) == before, "a drive may still use it"
    assert same(cache[tokens], state(tokens)) and same(cache[other], state(other, 90_000))
    cache.close()


def test_a_model_whose_file_has_gone_is_logged(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("gone.gguf", "gone-00001-of-00002.gguf"):
        caplog.clear()
        make(Llama(model_path=str(tmp_path / name))).close()
        (told,) = caplog.records
        assert told.name == "adit" and "keys have the name of" in told.message and name in told.message


@anywhere
def test_prompts_expire(make: Make) -> None:
    cache, tokens = make(ttl=3600), list(range(40))
    cache[tokens] = state(tokens)
    assert tokens in cache
    cache.close()
