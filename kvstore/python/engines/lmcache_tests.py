"""Fetches LMCache's tests of native connectors from its source distribution, which pip refuses for its version."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

URL = (
    "https://files.pythonhosted.org/packages/84/25/"
    "3ccd46844c94e08897aa8d72716a538c07e4583410d84dbc6cd12cb60dc1/lmcache-0.5.6.tar.gz"
)
SHA256 = "d6951e60ce8818a76aa42d0866a4ba85f1c95cd919355fff30ff24dcc3243f1e"
TESTS = "lmcache-0.5.6/tests/v1/distributed/test_native_connector_l2_adapter.py"


def main() -> None:
    """Write the tests to the path that is given."""
    with urllib.request.urlopen(URL, timeout=180) as answer:
        packed = answer.read()
    assert hashlib.sha256(packed).hexdigest() == SHA256, "the file is the one that was tried"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        tests = archive.extractfile(TESTS)
        assert tests is not None
        Path(sys.argv[1]).write_bytes(tests.read())


if __name__ == "__main__":
    main()
