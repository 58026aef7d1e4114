"""The script that gives apt the sources of a date, run by this machine's own apt in a sandbox with other sources."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envspec.data import DATA
from tests.support.machines import program
from tests.support.servers.apt import AptArchive, Deb

TIME = "20261101T000000Z"
OLD, NEW = Deb("tool", "1.0"), Deb("tool", "1.1")


@dataclass(slots=True)
class Machine:
    """apt's files, and a folder for what the script makes; the system below is this machine's."""

    archive: AptArchive
    etc: Path
    work: Path

    def sources(self, *lines: str, name: str = "sources.list") -> None:
        path = self.etc / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))

    def run(self, *command: str, hidden: str | None = None) -> subprocess.CompletedProcess[str]:
        """hidden: a folder of the machine that is empty for the command."""
        sandbox = [program("bwrap"), "--bind", "/", "/", "--dev-bind", "/dev", "/dev"]
        sandbox += ["--bind", str(self.etc), "/etc/apt", *(["--tmpfs", hidden] if hidden else [])]
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        return subprocess.run([*sandbox, *command], env=environ, capture_output=True, text=True, check=False)

    def date(self, mirror: str = "", hidden: str | None = None) -> int:
        """Run the script; returns its exit status."""
        program("apt-get")
        done = self.run("sh", str(DATA / "apt-sources.sh"), str(self.work), TIME, mirror, hidden=hidden)
        return done.returncode

    def lines(self, name: str) -> list[str]:
        return (self.work / name).read_text().splitlines()

    def version(self) -> str:
        """The version of `tool` that apt would install."""
        for folder in ("lists/partial", "cache/archives/partial"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)
        with (self.work / "apt.conf").open("a") as conf:
            conf.write(f'Dir::State::lists "{self.work}/lists/";\nDir::Cache "{self.work}/cache/";\n')
            conf.write('APT::Sandbox::User "root";\n')
        updated = self.run("apt-get", "-c", str(self.work / "apt.conf"), "update")
        assert updated.returncode == 0, updated.stderr
        shown = self.run("apt-cache", "-c", str(self.work / "apt.conf"), "show", "tool").stdout
        return next(line for line in shown.splitlines() if line.startswith("Version: ")).removeprefix("Version: ")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with AptArchive() as archive:
        archive.publish(OLD)
        archive.keep("20261031T080000Z")
        archive.publish(NEW)
        work = tmp_path / "work"
        work.mkdir()
        made = Machine(archive, tmp_path / "etc", work)
        made.etc.mkdir()
        yield made


def test_a_comment_of_debians_images_names_the_snapshots(machine: Machine) -> None:
    comment = f"# {machine.archive.snapshots}/debian/20250520T000000Z"
    machine.sources(
        *(
            "Types: deb",
            comment,
            f"URIs: {machine.archive.url}",
            "Suites: bookworm",
            "Components: main",
            "Trusted: yes",
        ),
        name="sources.list.d/debian.sources",
    )
    assert machine.date() == 0
    assert f"URIs: {machine.archive.snapshots}/debian/{TIME}/" in machine.lines("sources.list.d/debian.sources")
    assert machine.lines("undated") == []
    assert machine.version() == "1.0"


def test_older_images_have_the_comment_in_one_line(machine: Machine) -> None:
    machine.sources(
        f"# deb {machine.archive.snapshots}/debian/20230227T000000Z bookworm main",
        f"deb [trusted=yes] {machine.archive.url}/ bookworm main",
        f"#deb {machine.archive.url} other main",
    )
    assert machine.date() == 0
    assert machine.lines("sources.list")[1:] == [
        f"deb [trusted=yes] {machine.archive.snapshots}/debian/{TIME}/ bookworm main",
        f"#deb {machine.archive.url} other main",
    ]
    assert machine.version() == "1.0"


@pytest.mark.parametrize("key", ["Host::127.0.0.1", "Origin::Debian", "Override::Label::Debian-Security"])
def test_newer_apts_have_it_in_their_configuration(machine: Machine, key: str) -> None:
    machine.archive.publish(NEW, release="Origin: Debian\nLabel: Debian-Security\n")
    machine.sources(f"deb [trusted=yes] {machine.archive.url} bookworm main")
    machine.sources(
        "#clear Acquire::Snapshots;",
        f'Acquire::Snapshots::URI::{key} "{machine.archive.snapshots}/@PATH@/@SNAPSHOTID@/";',
        name="apt.conf.d/snapshots",
    )
    assert machine.date() == 0
    assert machine.version() == "1.0"


def test_an_archive_may_state_it_in_its_release_file(machine: Machine) -> None:
    machine.archive.publish(NEW, release=f"Snapshots: {machine.archive.snapshots}/@PATH@/@SNAPSHOTID@/\n")
    machine.sources(f"deb [trusted=yes] {machine.archive.url} bookworm main")
    machine.sources("#clear Acquire::Snapshots;", name="apt.conf.d/snapshots")
    assert machine.date() == 0
    assert machine.version() == "1.0"


def test_the_users_mirror_goes_first(machine: Machine) -> None:
    machine.sources(
        "# http://192.0.2.1/debian/20250520T000000Z", f"deb [trusted=yes] {machine.archive.url} bookworm main"
    )
    assert machine.date(f"{machine.archive.snapshots}/{{archive}}/{{time}}/") == 0
    assert machine.version() == "1.0"


def test_a_third_source_stays_and_is_named_without_its_password(machine: Machine) -> None:
    with AptArchive() as corp:
        # Many have packages for Debian below this name.
        corp.publish(Deb("tool", "2.0"), release="Origin: Corp\n")
        machine.sources(
            f"# {machine.archive.snapshots}/debian/20250520T000000Z",
            f"deb [trusted=yes] {machine.archive.url} bookworm main",
        )
        line = f"deb [trusted=yes] {corp.url.replace('http://', 'http://me:s3cret@')} bookworm main"
        machine.sources(line, name="sources.list.d/corp.list")
        assert machine.date() == 0
        assert machine.lines("undated") == [corp.url]
        assert machine.lines("sources.list.d/corp.list") == [line]
        assert machine.version() == "2.0"


def test_a_form_that_is_not_recognised_is_named_too(machine: Machine) -> None:
    machine.sources(
        f"# {machine.archive.snapshots}/debian/20250520T000000Z",
        f"deb [trusted=yes] {machine.archive.url} bookworm main",
    )
    machine.sources(
        *("Types:deb", f"URIs:{machine.archive.url}", "Suites:bookworm", "Components:main", "Trusted:yes"),
        name="sources.list.d/tight.sources",
    )
    assert machine.date() == 0
    assert machine.lines("undated") == [machine.archive.url]


def test_without_any_snapshots_it_fails(machine: Machine) -> None:
    machine.archive.publish(NEW, release="Origin: Corp\n")
    machine.sources(f"deb [trusted=yes] {machine.archive.url} bookworm main")
    assert machine.date() == 65


def test_without_certificates_it_uses_http(machine: Machine) -> None:
    machine.sources(
        "# https://192.0.2.1/debian/20250520T000000Z", f"deb [trusted=yes] {machine.archive.url} bookworm main"
    )
    assert machine.date(hidden="/etc/ssl/certs") == 0
    assert machine.lines("dated") == [f"http://192.0.2.1/debian/{TIME}/"]
