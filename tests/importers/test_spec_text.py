"""Drafts -> specs: what is written, what is decided, and what becomes a refused line."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec.adopt.rows import Selection
from envspec.errors import UsageError
from envspec.facts import load_facts
from envspec.importers import new_import
from envspec.importers.spec_text import spec_of
from envspec.importers.types import (
    Choices,
    Clue,
    Draft,
    DraftIndex,
    DraftRequirement,
    Import,
    Locked,
    Outcome,
    PipFrom,
    Source,
    Started,
)
from envspec.models import Platform
from envspec.spec import Spec, parse_spec
from envspec.spec.sections import Cuda, Pip

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
LABEL, TAG = Source("requirements.txt", 1), Source("Dockerfile", 1)


def imported(tmp_path: Path, *dependencies: str, **fields: Any) -> Import:
    made = new_import(tmp_path)
    lines = [DraftRequirement(text, Source("requirements.txt", at)) for at, text in enumerate(dependencies, 1)]
    made.draft = Draft(name="mine", dependencies=lines, **fields)
    for line in lines:
        made.add(line.source, line.text, Outcome.KEPT)
    return made


def written(made: Import, tmp_path: Path, **choices: Any) -> tuple[Spec, dict[str, tuple[str, str]]]:
    """The spec as `envspec lock` reads it, and the decisions: what -> value and reason."""
    found = spec_of(made, Choices(**choices), load_facts(), tmp_path / "specs", NOW)
    spec = parse_spec(found.text, "spec.toml", NOW, tmp_path / "specs")
    return spec, {each.what: (each.value, each.why) for each in found.decisions}


def test_lines_versions_and_choices_are_in_the_spec(tmp_path: Path) -> None:
    made = imported(
        tmp_path,
        "torch==2.9.1",
        'numpy<2; python_version < "3.13"',
        "torch==2.9.1",
        versions={"numpy": "1.26.4", "torch": "2.9.1+cu128", "odd": "not a version"},
        apt=["git", "ffmpeg", "git"],
        env={"HF_HOME": "/data"},
        workdir="/app",
        overrides=[("protobuf<4", "the project says so")],
    )
    spec, _ = written(made, tmp_path, gpus=("A100",), driver="550")
    assert [each.text for each in spec.pip.dependencies] == ["torch==2.9.1", 'numpy<2; python_version < "3.13"']
    assert [each.text for each in spec.pip.prefer] == ["numpy==1.26.4", "torch==2.9.1+cu128"]
    assert spec.cuda is not None and (spec.cuda.gpus, spec.cuda.driver) == (("A100",), "550")
    assert spec.system is not None and spec.system.apt == ("ffmpeg", "git")
    assert (spec.image.env, spec.image.workdir) == ({"HF_HOME": "/data"}, "/app")
    assert (spec.env.name, spec.env.as_of) == ("mine", NOW)


@pytest.mark.parametrize(
    ("pythons", "torch", "python", "why"),
    [
        (["3.10"], "2.9.1", "3.10", "its line"),
        ([">=3.11", "<3.12"], "2.9.1", "3.11", "its line"),
        ([], "2.9.1", "3.12", "no source names a Python version"),
        ([], "2.0.1", "3.11", "no source names a Python version; torch==2.0.1 has no wheel for 3.12"),
        ([">=3.8"], "1.13.1", "3.11", "its line; torch==1.13.1 has no wheel for 3.12"),
        (["3.11.2"], "2.9.1", "3.11", "its line; 3.11.2 has no standalone build, the series' newest patch is used"),
    ],
)
def test_the_python(tmp_path: Path, pythons: list[str], torch: str, python: str, why: str) -> None:
    clues = [Clue(each, LABEL, "its line") for each in pythons]
    spec, decisions = written(imported(tmp_path, f"torch=={torch}", pythons=clues), tmp_path)
    assert (spec.env.python, decisions["env.python"]) == (python, (python, why))


@pytest.mark.parametrize(
    ("preferred", "python", "why"),
    [({}, "3.11.2", "its line"), ({"python": "3.11.2 h0_0"}, "3.11", "its line; 3.11.2 is preferred")],
)
def test_condas_python_needs_no_standalone_build(
    tmp_path: Path, preferred: dict[str, str], python: str, why: str
) -> None:
    made = imported(tmp_path, pythons=[Clue("3.11.2", LABEL, "its line")], channels=["conda-forge"])
    made.draft.conda_versions = preferred
    spec, decisions = written(made, tmp_path)
    assert (spec.env.python, decisions["env.python"]) == (python, (python, why))


def test_the_python_of_an_images_system(tmp_path: Path) -> None:
    made = imported(tmp_path, "torch==2.9.1", systems=[Clue("ubuntu22.04", TAG, "its tag")])
    spec, decisions = written(made, tmp_path)
    assert (spec.env.python, decisions["env.python"]) == ("3.10", ("3.10", "python3 of ubuntu22.04"))


@pytest.mark.parametrize(
    ("clues", "flavor", "torch", "version"),
    [
        ([("12.6", LABEL)], None, "2.7.1", "12.6"),
        ([("12.6", LABEL), ("12.8", TAG)], "devel", "2.7.1", "12.6"),
        ([("12.8", TAG)], "devel", "2.9.1", "12.8"),
        ([("12.2", TAG)], "devel", "2.9.1", None),
        ([("12.4", TAG)], "devel", None, "12.4"),
        ([("12.2", TAG)], "devel", None, "12.4"),
        ([("11.4", TAG)], "devel", None, "11.8"),
        ([("10.2", TAG)], "devel", None, None),
        ([("12.1", LABEL)], None, "2.7.1", None),
        ([("11.8", LABEL)], None, "2.7.1", "11.8"),
        ([("11.7", TAG)], "devel", "1.13.1", None),
        ([("11.7", LABEL)], None, "1.13.1", None),
    ],
)
def test_torchs_build_goes_before_the_base_image(
    tmp_path: Path, clues: list[tuple[str, Source]], flavor: str | None, torch: str | None, version: str | None
) -> None:
    """A base image's CUDA counts if torch's wheels have the same, or without torch."""
    made = imported(
        tmp_path,
        *([f"torch=={torch}"] if torch else ["numpy"]),
        cudas=[Clue(value, source, "its line") for value, source in clues],
        flavors=[Clue(flavor, TAG, "its tag")] if flavor else [],
    )
    spec, decisions = written(made, tmp_path)
    assert spec.cuda is not None
    assert (str(spec.cuda.version) if spec.cuda.version else None) == version
    assert "cuda.version" in decisions


def test_an_index_for_the_cpu_means_no_cuda(tmp_path: Path) -> None:
    made = imported(tmp_path, "torch", cudas=[Clue("cpu", LABEL, "PyTorch's index for the CPU")])
    spec, decisions = written(made, tmp_path)
    assert spec.cuda is None
    assert decisions["cuda"] == ("none", "PyTorch's index for the CPU")


def test_a_line_that_no_spec_can_have_is_refused_in_the_ledger(tmp_path: Path) -> None:
    made = imported(tmp_path, "numpy", "torch ==", "x @ ftp://host/x.whl")
    made.draft.indexes.append(DraftIndex("https://wheels.example.com/simple", Source("requirements.txt", 9)))
    spec, _ = written(made, tmp_path)
    assert [each.text for each in spec.pip.dependencies] == ["numpy"]
    assert [(each.text, each.outcome) for each in made.ledger] == [
        ("numpy", Outcome.KEPT),
        ("torch ==", Outcome.REFUSED),
        ("x @ ftp://host/x.whl", Outcome.REFUSED),
        ("https://wheels.example.com/simple", Outcome.REFUSED),
    ]
    assert all(each.reason for each in made.ledger[1:])


def test_local_projects_are_named_from_the_specs_folder(tmp_path: Path) -> None:
    made = imported(tmp_path)
    (tmp_path / "lib").mkdir()
    made.draft.dependencies = [
        DraftRequirement("lib @ {path}", LABEL, tmp_path / "lib"),
        DraftRequirement("mine @ {path}", LABEL, tmp_path),
    ]
    spec, _ = written(made, tmp_path)
    assert [each.text for each in spec.pip.dependencies] == ["lib @ ../lib", "mine @ .."]


def test_conda_and_indexes(tmp_path: Path) -> None:
    made = imported(
        tmp_path,
        "corp-lib",
        channels=["conda-forge"],
        conda=[("ffmpeg >=7", ""), ("gcc_linux-64", "linux-64")],
        conda_versions={"ffmpeg": "7.1 h0_0", "python": "3.12.7", "odd": ""},
        indexes=[
            DraftIndex("https://wheels.example.com/simple", LABEL, packages=("corp-lib",)),
            DraftIndex("https://wheels.example.com/pyg.html", LABEL, packages=("torch-scatter",), format="links"),
        ],
    )
    spec, _ = written(made, tmp_path)
    assert spec.conda is not None
    assert spec.conda.dependencies == ("ffmpeg >=7",)
    assert spec.conda.prefer == ("ffmpeg ==7.1 h0_0", "python ==3.12.7")
    assert [(each.name, each.format.value) for each in spec.pip.index] == [
        ("example", "simple"),
        ("example-2", "links"),
    ]


@pytest.mark.parametrize(
    ("bound", "as_of"),
    [("2026-03-01T00:00:00Z", "2026-03-01"), ("2027-01-01T00:00:00Z", "2026-11-20"), ("7 days ago", "7 days ago")],
)
def test_an_earlier_bound_on_uploads_is_the_specs(tmp_path: Path, bound: str, as_of: str) -> None:
    clue = Clue(bound, Source("pyproject.toml", 3), "exclude-newer of uv")
    spec, decided = written(imported(tmp_path, "rich", as_ofs=[clue]), tmp_path)
    assert str(spec.env.as_of)[: len(as_of)] == as_of
    assert ("env.as_of" in decided) == (as_of != "2026-11-20")


@pytest.mark.parametrize(
    ("overrides", "dependencies", "rows"),
    [
        # uv's way to exclude a package.
        (["torch; sys_platform == 'never'"], ["numpy>=2"], [("torch", True)]),
        (["numpy<2"], ["numpy<2", "torch>=2"], [("numpy<2", False)]),
        (
            ["numpy<2; sys_platform == 'linux'", "rich<9; sys_platform == 'linux'"],
            ["numpy<2 ; sys_platform == 'linux'", "torch>=2"],
            [
                ("numpy<2; sys_platform == 'linux'", False),
                ("rich<9; sys_platform == 'linux'", False),
                ("rich ; sys_platform == 'darwin' and platform_machine == 'arm64'", True),
            ],
        ),
        (
            ["numpy<2; sys_platform == 'linux'", "numpy<3; sys_platform == 'darwin'", "numpy==1; os_name == 'nt'"],
            ["numpy<2 ; sys_platform == 'linux'", "numpy<3 ; sys_platform == 'darwin'", "torch>=2"],
            [("numpy<2; sys_platform == 'linux'", False), ("numpy<3; sys_platform == 'darwin'", False)],
        ),
        (["numpy<2; python_version < '3.13'"], ["numpy<2 ; python_version < '3.13'", "torch>=2"], None),
        (["numpy<2; python_version < '3.10'"], ["torch>=2"], [("numpy", True)]),
    ],
)
def test_overrides_are_uvs(
    tmp_path: Path, overrides: list[str], dependencies: list[str], rows: list[tuple[str, bool]] | None
) -> None:
    rows = [(overrides[0], False)] if rows is None else rows
    fields = {"overrides": [(text, "the project's") for text in overrides], "versions": {"torch": "2.9.1"}}
    made = imported(tmp_path, "numpy>=2", "torch>=2", **fields)
    spec, _ = written(made, tmp_path, platforms=(Platform.LINUX_64, Platform.OSX_ARM64))
    text = [each.text.replace('"', "'") for each in spec.pip.dependencies]
    assert (text, [(each.requirement.text, each.remove) for each in spec.pip.overrides]) == (dependencies, rows)
    # A version of what is removed is not preferred.
    assert bool(spec.pip.prefer) == ("torch>=2" in dependencies)
    assert all("overrides" in each.reason for each in made.ledger if each.text.split(">")[0] not in "".join(text))


def test_lines_of_which_others_demand_more(tmp_path: Path) -> None:
    made = imported(tmp_path, "fschat", "fschat[webui,model_worker]", "numpy>1", "numpy>1,<2; os_name == 'nt'", "rich")
    spec, _ = written(made, tmp_path)
    assert [each.name for each in spec.pip.dependencies] == ["fschat", "numpy", "numpy", "rich"]
    assert spec.pip.dependencies[0].extras == ("model-worker", "webui")


def test_pip_alone_is_no_package_of_conda(tmp_path: Path) -> None:
    spec, _ = written(imported(tmp_path, "numpy", channels=["conda-forge"], conda=[("pip", "")]), tmp_path)
    assert spec.conda is None
    both = imported(tmp_path, "numpy", channels=["conda-forge"], conda=[("pip", ""), ("ffmpeg", "")])
    spec, _ = written(both, tmp_path)
    assert spec.conda is not None and len(spec.conda.dependencies) == 2


def test_dates_of_single_packages_are_not_in_the_future(tmp_path: Path) -> None:
    made = imported(tmp_path, "torch", package_as_ofs={"torch": "2027-01-01T00:00:00Z", "vllm": "2 days ago"})
    spec, _ = written(made, tmp_path)
    assert spec.env.package_as_of["torch"] == NOW
    assert str(spec.env.package_as_of["vllm"]) == "2 days ago"


@pytest.mark.parametrize(
    ("lines", "fields", "text"),
    [
        (["numpy"], {}, "\n# [cuda]\n# gpus ="),
        (["accelerate"], {}, "\n[cuda]\n# gpus ="),
        (["numpy"], {"versions": {"torch": "2.9.1"}}, "\n[cuda]\n# gpus ="),
        (["numpy"], {"systems": [Clue("ubuntu22.04", TAG, "its tag")]}, "\n# [cuda]\n# gpus ="),
        (["numpy"], {"cudas": [Clue("12.8", LABEL, "its line")]}, '\n[cuda]\nversion = "12.8"\n'),
        ([], {"conda": [("conda-forge::pytorch-gpu", "")]}, "\n[cuda]\n# gpus ="),
    ],
)
def test_cuda_is_active_with_torch_or_if_the_sources_name_it(
    tmp_path: Path, lines: list[str], fields: dict[str, Any], text: str
) -> None:
    found = spec_of(imported(tmp_path, *lines, **fields), Choices(), load_facts(), tmp_path / "specs", NOW)
    assert text in found.text
    assert ("\n[cuda]\n" in found.with_cuda) == ("# [cuda]" in found.text)


def test_an_index_without_names_is_written_as_a_comment(tmp_path: Path) -> None:
    made = imported(tmp_path, "torch", "tensorrt>=10", "numpy @ https://example.com/numpy-1-py3-none-any.whl")
    made.draft.indexes.append(DraftIndex("https://pypi.nvidia.com", Source("requirements.txt", 9)))
    made.add(Source("requirements.txt", 9), "--extra-index-url https://pypi.nvidia.com", Outcome.TRANSLATED)
    found = spec_of(made, Choices(), load_facts(), tmp_path / "specs", NOW)
    lines = ["[[pip.index]]", 'name = "nvidia"', 'url = "https://pypi.nvidia.com"', 'packages = ["tensorrt"]']
    block = "".join(f"# {line}\n" for line in lines)
    assert block in found.text
    assert made.ledger[-1].outcome is Outcome.REFUSED
    active = found.text.replace(block, "".join(f"{line}\n" for line in lines))
    assert parse_spec(active, "spec.toml", NOW, tmp_path / "specs").pip.index_for("tensorrt") is not None


def test_the_ledger_names_what_the_spec_has_instead(tmp_path: Path) -> None:
    made = imported(tmp_path, "torch==2.9.1", cudas=[Clue("12.2", TAG, "the tag")], flavors=[Clue("devel", TAG, "")])
    made.draft.pythons += [Clue("3.11", LABEL, "a command"), Clue("3.10", TAG, "the tag")]
    made.add(TAG, "FROM x", Outcome.TRANSLATED, "[cuda] version 12.2; [env] python 3.10; [cuda] flavor devel")
    spec_of(made, Choices(), load_facts(), tmp_path / "specs", NOW)
    assert (
        made.ledger[-1].reason == "[cuda] version 12.2; [env] python 3.10; [cuda] flavor devel; "
        "the spec has no [cuda] version; the spec has [env] python 3.11"
    )


@pytest.mark.parametrize(
    ("starts", "ports", "packages", "apt", "services"),
    [
        (["jupyter lab --port=9999"], [], ["jupyterlab"], [], {"jupyter": {"port": 9999}}),
        (
            ["jupyter notebook"],
            ["22", "8888"],
            [],
            ["openssh-server"],
            {"jupyter": {"port": 8888}, "ssh": {"port": 2222}},
        ),
        (["tensorboard --logdir /logs"], [], [], [], {"tensorboard": {"port": 6006, "logdir": "/logs"}}),
        (
            ["python app.py"],
            ["6006", "22"],
            ["tensorboard"],
            ["openssh-server"],
            {"tensorboard": {"port": 6006, "logdir": "runs"}, "ssh": {"port": 2222}},
        ),
        (["/usr/sbin/sshd -D"], [], [], [], {"ssh": {"port": 2222}}),
        (["python app.py"], ["8888", "22"], [], [], {}),
        (["python app.py"], [], ["jupyterlab"], ["openssh-server"], {}),
    ],
)
def test_services_are_those_that_a_container_starts(
    tmp_path: Path, starts: list[str], ports: list[str], packages: list[str], apt: list[str], services: dict[str, Any]
) -> None:
    made = imported(tmp_path, *packages, apt=apt)
    made.draft.starts += [Clue(each, TAG, "CMD") for each in starts]
    made.draft.ports += [Clue(each, Source("Dockerfile", 2), "EXPOSE") for each in ports]
    made.add(TAG, "CMD", Outcome.OUTSIDE, "start it")
    spec, _ = written(made, tmp_path)
    found = spec.services.model_dump(exclude_none=True) if spec.services else {}
    assert found == services
    # What a service runs is required.
    needed = {"jupyter": "jupyterlab", "tensorboard": "tensorboard"}
    assert {needed[name] for name in services if name in needed} <= {each.name for each in spec.pip.dependencies}
    assert (made.ledger[-1].outcome is Outcome.TRANSLATED) == bool(services and starts != ["python app.py"])


@pytest.mark.parametrize(
    ("starts", "packages", "expected", "reason"),
    [
        ("serve app", [], (("serve",), ("app",)), "[image] entrypoint"),
        ("serve app", ["tensorboard"], ((), ("serve", "app")), "[image] command, which runs next to [services]"),
        ("tini tensorboard", [], ((), ()), "the image's entrypoint starts [services]"),
    ],
)
def test_a_command_runs_next_to_services_unless_it_starts_one(
    tmp_path: Path, starts: str, packages: list[str], expected: tuple[tuple[str, ...], tuple[str, ...]], reason: str
) -> None:
    made = imported(tmp_path, *packages)
    made.draft.starts.append(Clue(starts, TAG, "CMD"))
    made.draft.ports.append(Clue("6006", TAG, "EXPOSE"))
    entrypoint, command = starts.split()
    at = Source("Dockerfile", 7)
    made.draft.started = {"command": Started((command,), TAG), "entrypoint": Started((entrypoint,), at)}
    made.add(at, "ENTRYPOINT", Outcome.TRANSLATED, "[image] entrypoint")
    spec, _ = written(made, tmp_path)
    assert (spec.image.entrypoint, spec.image.command) == expected
    assert made.ledger[-1].reason == reason


def adopting(tmp_path: Path, *dependencies: str, **fields: Any) -> Import:
    selection = Selection(extras=("gpu",), groups=("train",), members=("app",))
    return imported(tmp_path, *dependencies, pip_from=PipFrom(tmp_path / "uv.lock", selection), **fields)


def test_a_lock_has_all_packages_of_the_spec(tmp_path: Path) -> None:
    by = Source("uv.lock", 9)
    made = adopting(
        tmp_path,
        versions={"torch": "2.9.1+cu128", "jupyterlab": "4.4.0", "of-base": "1"},
        locked={name: Locked(("3.12",), is_default=False, source=by) for name in ("torch", "jupyterlab")},
        cudas=[Clue("12.8", by, "the build of torch")],
        indexes=[DraftIndex("https://wheels.example.com/simple", by, packages=("a",))],
        build_packages=["flash-attn"],
        as_ofs=[Clue("2026-10-01", by, "exclude-newer of uv")],
    )
    made.draft.ports.append(Clue("8888", TAG, "EXPOSE"))
    spec, decisions = written(made, tmp_path)
    assert spec.pip == Pip.model_validate(
        {
            "from": "../uv.lock",
            "extras": ["gpu"],
            "groups": ["train"],
            "members": ["app"],
            "build": {"packages": ["flash-attn"]},
        }
    )
    assert spec.cuda == Cuda()
    assert decisions["cuda.version"] == ("of torch's build", "torch is as it is locked")
    assert spec.env.as_of is None
    assert spec.services is not None and spec.services.jupyter is not None


def test_what_is_not_in_the_lock_is_lost(tmp_path: Path) -> None:
    made = adopting(tmp_path, "flash-attn", starts=[Clue("tensorboard", LABEL, "CMD")])
    made.add(TAG, "FROM nvcr.io/nvidia/pytorch:25.01-py3", Outcome.TRANSLATED)
    made.draft.bases.append(Clue("nvcr.io/nvidia/pytorch:25.01-py3", TAG, "FROM"))
    made.draft.dependencies += [DraftRequirement("torch==2.9.1", TAG)]
    project = Source("Dockerfile", 2)
    made.add(project, "pip install .", Outcome.TRANSLATED)
    made.draft.dependencies += [DraftRequirement("app[gpu] @ {path}", project, tmp_path)]
    more = Source("Dockerfile", 4)
    made.add(more, "pip install .[all]", Outcome.TRANSLATED)
    made.draft.dependencies += [DraftRequirement("app[all,gpu] @ {path}", more, tmp_path)]
    upgrade = Source("Dockerfile", 3)
    made.add(upgrade, "pip", Outcome.KEPT)
    made.draft.dependencies += [DraftRequirement("pip", upgrade)]
    spec, _ = written(made, tmp_path)
    assert (spec.pip.dependencies, spec.services) == ((), None)
    lost = [(str(each.source), each.reason) for each in made.ledger if each.outcome.is_lost]
    reason = "uv.lock has all packages of the spec: add it to the project, and lock it there"
    own = "the project itself is not in this spec: [image] project"
    extra = f"{own}; extra all: not included; add --extra all"
    assert lost == [("requirements.txt:1", reason), ("Dockerfile:4", extra)]
    others = [each.reason for each in made.ledger if each.outcome is Outcome.OUTSIDE]
    assert others == [own, "envspec installs packages itself"]
    assert spec.image.base is None
    assert made.ledger[1].reason.startswith("uv.lock has all packages, so those of this base do not count")
    made.draft.conda.append(("numpy", ""))
    with pytest.raises(UsageError, match="those of conda, and the sources have both"):
        written(made, tmp_path)
