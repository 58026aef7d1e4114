"""Packages that lag behind others, or go years back: what is chosen, what is offered, and that it stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import compiled
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import sdist
from tests.support.servers.index import IndexServer
from tests.support.user import User

AS_OF = "2026-06-01T00:00:00Z"
GPUS = '[cuda]\ngpus = ["H100"]\n'


@pytest.fixture(scope="module")
def public() -> Iterator[IndexServer]:
    torch = ["nvidia-cuda-runtime==13.0.96", "cuda-bindings>=13.0.3,<14"]
    files = [
        *compiled("torch", "2.11.0", "2026-03-23", torch, platforms=["manylinux_2_28_x86_64"]),
        *ecosystem.releases("""
            nvidia-cuda-runtime 13.0.96
            cuda-bindings 13.4.4 2026-04-01
            cuda-bindings 13.5.0 2026-05-01
            cuda-python 12.6.2 2025-12-01
            cuda-python 13.4.4 2026-04-01: cuda-bindings~=13.4.4
            app 1.0: torch, cuda-python>=12
            other 1.0
            model 1.8 2026-01-01
            model 2.0 2026-03-01: engine==8.0
            server 0.2.5 2023-11-01: torch
            server 6.0 2026-02-01: torch, engine==6.0
            plain 0.2.5 2023-11-01
            plain 6.0 2026-02-01: engine==6.0
            engine 6.0
            engine 8.0
        """),
        File(sdist("model", "1.9"), day("2026-02-01")),
    ]
    with IndexServer(files) as index:
        yield index


@pytest.fixture
def user(tmp_path: Path, public: IndexServer) -> User:
    return User(tmp_path, public.url)


def test_a_metapackage_of_another_cuda_is_replaced_and_stays(user: User) -> None:
    user.wants("app", as_of=AS_OF, rest=GPUS)
    user.locked()
    pins = {"cuda-python": "13.4.4", "cuda-bindings": "13.4.4", "torch": "2.11.0"}
    assert pins.items() <= user.pins().items()
    before = (user.lock / "envspec.lock").read_bytes()
    user.environ["ENVSPEC_CACHE_DIR"] = str(user.folder / "other-cache")
    user.locked()
    assert (user.lock / "envspec.lock").read_bytes() == before
    user.wants("app", "other", as_of=AS_OF, rest=GPUS)
    user.locked()
    assert pins.items() <= user.pins().items()


def test_what_the_spec_requires_goes_before_torchs_cuda(user: User) -> None:
    user.wants("app", "cuda-python<13", as_of=AS_OF, rest=GPUS)
    user.locked()
    assert user.pins()["cuda-python"] == "12.6.2"
    user.wants("app", "cuda-bindings", as_of=AS_OF, rest=GPUS)
    user.locked()
    # An older cuda-bindings than without the bound, which the spec names: envspec does not choose.
    assert user.pins()["cuda-bindings"] == "13.5.0"


def test_constraints_are_offered_that_were_tried(user: User) -> None:
    user.wants("model", "server", as_of=AS_OF, rest=GPUS)
    [warning] = [text for text in user.locked().warnings if "server 0.2.5" in text]
    _, _, line = warning.partition("add to [pip]: constraints = ")
    assert "For server 6.0 instead of 0.2.5, model 1.8 instead of 2.0" in warning
    constraints = json.loads(line)
    user.wants("model", "server", as_of=AS_OF, pip=f"constraints = {json.dumps(constraints)}", rest=GPUS)
    ran = user.locked()
    assert {"server": "6.0", "model": "1.8"}.items() <= user.pins().items()
    assert not [text for text in ran.warnings if "server" in text]


@pytest.mark.parametrize("asked", [("model==2.0", "server"), ("model", "plain")], ids=["no solution", "without torch"])
def test_nothing_is_offered(user: User, asked: tuple[str, ...]) -> None:
    user.wants(*asked, as_of=AS_OF, rest=GPUS)
    [warning] = [text for text in user.locked().warnings if "0.2.5 is from 2023-11" in text]
    assert warning.endswith("needs engine==6.0, and engine is 8.0")
