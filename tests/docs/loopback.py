"""The servers on loopback that stand for those of the pages: indexes, a registry, channels."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.structs import replace
from tests.docs import local_python
from tests.docs.error_packages import broken_packages, placeholder
from tests.docs.faulty_hosts import faulty_hosts
from tests.docs.private_hosts import LOGIN, private_hosts
from tests.docs.project_backend import hatchling
from tests.support.builders import base_packages, ecosystem
from tests.support.builders.cuda_library import CUBIN, Code, container, library
from tests.support.builders.images import TAG, BaseMade, RegistryInThread, hold_base, make_base
from tests.support.builders.projects import File, day
from tests.support.builders.standalone import SERIES
from tests.support.builders.wheels import sdist, wheel
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import PushRegistry
from tests.support.user import CUT_OFF, ROOT, SHORT_BACKOFF

#: Tags of nvidia/cuda that pages name, beside TAG: all are one small image.
MORE_TAGS: Final = (
    *("12.6.3-base-ubuntu24.04", "12.6.3-runtime-ubuntu24.04", "12.9.1-base-ubuntu24.04", "12.8.2-runtime-ubuntu24.04"),
    *("12.9.1-runtime-ubuntu24.04", "12.8.1-cudnn-devel-ubuntu22.04", "13.0.3-base-ubuntu24.04"),
)


def default_index() -> list[File]:
    """Packages of the default index that pages name."""
    generated = ecosystem.everything()
    return [
        *map(with_gpu_code, [*generated, *for_this_python(generated)]),
        *ecosystem.releases("""
            einops 0.7.0 2024-01-05
            einops 0.8.0 2024-05-01
            tqdm 4.66.0 2024-01-01
            huggingface-hub 0.25.0 2024-09-01: tqdm
            huggingface-hub 0.34.0 2025-08-01: tqdm
            tokenizers 0.20.0 2024-10-01: huggingface-hub
            transformers 4.45.0 2024-10-01: huggingface-hub<0.30, tokenizers, numpy<2
            transformers 4.57.1 2025-10-14: huggingface-hub>=0.30, tokenizers, numpy
            psutil 7.1.0 2025-09-17
            accelerate 1.13.0 2026-03-04: huggingface-hub, numpy, psutil, torch>=2.0
            accelerate 1.15.0 2026-09-09: huggingface-hub, numpy, psutil, torch>=2.0
            jupyterlab 4.4.10 2025-10-22
            setuptools 80.9.0 2025-05-27
            tensorboard 2.20.0 2025-07-17: numpy, setuptools
            numba 0.60.0 2024-06-13: numpy<2.1
            numba 0.61.2 2025-04-09: numpy<2.3
        """),
        File(sdist("flash-attn", "2.8.3"), day("2025-08-14")),
        File(hatchling(), day("2024-12-15")),
        *broken_packages(),
    ]


def with_gpu_code(file: File) -> File:
    """A wheel of torch for Linux with machine code for the GPUs of the real one; any other file as it is."""
    if file.name != "torch" or "linux" not in file.filename:
        return file
    is_old = re.search(r"cu1(18|26)", file.filename)
    sm = (50, 60, 70, 75, 80, 86, 90) if is_old else (70, 75, 80, 86, 90, 100, 120)
    code = library([(".nv_fatbin", container([Code(CUBIN, each) for each in sm]))])
    return _as_wheel(file, _tag(file), {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": code})


def pytorch_index() -> list[File]:
    """Of all of PyTorch's own indexes: the builds for CUDA 12.6, and the last one for CUDA 11.8."""
    old = ecosystem.compiled("torch", "2.7.1+cu118", "2025-06-04", ["filelock"], platforms=ecosystem.LINUX_TAGS[:1])
    return [with_gpu_code(file) for file in (*ecosystem.pytorch_index(), *old)]


