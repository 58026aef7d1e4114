"""Draw the pictures of the site: `python -m bench.pictures [NAME...]` writes docs/pictures/.

Terminal pictures are real runs of envspec on this repository's locks, drawn as SVG for light and for dark pages.
`recording` is a session in a new folder, with the times at which its lines appeared; it needs the package index. The
receipt and the fleet page are screenshots by Chromium (`chromium` on PATH) of pages that envspec wrote.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.receipts.model import read
from envspec.report import RECEIPT
from tests.support.user import terminal_output

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = ROOT / "docs" / "pictures"
COLUMNS: Final = 96
#: Of a picture that shows the beginning of a long output.
ROWS: Final = 32
RECORDING: Final = (
    "cat requirements.txt",
    "envspec init requirements.txt --name train --gpu A100 --driver 535",
    "envspec fit train --gpu A100 --driver 470.82.01",
    "envspec fit train --gpu A100 --driver 550.54.15",
)
REQUIREMENTS: Final = "torch==2.9.*\ntorchvision\ntransformers==4.57.1\neinops\n"


@dataclass(frozen=True)
class Theme:
    """Colours of a picture. styles: of ANSI's codes that envspec prints."""

    name: str
    background: str
    bar: str
    text: str
    faint: str
    prompt: str
    styles: Mapping[str, str]


THEMES: Final = (
    Theme(
        "light",
        "#ffffff",
        "#eceff3",
        "#1f2933",
        "#68758a",
        "#1a6fb5",
        {"31": "#b42318", "32": "#1a7f37", "33": "#8a5a00", "36": "#0b7285"},
    ),
    Theme(
        "dark",
        "#12161c",
        "#1d232c",
        "#d7dde5",
        "#8b98a9",
        "#6cb6ff",
        {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "36": "#56d4dd"},
    ),
)
_WIDTH, _HEIGHT, _SIZE = 7.83, 19.0, 13.0
_ANSI: Final = re.compile(r"\x1b\[([\d;]*)m")


@dataclass(frozen=True)
class Line:
    """at_s: when it appears. is_command: it is shown after a prompt."""

    text: str
    at_s: float = 0.0
    is_command: bool = False


def spans(text: str, theme: Theme) -> str:
    """A line with ANSI's colours as tspans."""
    found, style = [], ""
    for number, part in enumerate(_ANSI.split(text)):
        if number % 2:
            codes = part.split(";")
            bold = "font-weight:bold;" if "1" in codes else ""
            colour = next((theme.styles[code] for code in codes if code in theme.styles), "")
            style = bold + (f"fill:{colour}" if colour else "")
        elif part:
            escaped = html.escape(part, quote=False)
            found.append(f'<tspan style="{style}">{escaped}</tspan>' if style else escaped)
    return "".join(found)


def drawn(lines: Sequence[Line], title: str, theme: Theme) -> str:
    """A terminal as SVG, with no font or script from elsewhere; lines appear at their times, and stay."""
    width, top = COLUMNS * _WIDTH + 32, 44.0
    height = top + len(lines) * _HEIGHT + 14
    is_animated = any(line.at_s for line in lines)
    rows = []
    for number, line in enumerate(lines):
        y = top + number * _HEIGHT + 14
        prompt = f'<tspan style="fill:{theme.prompt}">$ </tspan>' if line.is_command else ""
        weight = ' font-weight="bold"' if line.is_command else ""
        delay = f' class="late" style="animation-delay:{line.at_s:.2f}s"' if is_animated else ""
        rows.append(
            f'<text x="16" y="{y:.1f}"{weight}{delay} xml:space="preserve">{prompt}{spans(line.text, theme)}</text>'
        )
    motion = (
        "<style>@keyframes show{to{opacity:1}}"
        "@media (prefers-reduced-motion:no-preference){.late{opacity:0;animation:show .01s linear forwards}}</style>"
        if is_animated
        else ""
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{html.escape(title)}">{motion}'
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{theme.background}" stroke="{theme.bar}"/>'
        f'<path d="M0 8a8 8 0 0 1 8-8h{width - 16:.0f}a8 8 0 0 1 8 8v24H0z" fill="{theme.bar}"/>'
        f'<text x="16" y="21" fill="{theme.faint}" font-family="system-ui,sans-serif" font-size="12">'
        f"{html.escape(title)}</text>"
        f'<g fill="{theme.text}" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" '
        f'font-size="{_SIZE}">\n' + "\n".join(rows) + "\n</g></svg>\n"
    )


