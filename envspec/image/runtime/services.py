"""Prepares each service inside the image: its command line, its secrets, its line in the log.

Standard library only, CPython 3.9 and later. Secrets are generated at the container's start and never in the image.
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
#: 128 bits for a token of random hexadecimal digits.
MIN_TOKEN = 32
#: Of the container only, or set by a login.
NOT_FOR_LOGINS = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "TERM", "_"})


class ServiceFault(Exception):
    """A service can't be started; the message says how to fix it."""


@dataclass(frozen=True)
class Service:
    """description: logged once. owner: (uid, gid) of its process; None for init's own."""

    name: str
    argv: list[str]
    environ: dict[str, str]
    description: str
    owner: tuple[int, int] | None


def log(text: str) -> None:
    """Write one line to stderr, at once: several processes share it."""
    os.write(2, f"envspec: {text}\n".encode("utf-8", "replace"))


def state_folder(environ: Mapping[str, str]) -> Path:
    """A writable folder for files generated at the container's start.

    `ENVSPEC_STATE_DIR`; by default the image's own, else one in the home of the container's user.
    """
    home = Path(environ.get("HOME") or "/")
    named = environ.get("ENVSPEC_STATE_DIR")
    folders = [Path(named)] if named else [Path("/var/lib/envspec"), home / ".local" / "state" / "envspec"]
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    uid = os.getuid()
    raise ServiceFault(
        f"user {uid} can't write to {', '.join(map(str, folders))}: mount a folder, and set ENVSPEC_STATE_DIR; or run "
        f"the container with --tmpfs /tmp --tmpfs {home}:uid={uid} --tmpfs /var/lib/envspec:uid={uid},mode=700"
    )


def prepare(
    service: Mapping[str, Any], settings: Mapping[str, Any], state: Path, environ: Mapping[str, str]
) -> Service:
    """Prepare a service of services.json.

    Raises:
        ServiceFault: something is missing or not safe.
    """
    owner = (settings["uid"], settings["gid"]) if os.getuid() == 0 else None
    port = int(service["port"])
    _check_port(service["name"], _address(settings), port)
    own_environ = dict(environ)
    prepare_one = {"jupyter": _jupyter, "tensorboard": _tensorboard, "ssh": _ssh}[service["name"]]
    argv, description = prepare_one(service, settings, state, own_environ)
    if owner is not None:
        _chown(state, owner)
        own_environ.update({"HOME": settings["home"], "USER": settings["user"], "LOGNAME": settings["user"]})
    return Service(service["name"], argv, own_environ, description, owner)


def _jupyter(
    service: Mapping[str, Any], settings: Mapping[str, Any], state: Path, environ: dict[str, str]
) -> tuple[list[str], str]:
    """The token is in a file that only the user can read: everybody on the host sees command lines.

    NB_PREFIX is the path under which Kubeflow publishes the container.

    Jupyter reads JUPYTER_CONFIG_PATH last: no file in the home or of a package can disable the token.
    """
    home, uid = environ.get("HOME") or "/", os.getuid()
    if not os.access(home, os.W_OK):
        raise ServiceFault(
            f"jupyter: user {uid} can't write to its home {home}: add --tmpfs {home}:uid={uid}, or set HOME"
        )
    token = _token(environ)
    environ.pop("JUPYTER_TOKEN", None)
    environ.pop("JUPYTER_TOKEN_FILE", None)
    folder = state / "jupyter"
    login = {"token": token, "hashed_password": "", "password_required": False, "allow_password_change": False}
    # The names of version 1 are still used if a file in the home has them.
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
    port, prefix = service["port"], environ.get("NB_PREFIX", "").rstrip("/") + "/"
    argv = [
        _program("jupyter-lab", "jupyterlab"),
        f"--ServerApp.base_url={prefix}",
        f"--ServerApp.ip={_address(settings)}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.open_browser=False",
        f"--ServerApp.root_dir={settings['workdir']}",
        "--ServerApp.identity_provider_class=jupyter_server.auth.identity.PasswordIdentityProvider",
    ]
    return argv, f"jupyter: http://127.0.0.1:{port}{prefix}lab?token={token}"


