"""Fetches LMCache's tests of L2 adapters from its source distribution, which pip refuses for its version."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

FILES = "https://files.pythonhosted.org/packages/"
# By version, the folder and the SHA-256 of the distribution.
TRIED = {
    "0.5.6": (
        "84/25/3ccd46844c94e08897aa8d72716a538c07e4583410d84dbc6cd12cb60dc1",
        "d6951e60ce8818a76aa42d0866a4ba85f1c95cd919355fff30ff24dcc3243f1e",
    ),
    "0.5.7rc2": (
        "d5/f1/393d6743e1b43762cf2685ca2af2a3f51a3727fc4a373418834fb843d485",
        "afe0713416c9b5a55ac2202560893dabe268ea72c9c778ef7fc75d818a7cd96f",
    ),
}
TESTS = ("test_native_connector_l2_adapter.py", "test_mock_l2_adapter.py")


def main() -> None:
    """Write the tests into the folder that is given."""
    version, folder = importlib.metadata.version("lmcache"), Path(sys.argv[1])
    if version not in TRIED:
        sys.exit(f"LMCache is version {version}, and its tests are known of {', '.join(TRIED)}: add it to TRIED")
    place, digest = TRIED[version]
    with urllib.request.urlopen(f"{FILES}{place}/lmcache-{version}.tar.gz", timeout=180) as answer:
        packed = answer.read()
    assert hashlib.sha256(packed).hexdigest() == digest, "the file is the one that was tried"
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for name in TESTS:
            tests = archive.extractfile(f"lmcache-{version}/tests/v1/distributed/{name}")
            assert tests is not None
            (folder / name).write_bytes(tests.read())


if __name__ == "__main__":
    main()
