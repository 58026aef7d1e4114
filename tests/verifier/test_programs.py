"""Programs of installers: which text is that of an entry point, and which interpreter runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from installer.scripts import Script

from envspec.verifier.programs import EntryPoint, entry_points, interpreter_of, is_own
from envspec.verifier.scan import distributions, find_environment

POINT: Final = EntryPoint("tool", "tool.cli", "Group.main")
PYTHON: Final = "/opt/an env/bin/python3.11"
#: Installer -> what follows the first line; uv's and installer's own are tried with real installations.
BODIES: Final = {
    "pip 19": (
        "# -*- coding: utf-8 -*-\nimport re\nimport sys\n\nfrom tool.cli import Group\n\nif __name__ == '__main__':\n"
        "    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])\n    sys.exit(Group.main())\n"
    ),
    "pip 23": (
        "# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom tool.cli import Group\nif __name__ == '__main__':\n"
        "    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n    sys.exit(Group.main())\n"
    ),
    "pip 26": (
        "import sys\nfrom tool.cli import Group\nif __name__ == '__main__':\n"
        "    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n    sys.exit(Group.main())\n"
    ),
}
#: First lines -> the interpreter.
LAUNCHERS: Final = {
    "#!/env/bin/python\n": "/env/bin/python",
    f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''\n": PYTHON,
    f"#!/bin/sh\n'''exec' '{PYTHON}' \"$0\" \"$@\"\n' '''\n": PYTHON,
    "#!/bin/sh\n'''exec' /env/bin/python \"$0\" \"$@\"\n' '''\n": "/env/bin/python",
    "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python3' \"$0\" \"$@\"\n' '''\n": "python3",
    '#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/python3.11" "$0" "$@"\n\' \'\'\'\n': "python3.11",
}


@pytest.mark.parametrize("installer", BODIES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_programs_of_installers(installer: str, launcher: str) -> None:
    text = launcher + BODIES[installer]
    assert interpreter_of(text, [POINT]) == LAUNCHERS[launcher]
    assert interpreter_of(text, [EntryPoint("tool", "tool.cli", "main"), POINT]) == LAUNCHERS[launcher]
    assert interpreter_of(text, [EntryPoint("tool", "tool.cli", "Group.other")]) is None


@pytest.mark.parametrize("interpreter", ["/opt/env/bin/python", PYTHON, f"/{'long/' * 40}bin/python"])
def test_programs_of_images(interpreter: str) -> None:
    _, content = Script("tool", POINT.module, POINT.attribute, "console").generate(interpreter, "posix")
    assert interpreter_of(content.decode(), [POINT]) == interpreter


@pytest.mark.parametrize(
    "launcher",
    [
        "#!/env/bin/python -c evil\n",
        "#!/bin/sh\nevil\n",
        "#!/bin/sh\n'''exec' /env/bin/python;evil \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"/env$(evil)/bin/python\" \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' /env/bin/python \"$0\" \"$@\"\n' '''; import evil\n",
        "",
    ],
)
def test_other_first_lines(launcher: str) -> None:
    assert interpreter_of(launcher + BODIES["pip 26"], [POINT]) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import sys\n", "import sys\nimport evil\n"),
        ("import sys\n", "import sys  # \n"),
        ("coding: utf-8", "coding: utf-7"),
        ("Group.main())\n", "Group.main())\n\n"),
        ("tool.cli", "evil.cli"),
    ],
)
def test_other_code(before: str, after: str) -> None:
    text = "#!/env/bin/python\n" + BODIES["pip 23"]
    assert before in text
    assert interpreter_of(text.replace(before, after), [POINT]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[console_scripts]\ntool = tool.cli : Group.main [extra]\n", {"bin/tool": POINT}),
        ("[gui_scripts]\nTool.app=tool.cli:Group.main\n[other]\nx = y:z\n", {"bin/Tool.app": POINT}),
        ("[console_scripts]\n../evil = a:b\nno-object = a\n", {}),
        ("not an INI file", {}),
    ],
)
def test_entry_points(tmp_path: Path, text: str, expected: dict[str, EntryPoint]) -> None:
    folder = tmp_path / "lib/python3.11/site-packages/tool-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text(text)
    (one,) = distributions(folder.parent)
    assert entry_points(one) == expected


def test_the_environments_own_python(tmp_path: Path) -> None:
    (tmp_path / "env/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "env/bin").mkdir()
    (tmp_path / "link").symlink_to("env")
    environment = find_environment(tmp_path / "env")
    assert is_own("python3", environment) and is_own(f"{tmp_path}/link/bin/python3.11", environment)
    for other in (f"{tmp_path}/bin/python", f"{tmp_path}/env/bin/evil", "evil", "/gone/bin/python"):
        assert not is_own(other, environment)
