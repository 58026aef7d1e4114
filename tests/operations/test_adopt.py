"""Locks of other tools as an envspec.lock in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envspec.context import Context
from envspec.errors import UsageError
from envspec.image.code import project_name
from envspec.lockfile.folder import read_lock
from envspec.operations.adopt import Adopted, adopt_lock
from envspec.spec.errors import SpecError

HASH = "0123456789abcdef" * 4


def pylock(*files: str) -> str:
    """A pylock.toml of one file a package."""
    text = 'lock-version = "1.0"\ncreated-by = "test"\nrequires-python = ">=3.11"\n'
    for file in files:
        name, version = file.split("-")[:2]
        key, value = (
            "sdist",
            f'{{name = "{file}", url = "https://files.example.com/{file}", hashes = {{sha256 = "{HASH}"}}}}',
        )
        if file.endswith(".whl"):
            key, value = "wheels", f"[{value}]"
        version = version.removesuffix(".tar.gz")
        text += f'[[packages]]\nname = "{name.replace("_", "-")}"\nversion = "{version}"\n{key} = {value}\n'
    return text


def adopted(folder: Path, text: str, words: Mapping[str, Any] | None = None, platforms: Sequence[str] = ()) -> Adopted:
    lock = folder / "pylock.toml"
    lock.write_text(text, encoding="utf-8")
    context = Context(environ={"ENVSPEC_CACHE_DIR": str(folder / "cache")}, home=folder, cache=folder / "cache")
    return adopt_lock(lock, words or {}, context, platforms)


def test_warnings_are_given_each_time(tmp_path: Path) -> None:
    text = pylock("opencv_python-4.11.0.86-cp37-abi3-manylinux_2_17_x86_64.whl", "func_timeout-4.3.5.tar.gz")
    first = adopted(tmp_path, text)
    library, source = first.warnings
    assert "opencv-python 4.11.0.86 loads libGL.so.1" in library
    assert source == "built from their sources when the image is built: func-timeout 4.3.5"
    assert adopted(tmp_path, text) == first


def test_a_lock_whose_warnings_are_gone_is_made_again(tmp_path: Path) -> None:
    text = pylock("func_timeout-4.3.5.tar.gz")
    first = adopted(tmp_path, text)
    (first.folder.parent / "warnings.json").unlink()
    assert adopted(tmp_path, text) == first


@pytest.mark.parametrize("damaged", ["", None])
def test_a_lock_that_is_damaged_in_the_cache_is_made_again(tmp_path: Path, damaged: str | None) -> None:
    text = pylock("six-1.17.0-py3-none-any.whl")
    file = adopted(tmp_path, text).folder / "envspec.lock"
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace("1.17.0", "1.16.0") if damaged is None else damaged, encoding="utf-8")
    adopted(tmp_path, text)
    assert file.read_text(encoding="utf-8") == whole


def test_a_value_that_no_lock_has_is_refused(tmp_path: Path) -> None:
    text = pylock("six-1.17.0-py3-none-any.whl").replace(HASH, HASH.upper())
    for _ in range(2):
        with pytest.raises(UsageError, match=r"pylock\.toml.*SHA-256"):
            adopted(tmp_path, text)


def test_packages_without_cuda_need_no_warning(tmp_path: Path) -> None:
    text = pylock("six-1.17.0-py3-none-any.whl")
    assert adopted(tmp_path, text).warnings == ()
    warnings = adopted(tmp_path, text, {"cuda": {"gpus": ["H100"]}}).warnings
    assert any("no locked package states which CUDA it needs" in warning for warning in warnings)


def test_what_would_choose_packages_is_refused(tmp_path: Path) -> None:
    settings = '[tool.envspec.pip]\nfrom = "pylock.toml"\ndependencies = ["einops"]\n'
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    with pytest.raises(SpecError, match=r"\[tool.envspec\] pip.dependencies: chooses packages"):
        adopted(tmp_path, pylock("six-1.17.0-py3-none-any.whl"))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('pip]\nfrom = "pylock.toml"\nextras = "more"\n', "pip.extras"),
        ('pip]\nfrom = "pylock.toml"\ngroups = [3]\n', "pip.groups"),
        ("env]\nplatforms = 3\n", "env.platforms"),
        ("env]\npython = []\n", "env.python"),
        ("env]\nname = []\n", "env.name"),
        ("image]\nproject = 3\n", "image.project"),
        ("system]\napt = 3\n", "system.apt"),
        ("cuda]\ngpus = [3]\n", "cuda.gpus"),
        ("imgae]\ncopy = []\ncommand = [3]\n", r"imgae: unknown key\n  hint: did you mean `image`"),
    ],
)
def test_settings_of_another_type_are_refused(tmp_path: Path, settings: str, problem: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.envspec.{settings}", encoding="utf-8")
    with pytest.raises(SpecError, match=rf"\[tool.envspec\] {problem}"):
        adopted(tmp_path, pylock("six-1.17.0-py3-none-any.whl"), platforms=("linux-64",))


@pytest.mark.parametrize("table", ["pip", "env", "image"])
def test_a_table_of_settings_that_is_none_is_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.envspec]\n{table} = 3\n", encoding="utf-8")
    with pytest.raises(SpecError, match=rf"\[tool.envspec\] {table}"):
        adopted(tmp_path, pylock("six-1.17.0-py3-none-any.whl"))


def test_a_wrong_option_is_not_looked_for_in_a_file(tmp_path: Path) -> None:
    text = pylock("six-1.17.0-py3-none-any.whl")
    with pytest.raises(SpecError, match=r"the command line: cuda.gpus\[0\]: unknown GPU `nope`"):
        adopted(tmp_path, text, {"cuda": {"gpus": ["nope"]}})
    (tmp_path / "pyproject.toml").write_text('[tool.envspec.cuda]\ngpus = ["nope"]\n', encoding="utf-8")
    with pytest.raises(SpecError, match=r"pyproject.toml: \[tool.envspec\] cuda.gpus\[0\]: unknown GPU `nope`"):
        adopted(tmp_path, text)


def test_a_spec_that_is_locked_without_the_lock_does_not_count(tmp_path: Path) -> None:
    settings = "[tool.envspec.env]\nas_of = 2025-01-01\n[tool.envspec.pip]\n"
    (tmp_path / "pyproject.toml").write_text(f'{settings}dependencies = ["einops"]\n', encoding="utf-8")
    assert adopted(tmp_path, pylock("six-1.17.0-py3-none-any.whl")).warnings == ()
    (tmp_path / "pyproject.toml").write_text(f'{settings}from = "pylock.toml"\n', encoding="utf-8")
    with pytest.raises(SpecError, match=r"env.as_of: chooses packages"):
        adopted(tmp_path, pylock("six-1.17.0-py3-none-any.whl"))


def test_what_to_keep_has_all_that_lock_would_not_choose(tmp_path: Path) -> None:
    project = '[project]\nname = "app"\nversion = "1"\n\n[build-system]\nrequires = []\n'
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    text = pylock("six-1.17.0-py3-none-any.whl")
    assert adopted(tmp_path, text).unwritten == {}
    wanted = {
        "pip": {"from": "pylock.toml"},
        "env": {"python": "3.12"},
        "image": {"compiler": "none", "project": "wheel"},
    }
    words = {"image": {"compiler": "none"}}
    assert adopted(tmp_path, text, words).unwritten == wanted
    (tmp_path / "pyproject.toml").write_text(f'{project}\n[tool.envspec.env]\npython = "3.11"\n', encoding="utf-8")
    del wanted["env"]
    assert adopted(tmp_path, text, words).unwritten == wanted


BUILD = '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'


@pytest.mark.parametrize(
    ("project", "built"),
    [
        (f'[tool.poetry]\nname = "Own"\nversion = "1"\n{BUILD}', "wheel"),
        (f'[project]\nname = "own"\nversion = "1"\n{BUILD}', "wheel"),
        (f'[project]\nname = "own"\nversion = "1"\n[tool.poetry]\npackage-mode = false\n{BUILD}', "none"),
        (f'[project]\nname = "own"\nversion = "1"\n[tool.uv]\npackage = false\n{BUILD}', "none"),
        ('[project]\nname = "own"\nversion = "1"\n[tool.uv]\npackage = true\n', "wheel"),
        (BUILD, "none"),
    ],
)
def test_the_project_is_in_the_image_if_its_tool_installs_it(tmp_path: Path, project: str, built: str) -> None:
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    found = adopted(tmp_path, pylock("six-1.17.0-py3-none-any.whl"))
    assert (read_lock(found.folder).image.project or "none") == built
    if built == "wheel":
        assert project_name(tmp_path).lower() == "own"


def test_a_file_that_a_requirements_file_includes_counts(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("-r pins.txt\n", encoding="utf-8")
    context = Context(environ={"ENVSPEC_CACHE_DIR": str(tmp_path / "cache")}, home=tmp_path, cache=tmp_path / "cache")
    for digest in (HASH, HASH[::-1]):
        line = f"six @ https://files.example.com/six-1.17.0-py3-none-any.whl --hash=sha256:{digest}\n"
        (tmp_path / "pins.txt").write_text(line, encoding="utf-8")
        assert digest in (adopt_lock(lock, {}, context).folder / "envspec.lock").read_text(encoding="utf-8")


def test_the_python_that_a_file_beside_it_names(tmp_path: Path) -> None:
    named = tmp_path / ".python-version"
    named.write_text("3.13\n", encoding="utf-8")
    text = pylock("six-1.17.0-py3-none-any.whl")
    assert 'python = { version = "3.13.' in (adopted(tmp_path, text).folder / "envspec.lock").read_text("utf-8")
    named.unlink()
    # It never ends.
    named.symlink_to("/dev/zero")
    assert 'python = { version = "3.12.' in (adopted(tmp_path, text).folder / "envspec.lock").read_text("utf-8")
