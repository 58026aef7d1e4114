"""The script of a system layer's container, and which of its changes are excluded. Pure.

Sources: apt.conf(5), apt_preferences(5), Debian Policy 9.3.3.1 on `policy-rc.d`. Read 2026-11.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Final

from envspec.data import DATA
from envspec.image.config import DEFAULT_PATH
from envspec.image.services import GID, HOME, UID, USER

#: Folder of the container's input and output; excluded from the layer.
WORK: Final = "/.envspec-build"
#: The container's output: see the script.
OUT: Final = f"{WORK}/out"
#: Names a mirror with snapshots, such as `https://mirror.corp/{archive}/{time}/`.
MIRROR: Final = "ENVSPEC_APT_SNAPSHOT"
#: 1980-01-01, as all files in images. Makes Python write hash-based bytecode, and shadow the same day.
EPOCH: Final = 315532800

#: Exit statuses of the script.
NO_APT: Final = 64
NO_SNAPSHOT: Final = 65
NO_UPDATE: Final = 66

#: This machine's variables for the archive's network.
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
#: Files that depend on the machine or the time. `*` also matches `/`.
_LEFT_OUT: Final = (
    *(f"{WORK[1:]}/*", ".dockerenv", "run/*", "tmp/*", "var/tmp/*", "dev/*", "proc/*", "sys/*"),
    *("etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"),
    # of one machine; created again if they are missing
    *("etc/machine-id", "var/lib/dbus/machine-id", "etc/ssh/ssh_host_*", "etc/ssl/private/ssl-cert-snakeoil.key"),
    *("etc/ssl/certs/ssl-cert-snakeoil.pem", "var/lib/systemd/random-seed"),
    # caches and backups of programs
    *("root/.*", "var/lib/apt/lists/*", "var/lib/dpkg/lock*", "var/lib/dpkg/triggers/Lock", "var/lib/dpkg/*-old"),
    "etc/.pwd.lock",
    *(f"etc/{name}-" for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")),
)
#: Below these, folders are included for the programs that need them, files are not.
_FOLDERS_ONLY: Final = ("var/log/", "var/cache/")


def form() -> str:
    """SHA-256 of the script and its rules: part of a layer's key."""
    rules = repr((_LEFT_OUT, _FOLDERS_ONLY, EPOCH, USER, UID, GID, HOME))
    scripts = _script() + _sources_script()
    return hashlib.sha256(scripts + _apt_conf(None).encode() + rules.encode()).hexdigest()


def work_files(
    apt: Sequence[str],
    snapshot: datetime | None,
    pins: Sequence[str],
    environ: Mapping[str, str],
    certificates: bytes | None,
) -> dict[str, bytes]:
    """Name in WORK -> content of the container's input.

    apt: names. snapshot: time of the archive. pins: `name=version` of locked packages. environ: this machine's; only
    its proxies and MIRROR are used. certificates: this machine's CA bundle.
    """
    bundle = f"{WORK}/ca.pem" if certificates else None
    variables = {
        "PATH": DEFAULT_PATH,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "HOME": "/root",
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "PYTHONHASHSEED": "0",
        # Perl's hashes have a random order too, and debconf writes them.
        "PERL_HASH_SEED": "0",
        "PERL_PERTURB_KEYS": "0",
        "SNAPSHOT": "" if snapshot is None else _timestamp(snapshot),
        "MIRROR": environ.get(MIRROR, ""),
        "USER_NAME": USER,
        "USER_HOME": f"/{HOME}",
        "USER_ID": str(UID),
        "GROUP_ID": str(GID),
        **{name: value for name, value in environ.items() if name.lower() in _PROXIES},
    }
    if bundle:
        variables["SSL_CERT_FILE"] = bundle
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    result = {
        "install.sh": _script(),
        "apt-sources.sh": _sources_script(),
        "environment": exported.encode(),
        "apt.conf": _apt_conf(bundle).encode(),
        "preferences": _preferences(pins).encode(),
        "wanted": "".join(f"{name}\n" for name in apt).encode(),
    }
    if certificates:
        result["ca.pem"] = certificates
    return result


def is_excluded(path: str, *, is_folder: bool) -> bool:
    """Whether a changed path, relative to the root, is excluded from the layer."""
    if any(path.startswith(folder) for folder in _FOLDERS_ONLY):
        return not is_folder
    return path == WORK[1:] or any(fnmatchcase(path, pattern) for pattern in _LEFT_OUT)


def installed(before: str, after: str) -> tuple[str, ...]:
    """`name=version` of new packages, sorted. before, after: lists of all packages."""
    return tuple(sorted(set(after.split()) - set(before.split())))


def package_differences(locked: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """One line for each changed package: `gcc: locked 4:12.2.0-3, installed 4:12.3.0-1`."""
    was = dict(package.partition("=")[::2] for package in locked)
    now = dict(package.partition("=")[::2] for package in found)
    lines = []
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            lines.append(f"{name}: locked {was.get(name, 'not')}, installed {now.get(name, 'not')}")
    return tuple(lines)


def _timestamp(snapshot: datetime) -> str:
    return f"{snapshot.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"


def _apt_conf(certificates: str | None) -> str:
    """apt's own files are below WORK, and this machine's configuration has no effect."""
    lines = [
        f'Dir::State::lists "{WORK}/lists/"',
        f'Dir::Cache "{WORK}/cache/"',
        f'Dir::Log "{WORK}/log/"',
        f'Dir::Etc::preferences "{WORK}/preferences"',
        'APT::Sandbox::User "root"',
        'APT::Get::Assume-Yes "true"',
        # Removing packages would change the pinned base.
        'APT::Get::Remove "false"',
        'APT::Install-Recommends "false"',
        'APT::Install-Suggests "false"',
        'Acquire::Languages "none"',
        'Acquire::Retries "3"',
        'Dpkg::Use-Pty "false"',
        'DPkg::Options:: "--force-confnew"',
        # No manuals; licences are included.
        *(
            f'DPkg::Options:: "--path-exclude=/usr/share/{folder}/*"'
            for folder in ("man", "info", "doc", "lintian", "linda")
        ),
        'DPkg::Options:: "--path-include=/usr/share/doc/*/copyright"',
    ]
    if certificates:
        lines.append(f'Acquire::https::CaInfo "{certificates}"')
    return "".join(f"{line};\n" for line in lines)


def _preferences(pins: Sequence[str]) -> str:
    """Preferred versions. A pin on a removed version has no effect, which is detected afterwards."""
    packages = (pin.partition("=") for pin in pins)
    return "\n".join(f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n" for name, _, version in packages)


def _script() -> bytes:
    return files("envspec.image.sources").joinpath("system_layer.sh").read_bytes()


def _sources_script() -> bytes:
    return (DATA / "apt-sources.sh").read_bytes()
