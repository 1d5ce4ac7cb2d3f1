"""A plug-in of pytest that runs LMCache's own tests of native connectors with the store in place of their connector.

The tests are those of LMCache's source distribution. Their class that records what a connector is given is left as it
is: it tests LMCache.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

STORE_GB = 0.0625
# What the tests of 0.5.6 make at least.
CONNECTORS_MIN = 30
made: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the tests make connectors of ours."""
    modules: set[Any] = {item.module for item in items if isinstance(item, pytest.Function)}
    found = [module for module in modules if hasattr(module, "MockNativeConnector")]
    assert found, "LMCache's tests have the connector that is replaced"
    for module in found:
        module.MockNativeConnector = connector


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check that the tests had connectors of ours."""
    if session.testscollected and len(made) < CONNECTORS_MIN:
        pytest.exit(f"the tests made {len(made)} connectors to a store", returncode=1)


def connector() -> Any:
    """Return a connector to a new store, which goes with it."""
    from adit.lmcache import Connector

    made.append("a connector")
    folder = Path(tempfile.mkdtemp(prefix="adit-contract-"))

    class Fresh(Connector):
        def close(self) -> None:
            super().close()
            shutil.rmtree(folder, ignore_errors=True)

    return Fresh(target=f"uring:{folder / 'kv.img'}", size_gb=STORE_GB)
