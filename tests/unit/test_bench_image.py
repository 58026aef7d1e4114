"""The benchmark of images: its index, what it reads of logs and peers, its Dockerfiles, its goals and its report."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest
import tomlkit

from bench import image_index, image_recipes, image_stack
from bench.image import main
from bench.image_contestants import DIRECT, DIRECT_PYC, MISSING, TOOLS, UV, UV_PYC
from bench.image_plot import plot
from bench.image_recipes import Installer, Recipe
from bench.image_registry import read_bytes
from bench.image_report import page
from bench.image_results import ImageResults, Sample, Scenario, Size, StackFacts, goals, mid
from bench.image_watch import Watch, cpu_s, used_bytes
from bench.results import Absence


def sample(tool: str, scenario: Scenario, wall_s: float, **changes: object) -> Sample:
    values: dict[str, object] = {
        "stack": "middle",
        "tool": tool,
        "scenario": scenario.value,
        "round": 0,
        "wall_s": wall_s,
        "peak_bytes": 100_000_000,
        "sent_bytes": 4_000_000,
        **changes,
    }
    return Sample(**values)  # type: ignore[arg-type]


def size(tool: str, packed: int, unpacked: int | None = None) -> Size:
    return Size("middle", tool, 1, packed, unpacked)


def results(samples: tuple[Sample, ...], sizes: tuple[Size, ...] = ()) -> ImageResults:
    return ImageResults(
        machine={"date": "2026-11-20", "cpu": "a processor"},
        versions={"envspec": "0.1.0"},
        notes={DIRECT: "one command"},
        options={"rounds": 1},
        stacks=(StackFacts("middle", 143, 417_000_000, "statsmodels.api"),),
        samples=samples,
        sizes=sizes,
        absences=(Absence("middle", "docker buildx", "all", "there is none"),),
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder as envspec's cache has them: SHA-256/filename."""
    made = tmp_path / "Some_Thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("some_thing/__init__.py", "")
        archive.writestr("Some_Thing-1.0.dist-info/METADATA", "Name: Some-Thing\nVersion: 1.0\n")
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    folder = tmp_path / "wheels"
    (folder / digest).mkdir(parents=True)
    made.rename(folder / digest / made.name)
    return folder


