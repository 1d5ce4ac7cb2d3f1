"""What the adapters have in common: how they open stores, and what they say when that fails."""

from __future__ import annotations

import errno
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import engines
import pytest
from conftest import until

import adit
from adit import _engine


@pytest.mark.parametrize("path", ["uring", "psync"])
def test_a_new_file_is_formatted_and_an_old_one_opened(tmp_path: Path, path: str) -> None:
    target = f"{path}:{tmp_path}/kv-{{rank}}.img"
    with _engine.open_store(target, 0.0625, rank=3) as store:
        store.put("key", b"value")
    assert [each.name for each in tmp_path.iterdir()] == ["kv-3.img"]
    with _engine.open_store(target, 0.0625, rank=3) as store:
        assert store.get("key") == b"value"


def test_a_path_is_a_target(tmp_path: Path) -> None:
    path = tmp_path / "kv-{rank}.img"
    with _engine.open_store(path, 0.0625, rank=3) as store:
        store.put("key", b"value")
    with _engine.open_store([f"uring:{path}"], rank=3) as store:
        assert store.get("key") == b"value"
    for wrong in (Path("serve:a.sock"), Path("uring:a.img"), tmp_path / "a,b.img"):
        with pytest.raises(adit.InvalidError, match="give that as a str|give one without"):
            _engine.open_store(wrong, 0.0625)
    assert [each.name for each in tmp_path.iterdir()] == ["kv-3.img"]


def test_a_store_of_small_blocks_keeps_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    keys, block = [f"key {number}" for number in range(12_000)], bytes(4096)
    with _engine.open_store(f"uring:{tmp_path / 'kv.img'}", 0.0625, block_nbytes=4000) as store:
        for start in range(0, len(keys), 1000):
            some = keys[start : start + 1000]
            store.put_many(some, [block] * len(some))
        assert sum(store.exists(key) for key in keys) == len(keys)


def test_an_eviction_for_want_of_records_is_logged_once_with_its_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _engine.open_store(f"uring:{tmp_path / 'kv.img'}", 0.0625, objects_max=100) as store:
        for number in range(150):
            store.put(f"key {number}", b"value")
        until(lambda: "objects_max" in caplog.text)
        assert store.stats()["evictions_records"] == 50
    (told,) = (each for each in caplog.records if "evicted" in each.message)
    assert (told.name, told.levelname) == ("adit", "WARNING")
    assert "formatted for 100 objects" in told.message
    assert "larger objects_max (adit kv format --objects N)" in told.message


