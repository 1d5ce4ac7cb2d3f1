"""Time limits of any length: taken, or refused with a reason."""

from __future__ import annotations

import math

import adit
import pytest
from conftest import Served
from test_futures import drain

CENTURIES = 1e19
TOO_LONG = [1e300, math.inf, math.nan, -1.0]


def test_a_client_may_wait_for_centuries(served: Served) -> None:
    with adit.connect(served.socket, timeout=CENTURIES) as client:
        assert client.put("a", b"one")
        assert client.get("a") == b"one"
        with client.queue() as queue:
            queue.submit_get(["a"], token="one")
            assert drain(queue, 1) == {"one": ([b"one"], None)}


@pytest.mark.parametrize("timeout", TOO_LONG)
def test_what_is_no_time_is_refused_with_a_reason(served: Served, timeout: float) -> None:
    with pytest.raises(adit.InvalidError, match="timeout is '.*': give seconds"):
        adit.connect(served.socket, timeout=timeout)


@pytest.mark.parametrize("timeout", [*TOO_LONG, CENTURIES])
def test_a_store_waits_for_a_year_at_most(target: str, timeout: float) -> None:
    with pytest.raises(adit.InvalidError, match="timeout"):
        adit.Store(target, timeout=timeout)


def test_objects_and_leases_may_last_for_centuries(either: adit.Store | adit.Client) -> None:
    assert either.put("a", b"one", ttl=CENTURIES)
    assert either.get("a") == b"one"
    assert either.touch("a", CENTURIES)
    with either.lease(["a"], CENTURIES) as lease:
        assert lease.count == 1
    for ttl in TOO_LONG:
        with pytest.raises(adit.InvalidError, match="ttl is '.*': give seconds"):
            either.put("b", b"two", ttl=ttl)
        with pytest.raises(adit.InvalidError, match="seconds"):
            either.lease(["a"], ttl)
    assert either.get("b") is None
