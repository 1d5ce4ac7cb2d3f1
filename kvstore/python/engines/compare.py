"""Measures the store against the engines' own storage, through the engines' own calls.

Each contestant's files lie on the same file system. Rounds are interleaved, and the order turns from round to round; the
first round is not counted. Contestants that write through the page cache are charged for what they leave in it: the time
of a store ends when its bytes have left the page cache (``sync_file_range``, which costs the others nothing), and pages
are dropped before a load.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import KINDS, huge

GIB = 1 << 30
# Threads of the raw read: enough to keep a drive busy with blocks of these sizes.
RAW_THREADS = 8
# Flags of sync_file_range: begin to write; and wait for that and for what was being written.
WRITE, WAIT = 2, 7
libc = ctypes.CDLL(None, use_errno=True)
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class Contestant:
    """A storage backend of an engine: stores and loads numbered blocks in batches."""

    def __init__(self, folder: Path, block_bytes: int, batch: int) -> None:
        self.folder, self.block_bytes, self.batch = folder, block_bytes, batch
        folder.mkdir(parents=True, exist_ok=True)

    def store(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def load(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def check(self, numbers: Sequence[int]) -> None:
        """Check that the last load brought these blocks."""
        raise NotImplementedError

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove blocks, so that a round does not find more of the drive filled than the one before."""
        for path in self.files():
            path.unlink()

    def close(self) -> None:
        raise NotImplementedError

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


class LMCacheContestant(Contestant):
    def __init__(
        self,
        folder: Path,
        block_bytes: int,
        batch: int,
        config: dict[str, Any],
        keeps: bool,
        pages: str,
    ) -> None:
        from lmcache_engine import LMCache

        super().__init__(folder, block_bytes, batch)
        # Room for the batch; the content of a block is that of its place in the batch.
        self._keeps = keeps
        self.engine = LMCache(config, block_bytes, batch, pages=pages)
        self.objects = self.engine.objects(batch)
        _fill([held.tensor.view(torch.uint8).numpy() for held in self.objects])

    def store(self, numbers: Sequence[int]) -> None:
        assert self.engine.store_objects(numbers, self.objects)

    def load(self, numbers: Sequence[int]) -> None:
        assert all(self.engine.load_objects(numbers, self.objects))

    def check(self, numbers: Sequence[int]) -> None:
        _verify([held.tensor.view(torch.uint8).numpy() for held in self.objects])

    def remove(self, numbers: Sequence[int]) -> None:
        if self._keeps:
            self.engine.delete(numbers)
        else:
            super().remove(numbers)

    def close(self) -> None:
        for held in self.objects:
            held.ref_count_down()
        self.engine.close()


class VllmContestant(Contestant):
    def __init__(self, folder: Path, block_bytes: int, batch: int, tier: dict[str, Any]) -> None:
        from vllm_engine import Vllm

        super().__init__(folder, block_bytes, batch)
        engine_id = f"compare-{os.getpid()}-{folder.name}"
        self.engine = Vllm(tier, block_bytes, batch, engine_id=engine_id)
        self._rows = self.engine.rows()
        _fill(list(self._rows[:batch]))

    def store(self, numbers: Sequence[int]) -> None:
        assert self.engine.transfer(numbers, range(len(numbers)), is_load=False)

    def load(self, numbers: Sequence[int]) -> None:
        assert self.engine.transfer(numbers, range(len(numbers)), is_load=True)

    def check(self, numbers: Sequence[int]) -> None:
        _verify(list(self._rows[: self.batch]))

    def remove(self, numbers: Sequence[int]) -> None:
        store = getattr(self.engine.tier, "store", None)
        if store is None:
            super().remove(numbers)
        else:
            store.delete_where(prefix=b"")

    def close(self) -> None:
        del self._rows
        self.engine.close()


class SglangContestant(Contestant):
    def __init__(
        self, folder: Path, block_bytes: int, batch: int, backend: str, extra: dict[str, Any]
    ) -> None:
        from sglang_engine import Sglang

        super().__init__(folder, block_bytes, batch)
        self.engine = Sglang(backend, extra, block_bytes, batch)
        self._halves = self.engine.pool.kv_buffer.view(torch.uint8).reshape(2, batch, -1).numpy()
        _fill(list(self._halves.reshape(2 * batch, -1)))

    def store(self, numbers: Sequence[int]) -> None:
        assert self.engine.set_pages(numbers)

    def load(self, numbers: Sequence[int]) -> None:
        assert self.engine.get_pages(numbers) == len(numbers)

    def check(self, numbers: Sequence[int]) -> None:
        _verify(list(self._halves.reshape(2 * self.batch, -1)))

    def remove(self, numbers: Sequence[int]) -> None:
        self.engine.backend.clear()

    def close(self) -> None:
        self.engine.close()


