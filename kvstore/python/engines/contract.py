"""A plug-in of pytest that runs LMCache's own tests of native connectors and L2 adapters with the store in their place.

The tests are those of LMCache's source distribution. Two classes test LMCache: the one that records what a connector is
given is left as it is, and the one of an adapter's pretended bandwidth is left out.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

STORE_GB = 0.0625
# What LMCache's classes are replaced by, and how many the tests of 0.5.6 make at least.
MADE_MIN = {"MockNativeConnector": 30, "MockL2Adapter": 35}
ITS_OWN = "TestBandwidthSimulation"
made = dict.fromkeys(MADE_MIN, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the tests make connectors and adapters of ours."""
    items[:] = [item for item in items if ITS_OWN not in item.nodeid]
    modules: set[Any] = {item.module for item in items if isinstance(item, pytest.Function)}
    makers = {"MockNativeConnector": connector, "MockL2Adapter": adapter}
    for name, maker in makers.items():
        found = [module for module in modules if hasattr(module, name)]
        assert found, f"LMCache's tests have the {name} that is replaced"
        for module in found:
            setattr(module, name, maker)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check that the tests had connectors and adapters of ours."""
    if session.testscollected and any(made[name] < least for name, least in MADE_MIN.items()):
        pytest.exit(f"the tests made {made} of a store", returncode=1)


def connector() -> Any:
    """Return a connector to a new store."""
    from adit.lmcache import Connector

    made["MockNativeConnector"] += 1
    return fresh(Connector, lambda target: {"target": target, "size_gb": STORE_GB})


def adapter(config: Any) -> Any:
    """Return an adapter of a new store, which holds as much as the one that it replaces."""
    from adit.lmcache_l2 import AditAdapter

    made["MockL2Adapter"] += 1
    return fresh(
        AditAdapter,
        lambda target: {
            "params": {
                "target": target,
                "size_gb": STORE_GB,
                "max_capacity_gb": config.max_size_gb,
            }
        },
    )


def fresh(kind: type[Any], words: Any) -> Any:
    """Make one over a store that goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="adit-contract-"))

    class Fresh(kind):  # type: ignore[misc]
        def close(self) -> None:
            super().close()
            shutil.rmtree(folder, ignore_errors=True)

    return Fresh(**words(f"uring:{folder / 'kv.img'}"))
