"""Someone who runs envspec in a folder of theirs: as a process, in an environment that is stated whole.

user = User(tmp_path, index.url)
user.writes('[env]\\nname = "small"\\npython = "3.11.7"\\n[pip]\\ndependencies = ["app"]\\n')
assert user.locks().status == 0
assert user.pins() == {"app": "1.0.0"}
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from envspec import documents
from tests.support import preloaded

#: Where the envspec that the tests import lies: the processes run this one and no other.
ROOT: Final = Path(documents.__file__).parents[1]
#: A server on loopback that failed does not fail less when it is waited for.
SHORT_BACKOFF: Final = {"ENVSPEC_HTTP_BACKOFF_S": "0.02"}
#: For servers that stall or drip: patience ends soon. A machine under load may need longer for an honest answer.
SHORT_TIMEOUTS: Final = {"ENVSPEC_HTTP_STALL_S": "1.5", "ENVSPEC_HTTP_TOTAL_S": "3"}
#: A proxy that nobody runs: whatever is not on loopback can not be reached, and that is known at once.
CUT_OFF: Final = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
NAME: Final = "small"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a process left."""

    status: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The one message, from `error: ` to the line that names its page."""
        return self.stderr.partition("error: ")[2].partition("\n  more: ")[0].rstrip("\n")

    @property
    def warnings(self) -> list[str]:
        return [line.removeprefix("warning: ") for line in self.stderr.splitlines() if line.startswith("warning: ")]


@dataclass(frozen=True, slots=True)
class Running:
    """A run under way."""

    child: preloaded.Child
    stdout: IO[bytes]
    stderr: IO[bytes]

    def ends(self, limit_s: float | None = None) -> Ran:
        status = self.child.wait(limit_s)
        texts = []
        for stream in (self.stdout, self.stderr):
            with stream:
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "replace"))
        return Ran(status, *texts)


def refused(ran: Ran, status: int) -> str:
    """The message of a run that was refused as a run should be: one message with what to do, nothing on stdout."""
    assert ran.status == status, ran
    assert ran.stdout == "", ran.stdout
    assert "Traceback" not in ran.stderr, ran.stderr
    assert ran.stderr.count("error: ") == 1, ran.stderr
    assert "\n  hint: " in ran.error, ran.error
    return ran.error


def succeeded(ran: Ran) -> Ran:
    """The run, whose exit status is 0."""
    assert ran.status == 0, ran
    return ran


class User:
    """folder: holds spec, lock, cache and home. index: the address that stands for the default index."""

    def __init__(self, folder: Path, index: str, **environ: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.spec = folder / "spec.toml"
        self.cache = folder / "cache"
        self.environ = {
            "HOME": str(self.home),
            "PATH": os.defpath,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "ENVSPEC_CACHE_DIR": str(self.cache),
            "ENVSPEC_DEFAULT_INDEX": index,
            **SHORT_BACKOFF,
            **CUT_OFF,
            **environ,
        }

    @property
    def lock(self) -> Path:
        """The folder of the lock that `locks` writes."""
        return self.folder / "locks" / NAME

    def writes(self, spec: str) -> Path:
        self.spec.write_text(spec, encoding="utf-8")
        return self.spec

    def wants(
        self,
        *dependencies: str,
        as_of: str | None = None,
        python: str = "3.11.7",
        platforms: Iterable[str] = ("linux-64",),
        pip: str = "",
        rest: str = "",
    ) -> Path:
        """A spec of the usual shape. as_of: a TOML moment. pip: more lines of its table. rest: more tables."""
        moment = f"as_of = {as_of}\n" if as_of else ""
        return self.writes(
            f'[env]\nname = "{NAME}"\npython = "{python}"\nplatforms = {_array(platforms)}\n{moment}'
            f"\n[pip]\ndependencies = {_array(dependencies)}\n{pip}\n{rest}"
        )

    def runs(self, *words: str | Path, environ: Mapping[str, str] = {}) -> Ran:
        """`envspec WORDS`. environ: added to the user's own."""
        whole = {**self.environ, **environ}
        if not preloaded.can_run(whole):
            return self.runs_anew(*words, environ=environ)
        return self.in_background(words, whole).ends()

    def runs_anew(self, *words: str | Path, environ: Mapping[str, str] = {}, umask: int = -1) -> Ran:
        """The same in Python started anew: /proc shows its words and its environment to others."""
        done = subprocess.run(
            command_line(list(map(str, words))),
            cwd=self.folder,
            env={**self.environ, **environ},
            umask=umask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def in_background(self, words: Iterable[str | Path], environ: Mapping[str, str]) -> Running:
        """The same in this environment and no other, without waiting for its end."""
        return _child(words, environ, self.folder)

    def locks(self, *words: str | Path, **environ: str) -> Ran:
        """`envspec lock spec.toml WORDS`."""
        return self.runs("lock", self.spec.name, *words, environ=environ)

    def locked(self, *words: str | Path, **environ: str) -> Ran:
        """The same, which has to succeed."""
        ran = self.locks(*words, **environ)
        assert ran.status == 0, ran.stderr
        return ran

    def locked_pins(self, *words: str | Path) -> dict[str, str]:
        """Versions on the first platform after a run that has to succeed."""
        self.locked(*words)
        return self.pins(self.document()["resolution"][0]["platform"])

    def pins_of(self, *dependencies: str, words: Sequence[str] = (), **spec: Any) -> dict[str, str]:
        """The same for the spec that `wants` writes of these arguments."""
        self.wants(*dependencies, **spec)
        return self.locked_pins(*words)

    def starts(self, *words: str | Path, **environ: str) -> Running:
        """The same as `locks`, without waiting for its end."""
        return self.in_background(("lock", self.spec.name, *words), {**self.environ, **environ})

    def document(self) -> dict[str, Any]:
        """envspec.lock as it was written."""
        return documents.parse_toml((self.lock / "envspec.lock").read_text(encoding="utf-8"))

    def packages(self, platform: str = "linux-64") -> dict[str, dict[str, Any]]:
        """The locked packages of one platform, by name."""
        return {
            package["name"]: package
            for resolution in self.document()["resolution"]
            if resolution["platform"] == platform
            for package in resolution.get("package", ())
        }

    def pins(self, platform: str = "linux-64") -> dict[str, str]:
        return {name: package["version"] for name, package in self.packages(platform).items()}

    def files(self) -> dict[str, bytes]:
        """Every file of the lock; empty where there is none."""
        if not self.lock.is_dir():
            return {}
        return {path.name: path.read_bytes() for path in sorted(self.lock.iterdir())}

    def leaves(self) -> bytes:
        """All that runs left behind: the lock's files, and everything in the cache and the home."""
        return b"\0".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())


