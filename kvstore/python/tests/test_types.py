"""The stubs say what the module has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
    engines.write_text("adit\\.(lmcache_l2|lmcache_plugin|sglang|vllm)\n")
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
        own = [kind for kind in getattr(thing, "__mro__", ()) if kind.__module__.startswith("adit")]
        for kind in own:
            assert kind.__doc__, kind
            for member, value in vars(kind).items():
                is_documented = member.startswith("_") or member in ("index", "version") or value.__doc__
                assert is_documented, f"{kind.__name__}.{member}"


def test_only_the_module_makes_what_stores_and_clients_share() -> None:
    calls, scope = adit.Store.__mro__[1:3]
    assert adit.Client.__mro__[1:3] == (calls, scope) and scope in adit.Queue.__mro__
    for kind in (calls, scope):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
