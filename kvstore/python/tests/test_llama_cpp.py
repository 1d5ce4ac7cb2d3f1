"""The interface of llama-cpp-python's prompt caches."""

from __future__ import annotations

import importlib
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
    others = [Llama(n_ctx=128), Llama(metadata={"general.name": "x"}), Llama(model_path="x"), "text"]
    for other in others:
        cache = make(other)
        assert tokens not in cache
        cache.close()
    cache = make()
    assert tokens in cache
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
    cache, tokens = make(), list(range(40))
    cache[tokens] = state([9] * 40)
    with pytest.raises(KeyError):
        cache[tokens]
    cache.store.put(next(iter(cache.store.scan()[0]))[0], b"no mark")
    cache.close()


def test_a_full_store_is_logged_and_the_prompt_is_not_kept(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cache, tokens = make(capacity_bytes=1 << 20), list(range(40))
    cache[tokens] = state(tokens, 10_000_000)
    assert tokens not in cache and "keeping a prompt failed" in caplog.text
    cache.close()


@anywhere
def test_prompts_expire(make: Make) -> None:
    cache, tokens = make(ttl=3600), list(range(40))
    cache[tokens] = state(tokens)
    assert tokens in cache
    cache.close()
