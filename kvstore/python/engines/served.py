"""A store that `adit kv serve` serves, to be killed and started again; and the time that it takes to come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import adit

STORE_BYTES = 192 << 20
# Longer than a restart takes on a busy machine.
PATIENCE = 60.0


class Server:
    """A server at one socket, over a store in a file."""

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("ADIT")
        if program is None:
            pytest.skip("set ADIT to the program, as cargo xtask engines --python does")
        self._image, self._socket = folder / "served.img", folder / "kv.sock"
        store = f"uring:{self._image}"
        self._words = [program, "kv", "serve", "--store", store, "--socket", str(self._socket), "--json"]
        adit.Store.format(store, size=STORE_BYTES)
        self.start()

    @property
    def target(self) -> str:
        """The target for adapters."""
        return f"serve:{self._socket}"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = subprocess.Popen(self._words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["event"] == "ready"

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def commit(self) -> None:
        """Have what is stored survive."""
        with adit.connect(self._socket) as client:
            client.commit()

    def close(self) -> None:
        """Kill it unless it has ended, and remove its store: pytest keeps folders of several runs."""
        if self._process.poll() is None:
            self.kill()
        self._image.unlink(missing_ok=True)


def wait(is_so: Callable[[], bool]) -> float:
    """Ask until something is so, and return the seconds that it took."""
    begin = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin < PATIENCE, "it comes back"
        time.sleep(0.01)
    return time.monotonic() - begin
