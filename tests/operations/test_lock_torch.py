"""The torch family as it is published: what its metadata leaves out, PyTorch's own index, what the facts don't know.

The indexes have the real versions, requirements and upload times, in wheels of a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import LINUX_TAGS, compiled, release
from tests.support.builders.projects import PLAIN
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

AS_OF = "2026-06-01T00:00:00Z"
CUDA = "[cuda]\n"
#: Older releases of CUDA have no images of Ubuntu 24.04.
JAMMY = '[cuda]\nos = "ubuntu22.04"\n'


@pytest.fixture(scope="module")
def public() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.torch_family(), *ecosystem.diamond()]) as index:
        yield index


@pytest.fixture(scope="module")
def cu126() -> Iterator[IndexServer]:
    files = [
        *ecosystem.pytorch_index("cu126"),
        *compiled("numpy", "99.0.0"),
        release("filelock", "99.0.0"),
    ]
    with IndexServer(files, PLAIN, prefix="/whl/cu126") as index:
        yield index


@pytest.fixture(scope="module")
def cpu() -> Iterator[IndexServer]:
    files = [*ecosystem.pytorch_index("cpu"), *compiled("numpy", "99.0.0")]
    with IndexServer(files, PLAIN, prefix="/whl/cpu") as index:
        yield index


@pytest.fixture
def user(tmp_path: Path, public: IndexServer, cu126: IndexServer) -> User:
    return User(tmp_path, public.url, ENVSPEC_PYTORCH_INDEX=template(cu126))


def template(index: IndexServer) -> str:
    *_, variant = index.prefix.split("/")
    return index.url.replace(variant, "{variant}")


@pytest.mark.parametrize(
    ("torch", "pins"),
    [
        ("torch==2.9.1", {"torch": "2.9.1", "torchvision": "0.24.1", "torchaudio": "2.9.1"}),
        ("torch==2.8.*", {"torch": "2.8.0", "torchvision": "0.23.0", "torchaudio": "2.8.0"}),
        ("torch<2.7", {"torch": "2.6.0", "torchvision": "0.21.0", "torchaudio": "2.6.0"}),
        ("torch", {"torch": "2.11.0", "torchvision": "0.26.0", "torchaudio": "2.11.0"}),
    ],
)
def test_torchaudio_without_a_requirement_goes_only_with_its_torch(
    user: User, torch: str, pins: dict[str, str]
) -> None:
    user.wants(torch, "torchvision", "torchaudio", as_of=AS_OF, rest=JAMMY)
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    found = user.packages()
    assert {name: found[name]["version"] for name in pins} == pins
    if pins["torch"] != "2.11.0":
        why = f"needs torch>=2.11, and the spec requires {torch}"
        assert found["torchaudio"]["rejected"] == {"version": "2.11.0", "why": why}


def test_torchaudio_alone_brings_its_torch(user: User) -> None:
    user.wants("torchaudio", as_of=AS_OF, rest=CUDA)
    assert user.locks().status == 0
    assert user.pins()["torch"] == "2.11.0"


def test_torchtext_beside_a_newer_torch_is_refused(user: User) -> None:
    user.wants("torch==2.7.*", "torchtext", as_of=AS_OF, rest=CUDA)
    error = refused(user.locks(), 4)
    assert "torchtext" in error and "0.18.0" in error and "torch 2.3" in error
    assert "torch 2.7.1" in error and "torchvision 0.22.1" in error


def test_torchtext_below_is_refused_by_its_corrected_metadata(tmp_path: Path) -> None:
    """Nobody asks for torchtext by name: its metadata would let it in beside any torch."""
    files = [*ecosystem.torch_family(), release("corpus", "1.0.0", requires=["torchtext"])]
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        user.wants("torch==2.9.1", "corpus", as_of=AS_OF, rest=CUDA)
        error = refused(user.locks(), 4)
        assert "torchtext" in error and "torch" in error


def test_torchtext_goes_with_its_own_torch(user: User) -> None:
    user.wants("torch==2.3.1", "torchtext", as_of=AS_OF, rest=JAMMY)
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert user.pins()["torchtext"] == "0.18.0"


def test_another_cuda_comes_from_pytorchs_index_for_the_family_only(
    user: User, public: IndexServer, cu126: IndexServer
) -> None:
    cu126.forget()
    user.wants("torch==2.9.1", "torchvision", "torchaudio", "numpy", as_of=AS_OF, rest='[cuda]\nversion = "12.6"\n')
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    found = user.packages()
    family = {name: row["version"] for name, row in found.items() if row["file"]["index"] == "pytorch-cu126"}
    assert family == {"torch": "2.9.1+cu126", "torchvision": "0.24.1+cu126", "torchaudio": "2.9.1+cu126"}
    assert found["numpy"]["version"] == "2.2.0"
    assert found["filelock"]["version"] == "3.13.0"
    asked = {request.path.split("/")[2] for request in cu126.requests}
    assert asked <= {"torch", "torchvision", "torchaudio", "triton"}
    # A lock names files where everyone finds them, not on the mirror that stood in.
    url = found["torch"]["file"]["url"]
    assert url.startswith("https://download.pytorch.org/whl/cu126/") and "+cu126" in url.replace("%2B", "+")
    decision = next(d for d in user.document()["decision"] if d["what"] == "torch.build")
    assert decision["value"].startswith("cu126 from PyTorch's index")


def test_a_cuda_that_is_the_default_build_stays_at_the_default_index(user: User, cu126: IndexServer) -> None:
    cu126.forget()
    user.wants("torch==2.9.1", as_of=AS_OF, rest='[cuda]\nversion = "12.8"\n')
    assert user.locks().status == 0
    assert user.packages()["torch"]["file"]["index"] == "default"
    assert cu126.requests == []


def test_a_pair_that_was_never_published_is_refused_with_those_that_were(user: User) -> None:
    user.wants("torch==2.9.1", as_of=AS_OF, rest='[cuda]\nversion = "11.8"\n')
    error = refused(user.locks(), 4)
    assert "torch 2.9.1: no build for CUDA 11.8 was ever published" in error
    assert "12.6" in error and "12.8" in error and "13.0" in error


def test_a_pair_that_the_index_lacks_after_all(tmp_path: Path, public: IndexServer) -> None:
    """The facts know of it, the index does not have it: no fallback to the default index's build."""
    with IndexServer([], PLAIN, prefix="/whl/cu126") as empty:
        user = User(tmp_path, public.url, ENVSPEC_PYTORCH_INDEX=template(empty))
        user.wants("torch==2.9.1", as_of=AS_OF, rest='[cuda]\nversion = "12.6"\n')
        error = refused(user.locks(), 5)
        assert error.startswith(f"index pytorch-cu126 ({empty.url}) does not have torch")
        assert "[[pip.index]]" not in error