def _token(environ: Mapping[str, str]) -> str:
    """The container's token, else a new one."""
    token, source = environ.get("JUPYTER_TOKEN"), "JUPYTER_TOKEN"
    if token is None and environ.get("JUPYTER_TOKEN_FILE"):
        source = "JUPYTER_TOKEN_FILE"
        try:
            token = Path(environ[source]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ServiceFault(f"jupyter: the file of {source} can't be read: {error}") from error
    if token is None:
        return secrets.token_hex(32)
    if len(token) < MIN_TOKEN or len(set(token)) < 8:
        raise ServiceFault(
            f"jupyter: {source} is too easy to guess: use at least {MIN_TOKEN} characters, 8 of them different, such "
            "as from `openssl rand -hex 32`; without it, a token is generated at each start"
        )
    return token


def _tensorboard(
    service: Mapping[str, Any], settings: Mapping[str, Any], _state: Path, _environ: dict[str, str]
) -> tuple[list[str], str]:
    logdir = str(Path(settings["workdir"]) / service["logdir"])
    port = service["port"]
    argv = [
        _program("tensorboard", "tensorboard"),
        f"--host={_address(settings)}",
        f"--port={port}",
        f"--logdir={logdir}",
    ]
    return argv, f"tensorboard: http://127.0.0.1:{port} on {logdir}"


def _ssh(
    service: Mapping[str, Any], settings: Mapping[str, Any], state: Path, environ: dict[str, str]
) -> tuple[list[str], str]:
    """sshd as an unprivileged user, who is the only one that can log in."""
    uid = settings["uid"] if os.getuid() == 0 else os.getuid()
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise ServiceFault(
            f"ssh: user {uid} is not in /etc/passwd, so nobody could log in: run the container as user "
            f"{settings['uid']}, or mount a passwd file with that user"
        ) from None
    server, keygen = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin"), shutil.which("ssh-keygen")
    if server is None or keygen is None:
        raise ServiceFault("ssh: this image has no sshd: add openssh-server to [system] apt")
    folder = state / "ssh"
    key = folder / "ssh_host_ed25519_key"
    if not key.is_file():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
        ran = subprocess.run(  # noqa: S603 (no shell, fixed arguments)
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if ran.returncode != 0:
            raise ServiceFault(f"ssh: can't generate a host key in {folder}: {ran.stderr.strip()}")
    keys = environ.pop("SSH_AUTHORIZED_KEYS", "")
    _write(folder / "authorized_keys", f"{keys}\n")
    own_keys = Path(account.pw_dir) / ".ssh" / "authorized_keys"
    if not keys.strip() and not own_keys.is_file():
        log(f"ssh: nobody can log in yet: mount {own_keys}, or set SSH_AUTHORIZED_KEYS to public keys")
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
    return argv, f"ssh: ssh -p {service['port']} {account.pw_name}@127.0.0.1, keys only"


def _set_env(environ: Mapping[str, str]) -> str:
    """The container's environment for logins, which is empty by default. sshd reads only the first SetEnv line."""
    words, omitted = [], []
    for name, value in sorted(environ.items()):
        if name in NOT_FOR_LOGINS or name.startswith("JUPYTER_TOKEN"):
            continue
        if value.isprintable():
            words.append(_quoted(f"{name}={value}"))
        else:
            omitted.append(name)
    if omitted:
        log(f"ssh: logins do not get {', '.join(omitted)}: sshd accepts no line breaks and control characters")
    return f"SetEnv {' '.join(words)}" if words else ""


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _program(name: str, package: str) -> str:
    """A program of this environment: next to its interpreter, independent of PATH."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise ServiceFault(f"{package} is not in this environment: add it to the spec")
    return str(path)


def _address(settings: Mapping[str, Any]) -> str:
    """The address of services: all of the container's; `envspec run` sets another one with the host's network."""
    return str(settings.get("address", "0.0.0.0"))  # noqa: S104


def _check_port(name: str, address: str, port: int) -> None:
    """Fail with a clear message if this user can't listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            raise ServiceFault(
                f"{name}: user {os.getuid()} may not listen on port {port}: use a port above 1023, or run the "
                "container with --sysctl net.ipv4.ip_unprivileged_port_start=0"
            ) from None
        except OSError as error:
            raise ServiceFault(f"{name}: port {port}: {error.strerror}") from None


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read, at any time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _chown(folder: Path, owner: tuple[int, int]) -> None:
    os.chown(folder, *owner)
    for path in folder.rglob("*"):
        os.chown(path, *owner, follow_symlinks=False)
