"""vLLM: a store as a secondary tier of the offloading connector.

``{"type": "AditTier", "module_path": "adit.vllm", "target": "uring:/data/kv.img", "size_gb": 100}`` in
``secondary_tiers`` of ``kv_connector_extra_config``; for a router that reads vLLM's KV events also
``"enable_kv_events": true``, and ``"self_describing_kv_events": true`` beside ``secondary_tiers``.
"""

from __future__ import annotations

import os
import select
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from . import _engine, _weights
from ._adit import Store
from ._announced import Announced
from ._errors import Error, InvalidError

TRIED = ("0.33.0",)
_engine.check_version("vLLM", _engine.version_of("vllm"), TRIED)

from vllm.v1.kv_offload.base import (  # noqa: E402
    LookupResult,
    Medium,
    OffloadingEvent,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import (  # noqa: E402
    JobResult,
    SecondaryTierManager,
    TransferJob,
)

# Seconds in which a chunk's uses count as one, and the maximum chunks in that time.
TOUCHED_S, TOUCHED_MAX = 1.0, 16384

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ._adit import Region


@dataclass
class _Job:
    """A transfer in progress."""

    number: int
    keys: list[bytes]
    chunks: list[int]
    begun: float = field(default_factory=time.monotonic)
    # Keys that the store is known to have, and keys to store.
    there: list[bytes] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)


