"""A served store that is killed and restarted under each engine: misses meanwhile, then hits, and never other bytes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import BLOCK_BYTES, contents, start
from lmcache_plugin_engine import LMCachePlugin
from served import Server, wait
from test_engines import same

import adit

LIVES = 10


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Return a server, which goes with the test."""
    server = Server(tmp_path)
    yield server
    # Its thread would keep the interpreter from its end, after a test that failed too.
    for engine in list(LMCachePlugin.running):
        engine.close()
    server.close()


@pytest.mark.parametrize("name", sorted(BLOCK_BYTES))
def test_hits_come_back_after_each_of_ten_kills(name: str, server: Server) -> None:
    engine, first = start(name, server.target), list(range(8))
    assert engine.store(contents(name, first)) == first
    server.commit()
    seconds, partial = [], 0
    for life in range(LIVES):
        if life % 2:
            # It is lost in the middle of loads.
            killer = threading.Timer(0.01 * life, server.kill)
            killer.start()
            loaded = first
            while loaded == first:
                loaded = same(engine.load(first), name)
            partial += loaded != []
            killer.join()
        else:
            server.kill()
        new = [100 + life]
        for _ in range(3):
            assert same(engine.load(first), name) == []
            assert engine.store(contents(name, new)) == []
        server.start()
        seconds.append(wait(lambda: same(engine.load(first), name) == first))
        # What was computed meanwhile is stored from now on.
        assert engine.store(contents(name, new)) == new
        assert same(engine.load([*first, *new]), name) == [*first, *new]
        server.commit()
    kept = [*first, *itertools.chain(range(100, 100 + LIVES))]
    there = [number for at in range(0, len(kept), 6) for number in same(engine.load(kept[at : at + 6]), name)]
    assert there == kept
    late = f"back after {max(seconds):.2f} s at most"
    print(f"{name}: {LIVES} kills, {len(there)} hits, {partial} loads cut short, {late}")
    engine.close()


def test_an_engine_without_its_server_does_not_start(server: Server) -> None:
    server.kill()
    for name in sorted(set(BLOCK_BYTES) - {"lmcache-plugin"}):
        with pytest.raises(adit.RefusedError, match="adit kv serve --store TARGET --socket"):
            start(name, server.target)
    # LMCache logs why it cannot make a plug-in, and goes on without.
    without = start("lmcache-plugin", server.target)
    assert isinstance(without, LMCachePlugin) and without.backend is None
    without.close()
