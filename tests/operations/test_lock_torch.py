"""The torch family as it is published: what its metadata leaves out, PyTorch's own index, what the facts do not know.

More is in golden/: lock_decisions/torch* and lock_refusals/torch*.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import DESKTOP_TAGS, LINUX_TAGS, compiled, release
from tests.support.builders.projects import PLAIN
from tests.support.servers.index import IndexServer
from tests.support.user import NAME, User, refused, routed

AS_OF = "2026-06-01T00:00:00Z"
#: Older releases of CUDA have no images of Ubuntu 24.04.
JAMMY = '[cuda]\nos = "ubuntu22.04"\n'
CU126 = '[cuda]\nversion = "12.6"\n'
NEWER = "99.1.0"


@pytest.fixture(scope="module")
def public() -> Iterator[IndexServer]:
    runtime = "nvidia-cuda-runtime==13.0.96"
    newer = compiled("torch", NEWER, "2026-11-01", [runtime], platforms=LINUX_TAGS[:1])
    transitive = release("transitive", "1.0", requires=["torch"])
    conflict = release("newer-vision", "1.0", requires=["torchvision>=0.26"])
    with IndexServer([*ecosystem.torch_family(), *ecosystem.diamond(), *newer, transitive, conflict]) as index:
        yield index


@pytest.fixture
def user(tmp_path: Path, public: IndexServer) -> User:
    return User(tmp_path, public.url)


@pytest.mark.parametrize(
    ("asked", "pins"),
    [
        ("torch==2.8.* torchvision torchaudio", {"torch": "2.8.0", "torchvision": "0.23.0", "torchaudio": "2.8.0"}),
        ("torch torchvision torchaudio", {"torch": "2.11.0", "torchvision": "0.26.0", "torchaudio": "2.11.0"}),
        ("torchaudio", {"torch": "2.11.0", "torchaudio": "2.11.0"}),
        ("torch==2.3.1 torchtext", {"torch": "2.3.1", "torchtext": "0.18.0"}),
    ],
)
def test_members_without_a_requirement_are_locked_with_their_own_torch(
    user: User, asked: str, pins: dict[str, str]
) -> None:
    user.wants(*asked.split(), as_of=AS_OF, rest=JAMMY)
    user.locked()
    assert pins.items() <= user.pins().items()


def test_releases_for_another_torch_are_not_tried_and_still_explained(user: User, public: IndexServer) -> None:
    before = len(public.requests)
    user.wants("torch==2.8.0", "torchvision", as_of=AS_OF, rest=JAMMY)
    user.locked()
    # 0.24.0 to 0.25.0 are for newer torches; the reason for the newest of all comes from its METADATA.
    tried = {request.path.split("-")[1] for request in public.requests[before:] if "/torchvision-" in request.path}
    assert tried == {"0.23.0", "0.26.0"}
    vision = user.packages()["torchvision"]
    assert (vision["version"], vision["rejected"]["version"]) == ("0.23.0", "0.26.0")
    assert [(each["code"], each["requirement"]) for each in vision["rejected"]["why"]] == [
        ("needs-spec", "torch==2.11.0")
    ]


def test_a_conflict_names_what_releases_for_another_torch_require(user: User) -> None:
    user.wants("torch==2.8.0", "newer-vision", as_of=AS_OF, rest=JAMMY)
    message = refused(user.locks(), 4)
    assert "newer-vision" in message and "torchvision" in message and "torch==2.11.0" in message


@pytest.mark.parametrize(("variant", "rest"), [("cu126", CU126), ("cpu", "")])
def test_pytorchs_index_is_used_for_the_family_only(user: User, variant: str, rest: str) -> None:
    files = [*ecosystem.pytorch_index(variant), *compiled("numpy", "99.0.0"), release("filelock", "99.0.0")]
    with IndexServer(files, PLAIN, prefix=f"/whl/{variant}") as index:
        user.environ["ENVSPEC_PYTORCH_INDEX"] = index.url.replace(variant, "{variant}")
        user.wants("torch==2.9.1", "torchvision", "torchaudio", "numpy", as_of=AS_OF, rest=rest)
        user.locked()
        versions = {"torch": "2.9.1", "torchvision": "0.24.1", "torchaudio": "2.9.1"}
        family = {name: f"{version}+{variant}" for name, version in versions.items()}
        assert user.pins() == {**family, "numpy": "2.2.0", "filelock": "3.13.0"}
        assert {request.path.split("/")[2] for request in index.requests} <= {*family, "triton"}
        if variant == "cpu":
            # The default index's builds for macOS are for the CPU.
            user.wants("torch==2.9.1", as_of=AS_OF, platforms=["osx-arm64"])
            user.locked()
            assert user.packages("osx-arm64")["torch"]["file"]["index"] == "default"
        else:
            # That index has no upload times: the facts say which torch was published by then.
            user.wants("torch", "torchvision", as_of="2025-09-01T00:00:00Z", rest=rest)
            user.locked()
            assert user.pins()["torch"] == "2.8.0+cu126" and user.pins()["torchvision"] == "0.23.0+cu126"


def test_windows_alone_has_the_build_for_its_cuda(user: User) -> None:
    builds = compiled("torch", "2.9.1+cu126", "2025-11-12", ["filelock"], platforms=DESKTOP_TAGS)
    with IndexServer(builds, PLAIN, prefix="/whl/cu126") as index:
        user.environ["ENVSPEC_PYTORCH_INDEX"] = index.url.replace("cu126", "{variant}")
        user.wants("torch==2.9.1", as_of=AS_OF, platforms=["win-64"], rest=CU126)
        ran = user.locked()
    assert user.packages("win-64")["torch"]["version"] == "2.9.1+cu126"
    lock = user.document()
    assert "base_image" not in lock and "cpu_build" not in lock
    assert not ran.warnings


def test_a_cpu_build_on_windows_is_reported(user: User) -> None:
    user.wants("torch==2.9.1", as_of=AS_OF, platforms=["linux-64", "win-64"], rest='[cuda]\ngpus = ["A100"]\n')
    ran = user.locked()
    assert [text for text in ran.warnings if "torch 2.9.1 is a CPU build on win-64" in text], ran.stderr
    [build] = user.document()["cpu_build"]
    assert (build["package"], build["version"], build["platform"]) == ("torch", "2.9.1", "win-64")
    fits = user.runs("fit", NAME, "--platform", "win-64", "--gpu", "A100", "--format", "json")
    [gpu] = [each for each in json.loads(fits.stdout)["findings"] if each["what"] == "gpu"]
    assert (fits.status, gpu["verdict"]) == (6, "does not fit")


def test_a_row_in_the_spec_stands_for_a_fact(user: User) -> None:
    fact = (
        f'[[facts.torch]]\nversion = "{NEWER}"\nuploaded = 2026-11-01T00:00:00Z\nvariants = ["cu130"]\n'
        'default = { linux-64 = "cu130" }\nsource = "release notes"\n'
    )
    user.wants(f"torch=={NEWER}", as_of="2026-11-10T00:00:00Z", rest=f"[cuda]\n{fact}")
    ran = user.locked()
    assert user.pins()["torch"] == NEWER
    assert not [text for text in ran.warnings if "could not be checked" in text], ran.stderr


def test_a_label_of_the_family_names_its_build(user: User) -> None:
    gpus = '[cuda]\ngpus = ["A100"]\n'
    user.wants("torch==2.9.1", "torchvision==0.24.1+cu128", as_of=AS_OF, rest=gpus)
    user.locked()
    assert {"torch": "2.9.1", "torchvision": "0.24.1"}.items() <= user.pins().items()
    user.environ["ENVSPEC_CACHE_DIR"] = str(user.folder / "other-cache")
    assert user.locks("--check").status == 0
    with IndexServer(ecosystem.pytorch_index("cu126"), PLAIN, prefix="/whl/cu126") as index:
        user.environ["ENVSPEC_PYTORCH_INDEX"] = index.url.replace("cu126", "{variant}")
        user.wants("torchvision==0.24.1+cu126", as_of=AS_OF, rest=gpus)
        user.locked()
    assert {"torch": "2.9.1+cu126", "torchvision": "0.24.1+cu126"}.items() <= user.pins().items()


def test_labels_that_name_two_builds_are_refused(user: User) -> None:
    user.wants("torch==2.9.1+cu126", "torchvision==0.24.1+cu128", as_of=AS_OF, rest="[cuda]\n")
    text = refused(user.locks(), 4)
    assert "torch==2.9.1+cu126 and torchvision==0.24.1+cu128 name different builds of torch" in text


def test_a_cuda_without_a_build_of_torch_is_refused_only_if_torch_is_locked(user: User) -> None:
    without = '[cuda]\nversion = "12.2"\nos = "ubuntu22.04"\n'
    user.wants("numpy", as_of=AS_OF, rest=without)
    assert "torch" not in user.locked().stderr
    assert "torch" not in (user.lock / "envspec.lock").read_text()
    for name in ("torch", "torchvision", "transitive"):
        user.wants(name, as_of=AS_OF, rest=without)
        assert "no build for CUDA 12.2 was ever published" in refused(user.locks(), 4)


def test_another_build_of_a_member_on_a_private_index_is_no_release_of_the_project(tmp_path: Path) -> None:
    # No line names torchvision. The project's own 0.21.0 requires torch 2.6.0.
    builds = [release("torchvision", "0.21.0", requires=["torch==2.5.1"]), release("torchvision", "0.20.1")]
    torch = [release("torch", "2.5.1"), release("torch", "2.6.0"), release("lib", "1.0", requires=["torchvision"])]
    with IndexServer(torch) as public, IndexServer(builds) as private:
        user = User(tmp_path, public.url, ENVSPEC_PYTORCH_INDEX=public.url)
        user.wants("lib", "torch==2.5.1", as_of=AS_OF, rest=routed("corp", private.url, "torchv*"))
        user.locked()
        assert user.pins() == {"lib": "1.0", "torch": "2.5.1", "torchvision": "0.21.0"}