class AditTier(SecondaryTierManager):
    """A tier whose transfers vLLM's manager drives.

    Parameters
    ----------
    offloading_spec, primary_kv_view, tier_type, backpressure_detector
        vLLM's arguments.
    target : str or list of str
        The store's devices, or ``serve:`` and the socket of ``adit kv serve``.
    size_gb : float
        GiB of a new file.
    namespace : str
        Text that separates instances with equal configurations.
    enable_kv_events : bool
        Publish vLLM's KV events, of the medium ``STORAGE``, for the chunks that this engine stored: ``BlockStored``
        once the store has a chunk, ``BlockRemoved`` once it no longer has it. vLLM's ``kv_events_config`` must enable
        events.
    self_describing_kv_events : bool, optional
        Require the setting of this name in ``kv_connector_extra_config``, where vLLM reads it: without it, events have
        no tokens and are useless to a router.
    weights : str, optional
        The place of the model's weights, if vLLM's name of the model does not give it or their revision: a folder, a
        file, or ``id@revision`` of the Hub's cache. Empty to put only the model's name in the keys.
    **options
        ``objects_max``, the maximum number of blocks of a new file, by default as many as fit; and the options of
        ``adit.Store``, or of ``adit.connect``.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        target: str | list[str],
        size_gb: float = 0,
        namespace: str = "",
        enable_kv_events: bool = False,
        self_describing_kv_events: bool | None = None,
        weights: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        config = offloading_spec.config
        name = f"adit.vllm ({tier_type})"
        self._trouble = _engine.Trouble(name)
        has_events = enable_kv_events and _has_events(
            offloading_spec.kv_events_config, self_describing_kv_events, tier_type
        )
        found = _weights.of_engine(name, config.model.name, weights)
        self._space = _space(config, self.block_size_bytes, namespace, found)
        rank = config.parallel.data_parallel_index
        self.store = _engine.open_store(
            target, size_gb, rank, block_nbytes=self.block_size_bytes, **options
        )
        self._view = primary_kv_view.cast("B")
        self._region: Region | None = None
        if isinstance(self.store, Store):
            try:
                self._region = self.store.register(primary_kv_view)
            except Error as why:
                self._trouble.log("registering vLLM's memory, so blocks are copied: it", why)
        self._queue = self.store.queue()
        self._jobs: dict[int, _Job] = {}
        self._finished: list[JobResult] = []
        # Whether the keys of requests' lookups exist; None until the store has answered.
        self._verdicts: dict[bytes, bool | None] = {}
        # Keys that count as missing because the store failed, only for the requests at that time.
        self._unknown: set[bytes] = set()
        self._askers: dict[bytes, set[str]] = defaultdict(set)
        self._asked_by: dict[str, set[bytes]] = defaultdict(set)
        self._to_ask: list[bytes] = []
        # Number of jobs that store each key.
        self._storing: dict[bytes, int] = defaultdict(int)
        self._checking = 0
        # Chunks used by vLLM, to be refreshed, and chunks refreshed recently.
        self._to_touch: list[bytes] = []
        self._touched: set[bytes] = set()
        self._touched_until = time.monotonic() + TOUCHED_S
        self._is_touching = False
        # Announced chunks, if events are enabled.
        self._announced: Announced | None = None
        if has_events:
            self._announced = Announced(self._queue, self._space, self._storing, self._trouble)
        self._events: list[OffloadingEvent] = []
        self._has_several = config.cache.blocks_per_chunk > 1

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Offload new chunks as they are computed."""
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        """Return whether a chunk exists. The first call returns RETRY and queries the store.

        So does a call for a chunk being stored: HIT_PENDING is the primary tier's answer, and vLLM takes a secondary
        tier's for a miss.
        """
        self._drain()
        if self._storing.get(key):
            return LookupResult.RETRY
        if key not in self._verdicts or (
            key in self._unknown and req_context.req_id not in self._askers[key]
        ):
            self._unknown.discard(key)
            self._verdicts[key] = None
            self._to_ask.append(key)
        self._askers[key].add(req_context.req_id)
        self._asked_by[req_context.req_id].add(key)
        verdict = self._verdicts[key]
        if verdict is None:
            return LookupResult.RETRY
        return LookupResult.HIT if verdict else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Query the store for all keys of this step at once."""
        self._touch_all()
        if self._announced is not None:
            self._announced.step()
        if self._to_ask:
            keys, self._to_ask = self._to_ask, []
            try:
                self._queue.submit_exists(self._names(keys), token=("lookup", keys))
            except Error as why:
                self._trouble.log("lookup", why)
                self._learn(keys, [None] * len(keys))

    def touch(self, keys: Collection[bytes], req_context: ReqContext) -> None:
        """Count a use of chunks that vLLM has in memory, so that the store evicts others first. No expiry changes."""
        for key in keys:
            if key not in self._touched and len(self._touched) < TOUCHED_MAX:
                self._touched.add(key)
                self._to_touch.append(key)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return the chunks stored and removed since the last call."""
        events, self._events = self._events, []
        return events

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget answers that only this request needed."""
        for key in self._asked_by.pop(req_context.req_id, ()):
            self._askers[key].discard(req_context.req_id)
            if not self._askers[key]:
                del self._askers[key]
                # During a query, the key keeps its entry for the answer.
                if self._verdicts.get(key) is not None:
                    del self._verdicts[key]
                    self._unknown.discard(key)

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store chunks, except those that exist."""
        job = _job(job_metadata)
        self._jobs[job.number] = job
        for key in job.keys:
            self._storing[key] += 1
        try:
            # Existing chunks are in use.
            self._queue.submit_refresh(self._names(job.keys), token=("check", job))
            self._checking += 1
        except Error as why:
            self._trouble.log("check", why)
            self._end_store(job, False)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Read chunks into their rows."""
        job = _job(job_metadata)
        self._jobs[job.number] = job
        rows = [self._row(chunk) for chunk in job.chunks]
        try:
            self._queue.submit_get_into(self._names(job.keys), rows, token=("load", job))
        except Error as why:
            self._trouble.log("load", why)
            self._end_load(job, [None] * len(job.keys), has_failed=True)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the transfers that have ended since the last call."""
        self._drain()
        finished, self._finished = self._finished, []
        return finished

    def has_pending_work(self) -> bool:
        """Return whether chunks wait for the next step to be stored."""
        return self._checking > 0

    def drain_jobs(self) -> None:
        """Wait until no transfer uses vLLM's memory."""
        poll = select.poll()
        poll.register(self._queue.event_fd(), select.POLLIN)
        self._drain()
        while self._jobs:
            poll.poll()
            self._drain()
        if self._announced is not None:
            # vLLM calls this to reset its caches. It tells routers that it dropped all blocks, and forgets the tokens of
            # blocks not yet announced.
            self._announced.forget_what_was_told()
            self._events = [event for event in self._events if event.removed]

    def shutdown(self) -> None:
        """Wait for transfers and close the store."""
        self._queue.close()
        if self._region is not None:
            self._region.close()
        self.store.close()
        # vLLM unmaps the memory next.
        self._view.release()

    def _names(self, keys: Collection[bytes]) -> list[bytes]:
        return [self._space + key for key in keys]

    def _row(self, chunk: int) -> memoryview:
        size = self.block_size_bytes
        return self._view[chunk * size : (chunk + 1) * size]

    def _drain(self) -> None:
        for (what, about), results, failure in self._queue.drain():
            if failure is not None:
                self._trouble.log(what, failure)
            if what == "lookup":
                self._learn(about, results)
            elif what == "check":
                self._store_missing(about, results)
            elif what == "load":
                self._end_load(about, results, failure is not None)
            elif what == "store":
                about.there += [key for key, stored in zip(about.missing, results) if stored]
                self._end_store(about, all(results))
            elif what == "touch":
                self._is_touching = False
            elif self._announced is not None:
                if what == "removals":
                    self._announced.heard(about, results)
                else:
                    self._tell(self._announced.asked(about, results), removed=True)

    def _touch_all(self) -> None:
        now = time.monotonic()
        if self._to_touch and not self._is_touching:
            keys, self._to_touch = self._to_touch, []
            try:
                self._queue.submit_refresh(self._names(keys), token=("touch", None))
                self._is_touching = True
            except Error as why:
                self._trouble.log("touch", why)
        if now >= self._touched_until:
            self._touched, self._touched_until = set(self._to_touch), now + TOUCHED_S

    def _tell(self, keys: list[bytes], removed: bool) -> None:
        if keys:
            # vLLM keeps the tokens of chunks whose removal it expects, and needs them if a chunk is more than the block
            # that its key names.
            is_kept = not removed and self._has_several
            self._events.append(OffloadingEvent(keys, self.medium, removed, removal_expected=is_kept))

    def _learn(self, keys: list[bytes], results: list[bool | None]) -> None:
        for key, is_there in zip(keys, results):
            if key in self._askers:
                self._verdicts[key] = is_there is True
                if is_there is None:
                    self._unknown.add(key)
            else:
                del self._verdicts[key]

    def _store_missing(self, job: _Job, is_there: list[bool | None]) -> None:
        self._checking -= 1
        missing = [position for position, there in enumerate(is_there) if not there]
        job.there = [key for key, there in zip(job.keys, is_there) if there]
        job.missing = [job.keys[position] for position in missing]
        if not missing:
            self._end_store(job, True)
            return
        keys = self._names(job.missing)
        rows = [self._row(job.chunks[position]) for position in missing]
        try:
            self._queue.submit_put(keys, rows, token=("store", job))
        except Error as why:
            self._trouble.log("store", why)
            self._end_store(job, False)

    def _end_store(self, job: _Job, success: bool) -> None:
        there = set(job.there)
        for key in job.keys:
            self._storing[key] -= 1
            if not self._storing[key]:
                del self._storing[key]
            # The store may have declined some.
            if (success or key in there) and self._verdicts.get(key) is False:
                self._verdicts[key] = True
                self._unknown.discard(key)
        if self._announced is not None:
            self._tell(self._announced.stored(job.there), removed=False)
        self._end(job, JobResult(job.number, success, None, *self._cost(job)))

    def _end_load(self, job: _Job, lengths: list[int | None], has_failed: bool) -> None:
        good, size = [], self.block_size_bytes
        for key, length in zip(job.keys, lengths):
            if length == size:
                good.append(key)
            elif key in self._verdicts:
                # The chunk was evicted since the lookup, or is damaged: vLLM recomputes it.
                self._verdicts[key] = False
                if has_failed:
                    self._unknown.add(key)
        success = len(good) == len(job.keys)
        some = None if success or not good else tuple(good)
        self._end(job, JobResult(job.number, success, some, *self._cost(job)))

    def _cost(self, job: _Job) -> tuple[float, int]:
        return time.monotonic() - job.begun, len(job.keys) * self.block_size_bytes

    def _end(self, job: _Job, result: JobResult) -> None:
        del self._jobs[job.number]
        self._finished.append(result)


