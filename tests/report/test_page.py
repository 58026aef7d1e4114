"""The receipt's page in a browser: it shows what it says, asks for nothing outside, and has nothing to complain of."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envspec.receipts.model import read
from envspec.report import RECEIPT
from tests.support.machines import NotRun

pytestmark = pytest.mark.engine

GOLDEN = Path(__file__).parent / "golden" / "receipt"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/receipt.json"))
#: As little as a browser can be made to do besides.
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-features=OptimizationHints,MediaRouter",
)


@pytest.fixture(scope="session")
def browser() -> str:
    """A Chromium that runs."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    raise NotRun("no chromium is installed")


class Served(ThreadingHTTPServer):
    """One page, by a proxy: whatever the browser asks for comes here. asked: the addresses."""

    def __init__(self, page: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.page = page.encode()
        self.asked: list[str] = []


class _Answer(BaseHTTPRequestHandler):
    server: Served

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200 if self.path == PAGE else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.server.page if self.path == PAGE else b"")

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what was asked for is in the list."""


BARS = '<div class="bars">'
PAGE = "http://receipt.invalid/receipt.html"
FAULTY = '<!doctype html><title>x</title><img src="http://elsewhere.invalid/x.png"><script>throw Error("no")</script>'


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A proxy that serves the page of the case that the test names."""
    page = FAULTY if request.param == "faulty" else RECEIPT.render("html", read(GOLDEN / request.param))
    server = Served(page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def opened(browser: str, served: Served, folder: Path) -> tuple[str, list[str]]:
    """The page as the browser has it once it is loaded, and what its console says."""
    command = [browser, *QUIET, f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    # By default a proxy is not asked for what is on loopback.
    command += [f"--proxy-server=http://127.0.0.1:{served.server_port}", "--proxy-bypass-list=<-loopback>", PAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, re.findall(r":CONSOLE.*", done.stderr)


def asked_by_the_page(served: Served) -> list[str]:
    """Without what the browser asks of its maker: a page on which no script runs can ask only whom it names."""
    text = served.page.decode()
    hosts = {address: address.removeprefix("http://").partition("/")[0].partition(":")[0] for address in served.asked}
    return [address for address in served.asked if hosts[address] == "receipt.invalid" or hosts[address] in text]


@pytest.mark.parametrize("served", ["faulty"], indirect=True)
def test_a_page_with_faults_is_found_out(browser: str, served: Served, tmp_path: Path) -> None:
    _, console = opened(browser, served, tmp_path)
    assert "http://elsewhere.invalid/x.png" in asked_by_the_page(served)
    assert any("Error: no" in line for line in console)


@pytest.mark.parametrize("served", CASES, indirect=True)
def test_a_page(browser: str, served: Served, tmp_path: Path) -> None:
    shown, console = opened(browser, served, tmp_path)
    assert console == []
    assert asked_by_the_page(served) == [PAGE]
    assert shown.count(BARS) == served.page.decode().count(BARS) > 0
    assert shown.rstrip().endswith("</body></html>")