def test_without_cuda_the_cpu_build_is_taken(tmp_path: Path, public: IndexServer, cpu: IndexServer) -> None:
    user = User(tmp_path, public.url, ENVSPEC_PYTORCH_INDEX=template(cpu))
    user.wants("torch==2.9.1", "torchvision", "numpy", as_of=AS_OF)
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    found = user.packages()
    assert {name: row["version"] for name, row in found.items()} == {
        "torch": "2.9.1+cpu",
        "torchvision": "0.24.1+cpu",
        "numpy": "2.2.0",
        "filelock": "3.13.0",
    }
    assert found["torch"]["file"]["index"] == "pytorch-cpu"
    # On macOS there is nothing but the default index's.
    user.wants("torch==2.9.1", as_of=AS_OF, platforms=["osx-arm64"])
    assert user.locks().status == 0
    assert user.packages("osx-arm64")["torch"]["file"]["index"] == "default"


def test_as_of_bounds_pytorchs_index_by_the_facts(user: User) -> None:
    """It has no upload times; which torch was out by then the facts say."""
    user.wants("torch", "torchvision", as_of="2025-09-01T00:00:00Z", rest='[cuda]\nversion = "12.6"\n')
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert user.pins()["torch"] in ("2.8.0+cu126", "2.7.0")
    assert user.pins()["torchvision"] in ("0.23.0+cu126", "0.22.0")


NEWER = "99.1.0"
FACT = f"""
[[facts.torch]]
version = "{NEWER}"
uploaded = 2026-11-01T00:00:00Z
default = {{ linux-64 = "cu130" }}
variants = ["cu130"]
source = "release notes"
"""


@pytest.fixture(scope="module")
def newer() -> Iterator[IndexServer]:
    runtime = "nvidia-cuda-runtime==13.0.96"
    files = [*ecosystem.torch_family(), *compiled("torch", NEWER, "2026-11-01", [runtime], platforms=LINUX_TAGS[:1])]
    with IndexServer(files) as index:
        yield index


def test_a_torch_newer_than_the_facts_resolves_with_a_warning(tmp_path: Path, newer: IndexServer) -> None:
    user = User(tmp_path, newer.url)
    user.wants(f"torch=={NEWER}", as_of="2026-11-10T00:00:00Z", rest=CUDA)
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert user.pins()["torch"] == NEWER
    warnings = [text for text in ran.warnings if NEWER in text]
    assert any("family" in text and "[[facts.torch]]" in text for text in warnings), ran.stderr


def test_a_row_in_the_spec_silences_it(tmp_path: Path, newer: IndexServer) -> None:
    user = User(tmp_path, newer.url)
    user.wants(f"torch=={NEWER}", as_of="2026-11-10T00:00:00Z", rest=CUDA + FACT)
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert user.pins()["torch"] == NEWER
    assert not [text for text in ran.warnings if "could not be checked" in text], ran.stderr


def test_an_edge_in_the_spec_corrects_metadata(tmp_path: Path, public: IndexServer) -> None:
    user = User(tmp_path, public.url)
    edge = """
[[facts.edge]]
package = "left"
versions = "==1.0.0"
requires = ["filelock<3.13.1"]
reason = "its import asks for it"
source = "we tried"
"""
    user.wants("app", as_of=AS_OF, rest=edge)
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert user.packages()["filelock"]["required_by"] == [{"name": "left", "requirement": "filelock<3.13.1"}]


def test_an_environment_without_torch_hears_nothing_of_it(user: User) -> None:
    user.wants("app", as_of="2026-11-15T00:00:00Z")
    ran = user.locks()
    assert ran.status == 0
    assert "torch" not in ran.stderr
    assert not [d for d in user.document()["decision"] if "torch" in d["what"]]
    user.wants("app", rest=CUDA, as_of="2026-11-15T00:00:00Z")
    assert "no locked package names the CUDA release it needs" in refused(user.locks(), 2)
