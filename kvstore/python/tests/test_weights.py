"""Keys tell weights apart that have one name, and know the same weights in another place."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import noise

import adit
from adit import _weights

COMMITS = [f"{number:040x}" for number in range(4)]


def model(folder: Path, seed: int = 1, shards: int = 2, nbytes: int = 3 << 20) -> Path:
    """Make a model's folder, with what else is in one."""
    folder.mkdir(parents=True)
    for shard in range(shards):
        block = noise(1, nbytes, seed + shard)[0].tobytes()
        (folder / f"model-{shard}-of-{shards}.safetensors").write_bytes(block)
    (folder / "config.json").write_text('{"rope_theta": 10000}')
    (folder / "modeling_tiny.py").write_text("class Tiny: pass\n")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def identity(path: Path | str) -> str:
    found = _weights.of_engine("test", str(path), None)
    assert found is not None
    return found.identity


def hub(monkeypatch: pytest.MonkeyPatch, cache: Path, name: str, **refs: str) -> Path:
    """Make the cache of the Hub, with a model that has these references; return the model's folder in it."""
    for variable in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    folder = cache / ("models--" + name.replace("/", "--"))
    for ref, commit in refs.items():
        path = folder / "refs" / ref.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
        (folder / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
    return folder


def test_the_same_files_have_the_same_identity_in_another_place(tmp_path: Path) -> None:
    first = model(tmp_path / "one" / "tiny")
    second = tmp_path / "two" / "tiny"
    shutil.copytree(first, second)
    for path in second.iterdir():
        os.utime(path, (1, 1))
    assert _weights.of_engine("test", f"{first}/", None) == _weights.of_engine("test", str(second), None)
    # What engines do not load, or does not change KV.
    (second / "README.md").write_text("Other words.")
    (second / "tokenizer.json").write_text('{"other": 1}')
    (second / "pytorch_model.bin").write_bytes(b"the same weights in another form")
    (second / "original").mkdir()
    (tmp_path / "link").symlink_to(first)
    assert identity(first) == identity(second) == identity(tmp_path / "link")
    assert len(identity(first)) == 64


def flip(path: Path, place: int, nbytes: int = 1) -> None:
    """Change bytes of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        some = file.read(nbytes)
        file.seek(place)
        file.write(bytes(byte ^ 1 for byte in some))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a layer": lambda at: flip(at / "model-1-of-2.safetensors", 1 << 20, 16 << 10),
    "the first byte": lambda at: flip(at / "model-0-of-2.safetensors", 0),
    "the last byte": lambda at: flip(at / "model-1-of-2.safetensors", (3 << 20) - 1),
    "a length": lambda at: os.truncate(at / "model-1-of-2.safetensors", 2 << 20),
    "a shard": lambda at: (at / "model-1-of-2.safetensors").unlink(),
    "a name": lambda at: (at / "model-0-of-2.safetensors").rename(at / "model-2-of-2.safetensors"),
    "the configuration": lambda at: (at / "config.json").write_text('{"rope_theta": 500000}'),
    "the code": lambda at: (at / "modeling_tiny.py").write_text("class Tiny: x = 1\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_weights_at_the_same_path_have_another_identity(tmp_path: Path, change: str) -> None:
    folder = model(tmp_path / "tiny")
    before = identity(folder)
    CHANGES[change](folder)
    assert identity(folder) != before


def test_weights_of_older_forms_and_single_files_are_known(tmp_path: Path) -> None:
    folder = model(tmp_path / "tiny", shards=0)
    found = set()
    for name in ("model.gguf", "pytorch_model.bin", "model.safetensors"):
        (folder / name).write_bytes(name.encode() * 1000)
        found.add(identity(folder))
        found.add(identity(folder / name))
    assert len(found) == 6
    # A small file is read in whole.
    flip(folder / "model.gguf", 5000)
    assert identity(folder / "model.gguf") not in found


def test_a_split_file_is_all_its_parts(tmp_path: Path) -> None:
    parts = [tmp_path / f"tiny-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for number, part in enumerate(parts):
        part.write_bytes(noise(1, 8192, number)[0].tobytes())
    before = identity(parts[0])
    assert _weights.of_file(str(parts[0])) == before
    (tmp_path / "tiny-00001-of-00004.gguf").write_bytes(b"of another model")
    assert identity(parts[0]) == before
    flip(parts[2], 0)
    assert identity(parts[0]) != before


def test_the_cost_is_some_hundred_reads_however_long_the_weights_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    pread = os.pread

    def counted(file: int, nbytes: int, at: int) -> bytes:
        reads.append(nbytes)
        return pread(file, nbytes, at)

    monkeypatch.setattr(os, "pread", counted)
    for shards, nbytes in ((1, 400 << 30), (163, 4 << 30), (1000, 1 << 30)):
        folder = tmp_path / str(shards)
        folder.mkdir()
        for shard in range(shards):
            with (folder / f"model-{shard:05}.safetensors").open("wb") as file:
                file.truncate(nbytes)
        reads.clear()
        identity(folder)
        # Those at even distances, of which one may be in two files, and each file's last.
        assert 512 <= len(reads) <= 512 + 2 * shards and max(reads) == 4096


def test_every_one_of_many_files_counts(tmp_path: Path) -> None:
    folder = model(tmp_path / "tiny", shards=300, nbytes=64 << 10)
    before = identity(folder)
    # As long as two pages are apart, and neither at the start nor at the end of the file.
    flip(folder / "model-150-of-300.safetensors", 8 << 10, 40 << 10)
    middle = identity(folder)
    # The last page of a file, between two pages.
    flip(folder / "model-7-of-300.safetensors", (64 << 10) - 1)
    assert len({before, middle, identity(folder)}) == 3


def test_a_snapshot_of_the_hub_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub(monkeypatch, tmp_path, "meta/llama", main=COMMITS[0])
    wanted = _weights.Weights("meta/llama", COMMITS[0])
    assert _weights.of_engine("test", "meta/llama", None) == wanted
    # Engines without a network use its folder in place of its id.
    snapshot = folder / "snapshots" / COMMITS[0]
    assert _weights.of_engine("test", str(snapshot), None) == wanted
    hub(monkeypatch, tmp_path, "gpt2", v1=COMMITS[1])
    assert identity("gpt2") == COMMITS[1], "the only one there is"


def test_a_revision_is_found_by_its_name_and_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refs = {"main": COMMITS[0], "v1": COMMITS[1], "refs__pr__3": COMMITS[2]}
    hub(monkeypatch, tmp_path, "meta/llama", **refs)

    def found(revision: str, given: str | None = None) -> str:
        weights = _weights.of_engine("test", "meta/llama", given, revision)
        assert weights is not None and weights.label == "meta/llama"
        return weights.identity

    assert found("v1") == COMMITS[1] and found(COMMITS[1]) == COMMITS[1]
    assert found("refs/pr/3") == COMMITS[2]
    assert found("", "meta/llama@v1") == COMMITS[1]
    assert caplog.text == ""
    assert found("") == COMMITS[0]
    assert f"2 other revisions of 'meta/llama' than {COMMITS[0]}" in caplog.text
    assert "give 'weights' as id@revision" in caplog.text


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("HF_HUB_CACHE", "."),
        ("HUGGINGFACE_HUB_CACHE", "."),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hub_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, place: str
) -> None:
    hub(monkeypatch, tmp_path / place, "meta/llama", main=COMMITS[0])
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv(variable, str(tmp_path))
    assert identity("meta/llama") == COMMITS[0]


def broken(kind: str, folder: Path) -> Path:
    """Make a path whose weights cannot be read, or not all."""
    path = folder / "tiny"
    if kind == "a dangling link":
        model(path)
        (path / "model-2-of-2.safetensors").symlink_to(folder / "gone")
    elif kind == "an empty folder":
        path.mkdir()
    elif kind == "a folder without weights":
        model(path, shards=0)
    elif kind == "a pipe":
        model(path)
        os.mkfifo(path / "model-2-of-2.safetensors")
    elif kind == "a folder as weights":
        model(path)
        (path / "model-2-of-2.safetensors").mkdir()
    elif kind == "a huge folder":
        model(path)
        for number in range(10_000):
            (path / f"{number}.txt").touch()
    elif kind == "too many weights":
        model(path, shards=2049, nbytes=1)
    elif kind == "an unreadable file":
        model(path)
        # Nothing is unreadable for root.
        (path / "config.json").unlink()
        (path / "config.json").symlink_to("/proc/self/mem")
    return path


KINDS = [
    "nothing",
    "a dangling link",
    "an empty folder",
    "a folder without weights",
    "a pipe",
    "a folder as weights",
    "a huge folder",
    "too many weights",
    "an unreadable file",
]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_found_are_logged_with_what_to_do(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(broken(kind, tmp_path))
    with caplog.at_level(logging.WARNING):
        assert _weights.of_engine("adit.vllm", path, None) is None
    (told,) = caplog.records
    assert told.name == "adit" and told.message.startswith(f"adit.vllm: keys have the name of {path!r} alone")
    assert "'weights' (their folder, or id@revision), or a 'namespace'" in told.message
    with pytest.raises(adit.InvalidError, match="give the model's folder or file"):
        _weights.of_engine("adit.vllm", "model", path)


@pytest.mark.parametrize(
    "name",
    ["meta/other", "s3://bucket/model", "", "meta/llama\0", "../models", "meta/llama@v2", f"meta/llama@{COMMITS[3]}"],
)
def test_names_that_no_files_have_are_not_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hub(monkeypatch, tmp_path, "meta/llama", main=COMMITS[0], v1=COMMITS[1])
    (folder / "refs" / "v2").write_text("no commit")
    model, _, revision = name.partition("@")
    assert _weights.of_engine("test", model, None, revision) is None
    assert "its weights are not found" in caplog.text


def test_a_revision_stays_within_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, tmp_path / "cache", "meta/llama", main=COMMITS[0], v1=COMMITS[1])
    (tmp_path / "outside").write_text(COMMITS[0])
    assert _weights.of_engine("test", "meta/llama", None, "../../../outside") is None


def test_the_user_has_the_last_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = model(tmp_path / "tiny"), model(tmp_path / "other@home", seed=7)
    assert _weights.of_engine("test", str(first), "") is None
    found = _weights.of_engine("test", str(first), str(second))
    assert found is not None and found == ("other@home", identity(second))
    for no_text in (1, True, ["meta/llama"]):
        with pytest.raises(adit.InvalidError, match="give a path, or an id of the Hub, as text"):
            _weights.of_engine("test", str(first), no_text)  # type: ignore[arg-type]
    assert caplog.text == ""
