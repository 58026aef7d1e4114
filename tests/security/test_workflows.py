"""CI runs foreign code: builds. Even if what confines them fails, they read no token that can write, and nothing
is pushed but what they were built for. What a job without permissions passes on may be made by anybody.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.environments import RUNNING
from tests.support.builders.hostile_build import hostile_build, loot
from tests.support.builders.images import CUDA, TAG, ImageServers, image_servers, make_base
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact
from tests.support.servers.forge import Forge
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import digest
from tests.support.user import ROOT
from tests.support.workflow_runner import STARTED_ANEW, Hosted, Runner
from tests.support.workflows import Repository, job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GitHub's runners for these jobs are Linux")
RECEIVED: Final = ROOT / ".github" / "received.py"
REFRESH: Final = "workflows/refresh.yml"
#: There is no engine either that confines.
NOTHING: Final = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
#: Nothing confines its builds: the first line of defence has fallen.
SPEC: Final = """\
[env]
name = "small"
python = "{python}"
platforms = ["linux-64"]
as_of = 2025-03-15T00:00:00Z

[pip]
dependencies = ["own", "weekly"]
build.packages = ["own"]
build.sandbox = false
"""


@contextmanager
def hosted(folder: Path, source: Artifact, values: dict[str, str]) -> Iterator[Hosted]:
    """A forge whose repository locks the sdist, and machines on which its workflows run."""
    with IndexServer([*ecosystem.dated(), File(source)]) as index:
        environ = {"ENVSPEC_DEFAULT_INDEX": index.url, **NOTHING}
        repository = repository_of(folder, SPEC.format(python=RUNNING), environ)
        with Forge(folder / "forge", repository) as forge:
            yield Hosted(folder / "run", forge, values, without_bubblewrap, **environ)


def repository_of(folder: Path, spec: str, environ: dict[str, str], *words: str) -> Repository:
    """One with a lock of this spec, and with scripts that install nothing on this machine."""
    repository = Repository(folder / "repository", [".github"])
    repository.writes(".github/with-bubblewrap.sh", 'exec "$@"\n')
    repository.writes("specs/small.toml", spec)
    author = Runner(folder / "author", repository.folder, {}, **environ)
    without_bubblewrap("author", author)
    author.locks("small", *words)
    repository.commits("locked")
    assert loot(folder) == "", "the author's machine is none of CI's"
    return repository


def without_bubblewrap(name: str, machine: Runner) -> None:
    machine.program("bwrap", "exit 1")
    machine.program("envspec", STARTED_ANEW)


def has_got(folder: Path, forge: Forge) -> list[str]:
    """Tokens that can write, which the sdist has got. It has been at work, or the test would show nothing."""
    found = loot(folder)
    assert "==== environ" in found and "==== SEEN" in found
    return [token for token in forge.precious if token in found]


# The weekly refresh


def test_a_refresh_gives_a_build_no_token_that_writes(tmp_path: Path) -> None:
    with hosted(tmp_path, hostile_build(tmp_path), {"github.ref_name": "main"}) as host:
        before = host.forge.branches()
        ran = host.runs(REFRESH)
        assert has_got(tmp_path, host.forge) == []
        assert {name: job.failed for name, job in ran.items()} == {"relock": [], "propose": []}, ran
        after = host.forge.branches()
        assert after["main"] == before["main"] and set(after) <= {"main", "refresh-locks"}
        # The pull request comes all the same, with what was locked and nothing else.
        assert set(host.forge.git("diff", "--name-only", "main", "refresh-locks").splitlines()) == {
            "locks/small/envspec.lock",
            "locks/small/requirements.linux-64.txt",
            "specs/small.toml",
        }
    assert not (tmp_path / "ran").exists()


#: What a build may change in the proposal itself, and where that ends: in the job's own folder, and beside it. All that
#: is refused of a proposal is in PROPOSALS.
_TAMPERING: Final = {
    "a spec": ('plant(temp + "/proposal/specs/other.toml", "# evil\\n", 0o644)', "do not match the locks"),
    "hooks": ('plant(temp + "/proposal/.git/hooks/pre-commit", STEAL)', "pre-commit is neither a spec"),
}


@pytest.mark.parametrize("what", _TAMPERING)
def test_a_proposal_that_was_tampered_with_is_not_pushed(tmp_path: Path, what: str) -> None:
    also, why = _TAMPERING[what]
    with hosted(tmp_path, hostile_build(tmp_path, also=also), {"github.ref_name": "main"}) as host:
        before = host.forge.branches()
        ran = host.runs(REFRESH)
        assert has_got(tmp_path, host.forge) == [] and host.forge.branches() == before and host.forge.calls == []
    assert why in ran["propose"].said["Copy only specs and locks"]


def test_a_spec_that_a_build_changes_is_not_proposed(tmp_path: Path) -> None:
    also = 'plant(work + "/specs/small.toml", "# evil\\n", 0o644, append=True)'
    with hosted(tmp_path, hostile_build(tmp_path, also=also), {"github.ref_name": "main"}) as host:
        before = host.forge.branches()
        ran = host.runs(REFRESH)
        assert has_got(tmp_path, host.forge) == [] and host.forge.branches() == before and host.forge.calls == []
    assert "specs/small.toml was changed while it was locked" in ran["relock"].said["Relock"]


# Pull requests


def test_a_pull_request_gives_a_build_no_token_that_writes(tmp_path: Path) -> None:
    # What the later step runs as `head` says what the comment holds.
    words = "#!/bin/bash\necho '@acme/all <img src=x> [x](https://evil.example.com)'\n"
    also = f'plant(temp + "/evil/head", {words!r})'
    values = {
        "github.repository": "acme/stacks",
        "github.event.pull_request.head.repo.full_name": "acme/stacks",
        "github.event.pull_request.number": "7",
        "vars.CHANNEL_REPODATA": "",
    }
    with hosted(tmp_path, hostile_build(tmp_path, also=also), values) as host:
        host.values = {**values, "github.event.pull_request.base.sha": host.forge.branches()["main"]}
        repository = host.forge.repository
        repository.writes("specs/small.toml", f"# why\n{repository.text('specs/small.toml')}")
        repository.commits("a comment")
        repository.git("push", "--quiet", str(host.forge.remote), "main")
        before = host.forge.branches()
        ran = host.runs("workflows/lock-check.yml")
        assert has_got(tmp_path, host.forge) == [] and host.forge.branches() == before
        assert ran["comment"].failed == [] and len(host.forge.calls) == 1
        assert "acme/all" in host.forge.body, "it can say what it likes"
        assert "@acme" not in host.forge.body and "<img" not in host.forge.body and "](" not in host.forge.body
    assert not (tmp_path / "ran").exists()


# Images


@contextmanager
def imaging(folder: Path, servers: ImageServers) -> Iterator[Hosted]:
    if shutil.which("skopeo") is None:
        pytest.skip("not run: skopeo is not installed")
    environ = {
        "GITHUB_REPOSITORY": "acme/stacks",
        "ENVSPEC_DEFAULT_INDEX": servers.index.url,
        "ENVSPEC_REGISTRY_MIRRORS": f"docker.io={servers.registry.host}",
        "NO_PROXY": "127.0.0.1",
        **NOTHING,
    }
    values = {
        "vars.GPU_REGISTRY": servers.registry.host,
        "vars.GPU_SPECS": "",
        "inputs.specs": "small",
        "github.actor": "somebody",
        "github.event_name": "push",
    }

    def prepare(name: str, machine: Runner) -> None:
        without_bubblewrap(name, machine)
        containers = machine.home / ".config" / "containers"
        containers.mkdir(parents=True)
        insecure = f'[[registry]]\nlocation = "{servers.registry.host}"\ninsecure = true\n'
        (containers / "registries.conf").write_text(insecure)
        real = (machine.programs / "envspec").read_text().partition("\n")[2]
        machine.program("envspec", f'[ "$1 $2" != "image build" ] || set -- "$@" --no-sandbox\n{real}')
        # As docker does it: the login lies where DOCKER_CONFIG says.
        login = 'mkdir -p "$DOCKER_CONFIG"; cat > "$DOCKER_CONFIG/config.json"'
        machine.program("docker", f'case "$1" in login) {login} ;; pull) ;; *) exit 1 ;; esac')

    base = f'base = "{CUDA}:{TAG}@{servers.base.digest}"\nglibc = "2.36"\npython = "{RUNNING}"\n'
    spec = SPEC.format(python=RUNNING).replace('"own", "weekly"', '"own"')
    repository = repository_of(folder, f"{spec}\n[image]\n{base}", environ, "--image")
    with Forge(folder / "forge", repository) as forge:
        yield Hosted(folder / "run", forge, values, prepare, **environ)


def test_an_image_gives_a_build_no_login_of_a_registry(tmp_path: Path) -> None:
    with image_servers(hostile_build(tmp_path)) as servers, imaging(tmp_path, servers) as host:
        ran = host.runs("workflows/gpu-conformance.yml")
        assert has_got(tmp_path, host.forge) == []
        # What is run on the GPU's machine is what was pushed: no output of the build's says so.
        assert ran["push"].failed == [], ran["push"].said
        [row] = json.loads(ran["push"].outputs["matrix"])["include"]
        assert row["image"].startswith(f"{servers.registry.host}/acme/stacks@sha256:")
        assert set(servers.registry.held.tags) == {"nvidia/cuda", "acme/stacks"}
    assert not (tmp_path / "ran").exists()


# What one job passes on to another


def receives(*words: str | Path, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-I", RECEIVED, *words]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one lock, and beside it a sound proposal of another moment."""
    for folder in (tmp_path / "checkout", tmp_path / "proposal"):
        (folder / "specs").mkdir(parents=True)
        (folder / "locks" / "small").mkdir(parents=True)
        moment = "2025-03-15" if folder.name == "checkout" else "2026-03-15"
        (folder / "specs/small.toml").write_text(f'[env]\nname = "small"\nas_of = {moment}T00:00:00Z # why\n')
        (folder / "locks/small/envspec.lock").write_text(folder.name)
    (tmp_path / "checkout/locks/small/conda-lock.yml").write_text("of before\n")
    (tmp_path / "checkout/.git/hooks").mkdir(parents=True)
    return tmp_path / "checkout"


