"""Measure what a call costs the thread that makes it, beside the same calls from Rust.

``python caller.py FILE KV_CALLER``: a file for the store, which must not exist, and the program that measures Rust
(``cargo build --release -p adit-benches --bin kv_caller``). Build the wheel with ``maturin build --release``. Both run
in turns; the table has the medians, in microseconds of the calling thread's CPU time for each object of a batch of 64.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import adit

BATCH = 64
OBJECT_BYTES = 4096
BATCHES = 1000
ROUNDS = 5


def python(file: str) -> dict[str, float]:
    """Return the figures of one round from Python."""
    adit.Store.format(f"uring:{file}", size=256 << 20)
    with adit.Store(f"uring:{file}") as store:
        memory = mmap.mmap(-1, BATCH * OBJECT_BYTES)
        keys = [number.to_bytes(8, "big") + bytes(7) + b"\x07" for number in range(BATCH)]
        whole = memoryview(memory)
        starts = range(0, len(whole), OBJECT_BYTES)
        rows = [whole[start : start + OBJECT_BYTES] for start in starts]
        with store.register(memory):
            calls: dict[str, Callable[[], object]] = {
                "put_many": lambda: store.put_many(keys, rows),
                "get_many_into": lambda: store.get_many_into(keys, rows),
                "exists_many": lambda: store.exists_many(keys),
                "lookup_prefix": lambda: store.lookup_prefix(keys),
            }
            figures = {name: cost(call) for name, call in calls.items()}
            copied = store.stats()["copied_bytes"]
            assert copied == 0, f"{copied} bytes were copied"
    os.unlink(file)
    return figures


def cost(call: Callable[[], object]) -> float:
    begun = time.thread_time_ns()
    for _ in range(BATCHES):
        call()
    return (time.thread_time_ns() - begun) / 1000 / BATCHES / BATCH


def rust(file: str, program: str) -> dict[str, float]:
    """Return the figures of one round from Rust."""
    command = [program, file, "--json", "--batches", str(BATCHES // 5)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    return {line["call"]: line["us"] for line in lines}


def main() -> None:
    file, program = sys.argv[1:]
    measured: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for language, figures in (("Python", python(file)), ("Rust", rust(file, program))):
            for call, figure in figures.items():
                measured[language, call].append(figure)
    print(f"{'call':<14} {'Python':>8} {'Rust':>8} {'difference':>11}   us of CPU for each object")
    for call in dict.fromkeys(call for _, call in measured):
        mine, other = (statistics.median(measured[who, call]) for who in ("Python", "Rust"))
        print(f"{call:<14} {mine:>8.2f} {other:>8.2f} {mine - other:>11.2f}")


if __name__ == "__main__":
    main()
