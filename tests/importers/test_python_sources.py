"""Requirements files, pyproject.toml and the locks of uv, Poetry and PEP 751.

Each folder under golden/python is a project and what importing it gives, `expected.txt`: the ledger, then the draft.
`chosen.toml`, if there is one, has the extras and groups that are taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from envspec import documents
from envspec.adopt.markers import without_extras
from envspec.adopt.rows import Selection
from envspec.errors import UsageError
from envspec.importers import importer_of, new_import
from envspec.importers.pyproject import read_pyproject
from envspec.importers.python_locks import read_locked_project
from envspec.importers.types import (
    Clue,
    DraftIndex,
    DraftRequirement,
    Import,
    Outcome,
    PipFrom,
    Unreadable,
)
from envspec.io.http_settings import default_index_url
from tests.support.golden import assert_golden

CASES = Path(__file__).parent / "golden" / "python"
#: What a user names, the first that the project has; else its only file.
FROM = ("requirements.txt", "lock.txt", "pyproject.toml", "poetry.lock", "pylock.toml")


def imported(path: Path, **chosen: Any) -> Import:
    found, importer = new_import(path.parent), importer_of(path)
    assert importer is not None
    if chosen:
        found.run(lambda path, into: read_pyproject(path, into, **chosen), path)
    else:
        found.run(importer, path)
    return found


def shown(found: Import) -> Iterator[str]:
    """The ledger, then the draft, a line each."""
    for entry in found.ledger:
        yield f"{entry.source}: {entry.outcome.value}: {entry.text}{f' -> {entry.reason}' if entry.reason else ''}"
    for each in structs.fields(found.draft):
        value = getattr(found.draft, each.name)
        items = value.items() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for item in items:
            if item:
                yield f"{each.name}: {_item(item, found)}"


def _item(item: Any, found: Import) -> str:
    if isinstance(item, PipFrom):
        return f"{found.shown(item.path)} {item.selection}"
    if isinstance(item, Clue):
        return f"{item.value} ({item.source}: {item.why})"
    if isinstance(item, DraftRequirement):
        return item.text.replace("{path}", found.shown(item.project) if item.project else "")
    if isinstance(item, DraftIndex):
        return f"{item.name or '-'} {item.url} {item.format} {', '.join(item.packages) or '-'}"
    return " = ".join(map(str, item)) if isinstance(item, tuple) else str(item)


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_imported(case: str) -> None:
    folder = CASES / case
    choices = folder / "chosen.toml"
    chosen = documents.parse_toml(choices.read_text("utf-8")) if choices.exists() else {}
    paths = [path for name in FROM if (path := folder / "source" / name).is_file()] or [*(folder / "source").iterdir()]
    text = "\n".join(shown(imported(paths[0], **chosen))) + "\n"
    assert_golden(text, folder / "expected.txt")


def write(folder: Path, **files: str) -> Path:
    """Files by their names, `__` for each `/` and `_` for each `.`; the first one."""
    paths = [folder / name.replace("__", "/").replace("_", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return paths[0]


def lines(found: Import) -> list[str]:
    return [each.text for each in found.draft.dependencies]


@pytest.mark.parametrize(
    ("label", "version", "cudas"),
    [
        ("cu118", "torch==2.6.0", ["11.8"]),
        ("cu124", "torch==2.6.0", ["12.4"]),
        ("cpu", "torch==2.6.0", ["cpu"]),
        ("cpu.cxx11.abi", "torch==2.6.0", []),
        ("rocm6.2", None, []),
        ("xpu", None, []),
    ],
)
def test_labels_of_torch(tmp_path: Path, label: str, version: str | None, cudas: list[str]) -> None:
    found = imported(write(tmp_path, requirements_txt=f"torch==2.6.0+{label}\n"))
    assert lines(found) == ([version] if version else [])
    assert [clue.value for clue in found.draft.cudas] == cudas
    assert found.ledger[0].outcome is (Outcome.TRANSLATED if version else Outcome.REFUSED)


@pytest.mark.parametrize(
    ("url", "cuda", "outcome"),
    [
        ("https://download.pytorch.org/whl/cu113/torch_stable.html", "11.3", Outcome.TRANSLATED),
        ("https://download.pytorch.org/whl/torch_stable.html", None, Outcome.TRANSLATED),
        ("https://download.pytorch.org/whl/cpu", "cpu", Outcome.TRANSLATED),
        ("https://download.pytorch.org/whl/nightly/cu128", None, Outcome.REFUSED),
        ("https://download.pytorch.org/whl/rocm6.3", None, Outcome.REFUSED),
        ("https://data.dgl.ai/wheels/torch-2.4/cu124/repo.html", "12.4", Outcome.TRANSLATED),
        ("./wheels", None, Outcome.REFUSED),
        ("https://example.com/simple?token=1", None, Outcome.REFUSED),
    ],
)
def test_indexes(tmp_path: Path, url: str, cuda: str | None, outcome: Outcome) -> None:
    found = imported(write(tmp_path, requirements_txt=f"--find-links {url}\n"))
    assert [clue.value for clue in found.draft.cudas] == ([cuda] if cuda else [])
    assert [entry.outcome for entry in found.ledger] == [outcome]


def test_the_libraries_of_torch_are_requirements_without_torch(tmp_path: Path) -> None:
    alone = imported(write(tmp_path / "a", requirements_txt="nvidia-nccl-cu12==2.21.5\ncupy-cuda12x\n"))
    assert lines(alone) == ["nvidia-nccl-cu12==2.21.5", "cupy-cuda12x"]
    beside = imported(write(tmp_path / "b", requirements_txt="nvidia-nccl-cu12==2.21.5\ntorch==2.6.0\n"))
    assert (lines(beside), beside.draft.versions) == (["torch==2.6.0"], {"nvidia-nccl-cu12": "2.21.5"})


def test_continued_lines_and_comments_are_pips(tmp_path: Path) -> None:
    text = "num\\\npy \\\n # a comment ends it\nscipy#no comment\n  # scipy\n\\\npandas # x \\\nrich"
    found = imported(write(tmp_path, requirements_txt=text))
    # The comment behind pandas goes on in the next line.
    assert lines(found) == ["numpy", "pandas"]
    assert [(entry.source.line, entry.outcome.value) for entry in found.ledger] == [
        (1, "kept"),
        (4, "not understood"),
        (6, "kept"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "requirements.txt"
    path.write_bytes("torch==2.6.0\r\n# Größe\r\nrich\r\n".encode(encoding))
    assert lines(imported(path)) == ["torch==2.6.0", "rich"]


@pytest.mark.parametrize("content", [b"rich\n\xff\xfe\n", b"a\n" * 20_001, b"x" * ((32 << 20) + 1)])
def test_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "requirements.txt"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=r"^requirements\.txt "):
        imported(path)


def test_many_files_that_include_each_other(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n-r r0.txt\n-c r{number + 1}.txt\n")
    found = imported(tmp_path / "r0.txt")
    assert "more than 100 files include each other" in {entry.reason for entry in found.ledger}


def test_a_secret_is_in_no_entry_and_no_draft(tmp_path: Path) -> None:
    text = """
        --index-url https://me:hunter2@a.example.com/simple
        --extra-index-url https://me:hunter2@b.example.com/simple
        -f https://me:hunter2@c.example.com/links.html
        git+https://me:hunter2@d.example.com/x/y.git
        z @ https://me:hunter2@e.example.com/z-1-py3-none-any.whl
        -r https://me:hunter2@f.example.com/r.txt
        -e git+https://me:hunter2@g.example.com/x/w.git#egg=w
        not a requirement @ https://me:hunter2@h.example.com/
    """
    found = imported(write(tmp_path, requirements_txt=text))
    assert len(found.ledger) == 8
    assert "hunter2" not in repr(found)


def test_a_source_that_was_read_before_goes_first(tmp_path: Path) -> None:
    path = write(tmp_path, requirements_txt="a==1\n    # via x\n", requirements_in="b\n")
    found = imported(path)
    again = importer_of(tmp_path / "other.txt")
    assert again is not None
    found.run(again, write(tmp_path, other_txt="a==2\n    # via x\nx==1\n"))
    assert found.draft.versions == {"a": "1"}
    assert "not preferred: 1 is, of a source that was read before" in {entry.reason for entry in found.ledger}


def test_a_file_in_has_the_pins_of_its_txt(tmp_path: Path) -> None:
    path = write(
        tmp_path, requirements_in="torch>=2\n-r base.in\n", base_in="rich\n", requirements_txt="torch==2.6.0\n"
    )
    found = imported(path)
    assert (lines(found), found.draft.versions) == (["torch>=2", "rich"], {"torch": "2.6.0"})
    other = imported(write(tmp_path / "b", requirements_in="torch>=2\n", requirements_txt="torch>=2.6\n"))
    assert (lines(other), other.draft.versions, len(other.ledger)) == (["torch>=2"], {}, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[project]\nname = 'a'\n[tool.pixi.constraints]\nx = '*'\n", "[conda] has no constraints"),
        ("[project]\ndependencies = [1]\n", "not a requirement"),
        ("[tool.uv]\nenvironments = ['sys_platform == \"emscripten\"']\n", "none of the platforms"),
        ("[project]\nrequires-python = 'three'\n", "not a specifier"),
        ("[project]\ndynamic = ['dependencies']\n", "its build computes them"),
        ("[tool.uv]\nextra-build-dependencies = { a = ['b'] }\n", "[build.NAME] requires"),
    ],
)
def test_lost_lines_of_a_project(tmp_path: Path, text: str, reason: str) -> None:
    found = imported(write(tmp_path, pyproject_toml=text))
    assert [reason in entry.reason for entry in found.ledger if entry.outcome.is_lost] == [True]


def test_a_project_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="not valid TOML"):
        imported(write(tmp_path, pyproject_toml="[project"))


def test_groups_of_uv_and_poetry_are_taken_by_name(tmp_path: Path) -> None:
    uv = write(tmp_path / "a", pyproject_toml="[project]\nname = 'x'\n[tool.uv]\ndev-dependencies = ['ruff']\n")
    assert lines(imported(uv)) == []
    assert lines(imported(uv, groups=["dev"])) == ["ruff"]
    text = "[tool.poetry.group.test.dependencies]\npytest = '^8.1'\n[tool.poetry.dev-dependencies]\nruff = '*'\n"
    poetry = write(tmp_path / "b", pyproject_toml=text)
    assert lines(imported(poetry)) == []
    assert lines(imported(poetry, groups=["test", "dev"])) == ["pytest>=8.1,<9", "ruff"]


@pytest.mark.parametrize(
    ("value", "as_of"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
        # A date includes its day, as in uv.
        ("2026-03-01", "2026-03-02T00:00:00Z"),
        ("7 days", "7 days ago"),
        ("P7D", None),
    ],
)
def test_exclude_newer(tmp_path: Path, value: str, as_of: str | None) -> None:
    found = imported(write(tmp_path, pyproject_toml=f"[tool.uv]\nexclude-newer = '{value}'\n"))
    assert [each.value for each in found.draft.as_ofs] == ([as_of] if as_of else [])
    assert found.ledger[0].outcome is (Outcome.TRANSLATED if as_of else Outcome.NOT_UNDERSTOOD)


def test_poetry_2_says_where_requirements_of_the_project_come_from(tmp_path: Path) -> None:
    text = """
        [project]
        name = "mine"
        dependencies = ["timm>=1", "corp-data>=3 ; python_version >= '3.10'", "numpy"]
        [tool.poetry.dependencies]
        timm = { git = "https://github.com/huggingface/pytorch-image-models.git", tag = "v1.0.12" }
        corp-data = { source = "corp" }
        numpy = { version = ">=1" }
        [[tool.poetry.source]]
        name = "corp"
        url = "https://wheels.example.com/simple"
        priority = "explicit"
    """
    found = imported(write(tmp_path, pyproject_toml=text))
    git = "git+https://github.com/huggingface/pytorch-image-models.git@v1.0.12"
    assert lines(found) == [f"timm @ {git}", "corp-data>=3 ; python_version >= '3.10'", "numpy"]
    assert [(each.url, each.packages) for each in found.draft.indexes] == [
        ("https://wheels.example.com/simple", ("corp-data",))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "a" * 100_000,
        "a[" * 50_000,
        "-e ./" + "[" * 100_000,
        "a @ " + "[" * 100_000,
        "--" * 50_000,
    ],
)
def test_long_lines_take_no_time(tmp_path: Path, line: str) -> None:
    began = time.process_time()
    found = imported(write(tmp_path / "a", requirements_txt=line))
    imported(write(tmp_path / "b", pyproject_toml=f"[project]\nname = 'x'\ndependencies = [{line!r}]\n"))
    assert time.process_time() - began < 3
    assert [entry.outcome.is_lost and len(entry.text) <= 1001 for entry in found.ledger] == [True]
    assert lines(found) == []


def test_extras_that_exclude_each_other(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        pyproject_toml="[project]\nname = 'a'\n[project.optional-dependencies]\ncpu = ['torch']\ngpu = ['torch']\n"
        "all = ['a[cpu]']\n[tool.uv]\nconflicts = [[{ extra = 'cpu' }, { extra = 'gpu' }, { group = 'x' }]]\n",
    )
    assert lines(imported(path, extras=["gpu"])) == ["torch"]
    with pytest.raises(UsageError, match=r"extra cpu and extra gpu exclude each other .*conflicts"):
        imported(path, extras=["all", "gpu"])


def test_a_workspace_without_a_project_has_all_its_members(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        pyproject_toml="[tool.uv.workspace]\nmembers = ['a', 'b']\n",
        a__pyproject_toml="[project]\nname = 'one'\n",
        b__pyproject_toml="[project]\nname = 'two'\ndependencies = ['torch']\n[tool.uv.sources]\n"
        "torch = { index = 'cpu' }\n[[tool.uv.index]]\nname = 'cpu'\nurl = 'https://download.pytorch.org/whl/cpu'\n",
    )
    found = imported(path)
    assert lines(found) == ["one @ {path}", "two @ {path}"]
    assert [each.value for each in found.draft.cudas] == ["cpu"]


def test_dates_of_single_packages(tmp_path: Path) -> None:
    text = "[tool.uv]\nexclude-newer-package = { Torch = '2026-10-01T00:00:00Z', vllm = '2 days', jax = false }\n"
    found = imported(write(tmp_path, pyproject_toml=text))
    times = {"torch": "2026-10-01T00:00:00Z", "vllm": "2 days ago", "jax": "0 days ago"}
    assert found.draft.package_as_ofs == times
    assert [each.outcome for each in found.ledger] == [Outcome.TRANSLATED]


PYTORCH = "https://download.pytorch.org/whl"
POETRY_EXTRAS = """
[tool.poetry.dependencies]
torch = [
  {{ version = "^2.6", source = "cpu", markers = "extra=='cpu' and extra!='cuda'", optional = true }},
  {{ version = "^2.6", source = "cu126", markers = "extra=='cuda' and extra!='cpu'", optional = true }},
]
xformers = {{ version = "*", markers = "(extra=='cuda' or 'x' == extra) and os_name=='posix'", optional = true }}
[tool.poetry.extras]
cpu = ["torch"]
cuda = ["torch", "xformers"]
[[tool.poetry.source]]
name = "cpu"
url = "https://download.pytorch.org/whl/cpu"
priority = "explicit"
[[tool.poetry.source]]
name = "cu126"
url = "https://download.pytorch.org/whl/cu126"
priority = "explicit"
{more}"""


@pytest.mark.parametrize(
    ("extras", "required", "cudas"),
    [
        ([], [], []),
        (["cpu"], ["torch>=2.6,<3"], ["cpu"]),
        (["cuda"], ["torch>=2.6,<3", "xformers ; os_name=='posix'"], ["12.6"]),
    ],
)
def test_exclusive_extras_of_poetry(tmp_path: Path, extras: list[str], required: list[str], cudas: list[str]) -> None:
    found = imported(write(tmp_path, pyproject_toml=POETRY_EXTRAS.format(more="")), extras=extras)
    assert (lines(found), [each.value for each in found.draft.cudas]) == (required, cudas)
    assert not [entry for entry in found.ledger if entry.outcome.is_lost]


@pytest.mark.parametrize(
    ("marker", "result"),
    [
        ("extra == 'a'", ""),
        ("extra != 'a' or os_name == 'nt'", "os_name == 'nt'"),
        ("extra == 'b'", None),
        ("(os_name == 'nt' or os_name == 'x') and extra == 'A'", "(os_name == 'nt' or os_name == 'x')"),
        ("os_name == 'nt'", "os_name == 'nt'"),
        ("python_version ~= '3.9' and extra == 'a'", "python_version ~= '3.9'"),
        ("extra == 'a' and (", "extra == 'a' and ("),
        ("extra == 'a')", "extra == 'a')"),
        ("(" * 300 + "extra == 'a'" + ")" * 300, "(" * 300 + "extra == 'a'" + ")" * 300),
    ],
)
def test_markers_on_extras(marker: str, result: str | None) -> None:
    assert without_extras(marker, frozenset({"a"})) == result


def test_torchs_cuda_goes_before_that_of_other_packages(tmp_path: Path) -> None:
    wheel = "vllm @ https://files.example.com/vllm-0.26.0%2Bcu129-cp38-abi3-manylinux_2_28_x86_64.whl"
    found = imported(write(tmp_path, requirements_txt=f"{wheel}\n--extra-index-url {PYTORCH}/cu128\ntorch\n"))
    assert [each.value for each in found.draft.cudas] == ["12.8", "12.9"]


def test_what_uv_excludes_is_removed(tmp_path: Path) -> None:
    found = imported(write(tmp_path, pyproject_toml="[tool.uv]\nexclude-dependencies = ['torch']\n"))
    assert [text.partition(" ")[0] for text, _ in found.draft.overrides] == ["torch"]
    assert not [each for each in found.ledger if each.outcome.is_lost]


def test_an_index_of_pytorchs_with_other_packages_has_torchs_cuda(tmp_path: Path) -> None:
    text = (
        "[project]\nname = 'a'\ndependencies = ['torch', 'xformers', 'own @ ./deps/own']\n[tool.uv.sources]\n"
        "torch = { index = 'cu128' }\nxformers = { index = 'cu128' }\n"
        f"[[tool.uv.index]]\nname = 'cu128'\nurl = '{PYTORCH}/cu128'\nexplicit = true\n"
    )
    found = imported(write(tmp_path, pyproject_toml=text))
    assert [each.value for each in found.draft.cudas] == ["12.8"]
    lost = [each.reason for each in found.ledger if each.outcome.is_lost]
    assert ["submodule" in lost[0], "xformers by its wheel" in lost[1]] == [True, True]


PYLOCK = "lock-version = '1.0'\ncreated-by = 'x'\n"
WHEEL = "wheels = [{{ url = 'https://files.example.com/{0}-{1}-py3-none-any.whl', hashes = {{ sha256 = '{2}' }} }}]\n"


def locked(name: str, version: str, more: str = "", table: str = "packages") -> str:
    wheel = WHEEL.format(name.replace("-", "_"), version, "0" * 64)
    return f"[[{table}]]\nname = '{name}'\nversion = '{version}'\n{more}{wheel}"


@pytest.mark.parametrize(
    ("pythons", "version"), [(">=3.9", "2.0"), ("==3.10.*", "1.0"), (">=3.13", "3.0"), (">=4", "2.0")]
)
def test_a_lock_of_several_pythons_has_the_versions_of_one(tmp_path: Path, pythons: str, version: str) -> None:
    markers = {"1.0": "<= '3.10'", "2.0": "in '3.11 3.12'", "3.0": ">= '3.13'"}
    rows = [locked("a", each, f'marker = "python_version {marker}"\n') for each, marker in markers.items()]
    text = f"{PYLOCK}requires-python = '{pythons}'\n{''.join(rows)}"
    found = imported(write(tmp_path, pylock_toml=text))
    assert found.draft.versions == {"a": version}
    series = {"1.0": "3.10", "2.0": "3.12", "3.0": "3.13"}[version]
    assert series in found.draft.locked["a"].pythons
    assert [str(found.draft.locked["a"].source), lines(found)] == ["pylock.toml:4", []]


def test_the_python_of_the_project_is_that_of_its_file(tmp_path: Path) -> None:
    text = PYLOCK + locked("a", "1")
    write(tmp_path, python_version="3.11\n").rename(tmp_path / ".python-version")
    found = imported(write(tmp_path, pylock_toml=text))
    assert [each.value for each in found.draft.pythons] == ["3.11"]
    (tmp_path / ".python-version").write_text("pypy3.10\n")
    assert [each.outcome.is_lost for each in imported(tmp_path / "pylock.toml").ledger] == [True, False]


def locked_by_uv(name: str, version: str) -> str:
    text = locked(name, version, f"source = {{ registry = '{default_index_url({})}' }}\n", "package")
    return text.replace("hashes = { sha256 = '", "hash = 'sha256:").replace("' } }]", "' }]")


UV_LOCK = "version = 1\nrevision = 3\nrequires-python = '>=3.10'\n"


def test_a_member_of_a_workspace_names_the_lock_of_all(tmp_path: Path) -> None:
    member = write(
        tmp_path,
        lib__a__pyproject_toml="[project]\nname = 'a'\nversion = '1'\nrequires-python = '>=3.10'\n"
        "dependencies = ['numpy']\n[project.optional-dependencies]\nx = ['rich']\n",
        pyproject_toml="[tool.uv.workspace]\nmembers = ['lib/*']\n",
        uv_lock=f"{UV_LOCK}[manifest]\nmembers = ['a']\n[[package]]\nname = 'a'\nversion = '1'\n"
        "source = { editable = 'lib/a' }\ndependencies = [{ name = 'numpy' }]\n[package.optional-dependencies]\n"
        "x = [{ name = 'rich' }]\n" + locked_by_uv("numpy", "1.26.4") + locked_by_uv("rich", "14.0"),
    )
    found = new_import(tmp_path)
    found.allow(tmp_path)
    found.run(read_pyproject, member)
    assert found.draft.pip_from == PipFrom(tmp_path / "uv.lock", Selection(members=("a",)))
    assert (found.draft.versions, lines(found)) == ({"a": "1", "numpy": "1.26.4"}, [])


def test_an_environment_has_one_lock(tmp_path: Path) -> None:
    found = imported(write(tmp_path, pylock_toml=PYLOCK + locked("a", "1")))
    found.run(read_locked_project, write(tmp_path, pylock_other_toml=PYLOCK + locked("b", "1")))
    assert found.ledger[-1].reason == "an environment has one lock: that is pylock.toml"
    assert found.ledger[-1].outcome is Outcome.REFUSED
    assert found.draft.versions == {"a": "1"}


def test_locks_that_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no pyproject.toml beside it"):
        imported(write(tmp_path, uv_lock=UV_LOCK))
    with pytest.raises(Unreadable, match=r"no pyproject.toml beside it, which has the requirements"):
        imported(write(tmp_path, pdm_lock=""))


def test_the_build_of_torch_goes_before_libraries_beside_it(tmp_path: Path) -> None:
    text = PYLOCK + locked("nvidia-cuda-runtime-cu12", "12.6.77") + locked("torch", "2.7.1+cpu")
    found = imported(write(tmp_path, pylock_toml=text))
    assert [each.value for each in found.draft.cudas] == ["cpu", "12.6"]
