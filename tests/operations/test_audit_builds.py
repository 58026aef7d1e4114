"""Builds of torch that were never published, in the ways in which people write them, and those that were."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from envspec.context import Connectivity, Context
from envspec.diagnostics.audit.cuda import NO_BUILD
from envspec.diagnostics.audit.types import AuditReport, Severity
from envspec.facts import load_facts
from envspec.models import CudaVersion
from envspec.operations.audit_project import AuditRequest, audit_project
from envspec.structs import replace

INDEX: Final = "https://download.pytorch.org/whl"
#: Pairs of docs/measurements/claims.md and of what people write instead.
CLAIMS: Final = (
    *(("2.8.0", "cu118"), ("2.8.0", "cu121"), ("2.9.0", "cu121"), ("2.9.1", "cu118")),
    *(("2.6.0", "cu124"), ("2.7.0", "cu118"), ("2.8.0", "cpu")),
)


WHEEL: Final = "torch-{torch}%2B{variant}-cp312-cp312-linux_x86_64.whl"
PROJECT: Final = '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.10"\n'
UV: Final = (
    '[tool.uv.sources]\ntorch = {{ index = "pytorch" }}\n'
    '[[tool.uv.index]]\nname = "pytorch"\nurl = "{index}/{variant}"\nexplicit = true\n'
)
POETRY: Final = '[tool.poetry]\nname = "x"\nversion = "1"\n[tool.poetry.dependencies]\npython = "^3.10"\n'
#: File, and its text.
SPELLINGS: Final = {
    "requirements": ("requirements.txt", "--extra-index-url {index}/{variant}\ntorch=={torch}+{variant}\n"),
    "index-alone": ("requirements.txt", "--index-url {index}/{variant}\ntorch=={torch}+{variant}\n"),
    "index-without-a-label": ("requirements.txt", "--index-url {index}/{variant}\ntorch=={torch}\n"),
    "links": ("requirements.txt", "-f {index}/torch_stable.html\ntorch=={torch}+{variant}\n"),
    "links-of-the-variant": (
        "requirements.txt",
        "--find-links {index}/{variant}/torch_stable.html\ntorch==={torch}+{variant}\n",
    ),
    "wheel": ("requirements.txt", f"{{index}}/{{variant}}/{WHEEL}\n"),
    "named-wheel": ("requirements.txt", f"torch @ {{index}}/{{variant}}/{WHEEL}\n"),
    "dockerfile": (
        "Dockerfile",
        "FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\nRUN apt-get install -y python3-pip\n"
        "RUN pip install torch=={torch}+{variant} torchvision --extra-index-url {index}/{variant}\n",
    ),
    "dockerfile-with-variables": (
        "Dockerfile",
        "FROM python:3.12\nARG TORCH={torch}\nARG BUILD={variant}\nENV PIP_EXTRA_INDEX_URL={index}/{variant}\n"
        "RUN pip install torch==${{TORCH}}+${{BUILD}}\n",
    ),
    "conda": (
        "environment.yml",
        "name: x\nchannels: [conda-forge]\ndependencies:\n  - python=3.12\n  - pip\n"
        "  - pip:\n    - --extra-index-url {index}/{variant}\n    - torch=={torch}+{variant}\n",
    ),
    "cog": (
        "cog.yaml",
        'build:\n  gpu: true\n  python_version: "3.12"\n  python_packages:\n    - torch=={torch}+{variant}\n',
    ),
    "uv": ("pyproject.toml", f'{PROJECT}dependencies = ["torch=={{torch}}+{{variant}}"]\n{UV}'),
    "uv-without-a-label": ("pyproject.toml", f'{PROJECT}dependencies = ["torch=={{torch}}"]\n{UV}'),
    "poetry": (
        "pyproject.toml",
        f'{POETRY}torch = {{{{ version = "{{torch}}+{{variant}}", source = "pytorch" }}}}\n'
        '[[tool.poetry.source]]\nname = "pytorch"\nurl = "{index}/{variant}"\npriority = "explicit"\n',
    ),
    "poetry-wheel": ("pyproject.toml", f'{POETRY}torch = {{{{ url = "{{index}}/{{variant}}/{WHEEL}" }}}}\n'),
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Without a network: what a label says needs none."""
    environ = {"HOME": str(tmp_path), "ENVSPEC_CACHE_DIR": str(tmp_path / "cache")}
    return replace(Context.from_environment(environ), connectivity=Connectivity.OFFLINE)


def audited(folder: Path, files: dict[str, str], context: Context) -> AuditReport:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return audit_project(AuditRequest(folder, gpus=("H100",), python="3.12"), context)


def errors(report: AuditReport) -> list[str]:
    return [each.rule.code for each in report.findings if each.rule.severity is Severity.ERROR]