def _fill(blocks: list[Any]) -> None:
    for place, block in enumerate(blocks):
        block[:] = np.random.default_rng(place).integers(0, 256, block.size, dtype=np.uint8)


def _verify(blocks: list[Any]) -> None:
    """Check what a load brought, and wipe it before the next."""
    for place, block in enumerate(blocks):
        wanted = np.random.default_rng(place).integers(0, 256, block.size, dtype=np.uint8)
        assert np.array_equal(block, wanted), f"block {place} has other bytes"


class RawFile:
    """A file of the data of a round, read past the page cache: the limit of what a storage can do."""

    def __init__(self, path: Path, block_bytes: int, blocks: int) -> None:
        self._room = list(huge(RAW_THREADS * block_bytes).reshape(RAW_THREADS, block_bytes))
        _fill(self._room)
        self._block_bytes, self._blocks = block_bytes, blocks
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        os.posix_fallocate(self._file, 0, block_bytes * blocks)
        self._turn(os.pwrite)

    def read(self) -> float:
        """Return the GB/s of reading it with some threads."""
        begun = time.monotonic()
        total = self._turn(lambda file, room, at: os.preadv(file, [room], at))
        return total / 1e9 / (time.monotonic() - begun)

    def close(self) -> None:
        os.close(self._file)

    def _turn(self, act: Callable[[int, Any, int], int]) -> int:
        def run(thread: int) -> int:
            places = range(thread, self._blocks, RAW_THREADS)
            room, size = self._room[thread], self._block_bytes
            return sum(act(self._file, room, place * size) for place in places)

        with ThreadPoolExecutor(RAW_THREADS) as pool:
            total = sum(pool.map(run, range(RAW_THREADS)))
        assert total == self._block_bytes * self._blocks
        return total


def measure(contestant: Contestant, batches: list[range]) -> dict[str, float]:
    """Store and load batches; return GB/s and processor seconds per GB of both."""
    total = sum(len(batch) for batch in batches) * contestant.block_bytes / 1e9
    figures = {}
    begun, busy = time.monotonic(), time.process_time()
    for batch in batches:
        contestant.store(batch)
    told = time.monotonic()
    for flags in (WRITE, WAIT):
        for path in contestant.files():
            _with_file(path, lambda file: _write_out(file, flags))
    figures["store"] = total / (time.monotonic() - begun)
    figures["store_told"] = total / (told - begun)
    figures["store_cpu"] = (time.process_time() - busy) / total
    for path in contestant.files():
        _with_file(path, lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))
    begun, busy = time.monotonic(), time.process_time()
    for batch in batches:
        contestant.load(batch)
    figures["load"] = total / (time.monotonic() - begun)
    figures["load_cpu"] = (time.process_time() - busy) / total
    contestant.check(batches[-1])
    for batch in batches:
        contestant.remove(batch)
    return figures


def _write_out(file: int, flags: int) -> None:
    if libc.sync_file_range(file, 0, 0, flags) != 0:
        raise OSError(ctypes.get_errno(), "sync_file_range")


def _with_file(path: Path, act: Callable[[int], Any]) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        act(file)
    finally:
        os.close(file)


def rounds(
    name: str, contestants: dict[str, Contestant], raw_file: RawFile, blocks: int, count: int
) -> dict[str, Any]:
    """Measure contestants in turns; return the median of each figure."""
    taken: dict[str, list[dict[str, float]]] = {one: [] for one in contestants}
    raw = []
    for turn in range(count + 1):
        order = list(contestants)
        for one in order[turn % len(order) :] + order[: turn % len(order)]:
            contestant = contestants[one]
            first, batch = turn * blocks, contestant.batch
            batches = [range(first + at, first + at + batch) for at in range(0, blocks, batch)]
            figures = measure(contestant, batches)
            if turn:
                taken[one].append(figures)
            print(f"{name} round {turn} {one}: {_line(figures)}", flush=True)
        if turn:
            raw.append(raw_file.read())
    medians = {
        one: {what: statistics.median(each[what] for each in all_of) for what in all_of[0]}
        for one, all_of in taken.items()
    }
    return {"contestants": medians, "rounds": taken, "raw_read": raw}


def _line(figures: dict[str, float]) -> str:
    return ", ".join(f"{what} {value:.2f}" for what, value in figures.items())