def a_second_later() -> None:
    """Moments of locks are whole seconds: what is uploaded now counts from the next one on."""
    until = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=1)
    while (rest := until - datetime.now(timezone.utc)) > timedelta():
        time.sleep(rest.total_seconds())


def _array(values: Iterable[str]) -> str:
    return "[" + ", ".join(f"'''{value}'''" for value in values) + "]"


def routed(name: str, url: str, *packages: str, undated: str | None = None, files: Iterable[str] = ()) -> str:
    """A `[[pip.index]]` table. files: other hosts of its files."""
    rows: Mapping[str, str] = {"name": f"'{name}'", "url": f"'{url}'", "packages": _array(packages)}
    lines = [f"{key} = {value}" for key, value in rows.items()]
    lines += [f"undated = '{undated}'"] if undated else []
    lines += [f"files = {_array(files)}"] if files else []
    return "\n".join(["[[pip.index]]", *lines, ""])


def command_line(words: Sequence[str]) -> list[str]:
    """What starts `envspec` with these words, by the interpreter that runs the tests."""
    return [sys.executable, "-m", "envspec", *words]


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Nothing of the tests' own surroundings but where programs and envspec are. variables: set besides, or instead."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "ENVSPEC_CACHE_DIR": str(home / "cache"),
        **variables,
    }


def envspec(cwd: Path, *words: str, environ: Mapping[str, str] | None = None) -> Ran:
    """Run to the end; a run that hangs for a minute is a failure."""
    whole = environ or environment(cwd)
    if preloaded.can_run(whole):
        return _child(words, whole, cwd).ends(limit_s=60)
    done = subprocess.run(command_line(words), cwd=cwd, env=whole, capture_output=True, timeout=60, check=False)
    return Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def _child(words: Iterable[str | Path], environ: Mapping[str, str], cwd: Path) -> Running:
    # `Running.ends` closes them.
    stdout, stderr = TemporaryFile(), TemporaryFile()  # noqa: SIM115
    return Running(preloaded.start([*map(str, words)], environ, cwd, stdout, stderr), stdout, stderr)


def on_a_terminal(
    cwd: Path, *words: str, columns: int = 80, environ: Mapping[str, str] | None = None, **variables: str
) -> str:
    """What somebody at a terminal of that width sees, both streams. variables: set besides those of `environ`."""
    surroundings = {**(environ or environment(cwd)), "TERM": "xterm-256color", **variables}
    seen = b"".join(terminal_output(command_line(words), cwd, surroundings, columns, rows=50))
    return seen.decode("utf-8").replace("\r\n", "\n")


def terminal_output(
    command: Sequence[str], cwd: Path, environ: Mapping[str, str], columns: int, rows: int
) -> Iterator[bytes]:
    """What a program writes to a terminal of that size, as it comes."""
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(command, cwd=cwd, env=environ, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux's word for the end of a terminal
            break
        if not chunk:
            break
        yield chunk
    os.close(master)
    process.wait(timeout=60)
