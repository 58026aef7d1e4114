"""How each service is started inside the image: its command line, its secrets, what is told of it.

Standard library only, CPython 3.9 and later. A secret is made at the container's start and is never in the image.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: 128 bits, when a token is drawn from hexadecimal digits or from more.
SHORTEST_TOKEN = 32
#: Of the container alone, or set anew by a login.
NOT_FOR_LOGINS = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "TERM", "_"})


class ServiceFault(Exception):
    """A service that must not or can't be started as things are; its words say what to do."""


@dataclass(frozen=True)
class Service:
    """What is started. shown: told on stderr once. owner: (uid, gid) to become, None to stay what init is."""

    name: str
    argv: list[str]
    environ: dict[str, str]
    shown: str
    owner: tuple[int, int] | None


def tell(text: str) -> None:
    """One line on stderr, in one write: several processes have the same stderr."""
    os.write(2, f"envspec: {text}\n".encode("utf-8", "replace"))


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder for what is made at the container's start: the first of these that can be written.

    `ENVSPEC_STATE_DIR`, the image's own, and the home's where the container runs as another user.
    """
    home = Path(environ.get("HOME") or "/")
    named = environ.get("ENVSPEC_STATE_DIR")
    places = [Path(named)] if named else [Path("/var/lib/envspec"), home / ".local" / "state" / "envspec"]
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK | os.X_OK):
            return place
    raise ServiceFault(
        f"none of {', '.join(map(str, places))} can be written by user {os.getuid()}: "
        "mount a folder, and name it by ENVSPEC_STATE_DIR"
    )


def prepare(
    service: Mapping[str, Any], settings: Mapping[str, Any], state: Path, environ: Mapping[str, str]
) -> Service:
    """A service of services.json, made ready to be started.

    Raises:
        ServiceFault: what it needs is not there, or what was given is not safe.
    """
    owner = (settings["uid"], settings["gid"]) if os.getuid() == 0 else None
    port = int(service["port"])
    _check_port(service["name"], _address(settings), port)
    given = {"jupyter": _jupyter, "tensorboard": _tensorboard, "ssh": _ssh}
    made = given[service["name"]](service, settings, state, dict(environ))
    if owner is not None:
        _give(state, owner)
        made.environ.update({"HOME": settings["home"], "USER": settings["user"], "LOGNAME": settings["user"]})
    return Service(service["name"], made.argv, made.environ, made.shown, owner)


@dataclass(frozen=True)
class _Made:
    argv: list[str]
    environ: dict[str, str]
    shown: str


def _jupyter(service: Mapping[str, Any], settings: Mapping[str, Any], state: Path, environ: dict[str, str]) -> _Made:
    """The token goes by a file that only the user can read: what is on a command line, everybody on the host sees.

    The folders of JUPYTER_CONFIG_PATH are read last of all: no file of the home or of a package can undo the token.
    """
    token = _token(environ)
    environ.pop("JUPYTER_TOKEN", None)
    environ.pop("JUPYTER_TOKEN_FILE", None)
    folder = state / "jupyter"
    login = {"token": token, "hashed_password": "", "password_required": False, "allow_password_change": False}
    # The names of version 1 still count where a file of the home has them.
    old_names = {"token": token, "password": "", "password_required": False}
    _write(
        folder / "jupyter_server_config.json",
        json.dumps(
            {
                "IdentityProvider": {"token": token},
                "PasswordIdentityProvider": login,
                "ServerApp": {**old_names, "allow_unauthenticated_access": False},
            }
        ),
    )
    environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(folder), environ.get("JUPYTER_CONFIG_PATH")]))
    port = service["port"]
    argv = [
        _program("jupyter-lab", "jupyterlab"),
        f"--ServerApp.ip={_address(settings)}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.open_browser=False",
        f"--ServerApp.root_dir={settings['workdir']}",
        "--ServerApp.identity_provider_class=jupyter_server.auth.identity.PasswordIdentityProvider",
    ]
    return _Made(argv, environ, f"jupyter: http://127.0.0.1:{port}/lab?token={token}")


def _token(environ: Mapping[str, str]) -> str:
    """The one that was given to this container, else a new one."""
    given, source = environ.get("JUPYTER_TOKEN"), "JUPYTER_TOKEN"
    if given is None and environ.get("JUPYTER_TOKEN_FILE"):
        source = "JUPYTER_TOKEN_FILE"
        try:
            given = Path(environ[source]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise ServiceFault(f"jupyter: the file that {source} names can't be read: {fault}") from fault
    if given is None:
        return secrets.token_hex(32)
    if len(given) < SHORTEST_TOKEN or len(set(given)) < 8:
        raise ServiceFault(
            f"jupyter: {source} is too easy to guess: it needs {SHORTEST_TOKEN} characters or more, "
            "8 of them different; `openssl rand -hex 32` makes one, and without it one is made at each start"
        )
    return given


def _tensorboard(
    service: Mapping[str, Any], settings: Mapping[str, Any], _state: Path, environ: dict[str, str]
) -> _Made:
    logdir = str(Path(settings["workdir"]) / service["logdir"])
    port = service["port"]
    argv = [
        _program("tensorboard", "tensorboard"),
        f"--host={_address(settings)}",
        f"--port={port}",
        f"--logdir={logdir}",
    ]
    return _Made(argv, environ, f"tensorboard: http://127.0.0.1:{port} on {logdir}")


def _ssh(service: Mapping[str, Any], settings: Mapping[str, Any], state: Path, environ: dict[str, str]) -> _Made:
    """sshd as a user that is not root: it can let in that user, and nobody else."""
    uid = settings["uid"] if os.getuid() == 0 else os.getuid()
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise ServiceFault(
            f"ssh: user {uid} has no line in /etc/passwd, so that nobody could log in: run the container as "
            f"user {settings['uid']}, or mount a passwd file that has it"
        ) from None
    server, keygen = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin"), shutil.which("ssh-keygen")
    if server is None or keygen is None:
        raise ServiceFault("ssh: there is no sshd in this image: add openssh-server to [system] apt")
    folder = state / "ssh"
    key = folder / "ssh_host_ed25519_key"
    if not key.is_file():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
        made = subprocess.run(  # noqa: S603 (no shell; the words are ours)
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise ServiceFault(f"ssh: no host key could be made in {folder}: {made.stderr.strip()}")
    given = environ.pop("SSH_AUTHORIZED_KEYS", "")
    _write(folder / "authorized_keys", f"{given}\n")
    own_keys = Path(account.pw_dir) / ".ssh" / "authorized_keys"
    if not given.strip() and not own_keys.is_file():
        tell(f"ssh: nobody can log in yet: mount {own_keys}, or give public keys by SSH_AUTHORIZED_KEYS")
    lines = [
        f"Port {service['port']}",
        *([f"ListenAddress {settings['address']}"] if "address" in settings else []),
        f"HostKey {_quoted(str(key))}",
        f"AuthorizedKeysFile .ssh/authorized_keys {_quoted(str(folder / 'authorized_keys'))}",
        f"AllowUsers {account.pw_name}",
        _set_env(environ),
        (HERE / "sshd_config").read_text(encoding="utf-8"),
    ]
    _write(folder / "sshd_config", "\n".join(lines))
    argv = [server, "-D", "-e", "-f", str(folder / "sshd_config")]
    return _Made(argv, environ, f"ssh: ssh -p {service['port']} {account.pw_name}@127.0.0.1, keys only")


def _set_env(environ: Mapping[str, str]) -> str:
    """A login starts with an empty environment: it gets the container's. sshd takes only the first SetEnv line."""
    words = [
        _quoted(f"{name}={value}")
        for name, value in sorted(environ.items())
        if name not in NOT_FOR_LOGINS and not name.startswith("JUPYTER_TOKEN") and value.isprintable()
    ]
    return f"SetEnv {' '.join(words)}" if words else ""


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _program(name: str, package: str) -> str:
    """An entry point of this environment: beside its interpreter, whatever PATH says."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise ServiceFault(f"{package} is not in this environment: add it to the spec")
    return str(path)


def _address(settings: Mapping[str, Any]) -> str:
    """Where services listen: a container's own network is reached from outside of it. `envspec run` names another one
    where the network is the machine's."""
    return str(settings.get("address", "0.0.0.0"))  # noqa: S104


def _check_port(name: str, address: str, port: int) -> None:
    """Whether this user may listen there; a server's own words for it are hard to read."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            raise ServiceFault(
                f"{name}: user {os.getuid()} may not listen on port {port}: take a port above 1023, or run the "
                "container with --sysctl net.ipv4.ip_unprivileged_port_start=0"
            ) from None
        except OSError as fault:
            raise ServiceFault(f"{name}: port {port}: {fault.strerror}") from None


def _write(path: Path, text: str) -> None:
    """For the user's eyes only, from the first byte on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _give(folder: Path, owner: tuple[int, int]) -> None:
    """What root has made to the user that the service becomes."""
    os.chown(folder, *owner)
    for path in folder.rglob("*"):
        os.chown(path, *owner, follow_symlinks=False)
