"""Logins from the files and helpers that docker and podman share."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from envspec.io.http_types import Credential
from envspec.registry.auth import HUB_KEY, Keychain, Login, LoginKind


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


class Machine:
    """A home directory with credential files and helpers of its own."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)
        self.environ = {"PATH": f"{self.bin}:/usr/bin:/bin"}
        self.warnings: list[str] = []

    def write(self, path: str, document: object) -> Path:
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return file

    def docker(self, document: object) -> Path:
        return self.write(".docker/config.json", document)

    def helper(self, name: str, script: str) -> None:
        program = self.bin / f"docker-credential-{name}"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def login(self, registry: str, repository: str = "", helper_s: float = 5.0) -> Login | None:
        chain = Keychain(self.environ, self.home, self.warnings.append, helper_s=helper_s)
        return asyncio.run(chain.login(registry, repository))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


USER = auth("user", "secret")
PASSWORD, TOKEN = LoginKind.PASSWORD, LoginKind.IDENTITY_TOKEN
OK = """read server; printf '{"ServerURL":"%s","Username":"user","Secret":"for %s"}' "$server" "$server" """
GIVES_TOKEN = """printf '{"Username":"<token>","Secret":"it"}'"""
NOT_FOUND = "echo credentials not found in native keychain; exit 1"
HELPERS = {"ok": OK, "acr": GIVES_TOKEN, "none": NOT_FOUND}


@pytest.mark.parametrize(
    ("document", "registry", "user", "secret", "kind"),
    [
        ({"auths": {"r.corp:5000": auth("user", "pass:word")}}, "r.corp:5000", "user", "pass:word", PASSWORD),
        *(
            ({"auths": {key: USER}}, "docker.io", "user", "secret", PASSWORD)
            for key in (HUB_KEY, "index.docker.io", "https://index.docker.io/v1", "docker.io")
        ),
        *(
            ({"auths": {key: USER}}, "r.corp", "user", "secret", PASSWORD)
            for key in ("https://r.corp", "http://r.corp/v1/", "https://r.corp/v2/")
        ),
        ({"auths": {"r.corp": {"identitytoken": "it"}}}, "r.corp", "", "it", TOKEN),
        ({"auths": {"r.corp": {"registrytoken": "rt"}}}, "r.corp", "", "rt", LoginKind.BEARER),
        ({"credHelpers": {"r.corp": "ok"}}, "r.corp", "user", "for r.corp", PASSWORD),
        ({"credsStore": "ok", "auths": {HUB_KEY: {}}}, "docker.io", "user", f"for {HUB_KEY}", PASSWORD),
        ({"credsStore": "acr"}, "r.corp", "<token>", "it", TOKEN),
        ({"credsStore": "none", "auths": {"r.corp": USER}}, "r.corp", "user", "secret", PASSWORD),
    ],
)
def test_logins(
    machine: Machine, document: dict[str, Any], registry: str, user: str, secret: str, kind: LoginKind
) -> None:
    for name, script in HELPERS.items():
        machine.helper(name, script)
    path = machine.docker(document)
    found = machine.login(registry)
    assert found is not None
    assert (found.credential, found.kind) == (Credential(user, secret), kind)
    assert found.source == str(path) or found.source.startswith("docker-credential-")
    assert machine.warnings == []


@pytest.mark.parametrize(
    "document",
    [
        None,
        {"auths": {"r.corp:5000": USER}},
        {"auths": {"r.corp": {}, HUB_KEY: {}}},
        {"credHelpers": {"other.corp": "ok"}},
        {"credsStore": "none"},
        *({"auths": []}, {"auths": None}, {"credHelpers": []}, {"credsStore": {}}),
    ],
)
def test_no_login_and_no_warning(machine: Machine, document: dict[str, Any] | None) -> None:
    for name, script in HELPERS.items():
        machine.helper(name, script)
    if document is not None:
        machine.docker(document)
    assert machine.login("r.corp") is machine.login("docker.io") is None
    assert machine.warnings == []


