"""What a container that makes a system layer is given, and what of its changes is left out."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime, timedelta, timezone

from envspec.image.sources.system_script import (
    MIRROR,
    form,
    installed,
    is_excluded,
    package_differences,
    work_files,
)

WISH = (("gcc", "libc6-dev"), None, ())


def test_files_of_one_machine_or_moment_are_left_out() -> None:
    excluded = """
        .dockerenv .envspec-build .envspec-build/apt.conf etc/machine-id etc/passwd- etc/resolv.conf
        etc/ssh/ssh_host_rsa_key.pub root/.cache/pip/x run/lock/x tmp/x/y var/cache/debconf/config.dat
        var/cache/ldconfig/aux-cache var/lib/apt/lists/lock var/lib/dpkg/lock-frontend var/lib/dpkg/status-old
        var/log/dpkg.log"""
    included = """
        etc/passwd etc/shadow etc/ssh/sshd_config opt/tool root usr/bin/gcc-12 usr/share/tmp/x
        var/lib/apt/extended_states var/lib/dpkg/info/gcc.list var/lib/dpkg/status"""
    assert [path for path in excluded.split() if not is_excluded(path, is_folder=False)] == []
    assert [path for path in included.split() if is_excluded(path, is_folder=False)] == []
    # A package's folders for logs and caches.
    assert not is_excluded("var/log/nginx", is_folder=True) and not is_excluded("var/cache/fontconfig", is_folder=True)


def test_of_this_machine_only_what_reaches_the_archive_is_handed_on() -> None:
    environ = {
        "http_proxy": "http://me:it's@proxy:3128",
        "NO_PROXY": "localhost",
        "HOME": "/home/me",
        "LD_PRELOAD": "/x.so",
        "TOKEN": "secret",
    }
    given = work_files(*WISH, environ, b"CERTIFICATE")
    text = given["environment"].decode()
    assert "NO_PROXY=localhost" in text
    for word in ("/home/me", "LD_PRELOAD", "secret"):
        assert word not in text
    # A shell reads the values back as they are.
    shown = subprocess.run(
        ["sh", "-c", f'{text}\nprintf %s "$http_proxy $SSL_CERT_FILE $SOURCE_DATE_EPOCH"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "http://me:it's@proxy:3128 /.envspec-build/ca.pem 315532800"
    assert given["ca.pem"] == b"CERTIFICATE"
    assert 'Acquire::https::CaInfo "/.envspec-build/ca.pem";' in given["apt.conf"].decode()
    assert "ca.pem" not in work_files(*WISH, {}, None)
    assert "CaInfo" not in work_files(*WISH, {}, None)["apt.conf"].decode()


def test_the_locks_versions_go_before_all_others() -> None:
    given = work_files(("gcc",), None, ("gcc=4:12.2.0-3", "libc6-dev:amd64=2.36-9"), {}, None)
    assert given["preferences"].decode().split("\n\n")[1] == (
        "Package: libc6-dev:amd64\nPin: version 2.36-9\nPin-Priority: 1001\n".rstrip() + "\n"
    )
    assert given["wanted"] == b"gcc\n"


def test_the_time_of_a_snapshot_is_in_utc() -> None:
    moment = datetime(2026, 11, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    given = work_files(("gcc",), moment, (), {MIRROR: "https://m/a&b/{archive}/{time}/"}, None)
    text = given["environment"].decode()
    assert "SNAPSHOT=20261101T000000Z" in text
    assert "MIRROR='https://m/a&b/{archive}/{time}/'" in text


def test_what_has_come_is_what_was_not_there_before() -> None:
    assert installed("a=1\nb=1\n", "a=1\nb=2\nc=1\n") == ("b=2", "c=1")


def test_packages_that_differ_are_told_one_by_one() -> None:
    assert package_differences(("a=1", "b=1", "c=4:1"), ("a=1", "b=2", "d=1")) == (
        "b: locked 1, installed 2",
        "c: locked 4:1, installed not",
        "d: locked not, installed 1",
    )


def test_the_script_is_a_shells() -> None:
    given = work_files(*WISH, {}, None)
    for name in ("install.sh", "apt-sources.sh"):
        for shell in filter(None, (shutil.which("dash"), shutil.which("bash"))):
            subprocess.run([shell, "-n"], input=given[name], check=True)
    assert len(form()) == 64
