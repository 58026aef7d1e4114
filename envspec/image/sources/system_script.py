"""What runs in the container that makes a system layer, and what of its changes is left out of the layer. Pure.

Sources: apt.conf(5), apt_preferences(5), Debian Policy 9.3.3.1 on `policy-rc.d`; Ubuntu's snapshot service, "How to use
the Ubuntu snapshot service" (which apt knows snapshots, and `snapshot=yes` before 24.04). Read 2026-11.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Final

from envspec.image.services import GID, HOME, UID, USER

#: Where everything lies that the container is given and gives; nothing below it comes into the layer.
WORK: Final = "/.envspec-build"
#: What the container gives: see the script.
OUT: Final = f"{WORK}/out"
#: Names a mirror with snapshots, such as `https://mirror.corp/{archive}/{moment}/`, for an apt that knows none.
MIRROR: Final = "ENVSPEC_APT_SNAPSHOT"
#: 1980-01-01, as all files in images. Python then writes bytecode that goes by hashes, shadow the same day.
EPOCH: Final = 315532800

#: Exit statuses of the script that mean something.
NO_APT: Final = 64
NO_SNAPSHOT: Final = 65
NO_UPDATE: Final = 66

#: Of this machine, for reaching the archive.
_REACH: Final = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Files that are another machine's, or another moment's. A `*` also stands for `/`.
_LEFT_OUT: Final = (
    f"{WORK[1:]}/*",
    ".dockerenv",
    "run/*",
    "tmp/*",
    "var/tmp/*",
    "dev/*",
    "proc/*",
    "sys/*",
    "etc/hostname",
    "etc/hosts",
    "etc/mtab",
    "etc/resolv.conf",
    # of this one machine: made again where they are missing
    "etc/machine-id",
    "var/lib/dbus/machine-id",
    "etc/ssh/ssh_host_*",
    "etc/ssl/private/ssl-cert-snakeoil.key",
    "etc/ssl/certs/ssl-cert-snakeoil.pem",
    "var/lib/systemd/random-seed",
    # what programs remember of the last time
    "root/.*",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/dpkg/*-old",
    "etc/.pwd.lock",
    *(f"etc/{name}-" for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")),
)
#: Below these, folders stay for the programs that need them, and files do not.
_FOLDERS_ONLY: Final = ("var/log/", "var/cache/")
_ARCHIVES: Final = "debian|debian-security|debian-ports|ubuntu|ubuntu-ports"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be installed.

    apt: names. snapshot: the archive's moment. pins: `name=version` of all that a lock knows to be installed. mirror:
    what MIRROR names.
    """

    apt: tuple[str, ...]
    snapshot: datetime | None = None
    pins: tuple[str, ...] = ()
    mirror: str | None = None


def form() -> str:
    """SHA-256 over the script and the rules: another form makes another layer of the same wish."""
    rules = repr((_LEFT_OUT, _FOLDERS_ONLY, EPOCH, USER, UID, GID, HOME))
    return hashlib.sha256(_script() + _apt_conf(Wish(()), None).encode() + rules.encode()).hexdigest()


def work_files(wish: Wish, environ: Mapping[str, str], certificates: bytes | None) -> dict[str, bytes]:
    """Name in WORK -> content, of all that the container is given.

    environ: this machine's, of which proxies alone are handed on. certificates: this machine's CA bundle.
    """
    variables = {
        "PATH": _PATH,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "HOME": "/root",
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "PYTHONHASHSEED": "0",
        # Perl's hashes too come in another order each time, and debconf writes them out.
        "PERL_HASH_SEED": "0",
        "PERL_PERTURB_KEYS": "0",
        "SNAPSHOT": "" if wish.snapshot is None else f"{wish.snapshot.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}",
        "MIRROR": "" if wish.mirror is None or wish.snapshot is None else _replacement(wish.mirror, wish.snapshot),
        "ARCHIVES": _ARCHIVES,
        "USER_NAME": USER,
        "USER_HOME": f"/{HOME}",
        "USER_ID": str(UID),
        "GROUP_ID": str(GID),
        **({"SSL_CERT_FILE": f"{WORK}/ca.pem"} if certificates else {}),
        **{name: value for name, value in environ.items() if name.lower() in _REACH},
    }
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    given = {
        "install.sh": _script(),
        "environment": exported.encode(),
        "apt.conf": _apt_conf(wish, f"{WORK}/ca.pem" if certificates else None).encode(),
        "preferences": _preferences(wish.pins).encode(),
        "wanted": "".join(f"{name}\n" for name in wish.apt).encode(),
    }
    return given | ({"ca.pem": certificates} if certificates else {})