def test_podmans_login_for_a_part_of_a_registry(machine: Machine) -> None:
    machine.write(
        ".config/containers/auth.json",
        {"auths": {"r.corp/team": auth("team", "1"), "r.corp": auth("all", "2"), "r.corp/team/x": auth("x", "3")}},
    )
    found = [machine.login("r.corp", name) for name in ("team/y", "team/x", "teams/y", "")]
    assert [login and login.credential.username for login in found] == ["team", "x", "all", "all"]


def test_named_files_have_priority(machine: Machine, tmp_path: Path) -> None:
    def named(place: str) -> dict[str, object]:
        return {"auths": {"r.corp": auth(place, "x")}}

    order = []
    machine.write(".config/containers/auth.json", named("podman's home"))
    order.append(machine.login("r.corp"))
    machine.environ["XDG_RUNTIME_DIR"] = str(machine.home / "run")
    machine.write("run/containers/auth.json", named("podman's run"))
    order.append(machine.login("r.corp"))
    machine.docker(named("docker's home"))
    order.append(machine.login("r.corp"))
    machine.write("elsewhere/config.json", named("DOCKER_CONFIG"))
    machine.environ["DOCKER_CONFIG"] = str(machine.home / "elsewhere")
    order.append(machine.login("r.corp"))
    machine.environ["REGISTRY_AUTH_FILE"] = str(machine.write("auth.json", named("REGISTRY_AUTH_FILE")))
    order.append(machine.login("r.corp"))
    assert [found and found.credential.username for found in order] == [
        "podman's home",
        "podman's run",
        "docker's home",
        "DOCKER_CONFIG",
        "REGISTRY_AUTH_FILE",
    ]


DAMAGED = "the login for r.corp is damaged"
NO_OBJECT = "config.json is not a JSON object: its logins are not used"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        *(({"auths": {"r.corp": {"auth": each}}}, DAMAGED) for each in ("hunter2!", "aHVudGVyMg==", "//79")),
        *(({"auths": {"r.corp": each}}, DAMAGED) for each in ("hunter2", None)),
        *((each, NO_OBJECT) for each in ("{", "[]", "null", '"auths"', "[" * 100_000, "\x00")),
        ({"credsStore": "nowhere"}, "config.json, is not installed: no login is sent to r.corp"),
        ({"credsStore": "locked"}, "docker-credential-locked"),
        ({"credsStore": "slow"}, "did not finish within 0.2 s"),
    ],
)
def test_damage_is_reported_without_its_content(machine: Machine, document: object, text: str) -> None:
    machine.helper("slow", "exec sleep 60")
    (machine.bin / "docker-credential-locked").write_text("no script")
    machine.docker(document)
    assert machine.login("r.corp", helper_s=0.2) is None
    (warning,) = machine.warnings
    assert text in warning
    assert "hunter2" not in warning


def test_a_folder_instead_of_the_file_is_reported(machine: Machine) -> None:
    (machine.home / ".docker" / "config.json").mkdir(parents=True)
    assert machine.login("r.corp") is None
    assert "can't be read" in machine.warnings[0]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo hunter2; exit 3", "failed (exit status 3)"),
        ("echo hunter2 >&2; exit 1", "failed (exit status 1)"),
        ("echo hunter2", "printed no valid login"),
        ("echo '[\"hunter2\"]'", "printed no valid login"),
        ("""echo '{"Username":"hunter2"}'""", "printed no valid login"),
        ("""echo '{"Username":"u","Secret":7}'""", "printed no valid login"),
        ("head -c 100000 /dev/urandom", "printed no valid login"),
    ],
)
def test_a_failing_helper_is_reported_without_its_output(machine: Machine, script: str, text: str) -> None:
    machine.helper("bad", f"cat >/dev/null\n{script}")
    machine.docker({"credsStore": "bad"})
    assert machine.login("r.corp") is None
    (warning,) = machine.warnings
    assert text in warning and "no login is sent to r.corp" in warning
    assert "hunter2" not in warning


def test_secrets_are_in_no_repr(machine: Machine) -> None:
    machine.docker({"auths": {"r.corp": auth("user", "hunter2")}})
    machine.environ["REGISTRY_PASSWORD"] = "hunter2"
    assert "hunter2" not in repr(machine.login("r.corp"))
    assert "hunter2" not in repr(Keychain(machine.environ, machine.home))