def test_what_a_store_logs_at_the_end_of_the_process_reaches_python(tmp_path: Path) -> None:
    program = """
import sys, adit
adit.Store.format(sys.argv[1], size=64 << 20, objects_max=8)
store = adit.Store(sys.argv[1])
for number in range(16):
    store.put(str(number), b"value")
"""
    words = [sys.executable, "-c", program, f"uring:{tmp_path / 'kv.img'}"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "larger objects_max" in ended.stderr


def test_what_damage_to_a_journal_cost_is_logged_and_an_older_version_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, key, others = tmp_path / "kv.img", b"key-of-two-versions", 900
    with _engine.open_store(f"uring:{path}", 0.0625) as store:
        for number in range(others):
            store.put(f"other-{number}", b"value")
        store.put(key, b"old")
    # One put is too little for a checkpoint at the end, so only the journal has it.
    with _engine.open_store(f"uring:{path}") as store:
        store.put(key, b"new")
    journal = path.read_bytes()[4096 : 1 << 20]
    with path.open("r+b") as file:
        file.seek(4096 + journal.rindex(key))
        file.write(b"K")
    assert "could not be read" not in caplog.text
    with _engine.open_store(f"uring:{path}") as store:
        assert store.get(key) is None
        stats = store.stats()
        assert (stats["journal_lost_blocks"], stats["journal_outdated_objects"]) == (1, others + 1)
    told = f"1 flushed blocks of the journal cannot be read: {others + 1} objects"
    until(lambda: told in caplog.text)


def test_a_size_that_is_none_is_refused_before_a_file_is_made(tmp_path: Path) -> None:
    for size in ("10", -1, float("nan"), float("inf"), True, [1]):
        with pytest.raises(adit.InvalidError, match="size_gb .*: give GiB as a number above 0"):
            _engine.open_store(f"uring:{tmp_path / 'kv.img'}", size)  # type: ignore[arg-type]
    with pytest.raises(adit.InvalidError, match="needs 2379776 bytes or more"):
        _engine.open_store(f"uring:{tmp_path / 'kv.img'}", 0.0001)
    with pytest.raises(adit.RefusedError, match="or the size of a new one"):
        _engine.open_store(f"uring:{tmp_path / 'kv.img'}")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_format_leaves_files_that_were_there(tmp_path: Path) -> None:
    there, new = tmp_path / "there.img", tmp_path / "new.img"
    there.write_bytes(b"")
    with pytest.raises(adit.Error):
        _engine.open_store([f"uring:{new}", f"uring:{there}"], 0.0625)
    assert there.exists() and not new.exists()


WITHOUT_IO_URING = """
import ctypes, struct, sys
import adit
from adit import _engine

IO_URING, ALLOW, FAIL = (425, 426, 427), 0x7FFF0000, 0x00050000 | int(sys.argv[1])
rules = [(0x20, 0, 0, 0)]
for number in IO_URING:
    rules += [(0x15, 0, 1, number), (0x06, 0, 0, FAIL)]
rules.append((0x06, 0, 0, ALLOW))
packed = b"".join(struct.pack("<HBBI", *rule) for rule in rules)
program = ctypes.create_string_buffer(packed, len(packed))
head = struct.pack("<H6xQ", len(rules), ctypes.addressof(program))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, head) == 0
try:
    _engine.open_store("uring:" + sys.argv[2], 0.0625)
except adit.RefusedError as why:
    print(why)
_engine.open_store("psync:" + sys.argv[2], 0.0625).close()
print("opened")
"""


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSYS, "a kernel with io_uring"), (errno.EPERM, "sysctl kernel.io_uring_disabled=0")],
)
def test_without_io_uring_the_error_names_a_target_that_works(
    tmp_path: Path, number: int, advice: str
) -> None:
    command = [sys.executable, "-c", WITHOUT_IO_URING, str(number), str(tmp_path / "kv.img")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    why, last = done.stdout.splitlines()
    assert advice in why and "use 'psync:'" in why and last == "opened"


ENGINES = {
    "vllm": ("vLLM", "0.33.0", "vllm.v1.kv_offload.base"),
    "sglang": ("SGLang", "0.5.23", "sglang.srt.mem_cache.hicache_storage"),
    "lmcache_plugin": ("LMCache", "0.5.6, 0.5.7rc2", "lmcache.v1.storage_backend.abstract_backend"),
    "lmcache_l2": ("LMCache", "0.5.6, 0.5.7rc2", "lmcache.lmcache_native"),
}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_whose_modules_have_moved_is_named_with_its_version(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, tried, module = ENGINES[name]
    engines.module(monkeypatch, module)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "99.0")
    for forgotten in ("adit.lmcache", f"adit.{name}"):
        monkeypatch.delitem(sys.modules, forgotten, raising=False)
    with pytest.raises(ImportError):
        importlib.import_module(f"adit.{name}")
    assert f"{engine} is version 99.0; its adapter was tried with {tried}" in caplog.text


def test_a_prompt_cache_without_a_model_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines.llama_cpp(monkeypatch)
    module: ModuleType = importlib.import_module("adit.llama_cpp")
    for none in (None, 5, object()):
        with pytest.raises(TypeError, match="a Llama, or a text"):
            module.PromptCache(f"uring:{tmp_path / 'kv.img'}", none, size_gb=0.0625)
    assert list(tmp_path.iterdir()) == []
