"""The platform that the wheel names, and what its library asks of the C library."""

import importlib.metadata
import re
from pathlib import Path

import adit._adit

OLDEST_GLIBC = (2, 28)


def test_the_wheel_installs_where_glibc_is_2_28() -> None:
    about = importlib.metadata.distribution("adit").read_text("WHEEL")
    assert about is not None
    tags = re.findall(r"^Tag: cp310-abi3-manylinux_(\d+)_(\d+)_\w+$", about, re.MULTILINE)
    assert tags, about
    assert all((int(major), int(minor)) <= OLDEST_GLIBC for major, minor in tags), about


def test_the_library_needs_no_newer_symbol() -> None:
    library = Path(adit._adit.__file__).read_bytes()
    versions = {tuple(map(int, version.split(b"."))) for version in re.findall(rb"\0GLIBC_([\d.]+)(?=\0)", library)}
    assert (2, 14) in versions, "it has none at all: memcpy is 2.14"
    assert max(versions) <= OLDEST_GLIBC
