"""The adapters in real engines: each made by the engine's own factory, and driven by the engine's own calls."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import BLOCK_BYTES, Engine, content, contents, forget, start
from lmcache_plugin_engine import LMCachePlugin

HERE = Path(__file__).parent
Start = Callable[..., Engine]


@pytest.fixture(params=sorted(BLOCK_BYTES))
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of an engine."""
    return str(request.param)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """Return the file of a store, removed at the end: pytest keeps folders of several runs."""
    path = tmp_path / "kv.img"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End what a failed test leaves running."""
    yield
    for engine in list(LMCachePlugin.running):
        engine.close()


def same(loaded: dict[int, torch.Tensor], name: str) -> list[int]:
    """Check that blocks are what was stored, and return their numbers."""
    for number, block in loaded.items():
        assert torch.equal(block, content(name, number)), f"block {number} has other bytes"
    return list(loaded)


def test_blocks_come_back_and_others_are_misses(name: str, image: Path) -> None:
    engine = start(name, image)
    assert same(engine.load(range(4)), name) == []
    assert engine.store(contents(name, range(8))) == list(range(8))
    assert same(engine.load(range(6, 12)), name) == [6, 7]
    assert same(engine.load(range(8)), name) == list(range(8))
    engine.close()
    engine = start(name, image)
    assert same(engine.load(range(10)), name) == list(range(8)), "after a restart"
    engine.close()


def test_a_block_that_is_stored_again_stays(name: str, image: Path) -> None:
    engine = start(name, image)
    engine.store(contents(name, range(4)))
    # Has vLLM forget its primary tier.
    engine.load([])
    assert engine.store(contents(name, range(2, 6))) == list(range(2, 6))
    assert same(engine.load(range(8)), name) == list(range(6))
    engine.close()


CHANGES = [{"model": "another"}, {"dtype": "float16"}, {"rank": 1, "world": 2}, {"world": 2}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_another_configuration_finds_nothing(
    name: str, image: Path, change: dict[str, Any]
) -> None:
    engine = start(name, image)
    engine.store(contents(name, range(4)))
    engine.close()
    engine = start(name, image, **change)
    assert same(engine.load(range(4)), name) == []
    engine.close()
    engine = start(name, image)
    assert same(engine.load(range(4)), name) == list(range(4))
    engine.close()


def test_a_corrupt_block_is_a_miss(name: str, image: Path) -> None:
    engine = start(name, image)
    engine.store(contents(name, range(8)))
    engine.close()
    damage(image, content(name, 3).numpy().tobytes())
    engine = start(name, image)
    assert same(engine.load(range(8)), name) == [0, 1, 2, 4, 5, 6, 7]
    assert engine.store(contents(name, [3])) == [3]
    assert same(engine.load(range(8)), name) == list(range(8)), "computed anew, it is stored anew"
    engine.close()


def damage(image: Path, block: bytes) -> None:
    """Flip a bit of a block on the drive."""
    whole = image.read_bytes()
    # Engines may lay a block out in parts: its first bytes are in one run.
    at = whole.find(block[:256])
    assert at > 0 and whole.find(block[:256], at + 1) < 0
    with image.open("r+b") as file:
        file.seek(at + 100)
        file.write(bytes([whole[at + 100] ^ 4]))


@pytest.mark.parametrize("durability", ["durable", "restart"])
@pytest.mark.parametrize("batches", [3, 11, 29])
def test_a_killed_engine_finds_its_blocks(
    name: str, image: Path, durability: str, batches: int
) -> None:
    begun, stored = store_until_killed(name, image, durability, batches)
    engine = start(name, image)
    hits = [number for at in begun[::4] for number in same(engine.load(range(at, at + 4)), name)]
    print(f"{name}, {durability}: {len(begun)} begun, {len(stored)} stored, {len(hits)} hits")
    if durability == "durable":
        assert set(stored) <= set(hits)
    fresh = range(10_000, 10_004)
    assert engine.store(contents(name, fresh)) == list(fresh)
    assert same(engine.load(fresh), name) == list(fresh)
    engine.close()


def store_until_killed(
    name: str, image: Path, durability: str, batches: int
) -> tuple[list[int], list[int]]:
    """Kill an engine while it stores; return the blocks that it began to store, and those that it held stored."""
    command = [sys.executable, "engines.py", name, str(image), durability]
    child = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
    told: dict[str, list[int]] = {"begun": [], "stored": []}
    assert child.stdout is not None
    with child, child.stdout:
        seen = 0
        for line in child.stdout:
            what, *numbers = line.split()
            # Engines log to the same stream.
            if what not in told or not line.endswith("\n"):
                continue
            told[what] += map(int, numbers)
            if what == "begun" and (seen := seen + 1) == batches:
                child.send_signal(signal.SIGKILL)
    forget(name, child.pid)
    assert child.returncode == -signal.SIGKILL, "the engine ended before it was killed"
    assert seen >= batches and len(told["stored"]) >= 4 * (batches - 1)
    return told["begun"], told["stored"]
