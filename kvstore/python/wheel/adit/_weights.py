"""Identities of a model's weights, which keys contain in addition to the model's name.

Another revision, and other weights at the same path, have another identity, so that KV of one is a miss for the other.
The same files have the same identity on every machine, wherever they are and whatever their times; but a snapshot of
the Hub and a copy outside its cache (``--local-dir``) have different ones, and share no blocks.

- **A snapshot in the cache of Hugging Face's Hub**: its commit.
- **Another folder or file**: a hash of the configuration and the model's code, and of names, lengths and some hundred
  pages of the weights, evenly spaced over the concatenated files, and each file's last. Sub-folders are ignored,
  because engines load none.

Bytes between two pages are not read: weights that differ only there have the same identity. Pages are ``size / 512``
apart, which is less than a layer, and fine-tuning changes whole layers.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from ._errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

logger = logging.getLogger("adit")

_PAGE = 4096
# Pages read from the concatenated files of weights, besides each file's last.
_PAGES = 512
# Maximum files of weights, entries of a folder and bytes of a configuration that are read.
_FILES_MAX, _ENTRIES_MAX, _WHOLE_NBYTES = 2048, 10_000, 1 << 20
# Kinds of weights, in the order of engines' preference: they load the first kind that a folder has.
_KINDS = ((".safetensors",), (".bin", ".pt", ".pth"), (".gguf",))
# Files read entirely, like a model's own code.
_WHOLE = ("config.json", "params.json", "hf_quant_config.json", "quant_config.json", "quantize_config.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"models--(?P<id>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


class Weights(NamedTuple):
    """A model's weights."""

    # The model's name without machine-specific parts: a folder's own name, or an id of the Hub.
    label: str
    # Hexadecimal digits.
    identity: str


def of_engine(adapter: str, model: str, given: str | None, revision: str = "") -> Weights | None:
    """Return the weights that an engine has loaded, or ``None``, which is logged, if their files are not found.

    Parameters
    ----------
    adapter : str
        The adapter's name, for the log.
    model : str
        The engine's name of the model: a folder, a file, or an id of the Hub.
    given : str or None
        The name in the user's configuration instead: a path, an id of the Hub, or an id, ``@`` and a revision. Empty to
        use only the model's name.
    revision : str
        The revision of an id, if the engine provides it.

    Raises
    ------
    InvalidError
        If the weights that the user named are not found.
    """
    if given == "":
        return None
    if not isinstance(given, (str, type(None))):
        raise InvalidError(f"weights is {given!r}: give a path, or an id of the Hub, as text")
    try:
        if given is not None:
            return _given(adapter, given)
        return _find(adapter, model, revision)
    except (OSError, ValueError) as why:
        if given is not None:
            raise InvalidError(
                f"weights is {given!r}, which is not found: {why}; give the model's folder or file, its id in the "
                "cache of the Hub, id@revision, or nothing to have the model's name alone in the keys"
            ) from why
        logger.warning(
            "%s: keys have the name of %r alone, as its weights are not found: %s. Other weights under this name would "
            "find its blocks: give 'weights' (their folder, or id@revision), or a 'namespace' of their own",
            adapter,
            model,
            # Drop the error's frames, which hold the engine's memory.
            str(why),
        )
        return None


def of_file(path: str) -> str:
    """Return the identity of a file of weights, including all its parts if it is split."""
    hashed = hashlib.sha256()
    _add_pages(hashed, _parts(path))
    return hashed.hexdigest()


def _given(adapter: str, given: str) -> Weights:
    if os.path.exists(given):
        return _at(given)
    model, _, revision = given.partition("@")
    return _find(adapter, model, revision)


def _find(adapter: str, model: str, revision: str) -> Weights:
    if os.path.exists(model):
        return _at(model)
    if not _HUB_ID.fullmatch(model):
        raise ValueError("there is no such path on this machine")
    folder = os.path.join(_cache(), "models--" + model.replace("/", "--"))
    commit, others = _commit(folder, revision)
    if others and not revision:
        logger.warning(
            "%s: the cache has %d other revisions of %r than %s, which keys name: if the engine loads one of these, "
            "give 'weights' as id@revision",
            adapter,
            others,
            model,
            commit,
        )
    return Weights(model, commit)


