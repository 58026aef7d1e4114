"""Text of others in what envspec prints: it moves no cursor, turns no text around, and is no markup in a pull request.

Whatever an index, a registry, a git server, a wheel, a lock or a spec says reaches the terminal as visible text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from envspec.escaping import markdown, markdown_code
from tests.conftest import Serve
from tests.support import user as user_module
from tests.support.builders import ecosystem
from tests.support.builders.images import RegistryInThread
from tests.support.builders.locks import replacing, tamper
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import wheel
from tests.support.servers.faults import Body
from tests.support.servers.registry import PushRegistry, Say
from tests.support.user import Ran, User, refused

AS_OF: Final = "2026-06-01T00:00:00Z"
#: Sets the title, clears the screen (also by C1), writes over the line, turns the direction of text.
CODES: Final = "\x1b]0;owned\x07\x1b[2J\x9b2J\roverwritten\u202etxt.evil\u2066"
#: What no stream may hold: a terminal acts on it. ESC is let through for colours only.
ACTED_ON: Final = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: What live lines are drawn with, rich's and a terminal's own line ends: colours, the cursor, lines that are cleared.
DRAWN: Final = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)|\r")


def is_clean(ran: Ran) -> bool:
    """Whether neither stream says anything to a terminal, to which it does not go here."""
    return not any("\x1b" in text or ACTED_ON.search(text) for text in (ran.stdout, ran.stderr))


def locked(tmp_path: Path, serve: Serve, *words: str) -> User:
    user = User(tmp_path, serve(ecosystem.diamond()).url)
    user.wants("app", as_of=AS_OF)
    assert user.locks(*words).status == 0
    return user


# What indexes and packages say


def test_the_reason_of_a_yank(tmp_path: Path, serve: Serve) -> None:
    user = User(tmp_path, serve([File(wheel("app", "1.0.0"), day("2024-01-01"), yanked=CODES)]).url)
    user.wants("app==1.0.0", as_of=AS_OF)
    ran = user.locks()
    assert "overwritten" in ran.stderr and is_clean(ran), ran


def test_an_error_of_a_registry(tmp_path: Path, serve: Serve) -> None:
    body = json.dumps({"errors": [{"code": "DENIED", "message": CODES}]}).encode()
    with RegistryInThread(PushRegistry(fault=lambda _ask: Say(403, {}, body))) as registry:
        user = User(tmp_path, serve(ecosystem.diamond()).url, NO_PROXY="127.0.0.1")
        ran = user.runs("image", "diff", f"{registry.host}/team/one:1", f"{registry.host}/team/two:1")
    assert ran.status == 5 and "overwritten" in ran.stderr and is_clean(ran), ran


def test_what_a_git_server_says(tmp_path: Path, serve: Serve) -> None:
    said = f"ERR {CODES}".encode()
    body = b"001e# service=git-upload-pack\n0000%04x%s" % (len(said) + 4, said)
    index = serve(ecosystem.diamond())
    index.fail("/own.git/*", Body(body, "application/x-git-upload-pack-advertisement"))
    user = User(tmp_path, index.url)
    user.wants(f"own @ git+{index.root}/own.git@{'ab' * 20}", as_of=AS_OF)
    ran = user.locks()
    assert ran.status in (4, 5) and "overwritten" in ran.stderr and is_clean(ran), ran


# What files say


def test_a_spec(tmp_path: Path, serve: Serve) -> None:
    user = User(tmp_path, serve(ecosystem.diamond()).url)
    for text in (
        f"x{CODES}",
        f"[env]\nname = {json.dumps(CODES)}\n",
        '[env]\nname = "small"\n"\\u001b[2J\\u202e" = 1\n',
    ):
        user.writes(text)
        ran = user.locks()
        assert is_clean(ran) and refused(ran, 2), ran


def test_a_name_of_a_file(tmp_path: Path, serve: Serve) -> None:
    """A repository brings its files' names, and `specs/*.toml` names them all."""
    user = User(tmp_path, serve(ecosystem.diamond()).url)
    name = f"{CODES.replace('/', '')}.toml"
    (user.folder / name).write_text("[env]\n")
    for words in (
        ("lock", name),
        ("lock", name, name),
        ("lock", "--check", name, name),
        ("explain", name),
        ("--x" + CODES,),
    ):
        ran = user.runs(*words)
        assert ran.status != 0 and is_clean(ran), ran


def texts_of(user: User, other: Path) -> list[Ran]:
    forms: list[tuple[str | Path, ...]] = [
        ("diff", other, user.lock, "--format", form) for form in ("text", "json", "markdown")
    ]
    forms += [("explain", user.lock), ("explain", user.lock, "--format", "json"), ("explain", user.lock, "app")]
    return [user.runs(*words) for words in forms]


