"""Unpacks from vLLM's wheel what its storage needs: Python, and the C code of its file tier, but no GPU code.

The whole wheel takes 1 GB.
"""

from __future__ import annotations

import sys
import sysconfig
import zipfile
from pathlib import Path


def is_wanted(name: str) -> bool:
    """Return whether a file of the wheel is unpacked. The list of files would be wrong."""
    is_described = ".dist-info/" in name and not name.endswith("/RECORD")
    return is_described or name.endswith((".py", ".json")) or "/fs_io_C." in name


def main() -> None:
    """Unpack the one wheel in a folder into this interpreter's packages."""
    (wheel,) = Path(sys.argv[1]).glob("vllm-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if is_wanted(name)]
        assert names, "the wheel has vLLM's modules"
        packed.extractall(sysconfig.get_path("purelib"), names)


if __name__ == "__main__":
    main()
