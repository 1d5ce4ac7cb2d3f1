"""The contract of SGLang's storage backends."""

from __future__ import annotations

import importlib
import logging
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from conftest import anywhere, noise, pool
from engines import HiCacheStorageConfig, HostPool, PoolHitPolicy, PoolName, PoolTransfer, Tensor
from test_lmcache import damage
from test_weights import COMMITS, hub, model

import adit

PAGES, HALF = 8, 16 << 10
KEYS = [f"{number:064x}" for number in range(PAGES)]

Make = Callable[..., Any]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, place: str) -> Make:
    """Return what makes backends on one drive."""
    engines.sglang(monkeypatch)
    storage = importlib.import_module("adit.sglang").AditStorage

    def make(host: HostPool | None = None, **config: Any) -> Any:
        extra = {"target": place, "size_gb": 0.125, "interface_v1": 1}
        extra |= config.pop("extra", {})
        made = storage(HiCacheStorageConfig(extra, **config), {})
        made.register_mem_pool_host(host or host_pool())
        return made

    return make


def host_pool(layout: str = "page_first", dtype: str = "float16", half: int = HALF) -> HostPool:
    return HostPool(pool(2 * PAGES, half).reshape(2, PAGES, half), layout, dtype)


def tokens(*pages: int) -> Any:
    """Return the indices of pages' tokens."""
    return np.concatenate([np.arange(page * 4, page * 4 + 4) for page in pages])