@pytest.mark.parametrize("field", ["why", "value", "what"])
def test_a_lock_that_was_tampered_with(tmp_path: Path, serve: Serve, field: str) -> None:
    user = locked(tmp_path, serve)
    other = tmp_path / "locks/other"
    other.mkdir()
    for path in user.lock.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    hostile = f"{CODES} <img src=x> @acme/all [x](javascript:1) | closes #7"
    decision = {"what": "glibc", "platform": "linux-64", "value": "2.38", "why": "w", "source": "s", field: hostile}
    why = f'[{{ code = "unreadable", problem = {json.dumps(decision.pop("why"))} }}]'
    rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in decision.items()) + f"why = {why}\n"
    [old] = re.findall(r'\[\[decision\]\]\nwhat = "glibc"\n(?:.+\n)+', (user.lock / "envspec.lock").read_text())
    tamper(user.lock, replacing((old, f"[[decision]]\n{rows}")))
    ran = texts_of(user, other)
    assert all(is_clean(each) for each in ran), ran
    shown = re.sub(r"(?<![`\\])(`+)(?!`).+?(?<!`)\1(?!`)", "", ran[2].stdout)
    assert "overwritten" in ran[2].stdout and not re.search(r"<img|@acme|(?<!\\)\[x|#7", shown), ran[2].stdout
    # In JSON the values are what they were: it has escapes of its own.
    assert hostile in [each[key] for each in json.loads(ran[1].stdout)["decisions"] for key in ("name", "new", "why")]


def test_the_head_of_a_lock(tmp_path: Path, serve: Serve) -> None:
    user = locked(tmp_path, serve)
    tamper(user.lock, replacing(('name = "small"', f"name = {json.dumps(CODES + ' @acme/all <img src=x>')}")))
    for ran in [*texts_of(user, user.lock), user.runs("lock", "--check", "spec.toml")]:
        assert is_clean(ran), ran
        assert "<img" not in ran.stdout.replace("\\<img", "") or '"' in ran.stdout


# On a terminal


def on_a_terminal(user: User) -> str:
    """What a terminal of 100 columns is sent by `envspec lock`."""
    return user_module.on_a_terminal(user.folder, "lock", user.spec.name, columns=100, environ=user.environ)


def test_live_lines_and_warnings_on_a_terminal(tmp_path: Path, serve: Serve) -> None:
    """Colours and live lines stay, and nothing of the index's is among them."""
    user = User(tmp_path, serve([File(wheel("app", "1.0.0"), day("2024-01-01"), yanked=CODES)]).url)
    user.wants("app==1.0.0", as_of=AS_OF)
    sent = on_a_terminal(user)
    assert "overwritten" in sent and "\x1b[33mwarning:" in sent and "\x1b[?25l" in sent, sent
    assert not ACTED_ON.search(DRAWN.sub("", sent)) and "\x1b" not in DRAWN.sub("", sent), repr(sent)
    assert "\x1b[2J" not in sent and "\x1b]" not in sent


def test_an_error_on_a_terminal_is_red_and_no_more(tmp_path: Path, serve: Serve) -> None:
    user = User(tmp_path, serve(ecosystem.diamond()).url)
    user.writes(f"x{CODES}")
    sent = on_a_terminal(user)
    assert sent.startswith("\x1b[1;31merror:\x1b[0m ") or "\x1b[1;31merror:\x1b[0m " in sent
    assert "\x1b[2J" not in sent and "\x1b]" not in sent and "\x9b" not in sent and "\u202e" not in sent


# Markdown

#: Text, and what of it GitHub would act on.
MARKUP: Final = [
    *(
        *("<img src=x onerror=alert(1)>", "</details>", "&lt;img&gt;", "[x](javascript:alert(1))"),
        "![x](//evil.example.com)",
    ),
    *("@acme/all", "closes #7", "GH-7", "acme/stacks#7", "https://evil.example.com", "www.evil.example.com", "a | b"),
    *("`x", "**x**", "# x", "1. x", "- x", "a\n\n# b", "\u202e", "~~x~~", "$x$", "\\", "[x]: //evil"),
]


@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_text_in_markdown(text: str) -> None:
    shown = markdown(text)
    assert "\n" not in shown and not ACTED_ON.search(shown)
    assert not re.search(r"<|(?<!\\)[\[\]`|*~$]|^[#+-]|^\d+\.|://|@(?=\w)|#(?=\d)(?<!&#)|GH-\d|www\.", shown), shown


@pytest.mark.parametrize("text", ["`", "``", "a`` b ```c", "a|b", "a\\|b", "\n|", "`a", "a`", "\u202e`", "@acme/all"])
def test_text_stays_in_its_code(text: str) -> None:
    """It is in backticks of which it has no such run, on one line, and no bar of its own ends a cell."""
    shown = markdown_code(text)
    fence = re.match("`+", shown)
    assert fence and shown.endswith(fence[0]) and "\n" not in shown and not ACTED_ON.search(shown)
    inside = shown[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.findall("`+", inside)
    assert not re.search(r"(?<!\\)(?:\\\\)*\|", inside)