def _cache() -> str:
    """Return the folder of the Hub's cache, by the rules of huggingface_hub."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return os.path.expandvars(os.path.expanduser(named or os.path.join(home, "hub")))


def _commit(folder: str, revision: str) -> tuple[str, int]:
    """Return the commit of a model's revision, and the number of other revisions in the cache."""
    snapshots = os.path.join(folder, "snapshots")
    try:
        there = [name for name in _names(snapshots) if _COMMIT.fullmatch(name)]
    except FileNotFoundError:
        raise ValueError(f"it is no path on this machine, and {folder} is not there") from None
    if _COMMIT.fullmatch(revision):
        commit = revision
    elif not revision and len(there) == 1:
        # The revision does not matter: engines load no other from here.
        (commit,) = there
    else:
        commit = _reference(folder, revision or "main")
    if commit not in there:
        raise ValueError(f"{snapshots} does not have {commit}")
    return commit, len(there) - 1


def _reference(folder: str, revision: str) -> str:
    path = os.path.join(folder, "refs", *revision.split("/"))
    if ".." in revision.split("/"):
        raise ValueError(f"{revision!r} is no revision")
    with _open(path) as (file, _):
        commit = os.pread(file, _PAGE, 0).decode("ascii", "replace").strip()
    if not _COMMIT.fullmatch(commit):
        raise ValueError(f"{path} names no commit")
    return commit


def _at(path: str) -> Weights:
    """Return the weights in a folder or a file."""
    snapshot = _SNAPSHOT.search(os.path.realpath(path))
    if snapshot:
        return Weights(snapshot["id"].replace("--", "/"), snapshot["commit"])
    label = os.path.basename(os.path.abspath(path))
    if not os.path.isdir(path):
        return Weights(label, of_file(path))
    names = sorted(_names(path), key=os.fsencode)
    weights = next(filter(None, ([name for name in names if name.endswith(kind)] for kind in _KINDS)), [])
    if not weights:
        raise ValueError(f"{path} has no weights")
    hashed = hashlib.sha256()
    for name in names:
        if name in _WHOLE or name.endswith(".py"):
            _add_whole(hashed, os.path.join(path, name))
    _add_pages(hashed, [os.path.join(path, name) for name in weights])
    return Weights(label, hashed.hexdigest())


def _names(folder: str) -> list[str]:
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(names) == _ENTRIES_MAX:
                raise ValueError(f"{folder} has more than {_ENTRIES_MAX} entries")
            names.append(entry.name)
    return names


def _parts(path: str) -> list[str]:
    """Return all parts of the weights that a file belongs to."""
    split = _SPLIT.search(path)
    if not split:
        return [path]
    folder, name = os.path.split(path)
    start, end = name[: -len(split[0])], split[0][-len("-of-00000.gguf") :]
    parts = sorted(each for each in _names(folder or ".") if each.startswith(start) and each.endswith(end))
    return [os.path.join(folder, each) for each in parts if len(each) == len(name)]


def _add_whole(hashed: hashlib._Hash, path: str) -> None:
    with _open(path) as (file, size):
        hashed.update(_heading(path, size))
        hashed.update(os.pread(file, _WHOLE_NBYTES, 0))


def _add_pages(hashed: hashlib._Hash, paths: list[str]) -> None:
    if len(paths) > _FILES_MAX:
        raise ValueError(f"there are {len(paths)} files of weights, and {_FILES_MAX} are the most")
    ends = [0]
    for path in paths:
        with _open(path) as (_, size):
            hashed.update(_heading(path, size))
            ends.append(ends[-1] + size)
    even = _places(ends[-1])
    for path, begin, end in zip(paths, ends, ends[1:]):
        last = max(begin, end - _PAGE)
        with _open(path) as (file, _):
            # A page may begin in one file and end in the next.
            for place in sorted({last, *(place for place in even if begin - _PAGE < place < end)}):
                start = max(place, begin)
                hashed.update(os.pread(file, min(place + _PAGE, end) - start, start - begin))


def _heading(path: str, size: int) -> bytes:
    return repr((os.fsencode(os.path.basename(path)), size)).encode()


def _places(size: int) -> Iterable[int]:
    """Return evenly spaced offsets of pages, the first at the start and the last at the end."""
    if size <= _PAGES * _PAGE:
        return range(0, size, _PAGE)
    return [(size - _PAGE) * page // (_PAGES - 1) for page in range(_PAGES)]


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[int, int]]:
    """Open a file and return it with its length. A pipe is an error at once, because opening it could block."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path} is no file")
        yield file, found.st_size
    finally:
        os.close(file)
