"""Logins from the files and helpers that docker and podman share."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from pathlib import Path

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


def test_no_file_means_no_login(machine: Machine) -> None:
    assert machine.login("docker.io") is None
    assert machine.warnings == []


def test_a_login_of_docker_s_file(machine: Machine) -> None:
    path = machine.docker({"auths": {"registry.corp:5000": auth("user", "pass:word")}})
    assert machine.login("registry.corp:5000") == Login(Credential("user", "pass:word"), LoginKind.PASSWORD, str(path))
    assert machine.login("registry.corp") is None


@pytest.mark.parametrize("key", [HUB_KEY, "index.docker.io", "https://index.docker.io/v1", "docker.io"])
def test_docker_hub_has_a_name_of_its_own(machine: Machine, key: str) -> None:
    machine.docker({"auths": {key: auth("user", "secret")}})
    found = machine.login("docker.io")
    assert found is not None
    assert found.credential == Credential("user", "secret")


@pytest.mark.parametrize("key", ["https://registry.corp", "http://registry.corp/v1/", "https://registry.corp/v2/"])
def test_old_keys_are_urls(machine: Machine, key: str) -> None:
    machine.docker({"auths": {key: auth("user", "secret")}})
    assert machine.login("registry.corp") is not None


def test_podman_s_login_for_a_part_of_a_registry_holds_for_that_part(machine: Machine) -> None:
    machine.write(
        ".config/containers/auth.json",
        {"auths": {"r.corp/team": auth("team", "1"), "r.corp": auth("all", "2"), "r.corp/team/x": auth("x", "3")}},
    )
    users = [
        found and found.credential.username
        for found in (machine.login("r.corp", name) for name in ("team/y", "team/x", "teams/y", ""))
    ]
    assert users == ["team", "x", "all", "all"]


def test_what_is_named_goes_before_what_is_found(machine: Machine, tmp_path: Path) -> None:
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


def test_identity_and_registry_tokens(machine: Machine) -> None:
    machine.docker({"auths": {"a.corp": {"identitytoken": "it"}, "b.corp": {"registrytoken": "rt"}}})
    a, b = machine.login("a.corp"), machine.login("b.corp")
    assert a and (a.kind, a.credential.secret) == (LoginKind.IDENTITY_TOKEN, "it")
    assert b and (b.kind, b.credential.secret) == (LoginKind.BEARER, "rt")


def test_an_empty_entry_is_no_login(machine: Machine) -> None:
    machine.docker({"auths": {"r.corp": {}, HUB_KEY: {}}})
    assert machine.login("r.corp") is None
    assert machine.login("docker.io") is None
    assert machine.warnings == []


@pytest.mark.parametrize("entry", [{"auth": "hunter2!"}, {"auth": "aHVudGVyMg=="}, {"auth": "//79"}, "hunter2", None])
def test_a_damaged_entry_is_told_without_its_content(machine: Machine, entry: object) -> None:
    machine.docker({"auths": {"r.corp": entry}})
    assert machine.login("r.corp") is None
    assert len(machine.warnings) == 1
    assert "the login for r.corp is damaged" in machine.warnings[0]
    assert "hunter2" not in machine.warnings[0]


@pytest.mark.parametrize("document", ["{", "[]", "null", '"auths"', "[" * 100_000, "\x00"])
def test_a_damaged_file_is_told(machine: Machine, document: str) -> None:
    path = machine.docker(document)
    assert machine.login("r.corp") is None
    assert machine.warnings == [f"{path} is not a JSON object: its logins are not used"]


@pytest.mark.parametrize("part", [{"auths": []}, {"auths": None}, {"credHelpers": []}, {"credsStore": {}}])
def test_parts_of_another_type_are_nothing(machine: Machine, part: dict[str, object]) -> None:
    machine.docker(part)
    assert machine.login("r.corp") is None


def test_a_directory_in_place_of_the_file_is_told(machine: Machine) -> None:
    (machine.home / ".docker" / "config.json").mkdir(parents=True)
    assert machine.login("r.corp") is None
    assert "can't be read" in machine.warnings[0]


OK = """read server; printf '{"ServerURL":"%s","Username":"user","Secret":"for %s"}' "$server" "$server" """


def test_a_helper_for_one_registry(machine: Machine) -> None:
    machine.helper("corp", OK)
    machine.docker({"credHelpers": {"r.corp": "corp"}})
    assert machine.login("r.corp") == Login(
        Credential("user", "for r.corp"), LoginKind.PASSWORD, "docker-credential-corp"
    )
    assert machine.login("other.corp") is None


def test_the_store_of_all_is_asked_for_docker_hub_by_its_old_name(machine: Machine) -> None:
    machine.helper("desktop", OK)
    machine.docker({"credsStore": "desktop", "auths": {HUB_KEY: {}}})
    found = machine.login("docker.io")
    assert found and found.credential.secret == f"for {HUB_KEY}"


def test_a_helper_s_identity_token(machine: Machine) -> None:
    machine.helper("acr", """printf '{"Username":"<token>","Secret":"it"}'""")
    machine.docker({"credsStore": "acr"})
    found = machine.login("r.corp")
    assert found and (found.kind, found.credential.secret) == (LoginKind.IDENTITY_TOKEN, "it")


def test_credentials_not_found_is_no_error_and_the_search_goes_on(machine: Machine) -> None:
    machine.helper("pass", "echo credentials not found in native keychain; exit 1")
    machine.docker({"credsStore": "pass", "auths": {"r.corp": auth("user", "secret")}})
    assert machine.login("r.corp") is not None
    assert machine.login("other.corp") is None
    assert machine.warnings == []


@pytest.mark.parametrize(
    ("script", "told"),
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
def test_a_helper_that_fails_is_told_without_its_output(machine: Machine, script: str, told: str) -> None:
    machine.helper("bad", f"cat >/dev/null\n{script}")
    machine.docker({"credsStore": "bad"})
    assert machine.login("r.corp") is None
    assert len(machine.warnings) == 1
    assert told in machine.warnings[0]
    assert "no login is sent to r.corp" in machine.warnings[0]
    assert "hunter2" not in machine.warnings[0]


def test_a_helper_that_is_not_installed_is_told(machine: Machine) -> None:
    path = machine.docker({"credsStore": "nowhere"})
    assert machine.login("r.corp") is None
    assert machine.warnings == [
        f"docker-credential-nowhere, named in {path}, is not installed: no login is sent to r.corp"
    ]


def test_a_helper_that_hangs_is_ended(machine: Machine) -> None:
    machine.helper("slow", "exec sleep 60")
    machine.docker({"credsStore": "slow"})
    assert machine.login("r.corp", helper_s=0.2) is None
    assert "did not finish within 0.2 s" in machine.warnings[0]


@pytest.mark.parametrize("name", ["../../bin/sh", "a b", "x;y", ""])
def test_a_helper_s_name_is_a_word(machine: Machine, name: str) -> None:
    machine.docker({"credHelpers": {"r.corp": name}})
    assert machine.login("r.corp") is None
    assert len(machine.warnings) == 1


def test_a_helper_that_can_t_be_run_is_told(machine: Machine) -> None:
    (machine.bin / "docker-credential-locked").write_text("no script")
    machine.docker({"credsStore": "locked"})
    assert machine.login("r.corp") is None
    assert "docker-credential-locked" in machine.warnings[0]


def test_secrets_are_in_no_repr(machine: Machine) -> None:
    machine.docker({"auths": {"r.corp": auth("user", "hunter2")}})
    machine.environ["REGISTRY_PASSWORD"] = "hunter2"
    assert "hunter2" not in repr(machine.login("r.corp"))
    assert "hunter2" not in repr(Keychain(machine.environ, machine.home))