def for_this_python(files: Sequence[File]) -> list[File]:
    """Wheels for the Python that runs the tests, if there are none: images on pages have it (`local_python`)."""
    series = f"cp{SERIES.replace('.', '')}"
    tag = f"{series}-{series}"
    if tag in ecosystem.PYTHON_TAGS:
        return []
    newest = ecosystem.PYTHON_TAGS[-1]
    return [_as_wheel(each, _tag(each).replace(newest, tag)) for each in files if newest in each.filename]


def _tag(file: File) -> str:
    return file.filename.removesuffix(".whl").split("-", 2)[2]


def _as_wheel(file: File, tag: str, files: Mapping[str, bytes] | None = None) -> File:
    made = file.artifact
    return replace(file, artifact=wheel(made.name, made.version, tag=tag, files=files, metadata=made.metadata))


def base_with_torch() -> BaseMade:
    """A base image of the team, with Python and torch."""
    layers = base_packages.layer(base_packages.system()), base_packages.layer(base_packages.torch("2.9.1+cu128"))
    return make_base(blobs_of=layers, env={"CUDA_VERSION": "12.8.1"})


def wheels_of_flash_attn() -> list[File]:
    """Of the project's own page, for two minor versions of torch."""
    versions = [f"2.8.3+cu12torch{torch}cxx11abiTRUE" for torch in ("2.7", "2.8")]
    tag = "cp311-cp311-linux_x86_64"
    return [File(wheel("flash-attn", version, tag=tag, requires=["torch", "einops"])) for version in versions]


def private_index() -> list[File]:
    """Packages of the private index."""
    models = ecosystem.releases("""
        acme-models 1.0.0 2025-01-10: einops
        acme-models 1.1.0 2025-06-10: einops
        acme-build-tools 2.0.0 2025-01-10
    """)
    return [*models, File(placeholder())]


@dataclass(frozen=True)
class Servers:
    """names: text on pages -> text on this machine. variables: of the environment of their reader."""

    names: dict[str, str]
    variables: dict[str, str]


@contextmanager
def servers() -> Iterator[Servers]:
    """All servers that pages need."""
    with (
        IndexServer(default_index()) as index,
        IndexServer(pytorch_index()) as pytorch,
        IndexServer(private_index()) as private,
        IndexServer(private_index(), credentials=LOGIN) as login,
        private_hosts(index, pytorch, login) as hosts,
        RegistryInThread(PushRegistry()) as registry,
        IndexServer(wheels_of_flash_attn()) as wheels,
        local_python.archives() as python,
        faulty_hosts() as faulty,
    ):
        hold_base(registry.held, make_base())
        hold_base(registry.held, base_with_torch(), "team/pytorch", "2.9")
        hold_base(registry.held, make_base(), "library/ubuntu", "24.04")
        tags = registry.held.tags["nvidia/cuda"]
        tags.update(dict.fromkeys(MORE_TAGS, tags[TAG]))
        yield Servers(
            names={
                "https://packages.example.com": private.root,
                **hosts,
                "https://wheels.example.com/flash-attn.html": f"{wheels.root}/links.html",
                "registry.example.com": registry.host,
                "/usr/bin/python3.11": f"{sys.base_prefix}/bin/python{SERIES}",
                **faulty,
            },
            variables={
                "ENVSPEC_DEFAULT_INDEX": index.url,
                "ENVSPEC_PYTORCH_INDEX": pytorch.url,
                "ENVSPEC_REGISTRY_MIRRORS": f"docker.io={registry.host}",
                "NO_PROXY": "127.0.0.1",
                **python,
            },
        )


def environment(home: Path, program_folder: Path) -> dict[str, str]:
    """Nothing of the tests' own environment but where programs are. program_folder: has `envspec`."""
    return {
        "HOME": str(home),
        # envspec finds the Python behind the one that runs the tests.
        "PATH": f"{program_folder}:{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "100",
        "ENVSPEC_CACHE_DIR": str(home / ".cache" / "envspec"),
        **SHORT_BACKOFF,
        **CUT_OFF,
    }
