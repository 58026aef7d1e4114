"""Ctrl-C and SIGTERM at any time: one line and the exit status of shells, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.user import ROOT, environment

#: The console script, which prints the modules that it has imported.
_IMPORTS: Final = """
import os, sys
from envspec.__main__ import main
before = set(sys.modules)
def leave(code, end=os._exit):
    print(*[name for name in sys.modules if name not in before], flush=True)
    end(code)
os._exit = leave
main()
"""
#: The console script; a signal arrives when it imports a module.
_SIGNALLED: Final = """
import os, sys
sent = []
class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not sent:
            sent.append(name)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Sender())
sys.argv = ["envspec", "--version"]
from envspec.__main__ import main
sys.exit(main())
"""
#: Modules of the import phase that are tried, evenly spread.
_TRIED: Final = 6

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, "--version"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the command line imports, in order; not what `signal` needs, without which SIGTERM has no handler."""
    done = run(_IMPORTS, tmp_path_factory.mktemp("imports"))
    assert done.returncode == 0, done
    found = done.stdout.splitlines()[-1].split()
    return found[found.index("envspec.cli") :]


@pytest.mark.parametrize(("number", "status", "text"), [(2, 130, "interrupted\n"), (15, 143, "ended by SIGTERM\n")])
def test_a_signal_while_modules_are_imported(
    number: int, status: int, text: str, modules: list[str], tmp_path: Path
) -> None:
    assert "envspec.cli.main" in modules and "click" in modules
    for module in [*modules[:: len(modules) // _TRIED], modules[-1]]:
        done = run(_SIGNALLED.format(module=module, number=number), tmp_path)
        assert (done.returncode, done.stderr) == (status, text), module


def test_the_console_script_is_this_one() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    assert 'envspec = "envspec.__main__:main"' in lines