def environment(home: str) -> dict[str, str]:
    """Of a user with an empty home, whose terminal has colours."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "ENVSPEC_"))},
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": home,
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
        "LC_ALL": "C.UTF-8",
    }


def run(command: str, folder: Path, environ: Mapping[str, str]) -> list[tuple[float, str]]:
    """The lines that a command leaves on a terminal, each with its time in seconds since the command's start."""
    begin = time.monotonic()
    found: list[tuple[float, str]] = []
    rest = b""
    for chunk in terminal_output(shlex.split(command), folder, environ, COLUMNS, rows=200):
        *lines, rest = (rest + chunk).split(b"\n")
        now_s = time.monotonic() - begin
        found += [(now_s, text) for line in lines if (text := final(line.decode("utf-8", "replace"))) is not None]
    return found


def final(line: str) -> str | None:
    """What stays of a line that was redrawn; None: it was erased, as progress is."""
    last = line.rstrip("\r").split("\r")[-1]
    visible = re.sub(r"\x1b\[[\d;?]*[A-KSThlnsu]", "", last)
    is_erased = "\u2501" in visible or (visible != last and not _ANSI.sub("", visible).strip())
    return None if is_erased else visible.rstrip()


def terminal(command: str, rows: int = ROWS) -> Callable[[Path], Mapping[str, str]]:
    """A picture of a command's output, run in this repository."""

    def draw(home: Path) -> Mapping[str, str]:
        lines = [Line(command, is_command=True)]
        lines += [Line(text) for _, text in run(command, ROOT, environment(str(home)))]
        if len(lines) > rows:
            lines = [*lines[: rows - 1], Line("…")]
        return {theme.name: drawn(lines, "envspec", theme) for theme in THEMES}

    return draw


def recording(home: Path) -> Mapping[str, str]:
    """A session with the times of its lines; pauses are for readers."""
    folder = home / "train"
    folder.mkdir()
    (folder / "requirements.txt").write_text(REQUIREMENTS, encoding="utf-8")
    now = 0.5
    lines: list[Line] = []
    for command in RECORDING:
        lines.append(Line(command, now, is_command=True))
        now += 1.0
        found = run(command, folder, environment(str(home)))
        lines += [Line(text, now + at_s) for at_s, text in found]
        now += (found[-1][0] if found else 0.0) + 1.5
        lines.append(Line("", now))
    return {theme.name: drawn(lines[:-1], "envspec", theme) for theme in THEMES}


TERMINALS: Final = {
    "explain": terminal("envspec explain pytorch-2.9"),
    "diff": terminal("envspec diff pytorch-2.8 pytorch-2.9"),
    "recording": recording,
}


def screenshot(page: Path, target: Path, scheme: str, size: tuple[int, int]) -> None:
    """A page as Chromium shows it to a reader who prefers `scheme`."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
                f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}",
                *(f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", f"--screenshot={target}"),
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


def receipt_page(folder: Path) -> Path:
    """The page of a receipt of this repository."""
    receipt = ROOT / "docs" / "measurements" / "receipts" / "pytorch-2.9-cpu.json"
    page = folder / "receipt.html"
    page.write_text(RECEIPT.render("html", read(receipt)), encoding="utf-8")
    return page


def fleet_page(folder: Path) -> Path:
    """The page of five nodes whose receipts the tests generate: they differ, and some fail."""
    envspec(folder, "fleet", "report", str(ROOT / "tests/report/golden/fleet/odd"), "--report", str(folder))
    return folder / "fleet.html"


def envspec(home: Path, *words: str) -> None:
    """Run it, whatever its exit code: a fleet with bad nodes is not 0."""
    subprocess.run([sys.executable, "-m", "envspec", *words], cwd=ROOT, env=environment(str(home)), check=False)


#: Page and size in pixels.
PAGES: Final = {"receipt": (receipt_page, (1000, 985)), "fleet": (fleet_page, (1000, 1235))}


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*TERMINALS, *PAGES])
    names: list[str] = parser.parse_args(None if arguments is None else [*arguments]).names
    PICTURES.mkdir(exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            if name in PAGES:
                make, size = PAGES[name]
                page = make(Path(folder))
                for theme in THEMES:
                    screenshot(page, PICTURES / f"{name}-{theme.name}.png", theme.name, size)
            else:
                for theme_name, text in TERMINALS[name](Path(folder)).items():
                    (PICTURES / f"{name}-{theme_name}.svg").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