def is_left_out(path: str, *, is_folder: bool) -> bool:
    """Whether a changed path, relative to the root, stays out of the layer."""
    if any(path.startswith(folder) for folder in _FOLDERS_ONLY):
        return not is_folder
    return path == WORK[1:] or any(fnmatchcase(path, pattern) for pattern in _LEFT_OUT)


def installed(before: str, after: str) -> tuple[str, ...]:
    """`name=version` of what came, sorted: from the lists of all packages that there were, and are."""
    return tuple(sorted(set(after.split()) - set(before.split())))


def package_differences(locked: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """One line for each package that is not as it was: `gcc: locked 4:12.2.0-3, installed 4:12.3.0-1`."""
    was, now = (dict(_name_and_version(row) for row in rows) for rows in (locked, found))
    return tuple(
        f"{name}: locked {was.get(name, 'not')}, installed {now.get(name, 'not')}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    )


def _name_and_version(row: str) -> tuple[str, str]:
    name, _, version = row.partition("=")
    return name, version


def _replacement(mirror: str, moment: datetime) -> str:
    """The mirror's address as the right side of sed's `s`, whose second group is the archive's name."""
    stamp = f"{moment.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"
    return re.sub(r"[&#\\]", r"\\\g<0>", mirror).replace("{archive}", r"\2").replace("{moment}", stamp)


def _apt_conf(wish: Wish, certificates: str | None) -> str:
    """apt keeps to WORK with all that is not the system itself, and knows nothing of this machine's configuration."""
    snapshot = wish.snapshot is not None
    lines = [
        f'Dir::State::lists "{WORK}/lists/"',
        f'Dir::Cache "{WORK}/cache/"',
        f'Dir::Log "{WORK}/log/"',
        f'Dir::Etc::preferences "{WORK}/preferences"',
        'APT::Sandbox::User "root"',
        'APT::Get::Assume-Yes "true"',
        # A base whose packages must go for others to come is not the base that was pinned.
        'APT::Get::Remove "false"',
        'APT::Install-Recommends "false"',
        'APT::Install-Suggests "false"',
        'Acquire::Languages "none"',
        'Acquire::Retries "3"',
        'Dpkg::Use-Pty "false"',
        'DPkg::Options:: "--force-confnew"',
        # Nobody reads manuals in there; licences stay.
        *(
            f'DPkg::Options:: "--path-exclude=/usr/share/{folder}/*"'
            for folder in ("man", "info", "doc", "lintian", "linda")
        ),
        'DPkg::Options:: "--path-include=/usr/share/doc/*/copyright"',
    ]
    if snapshot:
        lines += [
            f'Dir::Etc::sourcelist "{WORK}/sources.list"',
            f'Dir::Etc::sourceparts "{WORK}/sources.list.d"',
            'Acquire::Check-Valid-Until "false"',
        ]
    if certificates:
        lines.append(f'Acquire::https::CaInfo "{certificates}"')
    return "".join(f"{line};\n" for line in lines)


def _preferences(pins: Sequence[str]) -> str:
    """Versions that go before all others. A pin whose version is gone does nothing, and is found out afterwards."""
    rows = (_name_and_version(pin) for pin in pins)
    return "\n".join(f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n" for name, version in rows)


def _script() -> bytes:
    return files("envspec.image.sources").joinpath("system_layer.sh").read_bytes()
