"""uv on an environment that is being built: its surroundings, and its failures in our words."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from envspec.credentials import shown
from envspec.effects.http_faults import BadStatus
from envspec.effects.http_values import Patience
from envspec.effects.process import Bond, Ending, Finished, attend, run
from envspec.effects.surroundings import ca_bundle
from envspec.errors import EnvspecError, NetworkError, UnfitMachine
from envspec.fetch.values import Network
from envspec.install.order import World
from envspec.install.place import NoSpace, Site
from envspec.link import ward

# How the machine reaches the world, and where programs and Pythons are; nothing that says what is installed.
_KEPT: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "NETRC", "SSL_CERT_DIR", "XDG_DATA_HOME", "UV_PYTHON_INSTALL_DIR"),
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


async def ask(words: Sequence[str], variables: Mapping[str, str], site: Site | None = None) -> Finished:
    """Run uv to its end, whatever its status. site: where it writes; then it ends when this process does."""
    from uv import find_uv_bin

    command = [find_uv_bin(), *words, "--color=never", "--no-progress"]
    if site is None:
        return await run(command, environ=variables, cwd=Path("/"))
    command = [sys.executable, "-I", "-S", ward.__file__, *command]
    return await attend(command, environ=variables, cwd=site.path, bond=Bond(site.descriptor, Ending.STDIN))


def is_passing(stderr: str) -> bool:
    """Whether asking again may help; uv itself has, where no answer came, but not where one broke off."""
    return bool(_PASSING.search(stderr)) and not re.search(r"after \d+ retr", stderr)


def fault(ended: Finished) -> EnvspecError:
    """What uv says, in words for the user and with an exit code of ours."""
    text = re.split(r"\n\s*(?:hint|help):", ended.stderr)[0]
    name = re.search(r"`([^`\s]+)==([^`\s]+)`|version of (\S+)==(\S+) and|\b([\w.-]+) was not found in the cache", text)
    who = " ".join(part for part in name.groups() if part) if name else "the wheels"
    if mismatch := re.search(r"Expected:\s+((?:sha\w+:\w+\s+)+)Computed:\s+(\S+)", text):
        locked = ", ".join(mismatch[1].split()).replace("sha256:", "")
        return NetworkError(
            f"{who}: the index's file is not the one that the lock names: "
            f"SHA-256 {mismatch[2].removeprefix('sha256:')}, locked {locked}",
            hint="nothing was installed; find out who changed the file, and lock again only if the change is meant",
        )
    url = re.search(r"Failed to fetch: `?(\S+?)`?$", text, re.MULTILINE)
    if url and (status := re.search(r"HTTP status \w+ error \((\d{3})", text)):
        answered = BadStatus(url[1], int(status[1]))
        return NetworkError(f"{who}: {answered.message}", hint=answered.hint)
    where = f"{shown(url[1])}: " if url else ""
    for pattern, kind, what, hint in _ROWS:
        if re.search(pattern, text):
            return kind(f"{who}: {where}{what}", hint=hint)
    told = ": ".join(_causes(text)) or f"it ended with status {ended.status}"
    return UvFault(f"uv could not install {who}: {told}", hint="run again with --debug and report it")


_AGAIN: Final = "run the same command again; what was fetched is kept"
#: What uv says -> what it is, and what to do about it. The first row that fits decides.
_ROWS: Final[tuple[tuple[str, type[EnvspecError], str, str], ...]] = (
    (
        r"os error (?:28|122|27)\b|No space left",
        NoSpace,
        "no space left while wheels were installed",
        "make room and run the same command again; what was fetched is kept",
    ),
    (
        r"connectivity is disabled|was not found in the cache",
        NetworkError,
        "a file is not in the cache, and --offline forbids fetching it",
        "run once without --offline",
    ),
    (
        r"no wheels? with a matching|incompatible with|no compatible|can't be installed because",
        UnfitMachine,
        "the locked file is for another system or Python than this one",
        "`envspec fit LOCK` tells more",
    ),
    (
        r"there is no version of|was not found in the package registry",
        NetworkError,
        "the index does not have that version",
        "does it still have the file? ENVSPEC_DEFAULT_INDEX names another index",
    ),
    (r"timed out", NetworkError, "the server stalled", _AGAIN),
    (
        r"Connection refused|tcp connect error",
        NetworkError,
        "no connection",
        "is the server up, and HTTPS_PROXY right?",
    ),
    (r"dns error", NetworkError, "the host's name is not known here", "check the spelling, DNS and HTTPS_PROXY"),
    (r"invalid peer certificate|certificate", NetworkError, "no TLS connection", "name a bundle in SSL_CERT_FILE"),
    (r"decoding response body|[Cc]onnection (?:reset|closed)", NetworkError, "the answer broke off", _AGAIN),
    (r"Failed to extract archive", NetworkError, "the file that came is damaged", _AGAIN),
    (r"error sending request|Request failed", NetworkError, "the connection broke", _AGAIN),
)


def _causes(text: str) -> list[str]:
    """uv's headline and its causes, without what it says on the way and without credentials or doubled lines."""
    found = re.findall(r"^\s*(?:error|cause):\s*(.+(?:\n(?!\s*(?:error|cause):).+)*)", text, re.MULTILINE)
    words = (re.sub(r"\w+://[^\s`)]+", lambda url: shown(url[0]), " ".join(each.split())) for each in found)
    return list(dict.fromkeys(words))
