"""Requirements of a spec: every kind, and what a lock may hold of it."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.credentials import without_credentials
from envspec.spec import parse_spec
from envspec.spec.errors import BadValue
from envspec.spec.requirements import RequirementKind, read_constraint, read_name, read_requirement

SHA = "0123456789abcdef" * 4


def test_name() -> None:
    found = read_requirement("  Torch_Geometric[Full,dev,DEV] >=2.6,<3 ; python_version >= '3.10'  ")
    assert found.text == "Torch_Geometric[Full,dev,DEV] >=2.6,<3 ; python_version >= '3.10'"
    assert (found.name, found.extras) == ("torch-geometric", ("dev", "full"))
    assert found.kind is RequirementKind.NAME
    assert found.specifier == SpecifierSet(">=2.6,<3")
    assert found.marker == Marker('python_version >= "3.10"')
    assert (found.url, found.sha256, found.wheel_version) == (None, None, None)


WHEEL = "https://wheels.example.com/torch-2.9.1%2Bcu128-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("text", "kind", "url", "sha256"),
    [
        (f"torch @ {WHEEL}", RequirementKind.WHEEL_URL, WHEEL, None),
        (f"torch @ {WHEEL}#sha256={SHA.upper()}", RequirementKind.WHEEL_URL, WHEEL, SHA),
        (f"torch @ {WHEEL}?a=b#egg=torch&sha256={SHA}", RequirementKind.WHEEL_URL, f"{WHEEL}?a=b", SHA),
        (f"torch[opt] @ {WHEEL} ; os_name == 'posix'", RequirementKind.WHEEL_URL, WHEEL, None),
        ("x @ http://host:8080/x-1.tar.gz", RequirementKind.SDIST_URL, "http://host:8080/x-1.tar.gz", None),
        (f"x @ https://host/x.zip#sha256={SHA}", RequirementKind.SDIST_URL, "https://host/x.zip", SHA),
        (
            "x @ git+https://host/x.git@v1#subdirectory=a",
            RequirementKind.GIT,
            "git+https://host/x.git@v1#subdirectory=a",
            None,
        ),
        ("x @ git+ssh://git@host/x.git", RequirementKind.GIT, "git+ssh://git@host/x.git", None),
        ("x @ ./project", RequirementKind.LOCAL, "./project", None),
        ("x @ ../project.whl", RequirementKind.LOCAL, "../project.whl", None),
        ("x @ file:///srv/x-1-py3-none-any.whl", RequirementKind.LOCAL, "file:///srv/x-1-py3-none-any.whl", None),
    ],
)
def test_addresses(text: str, kind: RequirementKind, url: str, sha256: str | None) -> None:
    found = read_requirement(text)
    assert (found.kind, found.url, found.sha256) == (kind, url, sha256)
    assert not found.specifier
    assert found.wheel_version == (Version("2.9.1+cu128") if kind is RequirementKind.WHEEL_URL else None)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://user:pass@host/x", "https://host/x"),
        ("https://token@host/x@y", "https://host/x@y"),
        ("https://u:p@ss@host", "https://host"),
        ("a https://u:p@h/x and http://v@i:80", "a https://h/x and http://i:80"),
        ("git+ssh://git@host/x.git@main", "git+ssh://git@host/x.git@main"),
        ("git+ssh://git:secret@host/x.git", "git+ssh://git@host/x.git"),
        ("https://host/a@b?c@d#e@f", "https://host/a@b?c@d#e@f"),
        ("me@example.com", "me@example.com"),
    ],
)
def test_without_credentials(text: str, kept: str) -> None:
    assert without_credentials(text) == kept


def test_a_requirement_without_credentials() -> None:
    found = read_requirement("x @ https://user:pass@host/x-1-py3-none-any.whl")
    assert found.url == "https://user:pass@host/x-1-py3-none-any.whl"
    assert str(found) == "x @ https://host/x-1-py3-none-any.whl"
    public = found.without_credentials()
    assert (public.url, public.text) == ("https://host/x-1-py3-none-any.whl", "x @ https://host/x-1-py3-none-any.whl")
    assert public.wheel_version == found.wheel_version


def test_which_index_serves_a_name() -> None:
    index = '[[pip.index]]\nname = "{0}"\nurl = "https://u:p@{0}.example.com/simple/"\npackages = [{1}]\n'
    text = (
        '[env]\nname = "x"\npython = "3.11"\n'
        + index.format("corp", '"corp-*", "*_gpu"')
        + index.format("own", '"Corp.One"')
    )
    pip = parse_spec(text, "spec.toml", datetime(2026, 11, 20, tzinfo=timezone.utc)).pip
    served = {name: pip.index_for(name) for name in ("corp-two", "fast-gpu", "corp-one", "corp", "numpy", "corpx")}
    assert {name: found and found.name for name, found in served.items()} == {
        **{"corp-two": "corp", "fast-gpu": "corp", "corp-one": "own"},
        **{"corp": None, "numpy": None, "corpx": None},
    }
    assert pip.index[0].url == "https://u:p@corp.example.com/simple"


def test_constraint_and_name() -> None:
    assert read_constraint("NumPy<2.4; sys_platform == 'linux'").name == "numpy"
    assert read_name("Deep_Speed.x") == "deep-speed-x"
    with pytest.raises(BadValue, match="not a package's name"):
        read_name("deepspeed-")
