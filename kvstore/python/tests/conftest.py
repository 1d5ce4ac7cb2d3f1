"""A store on a file of its own for each test, which the test opens or another process serves."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import adit

Rows = npt.NDArray[np.uint8]


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Return the target of a formatted store."""
    target = f"uring:{tmp_path / 'kv.img'}"
    adit.Store.format(target, size=128 << 20, shards=2)
    return target


@pytest.fixture
def store(target: str) -> Iterator[adit.Store]:
    """Return an open store."""
    with adit.Store(target) as store:
        yield store


class Served:
    """A server with its store."""

    def __init__(self, target: str, socket: Path, *options: str) -> None:
        program = os.environ.get("ADIT")
        if program is None:
            pytest.skip("set ADIT to the program, as cargo xtask python does")
        self.target, self.socket = target, socket
        words = [program, "kv", "serve", "--store", target, "--socket", str(socket), "--json"]
        self._process = subprocess.Popen([*words, *options], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["event"] == "ready"

    def send(self, what: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(what)

    def pause(self) -> None:
        """Stop it, and wait until none of its threads runs."""
        self.send(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")

        def state(task: Path) -> str:
            return (task / "stat").read_text().rpartition(")")[2].split()[0]

        until(lambda: {state(task) for task in tasks.iterdir()} == {"T"})

    def end(self, how: signal.Signals) -> int:
        """End it; return its exit code."""
        self.send(how)
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def stop(self) -> None:
        """Kill it, unless it has ended."""
        if self._process.poll() is None:
            self.end(signal.SIGKILL)


@pytest.fixture
def served(target: str, tmp_path: Path) -> Iterator[Served]:
    """Return a server."""
    served = Served(target, tmp_path / "kv.sock")
    yield served
    served.stop()


@pytest.fixture
def client(served: Served) -> Iterator[adit.Client]:
    """Return a connection to it."""
    with adit.connect(served.socket) as client:
        yield client


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return a target for adapters: a new file or, with ``anywhere`` in a second test, a server's socket."""
    if getattr(request, "param", "own") == "own":
        yield f"uring:{tmp_path / 'kv.img'}"
        return
    server = Served(request.getfixturevalue("target"), tmp_path / "kv.sock")
    yield f"serve:{server.socket}"
    server.stop()


anywhere = pytest.mark.parametrize("place", ["own", "served"], indirect=True)


@pytest.fixture(params=["own", "served"])
def either(request: pytest.FixtureRequest) -> adit.Store | adit.Client:
    """Return an open store, or a connection to one."""
    name = "store" if request.param == "own" else "client"
    either: adit.Store | adit.Client = request.getfixturevalue(name)
    return either


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pool(rows: int, row_bytes: int) -> Rows:
    """Return an engine's pool: whole pages of memory, as rows."""
    memory = mmap.mmap(-1, rows * row_bytes)
    return np.frombuffer(memory, dtype=np.uint8).reshape(rows, row_bytes)


def noise(rows: int, row_bytes: int, seed: int = 1) -> Rows:
    """Return rows of random bytes."""
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), dtype=np.uint8)
