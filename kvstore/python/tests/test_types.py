"""The stubs say what the module has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import adit


def run(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


SETTINGS = Path(__file__).parents[1] / "pyproject.toml"


def test_the_stubs_and_the_module_agree(tmp_path: Path) -> None:
    # Adapters import their engines, which are not installed.
    engines = tmp_path / "engines"
    engines.write_text("adit\\.(lmcache_plugin|sglang|vllm)\n")
    stubtest = ("mypy.stubtest", "adit", f"--mypy-config-file={SETTINGS}")
    run(*stubtest, f"--allowlist={engines}", "--ignore-unused-allowlist", cwd=tmp_path)


def test_the_package_and_its_tests_are_typed(tmp_path: Path) -> None:
    check = ("mypy", f"--config-file={SETTINGS}", f"--cache-dir={tmp_path}")
    run(*check, "--package", "adit", cwd=tmp_path)
    run(*check, str(Path(__file__).parent), cwd=tmp_path)


def test_the_module_needs_no_library_beyond_libc(tmp_path: Path) -> None:
    (module,) = Path(adit.__file__).parent.glob("_adit*.so")
    needed = subprocess.run(["ldd", module], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].rsplit("/")[-1].split(".")[0] for line in needed.splitlines()}
    assert names <= {"linux-vdso", "ld-linux-x86-64", "libc", "libm", "libgcc_s", "libpthread", "libdl"}


def test_everything_public_is_documented() -> None:
    for name in adit.__all__:
        thing = getattr(adit, name)
        assert name == "__version__" or thing.__doc__, name
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                is_documented = member.startswith("_") or member == "index" or value.__doc__
                assert is_documented, f"{name}.{member}"
