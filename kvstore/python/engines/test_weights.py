"""A model's weights in the keys of real engines, and in the cache of the Hub as its own library finds them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adit import _weights
from engines import BLOCK_BYTES, contents, start
from huggingface_hub import constants, try_to_load_from_cache
from safetensors.numpy import save_file

LAYERS, SHARDS = 4, 2
NUMBERS = range(4)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """Return the file of a store, removed at the end: pytest keeps folders of several runs."""
    path = tmp_path / "kv.img"
    yield path
    path.unlink(missing_ok=True)


def write_model(folder: Path, seed: int) -> Path:
    """Write a small model's folder, as the Hub has them."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    places = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        layers = range(shard, LAYERS, SHARDS)
        tensors = {f"model.layers.{layer}.weight": random.random((256, 256), np.float32) for layer in layers}
        save_file(tensors, folder / name)
        places |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": LAYERS}))
    return folder


def found(name: str, image: Path, model: Path, **changes: Any) -> list[int]:
    """Start an engine with a model, and return the blocks that it loads."""
    engine = start(name, image, model=str(model), **changes)
    loaded = list(engine.load(NUMBERS))
    engine.close()
    return loaded


@pytest.mark.parametrize("name", sorted(BLOCK_BYTES))
def test_other_weights_at_the_same_path_find_nothing(name: str, image: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", seed=1)
    engine = start(name, image, model=str(folder))
    assert engine.store(contents(name, NUMBERS)) == list(NUMBERS)
    engine.close()
    write_model(folder, seed=2)
    assert found(name, image, folder) == []
    write_model(folder, seed=1)
    assert found(name, image, folder) == list(NUMBERS)
    copy = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(folder, copy)
    # LMCache has the path in its own keys.
    is_free = name in ("vllm", "sglang")
    assert found(name, image, copy) == (list(NUMBERS) if is_free else [])


def test_sglangs_settings_tell_the_model_that_it_serves_by_another_name(
    image: Path, tmp_path: Path
) -> None:
    from sglang.srt.runtime_context import get_context

    folder = write_model(tmp_path / "tiny", seed=1)
    with get_context().override_server_args(model_path=str(folder)):
        engine = start("sglang", image, model="chat")
        engine.store(contents("sglang", NUMBERS))
        engine.close()
        assert found("sglang", image, Path("chat")) == list(NUMBERS)
        write_model(folder, seed=2)
        assert found("sglang", image, Path("chat")) == []


def test_the_hubs_own_library_finds_the_same_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder, commits = tmp_path / "models--meta--llama", ["a" * 40, "b" * 40]
    for revision, commit in zip(("main", "refs/pr/1"), commits):
        snapshot = write_model(folder / "snapshots" / commit, seed=ord(commit[0]))
        ref = folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)
        theirs = try_to_load_from_cache("meta/llama", "config.json", cache_dir=tmp_path, revision=revision)
        assert isinstance(theirs, str) and Path(theirs).parent == snapshot
        ours = _weights.of_engine("test", "meta/llama", None, revision)
        assert ours == ("meta/llama", commit) == _weights.of_engine("test", str(snapshot), None)


def test_the_hubs_cache_is_where_its_own_library_has_it() -> None:
    assert _weights._cache() == constants.HF_HUB_CACHE
