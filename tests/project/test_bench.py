"""What the benchmarks publish: costs, medians, goals, pins and packages as tools wrote them, equal requests for all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import tomlkit
import yaml

from bench import conda, image, image_tools, lock, proxy
from bench.conda import BARE, CONDA_LOCK, ENVSPEC, STAGE, Case, Question
from bench.conda_channel import WANTED, write
from bench.conda_solvers import bare, requests
from bench.harness import Absence, Cost, Results, Sample, clean, published, run, sampled
from bench.image_tools import DIRECT, UV, read_bytes, variant
from bench.peers import ADDED, family_of, load_stack, pins_of, stack_names
from envspec.context import Context
from envspec.resolve.conda.solve import solve_all
from envspec.resolve.conda.solver import Rattler
from tests.conftest import Serve
from tests.support.builders import ecosystem

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")


def sample(tool: str, scenario: str, exit_code: int | None = 0, **figures: float) -> Sample:
    return Sample("s29", tool, scenario, 0, figures, exit_code, "Expecting\nvalue" if exit_code else "")


def results(*samples: Sample) -> Results:
    return Results("a page", {"runs": 1}, machine={"cpu": "x"}, samples=list(samples))


# -------------------------------------------------------------------------------------------------------------- costs


@linux_only
def test_cpu_wall_and_exit_code(tmp_path: Path) -> None:
    busy = "import sys, time\nwhile time.process_time() < 0.25: pass\nsys.exit('so it ends')"
    cost = run([sys.executable, "-c", busy], cwd=tmp_path, env=os.environ, limit_s=20)
    assert (cost.exit_code, cost.output) == (1, "so it ends")
    assert 0.25 <= cost.cpu_s <= cost.wall_s + 0.5


@linux_only
def test_memory_is_that_of_the_tree(tmp_path: Path) -> None:
    hold = "import time; held = bytearray(60_000_000); time.sleep(0.4)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    alone = run([sys.executable, "-c", hold], cwd=tmp_path, env=os.environ, limit_s=20)
    below = run([sys.executable, "-c", parent], cwd=tmp_path, env=os.environ, limit_s=20)
    assert alone.peak_bytes > alone.own_bytes > 60_000_000
    assert below.peak_bytes > alone.peak_bytes


@linux_only
def test_own_memory_has_no_mapped_file_and_no_fork_twice(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(60_000_000))
    code = (
        "import mmap, os, time; file = open('file', 'rb'); held = bytearray(60_000_000)\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); sum(mapped[::4096])\n"
        "child = os.fork(); time.sleep(0.3); child and os.wait()"
    )
    cost = run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, limit_s=20)
    assert cost.peak_bytes > 180e6
    assert 60e6 < cost.own_bytes < 100e6


@linux_only
def test_a_run_over_its_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "import time, pathlib; time.sleep(0.8); pathlib.Path('alive').touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    cost = run([sys.executable, "-c", parent], cwd=tmp_path, env=os.environ, limit_s=0.3)
    assert cost.exit_code is None and not cost.is_done
    time.sleep(0.8)
    assert not (tmp_path / "alive").exists()


@linux_only
def test_memory_of_servers_is_no_tools(tmp_path: Path) -> None:
    code = "data = bytearray(60_000_000); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout and child.stdout.readline()
        with image.watched((), lambda: 0) as all_of_them, image.watched({child.pid}, lambda: 7) as others:
            time.sleep(0.25)
        child.stdin.close()
    assert all_of_them["memory"] > others["memory"] + 60_000_000
    assert others["disk"] == 7


def test_the_proxy_counts_what_comes_in(serve: Serve) -> None:
    index = serve(ecosystem.big(500_000))
    with proxy.running() as counter:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": counter.url}))
        opener.open(index.file_url("heavy-1.0.0-py3-none-any.whl"), timeout=10).read()
        counts = counter.counts()
    assert counts.connections == 1
    assert counts.received == index.sent_bytes("/files/*") > 500_000


def test_what_is_read_from_a_registry_is_blobs_and_manifests() -> None:
    rows = {"/v2/": "200 2", "/v2/a/b/blobs/sha256:12": "200 5000", "/v2/a/b/blobs/sha256:13": "404 90"}
    log = "".join(
        f'127.0.0.1 - - [20/Nov/2026] "GET {path} HTTP/1.1" {end} "" "docker"\n' for path, end in rows.items()
    )
    log += '127.0.0.1 - - [] "HEAD /v2/a/b/blobs/sha256:12 HTTP/1.1" 200 7 "" "docker"\n'
    log += '127.0.0.1 - - [] "GET /v2/a/b/manifests/one HTTP/1.1" 200 300 "" "docker"\n'
    assert read_bytes(log) == 5300


def test_a_measured_command_has_nothing_of_the_machine_s_configuration(tmp_path: Path) -> None:
    machine = {"SSL_CERT_FILE": "/c.pem", "PIP_INDEX_URL": "http://a", "UV_INDEX": "http://b", "HOME": "/home/me"}
    environ = clean(machine, home=tmp_path, proxy="http://127.0.0.1:1")
    assert environ["SSL_CERT_FILE"] == "/c.pem"
    assert (environ["HOME"], environ["HTTPS_PROXY"]) == (str(tmp_path), "http://127.0.0.1:1")
    assert not {"PIP_INDEX_URL", "UV_INDEX"} & set(environ)


# ------------------------------------------------------------------------------------------------------------ figures


def test_a_ratio_is_of_medians_over_runs_that_succeeded() -> None:
    runs = [sample("ours", "cold", wall_s=wall_s) for wall_s in (1.0, 2.0, 9.0)]
    runs += [sample("ours", "cold", 4, wall_s=0.01), sample("ours", "cold", None, wall_s=60)]
    # A run whose bytes were counted is not timed.
    runs += [sample("ours", "cold", received_bytes=5e6), *(sample("theirs", "cold", wall_s=4.0) for _ in range(2))]
    found = results(*runs)
    assert found.mid("s29", "ours", "cold") == 2.0
    assert found.mid("s29", "ours", "cold", "received_bytes") == 5e6
    assert found.ratio("s29", "ours", "theirs", "cold") == 0.5
    assert found.ratio("s29", "ours", "theirs", "warm") is None


def test_goals_of_locking_need_both_tools() -> None:
    runs = [sample(lock.OURS, "cold", wall_s=1.2, peak_bytes=100e6), sample(lock.REFERENCE, "cold", wall_s=1.0)]
    found = lock.goals(results(*runs, sample(lock.OURS, "warm", wall_s=0.2)), ["s29", "s27"])
    assert [(goal.what, goal.is_met) for goal in found] == [("cold, time", False), ("cold, peak memory", True)]


def test_goals_of_conda_count_on_the_large_channel_alone() -> None:
    cases = {case.title: case for case in (Case(20_000, 1), Case(650_000, 1))}
    runs = [
        Sample(title, tool, "", 0, {"cpu_s": cpu_s, "peak_bytes": 500e6})
        for title in cases
        for tool, cpu_s in ((BARE, 1.0), (ENVSPEC, 1.3))
    ]
    assert [(goal.subject, goal.measured, goal.is_met) for goal in conda.goals(results(*runs), cases)] == [
        ("650,000 rows, 1 platform, file://", 1.3, False),
        ("650,000 rows, 1 platform, file://", 500.0, True),
    ]


def test_goals_of_images_are_how_many_times_as_long_the_peer_takes() -> None:
    runs = [sample(DIRECT, image.COLD, wall_s=5.0), sample(UV, image.COLD, wall_s=60.0)]
    runs.append(sample(DIRECT, image.UNCHANGED, wall_s=0.4))
    sizes = {("s29", DIRECT): image.Size(1, 400, None), ("s29", UV): image.Size(1, 390, None)}
    found = image.goals(results(*runs), sizes, "s29")
    assert [(goal.measured, goal.bound, goal.is_met) for goal in found] == [
        (12.0, 10.0, True),
        (0.4, 0.3, False),
        (390 / 400, 1.0, False),
    ]


def test_the_page_names_missed_goals_failures_and_absences() -> None:
    found = results(sample(lock.OURS, "cold", wall_s=1.0, peak_bytes=300e6), sample("poetry", "cold", 1, wall_s=2.0))
    found.goals = lock.goals(found, ["s29"])
    found.absences.append(Absence("s26", "pdm", "cold", "no interpreter of\nPython 3.10"))
    text = found.page({"s29": lock.stack_table(found, (), "s29")}, ["by hand"])
    assert "| cold, peak memory | s29 | 300.00 | <= 250 MB | MISSED |" in text
    assert "| envspec | 1.00 | - |" in text
    assert "- s29, poetry, cold: exit 1: Expecting value" in text
    assert "- s26, pdm, cold: not run: no interpreter of Python 3.10" in text


def test_what_is_published_names_no_address_host_or_path() -> None:
    text = "at https://index.example.com/x/, host files.example.org, in /home/me/.cache/x.json: failed"
    assert published(text) == "at <url>, host <host>, in <path>: failed"
    assert sampled("a", "b", "c", 0, Cost(1, 1, 1, 1, 2, text)).output == published(text)


# ---------------------------------------------------------------------------------------------- requests and answers


@pytest.mark.parametrize(
    ("family", "verdict"),
    [
        ({"torch": "2.9.1", "torchaudio": "2.9.1", "torchvision": "0.24.1"}, "coherent"),
        ({"torch": "2.9.1", "torchaudio": "2.11.0"}, "torchaudio 2.11.0 beside torch 2.9.1"),
        ({"torch": "2.7.0+cu126", "torchaudio": "2.7.1+cu126"}, "coherent"),
        ({"torch": "2.7.0", "torchtext": "0.18.0"}, "torchtext 0.18.0 beside torch 2.7.0"),
        ({"torch": "2.11.0", "torchaudio": "2.11.0"}, "coherent"),
        ({}, ""),
    ],
)
def test_the_verdict_on_a_family(family: dict[str, str], verdict: str) -> None:
    assert lock.verdict_on(family) == verdict


def test_pins_are_read_from_every_tool_s_lock(tmp_path: Path) -> None:
    texts = {
        "requirements.txt": "# c\nTorch==2.9.1 \\\n    --hash=sha256:00\n"
        "zope.event[x]==5.0 ; python_version > '3'\n    # via torch==1\n",
        "uv.lock": '[[package]]\nname = "stack"\nversion = "0"\nsource = { virtual = "." }\n'
        '[[package]]\nname = "numpy"\nversion = "1.26.4"\nsource = { registry = "x" }\n'
        '[[package]]\nname = "numpy"\nversion = "2.2.0"\nsource = { registry = "x" }\n',
        "pylock.toml": '[[packages]]\nname = "torch"\nversion = "2.9.1"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert pins_of(tmp_path / "requirements.txt") == {"torch": "2.9.1", "zope-event": "5.0"}
    assert pins_of(tmp_path / "uv.lock") == {"numpy": "1.26.4|2.2.0"}
    assert family_of(pins_of(tmp_path / "pylock.toml")) == {"torch": "2.9.1"}


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_is_dated_and_has_none_of_the_names_that_are_added(name: str) -> None:
    stack = load_stack(name)
    assert stack.as_of.utcoffset() is not None
    assert not set(ADDED) & set(stack.requirements)
    assert stack.plus("humanize").requirements == [*stack.requirements, "humanize"]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channel")
    write(folder, 36_000, ("linux-64", "osx-arm64"))
    return folder


def test_conda_tools_get_the_same_question_and_give_the_same_answer(channel: Path, tmp_path: Path) -> None:
    question = Question(channel.as_uri(), ("linux-64", "osx-arm64")).document()
    alone = asyncio.run(bare(question, tmp_path / "bare"))
    context = Context({}, tmp_path, tmp_path / "stage")
    stage = asyncio.run(solve_all(requests(question), Rattler(), context))
    assert [sorted(row.url for row in rows) for rows in alone] == [
        sorted(package.url for package in answer.packages) for answer in stage
    ]
    builds = [{row.name.normalized: str(row.build) for row in rows} for rows in alone]
    assert [found[WANTED[0]].split("_")[0] for found in builds] == ["cuda129", "cpu"]
    assert [len(rows) for rows in alone] == pytest.approx([110, 100], abs=15)


def test_conda_lock_gets_cuda_builds_where_there_is_cuda() -> None:
    question = Question("file:///channel", ("linux-64", "osx-arm64"))
    lines = question.environment().splitlines()
    assert f"  - {WANTED[0]} * cuda*  # [linux64]" in lines
    assert f"  - {WANTED[0]}  # [arm64]" in lines
    assert [line for line in lines if "cuda-version" in line] == ["  - cuda-version <=12.9  # [linux64]"]
    packages = {name: of["packages"] for name, of in yaml.safe_load(question.virtual_packages())["subdirs"].items()}
    assert (packages["linux-64"]["__cuda"], packages["linux-64"]["__archspec"]) == ("12.9", "1 x86_64")
    assert "__cuda" not in packages["osx-arm64"]


def test_every_conda_tool_s_answer_is_read_in_one_form(tmp_path: Path) -> None:
    url = "file:///c/noarch/a-1-0.conda"
    (tmp_path / "stdout").write_text(f"linux-64 {url}\n")
    (tmp_path / "lock").mkdir()
    text = f"# a comment: https://somewhere\n@EXPLICIT\n{url}#sha256:00\n"
    (tmp_path / "lock" / "conda-linux-64.lock").write_text(text)
    package = {"name": "a", "manager": "conda", "platform": "linux-64", "url": url, "hash": {"md5": "0"}}
    (tmp_path / "conda-lock.yml").write_text(yaml.safe_dump({"version": 1, "package": [package]}, sort_keys=False))
    for name in (BARE, STAGE, ENVSPEC, CONDA_LOCK):
        assert conda.TOOLS[name].answer(conda.Place(tmp_path, tmp_path)) == {("linux-64", url)}, name


def test_a_variant_changes_the_small_package_alone_and_needs_no_container() -> None:
    spec = (image_tools.SPECS / "middle.toml").read_text()
    first, changed = (tomlkit.parse(variant(spec, small)).unwrap() for small in image_tools.SMALL)
    assert set(first["pip"]["dependencies"]) ^ set(changed["pip"]["dependencies"]) == set(image_tools.SMALL)
    assert not {"system", "services", "registry"} & set(first)
    assert first["image"]["compiler"] == "none"
