"""uv on an environment that is being built: its surroundings, and its failures in our words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from envspec.effects.http_faults import shown
from envspec.effects.http_values import Patience
from envspec.effects.surroundings import ca_bundle
from envspec.errors import EnvspecError, NetworkError, UnfitMachine
from envspec.install.order import Network, World
from envspec.install.place import NoSpace
from envspec.install.programs import Ended, Program, run

# How the machine reaches the world and where programs are; nothing that says what is installed.
_KEPT: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "NETRC", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
_LOOPBACK: Final = "127.0.0.1,localhost,::1"
_PASSING: Final = re.compile(
    r"decoding response body|Connection (?:reset|refused|closed)|connection closed|timed out|Failed to extract archive"
    r"|HTTP status server error|error sending request"
)


class UvFault(EnvspecError):
    """uv failed in a way that has no words here."""


def environ(world: World, patience: Patience, network: Network, jobs: int) -> dict[str, str]:
    """A whole environment for uv: none of the user's settings, and patience as envspec's own."""
    kept = {name: world.environ[name] for name in _KEPT if world.environ.get(name)}
    bundle = ca_bundle(world.environ)
    # What is on this machine is never asked for through a proxy: envspec's own requests are not, either.
    exempt = world.environ.get("no_proxy") or world.environ.get("NO_PROXY") or ""
    exempt = f"{exempt},{_LOOPBACK}".lstrip(",")
    return {
        **kept,
        **({"SSL_CERT_FILE": str(bundle)} if bundle is not None and bundle.is_file() else {}),
        "NO_PROXY": exempt,
        "no_proxy": exempt,
        "LC_ALL": "C.UTF-8",
        "UV_CACHE_DIR": str(world.cache / "uv"),
        "UV_HTTP_TIMEOUT": str(max(1, round(patience.stall_s))),
        "UV_HTTP_RETRIES": str(patience.attempts - 1),
        "UV_CONCURRENT_DOWNLOADS": str(jobs),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        **({"UV_OFFLINE": "1"} if network is Network.OFFLINE else {}),
    }


async def ask(words: Sequence[str], variables: Mapping[str, str], world: World, holds: int | None = None) -> Ended:
    """Run uv to its end, whatever its status."""
    from uv import find_uv_bin

    command = [find_uv_bin(), *words, "--color=never", "--no-progress"]
    world.cache.mkdir(parents=True, exist_ok=True)
    return await run(Program(command, variables, world.cache, holds))


def is_passing(stderr: str) -> bool:
    """Whether asking again may help."""
    return bool(_PASSING.search(stderr))


def fault(ended: Ended) -> EnvspecError:
    """What uv says, in words for the user and with an exit code of ours."""
    causes = _causes(ended.errors)
    told = ": ".join(causes) or f"uv ended with status {ended.status}"
    what = re.search(r"`([^`]+)`", told)
    name = _plain(what[1]) if what else "a wheel"
    mismatch = re.search(r"Expected:\s+((?:sha\w+:\w+\s+)+)Computed:\s+(\S+)", ended.errors)
    if mismatch:
        locked = ", ".join(mismatch[1].split()).replace("sha256:", "")
        return NetworkError(
            f"{name}: the index's file is not the one that the lock names: "
            f"SHA-256 {mismatch[2].removeprefix('sha256:')}, locked {locked}",
            hint="nothing was installed; find out who changed the file, and lock again only if the change is meant",
        )
    rows = (
        (r"os error 28|os error 122|No space left", NoSpace, "make room and run the same command again"),
        (
            r"connectivity is disabled|offline",
            NetworkError,
            "run once without --offline: a file is not in the cache",
        ),
        (
            r"no wheels? with|not compatible|no matching (?:Python|platform)|can't be installed",
            UnfitMachine,
            "the locked file is for another machine or Python: `envspec fit LOCK` tells more",
        ),
        (
            r"there is no version of|was not found in the package registry",
            NetworkError,
            "does the index still have it? ENVSPEC_DEFAULT_INDEX names another one",
        ),
        (r"\b401\b|\b403\b", NetworkError, "put the credentials for this host into netrc"),
        (
            r"HTTP status|Failed to (?:fetch|download|extract)|error sending request|Request failed",
            NetworkError,
            "try again; what was fetched is kept",
        ),
    )
    for pattern, kind, hint in rows:
        if re.search(pattern, told):
            return kind(f"wheels could not be installed: {told}", hint=hint)
    return UvFault(f"uv could not install the wheels: {told}", hint="run again with --debug and report it")


def _causes(stderr: str) -> list[str]:
    """uv's headline and its causes, without what it says on the way and without credentials or doubled lines."""
    text = re.split(r"\n\s*(?:hint|help):", stderr)[0]
    found = re.findall(r"^\s*(?:error|cause):\s*(.+(?:\n(?!\s*(?:error|cause):).+)*)", text, re.MULTILINE)
    words = (re.sub(r"\w+://[^\s`)]+", lambda url: shown(url[0]), " ".join(each.split())) for each in found)
    return list(dict.fromkeys(words))


def _plain(name: str) -> str:
    return name.replace("==", " ")
