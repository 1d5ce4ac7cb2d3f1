"""llama.cpp: a prompt cache for ``llama-cpp-python`` that survives restarts.

``llama.set_cache(adit.llama_cpp.PromptCache("uring:/data/prompts.img", llama, size_gb=20))``
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _engine, _weights
from ._adit import Client
from ._errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._adit import Region, _Target

TRIED = ("0.3.36",)
# Marks of prompts: their first 8 and 16 tokens, and each further 32.
_SHORT = (8, 16)
_STEP = 32
# Token ids and how many of them count, rows and columns of the scores, whether these are kept, seed, bytes of
# llama.cpp's state.
_HEADER = struct.Struct("<8s7Q")
_MAGIC = b"aditllm2"
_SEED = (1 << 64) - 1
_MARK = struct.Struct("<Q32s")
# Settings of a context that a sequence's state does not depend on; it may depend on all others.
_FREE = ("n_threads", "n_threads_batch", "no_perf", "offload_kqv", "op_offload", "defrag_thold")


_VERSION = _engine.version_of("llama-cpp-python")
_engine.check_version("llama-cpp-python", _VERSION, TRIED)


class PromptCache:
    """A cache of prompts' states, with the interface of ``LlamaCache``.

    A lookup returns the state that shares the longest beginning with a prompt, to within 32 tokens, and at least 8.

    Parameters
    ----------
    target : str, os.PathLike or list of them
        The store's devices, or ``serve:`` and the socket of ``adit kv serve``.
    model : Llama or str
        The model that makes the states, or a text that identifies it and all its settings. Prompts are separate for
        each model, context length, type of KV and version of llama-cpp-python.
    size_gb : float
        GiB of a new file.
    ttl : float, optional
        Seconds for which a prompt is kept.
    **options
        As for ``adit.Store``, or for ``adit.connect``.
    """

    def __init__(
        self,
        target: _Target | Sequence[_Target],
        model: Any,
        size_gb: float = 0,
        ttl: float | None = None,
        **options: Any,
    ) -> None:
        self._space = _space_of(model)
        # llama-cpp-python fills the scores only with `logits_all`: otherwise they are uninitialized memory.
        self._keeps_scores = bool(getattr(model, "_logits_all", True))
        self.store = _engine.open_store(target, size_gb, **options)
        self._ttl = ttl
        self._trouble = _engine.Trouble("adit.llama_cpp")
        self._lock = threading.Lock()
        self._memory: mmap.mmap | memoryview | None = None
        self._region: Region | None = None
        # `times_connected` when the memory was allocated.
        self._connected = 0

    @property
    def cache_size(self) -> int:
        """Bytes in use."""
        return self.store.stats()["used_bytes"]

    def __contains__(self, key: Sequence[int]) -> bool:
        """Return whether a prompt with the same beginning is known."""
        try:
            found = self._candidates(_tokens(key))
            return any(self.store.exists(name) for _, name, _ in found)
        except Error as why:
            self._trouble.log("a lookup", why)
            return False

    def __getitem__(self, key: Sequence[int]) -> Any:
        """Return the state that shares the longest beginning with a prompt.

        Raises
        ------
        KeyError
            If no such state exists, or it cannot be read.
        """
        tokens = _tokens(key)
        with self._lock:
            try:
                for length, name, nbytes in self._candidates(tokens):
                    state = self._load(name, nbytes)
                    # The mark may belong to another prompt, by a hash collision or after an eviction.
                    if state is None:
                        continue
                    if _shared(state.input_ids[: state.n_tokens], tokens) >= length:
                        return state
            except Error as why:
                self._trouble.log("reading a prompt", why)
        raise KeyError("no prompt with this beginning is in the store")

    def __setitem__(self, key: Sequence[int], value: Any) -> None:
        """Keep the state of a prompt. A lack of room is logged."""
        # A completion's last token is sampled but not computed: the state covers only the tokens before it.
        tokens = _tokens(key)
        tokens = tokens[: _shared(value.input_ids[: value.n_tokens], tokens)]
        with self._lock:
            try:
                self._save(tokens, value)
            except Error as why:
                self._trouble.log("keeping a prompt", why)

    def close(self) -> None:
        """Close the store."""
        self._release()
        self.store.close()

    def _save(self, tokens: np.ndarray[Any, Any], state: Any) -> None:
        marks = list(_marks(self._space, tokens))
        if not marks:
            return
        name = self._space + b"s" + _digest(tokens)
        parts = _encode(state, self._keeps_scores)
        nbytes = sum(len(part) for part in parts)
        with self._lend(nbytes) as memory:
            at = 0
            for part in parts:
                memory[at : at + len(part)] = part
                at += len(part)
            is_stored = self.store.put(name, memory, ttl=self._ttl)
        if not is_stored:
            return
        mark = _MARK.pack(nbytes, _digest(tokens))
        # Put one by one, because the store may decline objects of a batch as useless.
        for _, key in marks:
            self.store.put(key, mark, ttl=self._ttl)

    def _candidates(self, tokens: np.ndarray[Any, Any]) -> Iterator[tuple[int, bytes, int]]:
        """Return known prompts, longest marks first: the mark's tokens, and the state's key and bytes."""
        marks = list(_marks(self._space, tokens))
        seen = set()
        found = self.store.get_many([key for _, key in marks]) if marks else []
        for (length, _), value in zip(reversed(marks), reversed(found)):
            if value is not None and len(value) == _MARK.size and value not in seen:
                seen.add(value)
                nbytes, digest = _MARK.unpack(value)
                yield length, self._space + b"s" + digest, nbytes

    def _load(self, name: bytes, nbytes: int) -> Any:
        with self._lend(nbytes) as memory:
            is_whole = self.store.get_into(name, memory) == nbytes
        return _decode(memory) if is_whole else None

    @contextlib.contextmanager
    def _lend(self, nbytes: int) -> Iterator[memoryview]:
        """Lend memory for a state to one request."""
        memory = self._room(nbytes)
        try:
            yield memory[:nbytes]
        except BaseException as why:
            if isinstance(self.store, Client) or not isinstance(why, Error):
                # After the deadline or a signal, the drive may still use the memory: abandon it, but leave it mapped.
                self._memory = self._region = None
            raise

    def _room(self, nbytes: int) -> memoryview:
        """Return registered memory for a state, which may be longer than the store's pool."""
        connected = self.store.times_connected if isinstance(self.store, Client) else 0
        if self._memory is None or len(self._memory) < nbytes or self._connected != connected:
            self._release()
            self._connected = connected
            whole = -(-nbytes // _engine.PAGE) * _engine.PAGE
            if isinstance(self.store, Client):
                self._memory = self.store.allocate(whole)
            else:
                self._memory = mmap.mmap(-1, whole)
                self._region = self.store.register(self._memory)
        return memoryview(self._memory)

    def _release(self) -> None:
        if self._region is not None:
            self._region.close()
        self._region = self._memory = None


def _tokens(key: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.asarray(key, dtype=np.int32)


def _digest(tokens: np.ndarray[Any, Any]) -> bytes:
    return hashlib.sha256(tokens.tobytes()).digest()


def _marks(space: bytes, tokens: np.ndarray[Any, Any]) -> Iterator[tuple[int, bytes]]:
    """Return the lengths at which a prompt is found, and the keys."""
    lengths = [*_SHORT, *range(_STEP, len(tokens) + 1, _STEP)]
    hashed, done = hashlib.sha256(), 0
    for length in lengths:
        if length <= len(tokens):
            hashed.update(tokens[done:length].tobytes())
            done = length
            yield length, space + b"m" + hashed.digest()


def _shared(mine: Any, theirs: np.ndarray[Any, Any]) -> int:
    """Return the length of two prompts' common prefix, in tokens."""
    mine = _tokens(mine)
    count = min(len(mine), len(theirs))
    differ = np.flatnonzero(mine[:count] != theirs[:count])
    return int(differ[0]) if len(differ) else count


def _encode(state: Any, keeps_scores: bool) -> list[bytes]:
    """Return a state as bytes: a header, the tokens, the scores if they are kept, and llama.cpp's own part."""
    tokens = _tokens(state.input_ids)
    scores = np.ascontiguousarray(state.scores, dtype=np.float32)
    rows, columns = scores.shape
    own = bytes(state.llama_state)[: state.llama_state_size]
    seed = state.seed & _SEED
    counts = (len(tokens), state.n_tokens, rows, columns, keeps_scores, seed, len(own))
    kept = [scores.tobytes()] if keeps_scores else []
    return [_HEADER.pack(_MAGIC, *counts), tokens.tobytes(), *kept, own]


def _decode(memory: memoryview) -> Any:
    """Return the state, or ``None`` if the bytes do not encode one."""
    from llama_cpp.llama import LlamaState

    if len(memory) < _HEADER.size:
        return None
    magic, ids, count, rows, columns, has_scores, seed, own = _HEADER.unpack_from(memory)
    tokens_end = _HEADER.size + 4 * ids
    scores_end = tokens_end + (4 * rows * columns if has_scores else 0)
    if magic != _MAGIC or scores_end + own != len(memory) or count > ids:
        return None
    tokens = np.frombuffer(memory[_HEADER.size : tokens_end], dtype=np.int32)
    if has_scores:
        kept = np.frombuffer(memory[tokens_end:scores_end], dtype=np.float32)
        scores = kept.reshape(rows, columns).copy()
    else:
        scores = np.zeros((rows, columns), dtype=np.float32)
    return LlamaState(
        input_ids=tokens.astype(np.intc),
        scores=scores,
        n_tokens=count,
        llama_state=bytes(memory[scores_end:]),
        llama_state_size=own,
        seed=seed,
    )


def _space_of(model: Any) -> bytes:
    if isinstance(model, str):
        return _engine.space("llama.cpp", version=_VERSION, model=model)
    if not hasattr(model, "context_params"):
        raise TypeError(f"model is {model!r}: give a Llama, or a text that names it and its settings")
    path = str(getattr(model, "model_path", ""))
    return _engine.space(
        "llama.cpp",
        version=_VERSION,
        file=os.path.basename(path),
        content=_content(path),
        metadata=getattr(model, "metadata", None),
        overrides=getattr(model, "kv_overrides", None),
        vocabulary=model.n_vocab(),
        context=_settings(model.context_params),
        logits=getattr(model, "_logits_all", None),
        lora=[str(getattr(model, name, None)) for name in ("lora_base", "lora_path", "lora_scale")],
        lora_content=_content(str(getattr(model, "lora_path", None) or "")),
    )


def _content(path: str) -> str | None:
    if not path:
        return None
    try:
        os.stat(path)
        return _weights.of_file(path)
    except (OSError, ValueError) as why:
        _weights.logger.warning(
            "adit.llama_cpp: keys have the name of %r alone, as it cannot be read: %s. Other weights under this name would "
            "find its prompts: make the cache where the path is right, or give a text that names the weights as the model",
            path,
            str(why),
        )
        return None


def _settings(context: Any) -> dict[str, str]:
    """Return the numeric settings of a context, except those that do not affect its state."""
    names = [name for name, *_ in context._fields_ if name not in _FREE]
    values = {name: getattr(context, name) for name in names}
    return {name: str(value) for name, value in values.items() if isinstance(value, (int, float))}
