"""The programs of a wheel: made from its entry points, or brought by it and told which Python runs them."""

from __future__ import annotations

import configparser
import io
import re
from collections.abc import Iterator
from typing import Final

from installer.scripts import Script
from installer.utils import fix_shebang, parse_entrypoints

from envspec.effects.archives import why_refused

#: What a script begins with that is to run by the Python that it is installed for (binary distribution format).
_PLACEHOLDER: Final = b"#!python"


def entry_points(text: str, series: str) -> tuple[Script, ...]:
    """The programs that `entry_points.txt` asks for, in its order. series: Python's, such as `3.11`.

    pip's own wheel names its programs for the Python that it was built by, so they are named anew, as pip does.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    try:
        found = [Script(name, module, attr, section) for name, module, attr, section in parse_entrypoints(text)]
    except (configparser.Error, AssertionError) as fault:
        # installer asserts that an entry point names an object.
        why = str(fault) or "an entry point without an object"
        raise ValueError(f"entry_points.txt can't be read ({why})") from fault
    for script in found:
        if "/" in script.name or why_refused(script.name):
            raise ValueError(f"an entry point is named {script.name!r}, which is no file name")
    return tuple(_named_for(found, series))


def _named_for(found: list[Script], series: str) -> Iterator[Script]:
    for script in found:
        if script.name == "pip":
            for name in ("pip", f"pip{series.partition('.')[0]}", f"pip{series}"):
                yield Script(name, script.module, script.attr, script.section)
        elif not (re.fullmatch(r"pip\d+(\.\d+)?", script.name) and any(each.name == "pip" for each in found)):
            yield script


def generated(script: Script, interpreter: str) -> bytes:
    """The text of a program."""
    return script.generate(interpreter, "posix")[1]


def replaces(filename: str, scripts: tuple[Script, ...]) -> bool:
    """Whether a script of the wheel is one that setuptools made of an entry point: then it is made anew instead."""
    lowered = filename.lower()
    ending = next((end for end in (".exe", "-script.py", ".pya") if lowered.endswith(end)), "")
    stem = filename[: len(filename) - len(ending)]
    return any(script.name == stem for script in scripts)


def has_placeholder(start: bytes) -> bool:
    """Whether a file that begins so has to be told its Python."""
    return start.startswith(_PLACEHOLDER)


def for_interpreter(content: bytes, interpreter: str) -> bytes:
    """A script with its first line naming the Python that runs it."""
    with fix_shebang(io.BytesIO(content), interpreter) as fixed:
        return fixed.read()