def is_published(torch: str, variant: str) -> bool:
    row = load_facts().torch_release(torch)
    return row is not None and variant in row.published


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_build_that_was_never_published_is_an_error(spelling: str, context: Context, tmp_path: Path) -> None:
    name, text = SPELLINGS[spelling]
    for torch, variant in CLAIMS:
        files = {name: text.format(index=INDEX, torch=torch, variant=variant)}
        report = audited(tmp_path / f"{torch}-{variant}", files, context)
        expected = [] if is_published(torch, variant) else [NO_BUILD.code]
        assert errors(report) == expected, (torch, variant)
        # Nothing is said of the CUDA and the GPU code of a build that does not exist.
        assert expected == [] or not {"ENV203", "ENV401"} & {each.rule.code for each in report.findings}


def test_every_pair_of_a_release_and_a_build(context: Context, tmp_path: Path) -> None:
    rows = load_facts().torch
    variants = sorted({variant for row in rows for variant in row.published if variant != "cpu"})
    pairs = [(row.version, variant) for row in rows for variant in variants]
    text = "".join(f"torch=={torch}+{variant}\n" for torch, variant in pairs)
    report = audited(tmp_path / "all", {"requirements.txt": f"-f {INDEX}/torch_stable.html\n{text}"}, context)
    found = {each.source.line for each in report.findings if each.rule is NO_BUILD}
    assert found == {line for line, pair in enumerate(pairs, start=2) if not is_published(*pair)}


def test_a_label_of_a_member_of_the_family(context: Context, tmp_path: Path) -> None:
    lines = "torchvision==0.24.1+cu128\ntorchvision==0.24.1+cu121\ntorchaudio==2.9.1+cu118\ntorchaudio==2.9.1+cu126\n"
    report = audited(tmp_path / "a", {"requirements.txt": f"-f {INDEX}/torch_stable.html\n{lines}"}, context)
    assert [each.source.line for each in report.findings if each.rule is NO_BUILD] == [3, 4]


@pytest.mark.parametrize(
    ("lines", "rules"),
    [
        # A release that the data does not have, builds of others, and indexes that may have builds of their own.
        ("--extra-index-url {0}/cu128\ntorch==99.0.0+cu128\n", []),
        ("--index-url {0}/nightly/cu128\ntorch==2.8.0.dev20250601+cu128\n", []),
        ("--extra-index-url https://wheels.example.com/simple\ntorch==2.8.0+cu121\n", []),
        ("--index-url https://mirror.example.com/simple\ntorch==2.8.0+cu121\n", []),
        ("torch @ https://wheels.example.com/torch-2.8.0%2Bcu121-cp312-cp312-linux_x86_64.whl\n", []),
        ("torch==2.8.0+nv25.6\n", []),
        ("torch==2.8.0+cu121\n", ["ENV306"]),
        ("torch==2.8.0+cu128\n", ["ENV304"]),
        ("--extra-index-url {0}/cu126\ntorch==2.8.0+cu128\n", ["ENV304"]),
    ],
)
def test_where_a_build_may_be_from(lines: str, rules: list[str], context: Context, tmp_path: Path) -> None:
    report = audited(tmp_path / "a", {"requirements.txt": lines.format(INDEX)}, context)
    assert errors(report) == rules


@pytest.mark.parametrize(
    ("tag", "is_error"),
    [
        ("2.9.0-cuda12.1-cudnn8-runtime", True),
        ("2.9.0-cuda12.8-cudnn8-runtime", True),
        ("2.8.0-cuda11.8-cudnn9-devel", True),
        ("2.9.0-cuda12.8-cudnn9-runtime", False),
        ("2.1.2-cuda12.1-cudnn8-devel", False),
        ("2.7.0-cuda11.8-cudnn9-runtime", False),
        # A build that one source names, and releases that the data does not have.
        ("2.9.0-cuda12.9-cudnn9-runtime", False),
        ("99.0.0-cuda12.1-cudnn8-runtime", False),
        ("latest", False),
    ],
)
@pytest.mark.parametrize("repository", ["pytorch/pytorch", "docker.io/pytorch/pytorch"])
def test_tags_of_pytorchs_images(
    repository: str, tag: str, *, is_error: bool, context: Context, tmp_path: Path
) -> None:
    report = audited(tmp_path / "a", {"Dockerfile": f"FROM {repository}:{tag}\nRUN pip install einops\n"}, context)
    assert errors(report) == ([NO_BUILD.code] if is_error else [])


def test_the_labels_are_those_of_the_facts() -> None:
    """What the tests above take from the facts is what the page of claims states."""
    assert not any(is_published("2.8.0", variant) for variant in ("cu118", "cu121"))
    assert not any(is_published("2.9.0", variant) for variant in ("cu118", "cu121"))
    assert is_published("2.7.0", "cu118") and is_published("2.6.0", "cu124")
    assert str(CudaVersion.parse("cu121")) == "12.1"