def below(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode & 0o777, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_sound_proposal_is_taken(checkout: Path) -> None:
    proposal = checkout.parent / "proposal"
    (proposal / "locks/small/envspec.lock").chmod(0o777)
    assert receives("locks", proposal, cwd=checkout).returncode == 0
    found = below(checkout)
    assert set(found) == {"specs/small.toml", "locks/small/envspec.lock"}
    assert found["locks/small/envspec.lock"][1] == b"proposal" and b"2026-03-15" in found["specs/small.toml"][1]
    assert not any(mode & 0o111 for mode, _ in found.values()), "a mode comes from the checkout's umask alone"


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _text(text: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode())


def _hard_link(path: Path) -> None:
    path.hardlink_to(path.parents[3] / "checkout/specs/small.toml")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(17 * 2**20)


def _many(path: Path) -> None:
    path.mkdir()
    for number in range(1001):
        (path / f"{number}").touch()


def _spec(moment: str = "2026-03-15T00:00:00Z # why", name: str = "small") -> Callable[[Path], object]:
    return _text(f'[env]\nname = "{name}"\nas_of = {moment}\n')


#: Path in the proposal, what is put there, what the refusal says.
PROPOSALS: Final[list[tuple[str, Callable[[Path], object], str]]] = [
    *(
        (path, _text("on: push\n"), "is neither a spec")
        for path in (
            *(".github/workflows/evil.yml", ".github/received.py", ".git/hooks/pre-commit", ".gitmodules"),
            *("locks/small/.git", "locks/small/.gitattributes", "locks/README.md", "locks/small/more/envspec.lock"),
            *("locks/small/run.sh", "locks/small/envspec.lock\n", "locks/.small/envspec.lock"),
        )
    ),
    ("locks/small/conda-lock.yml", _link("/etc/hostname"), "not a regular file"),
    ("locks/other", _link("/etc"), "not a regular file"),
    ("specs/other.toml", _link("../../checkout/specs/small.toml"), "not a regular file"),
    ("locks/small/conda-lock.yml", os.mkfifo, "not a regular file"),
    ("locks/small/conda-lock.yml", _hard_link, "not a regular file"),
    ("locks/small/conda-lock.yml", _huge, "too large"),
    ("locks/small/more", _many, "more than 1000 files"),
    ("locks/small/conda-lock.yml", _text(b"\xff\xfe"), "is not text"),
    ("locks/small/conda-lock.yml", _text("version: x\x1b[2J\n"), "control characters"),
    ("locks/small/conda-lock.yml", _text("version: \u202ex\n"), "control characters"),
    ("specs/other.toml", _text(""), "do not match the locks"),
    ("locks/other/envspec.lock", _text(""), "do not match the locks"),
    ("specs/small.toml", _text("[env]\nas_of = 2026-03-15T00:00:00Z\n[pip]\n"), "as_of"),
    ("specs/small.toml", _spec(name="evil"), "more than its as_of"),
    ("specs/small.toml", _spec("2026-03-15T00:00:00Z # evil"), "more than its as_of"),
    ("specs/small.toml", _spec('"now" # why'), "more than its as_of"),
]


@pytest.mark.parametrize(("path", "put", "why"), PROPOSALS)
def test_a_hostile_proposal_is_refused(checkout: Path, path: str, put: Callable[[Path], object], why: str) -> None:
    before = below(checkout)
    place = checkout.parent / "proposal" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    put(place)
    ran = receives("locks", checkout.parent / "proposal", cwd=checkout)
    assert ran.returncode == 1 and why in ran.stderr.decode(), ran.stderr
    assert ran.stderr.startswith(b"::error::") and ran.stderr.count(b"\n") == 1
    assert below(checkout) == before


def test_a_step_with_the_token_runs_no_hook_and_pushes_no_mode(checkout: Path, tmp_path: Path) -> None:
    """The job that pushes, with an artifact whose files may be executed, and a hook in its own new checkout."""
    repository = Repository(tmp_path / "repository", [".github"])
    for path in ("specs/small.toml", "locks/small/envspec.lock"):
        repository.writes(path, (checkout / path).read_text())
    repository.commits("locked")
    with Forge(tmp_path / "forge", repository) as forge:
        host = Hosted(tmp_path / "run", forge, {"github.ref_name": "main", "needs.relock.outputs.changed": "yes"})
        (tmp_path / "run/artifacts/description").mkdir(parents=True)
        (tmp_path / "run/artifacts/description/refresh.md").write_text("closes #1, @somebody")
        shutil.copytree(tmp_path / "proposal", tmp_path / "run/artifacts/proposal")
        (tmp_path / "run/artifacts/proposal/locks/small/envspec.lock").chmod(0o755)
        ran = host._job("propose", job(REFRESH, "propose"), host.values)
        assert ran.failed == [], ran.said
        assert "100755" not in forge.git("ls-tree", "-r", "refresh-locks", "--", "locks", "specs")
        assert "#1" not in forge.body and "@somebody" not in forge.body


def _layout(folder: Path) -> dict[str, Any]:
    """A sound layout; its index."""
    base = make_base()
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for body in (*base.blobs, *base.manifests):
        (blobs / digest(body).partition(":")[2]).write_bytes(body)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = {"schemaVersion": 2, "manifests": [{"digest": base.digest, "size": len(base.index)}]}
    (folder / "index.json").write_text(json.dumps(index))
    return index


LAYOUTS: Final[list[tuple[str, Callable[[Path], object], str]]] = [
    ("evil.sh", _text(""), "not part of an image"),
    ("blobs/sha256/evil", _text(""), "not part of an image"),
    (f"blobs/sha256/{'0' * 64}", _link("/etc/hostname"), "not a regular file"),
    ("blobs/sha512", _link("/etc"), "not a regular file"),
    ("index.json", _text("{"), "not an image of one platform"),
    ("index.json", _text('{"manifests": [{}, {}]}'), "not an image of one platform"),
    ("index.json", _text('{"manifests": [{"digest": "sha256:../../x"}]}'), "is not a digest"),
    ("index.json", _text('{"manifests": [{"digest": 1}]}'), "not an image of one platform"),
    ("index.json", _text("[" * 100_000), "not an image of one platform"),
]


@pytest.mark.parametrize(("path", "put", "why"), LAYOUTS)
def test_a_hostile_layout_is_refused(tmp_path: Path, path: str, put: Callable[[Path], object], why: str) -> None:
    layout = tmp_path / "layout"
    _layout(layout)
    (layout / path).unlink(missing_ok=True)
    put(layout / path)
    ran = receives("layout", layout, cwd=tmp_path)
    assert ran.returncode == 1 and why in ran.stderr.decode() and ran.stdout == b"", ran


def test_a_manifest_that_names_what_is_elsewhere_is_refused(tmp_path: Path) -> None:
    """A registry's program would fetch the URL from the job that has the login, or read a file of its choice."""
    for place, layer in enumerate(({"urls": ["http://127.0.0.1:9/"]}, {"digest": f"sha256:{'1' * 64}"})):
        layout = tmp_path / f"layout-{place}"
        index = _layout(layout)
        path = layout / "blobs/sha256" / index["manifests"][0]["digest"].partition(":")[2]
        manifest = json.loads(path.read_text())
        manifest["layers"][0] |= layer
        body = json.dumps(manifest).encode()
        (layout / "blobs/sha256" / digest(body).partition(":")[2]).write_bytes(body)
        (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": digest(body)}]}))
        ran = receives("layout", layout, cwd=tmp_path)
        assert ran.returncode == 1 and b"a blob is not in the layout" in ran.stderr


def test_a_sound_layout_is_named_by_its_digest(tmp_path: Path) -> None:
    index = _layout(tmp_path / "layout")
    ran = receives("layout", tmp_path / "layout", cwd=tmp_path)
    assert ran.stdout.decode().strip() == index["manifests"][0]["digest"], ran.stderr


@pytest.mark.parametrize(
    "text",
    [
        *("@acme/all", "closes #1", "fixes GH-12", "acme/stacks#3", "<img src=x>", "</details>", "<!-- x -->"),
        *("[x](javascript:alert(1))", "![x](//evil)", "[x]: https://evil", "[x][y]", "https://evil.example.com"),
        *("www.evil.example.com", "<https://evil>", "\x1b[2J", "\u202eabc", "a\rb", "\x9b2J"),
    ],
)
def test_a_text_that_is_posted_does_nothing(tmp_path: Path, text: str) -> None:
    ran = receives("text", cwd=tmp_path, stdin=f"a {text} b".encode())
    assert ran.returncode == 0 and text not in ran.stdout.decode()
    # Nothing of it is lost to who reads it.
    assert ran.stdout.decode().replace("\u200b", "") == f"a {text} b" or "\\u" in ran.stdout.decode()


def test_a_text_that_is_posted_keeps_its_tables_and_its_length(tmp_path: Path) -> None:
    table = "| package | | old |\n| --- | --- | --- |\n| app | up | `1.0@sha256:ab` |\n"
    kept = f"## locks/small\n\n{table}\n```text\n$ x < 1\n```\n"
    assert receives("text", cwd=tmp_path, stdin=kept.encode()).stdout.decode() == kept
    assert len(receives("text", cwd=tmp_path, stdin=b"@a" * 100_000).stdout.decode()) <= 65_536