def get(url: str) -> tuple[bytes, dict[str, str]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return answer.read(), {name.lower(): value for name, value in answer.headers.items()}


def test_the_index_serves_pages_files_and_metadata(wheels: Path) -> None:
    (path,) = wheels.glob("*/*.whl")
    with image_index.running([wheels]) as index:
        body, headers = get(f"{index.url}some.thing/")
        assert headers["content-type"] == "application/vnd.pypi.simple.v1+json"
        (file,) = json.loads(body)["files"]
        assert (file["filename"], file["size"]) == (path.name, path.stat().st_size)
        assert file["hashes"] == {"sha256": path.parent.name}
        root = index.url.removesuffix("/simple/")
        content, headers = get(root + file["url"])
        assert hashlib.sha256(content).hexdigest() == path.parent.name
        # As the real one: a tool may keep what it fetched.
        assert "immutable" in headers["cache-control"]
        assert get(root + file["url"] + ".metadata")[0].startswith(b"Name: Some-Thing")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{index.url}other/")


def test_what_was_read_of_a_registry_is_blobs_and_manifests() -> None:
    log = """\
127.0.0.1 - - [20/Nov/2026:18:26:06 +0000] "GET /v2/ HTTP/1.1" 200 2 "" "docker"
127.0.0.1 - - [20/Nov/2026:18:26:06 +0000] "HEAD /v2/a/b/blobs/sha256:12 HTTP/1.1" 200 7 "" "docker"
127.0.0.1 - - [20/Nov/2026:18:26:06 +0000] "GET /v2/a/b/blobs/sha256:12 HTTP/1.1" 200 5000 "" "docker"
127.0.0.1 - - [20/Nov/2026:18:26:06 +0000] "GET /v2/a/b/blobs/sha256:13 HTTP/1.1" 404 90 "" "docker"
127.0.0.1 - - [20/Nov/2026:18:26:06 +0000] "GET /v2/a/b/manifests/one HTTP/1.1" 200 300 "" "docker"
"""
    assert read_bytes(log) == 5300


def test_peers_have_wheels_in_a_cache_mount_and_no_tool_in_the_image(tmp_path: Path) -> None:
    plain = image_recipes.text(Recipe(Installer.UV))
    assert "--mount=type=cache,target=/root/.cache" in plain
    assert "--require-hashes" in plain
    assert "--compile-bytecode" not in plain
    assert "--compile-bytecode" in image_recipes.text(Recipe(Installer.UV, ("--compile-bytecode",)))
    final = plain.partition("FROM ${BASE}")[2]
    assert "COPY" not in final
    folder = image_recipes.write(Recipe(Installer.UV), tmp_path / "context", "numpy==1\n")
    assert sorted(path.name for path in folder.iterdir()) == ["Dockerfile", "requirements.txt", "uv"]
    assert os.access(folder / "uv", os.X_OK)
    folder = image_recipes.write(Recipe(Installer.PIP), tmp_path / "other", "numpy==1\n")
    assert (folder / "pip" / "__main__.py").exists()


def test_a_variant_changes_the_small_package_alone() -> None:
    spec = (image_stack.SPECS / "middle.toml").read_text()
    first, changed = (tomlkit.parse(image_stack.variant(spec, small)) for small in image_stack.SMALL)
    one, other = (set(document["pip"]["dependencies"]) for document in (first, changed))
    assert one ^ other == set(image_stack.SMALL)


def test_a_variant_has_nothing_that_needs_a_container() -> None:
    spec = """\
[env]
name = "x"
[pip]
dependencies = ["torch"]
[system]
apt = ["libgl1"]
[image]
compiler = "auto"
[registry.mirrors]
"docker.io" = "127.0.0.1:5000"
"""
    document = tomlkit.parse(image_stack.variant(spec, "humanize==4.12.0")).unwrap()
    assert document == {
        "env": {"name": "x"},
        "pip": {"dependencies": ["torch", "humanize==4.12.0"]},
        "image": {"compiler": "none"},
    }


def test_goals_hold_ours_against_the_peer_of_the_same_kind() -> None:
    samples = [
        sample(DIRECT, Scenario.COLD, 5.0),
        sample(UV, Scenario.COLD, 60.0),
        sample(DIRECT_PYC, Scenario.COLD, 30.0),
        sample(UV_PYC, Scenario.COLD, 120.0),
        sample(DIRECT, Scenario.UNCHANGED, 0.2),
    ]
    found = {goal.what: goal for goal in goals(samples, [size(DIRECT, 400), size(UV, 390)], "middle")}
    cold = found[f"build + push, empty caches: {DIRECT} against {UV}"]
    assert (cold.ratio, cold.bound, cold.is_met) == (12.0, 10.0, True)
    cold = found[f"build + push, empty caches: {DIRECT_PYC} against {UV_PYC}"]
    assert (cold.ratio, cold.bound, cold.is_met) == (4.0, 5.0, False)
    assert found[f"build + push, nothing changed: {DIRECT}"].is_met
    assert not found[f"image, packed: {DIRECT} against {UV}"].is_met
    assert len(found) == 4


def test_runs_that_failed_are_in_no_median() -> None:
    samples = [
        sample(DIRECT, Scenario.COLD, 5.0),
        sample(DIRECT, Scenario.COLD, 7.0),
        sample(DIRECT, Scenario.COLD, 900.0, exit_code=None),
    ]
    assert mid(samples, "middle", DIRECT, Scenario.COLD) == 6.0
    assert mid(samples, "middle", DIRECT, Scenario.COLD, "push_s") is None
    assert mid(samples, "middle", UV, Scenario.COLD) is None


def test_the_page_tells_goals_figures_faults_and_what_is_missing(tmp_path: Path) -> None:
    samples = (
        sample(DIRECT, Scenario.COLD, 5.0),
        sample(UV, Scenario.COLD, 60.0, push_s=48.0),
        sample(UV, Scenario.PULL, 1.0, exit_code=1, said="no space left"),
    )
    measured = results(samples, (size(DIRECT, 400_000_000, 1_500_000_000),))
    text = page(measured)
    assert "| 12.00 x | >= 10 x | met |" in text
    assert "60.00 (48.00)" in text
    assert "1,500.0" in text
    assert f"- middle, {UV}, first pull by the engine: exit 1: no space left" in text
    assert "- middle, docker buildx: not run: there is none" in text
    plot(measured, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    (goal,) = json.loads(json.dumps(measured.document()))["goals"]
    assert (goal["ratio"], goal["met"]) == (12.0, True)


def test_a_watch_sees_the_memory_of_children_but_those_that_serve(tmp_path: Path) -> None:
    code = "data = bytearray(60_000_000); print(len(data), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        child.stdout.readline()
        before = used_bytes(tmp_path)
        with (
            Watch(tmp_path, before, frozenset(), lambda: 0) as all_of_them,
            Watch(tmp_path, before, frozenset({child.pid}), lambda: 0) as others,
        ):
            time.sleep(0.25)
        assert cpu_s(child.pid) > 0
        child.stdin.close()
    assert all_of_them.peak_bytes > 60_000_000
    assert others.peak_bytes < all_of_them.peak_bytes - 60_000_000


def test_tools_have_names_of_their_own_and_a_note() -> None:
    assert {DIRECT, DIRECT_PYC, UV, UV_PYC} <= TOOLS.keys()
    assert all(tool.name == name and tool.note for name, tool in TOOLS.items())
    assert not TOOLS.keys() & MISSING.keys()


@pytest.mark.parametrize("words", (["--tools", "podman"], ["--scenarios", "cold"]))
def test_a_strange_name_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--base", "nowhere", *words])
    assert f"{words[1]}: not one of" in capsys.readouterr().err