def test_a_new_store_has_room_for_as_many_pages_as_fit(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        make().close()
    assert "for 8192 objects" in caplog.text, "an object is half a page, of 16 KiB"


@anywhere
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_are_stored_found_and_read(make: Make, layout: str) -> None:
    host = host_pool(layout)
    there = noise(2 * PAGES, HALF).reshape(2, PAGES, HALF)
    host.array[:] = there
    storage = make(host)
    assert storage.batch_exists(KEYS) == 0 and not storage.exists(KEYS[0])
    assert storage.batch_set_v1(KEYS[:6], tokens(0, 1, 2, 3, 4, 5)) == [True] * 6
    assert storage.batch_exists(KEYS) == 6 and storage.batch_exists(KEYS[6:]) == 0
    host.array[:] = 0
    good = storage.batch_get_v1([*KEYS[:5], KEYS[7]], tokens(7, 6, 5, 4, 3, 2))
    assert good == [True] * 5 + [False]
    assert np.array_equal(host.array[:, 3:][:, ::-1], there[:, :5])
    assert not host.array[:, :2].any()
    copied = storage.store.stats()["copied_bytes"]
    is_own = isinstance(storage.store, adit.Store)
    assert (copied == 0) == (is_own and layout == "page_first")
    storage.close()


def test_pools_that_share_memory_register_it_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_pool()
    storage = make(host)
    storage.register_mem_host_pool_v2(host, PoolName.SWA)
    assert storage.batch_set_v1(KEYS[:2], tokens(0, 1)) == [True, True]
    assert storage.store.stats()["copied_bytes"] == 0 and "registered" not in caplog.text
    storage.close()


@anywhere
def test_pages_that_are_there_are_not_written_again(make: Make) -> None:
    storage = make()
    assert storage.batch_set_v1(KEYS[:4], tokens(0, 1, 2, 3)) == [True] * 4
    puts = storage.store.stats()["puts"]
    assert storage.batch_set_v1(KEYS[:4], tokens(0, 1, 2, 3)) == [True] * 4
    assert storage.store.stats()["puts"] == puts
    assert storage.batch_set_v1([], tokens(0)[:0]) == []
    storage.close()


def test_a_page_without_one_of_its_halves_is_a_miss(make: Make) -> None:
    host = host_pool()
    storage = make(host)
    storage.batch_set_v1(KEYS[:3], tokens(0, 1, 2))
    kv = storage._pools["kv"]
    assert storage.store.delete(kv.space + f"{KEYS[1]}.1".encode())
    assert storage.batch_exists(KEYS[:3]) == 1
    assert storage.batch_get_v1(KEYS[:3], tokens(0, 1, 2)) == [True, False, True]
    storage.close()


@anywhere
def test_pages_as_tensors(make: Make) -> None:
    storage = make(host_pool("layer_first"))
    there = noise(3, 2 * HALF)
    assert storage.batch_set(KEYS[:2], [Tensor(row) for row in there[:2]]) is True
    assert storage.set(KEYS[2], Tensor(there[2].reshape(2, -1).T.copy().T)) is True
    targets = [Tensor(np.zeros(2 * HALF, dtype=np.uint8)) for _ in range(4)]
    got = storage.batch_get(KEYS[:4], targets)
    assert got[3] is None and got[:2] == targets[:2]
    assert np.array_equal(targets[0].array, there[0])
    assert storage.get(KEYS[0], targets[3]) is targets[3]
    assert storage.get(KEYS[0], Tensor(np.zeros(HALF, dtype=np.uint8))) is None, "another length"
    with pytest.raises(ValueError, match="one for each key"):
        storage.batch_get(KEYS[:2], targets[:1])
    with pytest.raises(ValueError, match="contiguous"):
        storage.get(KEYS[0], Tensor(np.zeros((HALF, 4), dtype=np.uint8)[:, ::2]))
    storage.close()


@anywhere
def test_pools_beside_the_keys_and_values(make: Make) -> None:
    storage = make()
    swa, mamba = host_pool(), host_pool("layer_first", half=4096)
    storage.register_mem_host_pool_v2(swa, PoolName.SWA)
    storage.register_mem_host_pool_v2(mamba, PoolName.MAMBA)
    swa.array[:] = noise(2 * PAGES, HALF, 7).reshape(2, PAGES, HALF)
    there = swa.array.copy()
    storage.batch_set_v1(KEYS[:6], tokens(0, 1, 2, 3, 4, 5))
    stored = storage.batch_set_v2(
        [
            PoolTransfer(PoolName.SWA, tokens(0, 1, 2), KEYS[:3]),
            PoolTransfer(PoolName.MAMBA, tokens(4, 5), [KEYS[1], KEYS[4]]),
        ]
    )
    assert stored == {"swa": [True] * 3, "mamba": [True] * 2}
    swa.array[:] = 0
    transfer = PoolTransfer(PoolName.SWA, tokens(5, 6, 7), KEYS[1:4])
    assert storage.batch_get_v2([transfer]) == {"swa": [True, True, False]}
    assert np.array_equal(swa.array[:, 5:7], there[:, 1:3])
    wrong = PoolTransfer(PoolName.SWA, tokens(5), KEYS[1:4])
    assert storage.batch_get_v2([wrong]) == {"swa": [False] * 3}
    none = storage.batch_exists_v2(KEYS)
    assert (none.kv_hit_pages, none.restorable_prefix_pages) == (6, [1, 2, 3, 4, 5, 6])
    every = storage.batch_exists_v2(KEYS, [PoolTransfer(PoolName.SWA)])
    assert (every.kv_hit_pages, every.extra_pool_hit_pages) == (3, {"kv": 6, "swa": 3})
    trailing = PoolTransfer(PoolName.MAMBA, hit_policy=PoolHitPolicy.TRAILING_PAGES)
    last = storage.batch_exists_v2(KEYS, [trailing])
    assert (last.kv_hit_pages, last.restorable_prefix_pages) == (5, [2, 5])
    both = storage.batch_exists_v2(KEYS, [trailing, PoolTransfer(PoolName.SWA)])
    assert both.restorable_prefix_pages == [2]
    groups = PoolTransfer(PoolName.SWA, None, KEYS[:5], PoolHitPolicy.BLOCK_GROUPS, 2, 1)
    grouped = storage.batch_exists_v2(KEYS, [groups])
    assert (grouped.kv_hit_pages, grouped.extra_pool_hit_pages["swa"]) == (6, 6)
    storage.close()


@anywhere
@pytest.mark.parametrize(
    "other",
    [
        {"model_name": "other"},
        {"tp_rank": 1, "tp_size": 2},
        {"pp_rank": 1, "pp_size": 2},
        {"extra": {"namespace": "other"}},
        {"host": host_pool(dtype="bfloat16")},
        {"host": host_pool("layer_first")},
        {"host": host_pool(half=HALF // 2)},
    ],
)
def test_other_configurations_have_other_keys(make: Make, other: dict[str, Any]) -> None:
    storage = make()
    storage.batch_set_v1(KEYS[:2], tokens(0, 1))
    storage.close()
    storage = make(**other)
    assert storage.batch_exists(KEYS[:2]) == 0
    storage.batch_set_v1(KEYS[:1], tokens(0))
    storage.clear()
    assert storage.batch_exists(KEYS[:1]) == 0
    storage.close()
    storage = make()
    assert storage.batch_exists(KEYS[:2]) == 2, "clearing leaves other configurations alone"
    storage.close()


@pytest.mark.parametrize("served", [None, "chat"])
def test_other_weights_at_the_same_path_find_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: str | None
) -> None:
    folder, copy = model(tmp_path / "tiny"), tmp_path / "elsewhere" / "tiny"
    shutil.copytree(folder, copy)

    def start(path: Path, revision: str | None = None, **extra: object) -> Any:
        # SGLang serves a model by its path, or by another name, which tells nothing of its weights.
        settings = types.SimpleNamespace(model_path=str(path), revision=revision)
        engines.sglang(monkeypatch, settings)
        module = importlib.import_module("adit.sglang")
        extra |= {"target": f"uring:{tmp_path / 'kv.img'}", "size_gb": 0.125}
        storage = module.AditStorage(HiCacheStorageConfig(extra, model_name=served or str(path)))
        storage.register_mem_pool_host(host_pool())
        return storage

    storage = start(folder)
    storage.batch_set_v1(KEYS[:2], tokens(0, 1))
    storage.close()
    shutil.rmtree(folder)
    model(folder, seed=7)
    for path, extra, count in ((folder, {}, 0), (copy, {}, 2), (copy, {"weights": str(folder)}, 0)):
        storage = start(path, **extra)
        assert storage.batch_exists(KEYS[:2]) == count, (path, extra)
        storage.close()


def test_a_revision_in_sglangs_settings_is_another_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub(monkeypatch, tmp_path, "meta/llama", main=COMMITS[0], v1=COMMITS[1])
    spaces = []
    for revision in (None, "v1", COMMITS[1]):
        engines.sglang(monkeypatch, types.SimpleNamespace(model_path="meta/llama", revision=revision))
        module = importlib.import_module("adit.sglang")
        spaces.append(module._space(HiCacheStorageConfig({}, model_name="meta/llama"), {}))
    assert [space["weights"] for space in spaces] == [COMMITS[0], COMMITS[1], COMMITS[1]]
    assert {space["model"] for space in spaces} == {"meta/llama"}


@anywhere
def test_ranks_of_mla_share_their_pages(make: Make) -> None:
    storage = make(is_mla_model=True, tp_rank=0, tp_size=2)
    storage.batch_set_v1(KEYS[:2], tokens(0, 1))
    storage.close()
    storage = make(is_mla_model=True, tp_rank=1, tp_size=2)
    assert storage.batch_exists(KEYS[:2]) == 2
    storage.close()


def test_each_rank_may_have_a_drive_of_its_own(make: Make, tmp_path: Path) -> None:
    target = {"target": f"uring:{tmp_path}/kv-{{rank}}.img"}
    ranks = [make(tp_rank=rank, tp_size=2, pp_size=2, pp_rank=1, extra=target) for rank in (0, 1)]
    assert {path.name for path in tmp_path.iterdir()} == {"kv-1.img", "kv-3.img"}
    for storage in ranks:
        storage.close()


def test_a_corrupt_page_is_a_miss(make: Make, tmp_path: Path) -> None:
    host = host_pool()
    host.array[:] = noise(2 * PAGES, HALF).reshape(2, PAGES, HALF)
    storage = make(host)
    storage.batch_set_v1(KEYS[:3], tokens(0, 1, 2))
    storage.close()
    damage({"target": f"uring:{tmp_path / 'kv.img'}"}, host.array[1, 1].tobytes())
    storage = make(host_pool())
    assert storage.batch_get_v1(KEYS[:3], tokens(0, 1, 2)) == [True, False, True]
    storage.close()


def test_a_lost_drive_is_a_miss_and_is_logged(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    storage = make()
    storage.batch_set_v1(KEYS[:2], tokens(0, 1))
    storage.store.close()
    assert storage.batch_exists(KEYS[:2]) == 0
    assert storage.batch_get_v1(KEYS[:2], tokens(0, 1)) == [False, False]
    assert storage.batch_set_v1(KEYS[:2], tokens(0, 1)) == [False, False]
    assert caplog.text.count("the store is closed") == 1, "not for each request"


def test_the_store_is_closed_while_a_request_uses_the_pool(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_pool()
    storage = make(host)
    queue = storage.store.queue()
    # The memory comes back with the answers, which are not taken.
    queue.submit_put([f"{number}" for number in range(PAGES)], host.array[0])
    storage.close()
    assert "giving back the engine's memory failed" in caplog.text
    with pytest.raises(adit.ClosedError):
        storage.store.exists("none")


def test_a_backend_without_a_target_is_refused(make: Make) -> None:
    from adit.sglang import AditStorage

    with pytest.raises(ValueError, match="target"):
        AditStorage(HiCacheStorageConfig({}))
