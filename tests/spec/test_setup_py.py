"""setup.py, read without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.spec.pip_lines import project_name
from envspec.spec.setup_py import SetupPy, read_setup_py


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from setuptools import setup\nsetup(name='library')", SetupPy("library", ())),
        ("import setuptools\nNAME = 'a'\nsetuptools.setup(name=NAME, install_requires=['b>=1'])", ("a", ("b>=1",))),
        ("setup(**{'name': 'a', 'install_requires': ('b',)})", ("a", ("b",))),
        ("settings = dict(name='a')\nif True:\n    setup(**settings)", ("a", ())),
        ("setup(name=name_of(), install_requires=open('requirements.txt').read())", ("", None)),
        ("N = 'a'\nN = 'b'\nsetup(name=N)", ("", ())),
        ("def f():\n    N = []\nN, M = f()\nsetup(name='a', install_requires=N)", ("a", None)),
        ("N = ['b']\nN.append(more)\nsetup(name='a', install_requires=N)", ("a", None)),
        ("print('no call')", None),
        ("setup(name='a'", None),
        ("setup(name=" + "(" * 5000 + "'a'" + ")" * 5000 + ")", None),
    ],
)
def test_what_a_setup_py_says(tmp_path: Path, text: str, found: SetupPy | None) -> None:
    (tmp_path / "setup.py").write_text(text)
    assert read_setup_py(tmp_path) == found


def test_the_name_of_a_project(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert project_name(folder) == "folder"
    (folder / "setup.py").write_text("setup(name='of-setup')")
    assert project_name(folder) == "of-setup"
    (folder / "setup.cfg").write_text("[metadata]\nname = of-cfg\n")
    assert project_name(folder) == "of-cfg"