def _job(metadata: TransferJob) -> _Job:
    return _Job(metadata.job_id, list(metadata.keys), [int(chunk) for chunk in metadata.chunk_ids])


def _has_events(config: Any, is_self_describing: bool | None, tier_type: str) -> bool:
    """Return whether vLLM takes events, and log what they lack.

    Raises
    ------
    InvalidError
        If events must describe themselves and vLLM's do not.
    """
    where = "set it to true in kv_connector_extra_config, beside secondary_tiers"
    if is_self_describing and not config.self_describing_kv_events:
        raise InvalidError(f"self_describing_kv_events is the connector's setting: {where}")
    if not config.enable_kv_cache_events:
        _engine.logger.warning(
            "%s has enable_kv_events and vLLM publishes none: set enable_kv_cache_events in kv_events_config",
            tier_type,
        )
        return False
    if not config.self_describing_kv_events:
        _engine.logger.warning(
            "%s has enable_kv_events, and events have no tokens, so that a router gets events of no blocks, because "
            "self_describing_kv_events is not set: %s",
            tier_type,
            where,
        )
    if os.environ.get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES") == "0":
        _engine.logger.warning(
            "vLLM publishes hashes of blocks as bytes, because VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is 0: routers that "
            "expect numbers lose all events of a message with one; unset it"
        )
    return True


def _space(
    config: Any, row_bytes: int, namespace: str, weights: _weights.Weights | None
) -> bytes:
    """Return the key space of a configuration: all fields that change the meaning of a chunk's bytes."""
    parallel = config.parallel
    # Where a chunk's bytes do not depend on the number of workers, neither do its keys.
    is_free = parallel.is_parallelism_agnostic or config.replicated_layout
    sizes = [
        parallel.world_size,
        parallel.tp_size,
        parallel.pp_size,
        parallel.pcp_size,
        parallel.dcp_size,
        parallel.rank,
    ]
    groups = [
        [group.group_id, group.tokens_per_block, list(group.layer_names)]
        for group in config.groups
    ]
    return _engine.space(
        "vllm",
        namespace=namespace,
        model=config.model.name if weights is None else weights,
        dtype=str(config.model.dtype),
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        parallel=None if is_free else sizes,
        replicated=config.replicated_layout,
        canonical=config.canonical_layout,
        layout=config.kv_cache_layout,
        groups=groups,
        row_bytes=row_bytes,
    )