def lmcache(folder: Path, total: int, pages: str) -> tuple[dict[str, Contestant], int]:
    """LMCache: chunks of 4 MiB, in batches of 16."""
    from lmcache_engine import adit

    size, batch = 4 << 20, 16
    blocks = total // size
    device = folder / "lmcache-raw" / "device.img"
    image = folder / "lmcache-adit" / "kv.img"

    def make(name: str, config: dict[str, Any], keeps: bool) -> Contestant:
        return LMCacheContestant(
            folder / f"lmcache-{name}", size, batch, config, keeps, pages
        )

    def fs(name: str, **more: Any) -> Contestant:
        config = {"type": "fs", "base_path": str(folder / f"lmcache-{name}"), **more}
        return make(name, config, keeps=False)

    found = {
        "adit": make("adit", adit(f"uring:{image}", size_gb=3 * total / GIB, register_l1=True), True),
        "fs": fs("fs"),
        "fs, O_DIRECT": fs("direct", use_odirect=True),
    }
    try:
        import lmcache_rust_raw_block_io  # noqa: F401
    except ImportError:
        print("lmcache-rust-raw-block-io is not installed: left out")
    else:
        # Made before the adapter, which wants its device to be there.
        device.parent.mkdir(parents=True)
        with device.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * total + (64 << 20))
        found["raw block, io_uring"] = _raw_block(device, size, batch, pages)
    return found, blocks


def _raw_block(device: Path, size: int, batch: int, pages: str) -> Contestant:
    config = {
        "type": "raw_block",
        "device_path": str(device),
        "slot_bytes": size + 4096,
        "meta_total_bytes": 16 << 20,
        "io_engine": "io_uring",
    }
    return LMCacheContestant(device.parent, size, batch, config, keeps=True, pages=pages)


def vllm(folder: Path, total: int, pages: str) -> tuple[dict[str, Contestant], int]:
    """vLLM: blocks of 2 MiB, in jobs of 32."""
    from vllm_engine import adit

    size, batch = 2 << 20, 32
    image = folder / "vllm-adit" / "kv.img"
    tiers = {
        "adit": adit(f"uring:{image}", size_gb=3 * total / GIB),
        "fs": {"type": "fs", "root_dir": str(folder / "vllm-fs")},
    }
    found = {
        name: VllmContestant(folder / f"vllm-{name}", size, batch, tier)
        for name, tier in tiers.items()
    }
    return found, total // size


def sglang(folder: Path, total: int, pages: str) -> tuple[dict[str, Contestant], int]:
    """SGLang: pages of 256 KiB, in batches of 128, as its controller makes them."""
    from sglang_engine import adit

    size, batch = 256 << 10, 128
    image = folder / "sglang-adit" / "kv.img"
    extra = adit(f"uring:{image}", size_gb=3 * total / GIB)
    file = {"file_storage_path": str(folder / "sglang-file")}
    found = {
        "adit": SglangContestant(folder / "sglang-adit", size, batch, "dynamic", extra),
        "file": SglangContestant(folder / "sglang-file", size, batch, "file", file),
    }
    return found, total // size


ENGINES = {"lmcache": lmcache, "vllm": vllm, "sglang": sglang}


def table(results: dict[str, Any]) -> str:
    """Return the medians as a table, and how many times another's rate adit's is: the median over rounds."""
    lines = [
        "| engine | storage | store GB/s | load GB/s | store CPU s/GB | load CPU s/GB | adit: store | adit: load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for engine, result in results.items():
        ours = result["rounds"]["adit"]
        for name, one in result["contestants"].items():
            cells = [f"{one[what]:.2f}" for what in ("store", "load", "store_cpu", "load_cpu")]
            theirs = result["rounds"][name]
            cells += [f"{_times(ours, theirs, what):.2f} x" for what in ("store", "load")]
            lines.append(f"| {engine} | {name} | {' | '.join(cells)} |")
        raw = [{"load": rate} for rate in result["raw_read"]]
        rate, times = statistics.median(result["raw_read"]), _times(ours, raw, "load")
        lines.append(f"| {engine} | raw read of a file | - | {rate:.2f} | - | - | - | {times:.2f} x |")
    return "\n".join(lines)


def _times(ours: list[dict[str, float]], theirs: list[dict[str, float]], what: str) -> float:
    return statistics.median(our[what] / their[what] for our, their in zip(ours, theirs))


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="where the files go")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--mib", type=int, default=256, help="data of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--pages", default="huge", choices=KINDS, help="of LMCache's memory")
    parser.add_argument("--only", nargs="*", help="the storages to measure beside the store, by name")
    words = parser.parse_args()
    # Threads that wait for each other are slow where cores are shared, which is not the storage's doing.
    torch.set_num_threads(1)
    results = {}
    for engine in words.engines:
        folder = words.folder / f"compare-{os.getpid()}"
        try:
            contestants, blocks = ENGINES[engine](folder, words.mib << 20, words.pages)
            for name in list(contestants):
                if words.only is not None and name not in ("adit", *words.only):
                    contestants.pop(name).close()
            raw_file = RawFile(folder / "raw.img", contestants["adit"].block_bytes, blocks)
            results[engine] = rounds(engine, contestants, raw_file, blocks, words.rounds)
            raw_file.close()
            for contestant in contestants.values():
                contestant.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(results))
    if words.json is not None:
        words.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
