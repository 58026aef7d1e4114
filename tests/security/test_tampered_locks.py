"""A lock that was changed on purpose, its checksums with it: who notices, and who shows it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from envspec.models import ImageId, Lock, Platform
from envspec.operations.image import record_images
from envspec.structs import replace
from tests.conftest import Serve
from tests.support.builders import ecosystem
from tests.support.builders.conda_channel import row, write_channel
from tests.support.builders.ecosystem import release
from tests.support.builders.images import RegistryInThread, hold_base, make_base
from tests.support.builders.locks import Change, forge, replacing, tamper
from tests.support.builders.projects import Dialect, Times
from tests.support.servers.faults import Status
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import PushRegistry
from tests.support.user import Ran, User, refused, routed, succeeded

AS_OF: Final = "2026-06-01T00:00:00Z"
EVIL: Final = "ab" * 32
CUDA: Final = '[image]\nbase = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"\nglibc = "2.36"\n'


@pytest.fixture
def registry() -> Iterator[RegistryInThread]:
    with RegistryInThread(PushRegistry()) as running:
        hold_base(running.held, make_base())
        yield running


@pytest.fixture
def corp(serve: Serve) -> IndexServer:
    return serve(ecosystem.private())


@pytest.fixture
def user(tmp_path: Path, serve: Serve, corp: IndexServer, registry: RegistryInThread) -> User:
    """Has locked wheels of two indexes, a Python and a base image."""
    user = User(tmp_path, serve([*ecosystem.diamond(), release("extra", "1.0.0"), *ecosystem.public_twin()]).url)
    rest = f'{routed("corp", corp.url, "corp-*")}{CUDA}[registry.mirrors]\n"docker.io" = "{registry.host}"\n'
    user.wants("app", "corp-app", as_of=AS_OF, python="3.11", rest=rest)
    succeeded(user.locks())
    return user


def of(user: User, name: str) -> dict[str, str]:
    file: dict[str, str] = user.packages()[name]["file"]
    return file


def sha256_of(user: User, name: str) -> tuple[str, str]:
    return of(user, name)["sha256"], EVIL


@dataclass(frozen=True)
class Attack:
    """pairs: old and new text. offline: whether `--check` can see it. row: what `--verify` says of it. shown: what
    `diff` says of it. Each may name `<URL>` and `<CORP>`, the URL and the hash of corp-core; `<LEFT>`, `<PYTHON>` and
    `<BASE>`, the other hashes.
    """

    pairs: tuple[tuple[str, str], ...]
    offline: bool
    row: str
    shown: str

    def change(self, user: User) -> Change:
        document, corp = user.document(), of(user, "corp-core")
        names = {"URL": corp["url"], "CORP": corp["sha256"], "LEFT": of(user, "left")["sha256"]}
        names["ELSE"] = corp["url"].replace("corp_core", "x/corp_core")
        names["PYTHON"] = document["resolution"][0]["python"]["sha256"]
        names["BASE"] = document["base_image"]["digests"][0]["digest"]

        def filled(text: str) -> str:
            return re.sub("<([A-Z]+)>", lambda found: names[found[1]], text)

        return replacing(*((filled(old), filled(new)) for old, new in self.pairs))


EVIL_LEFT: Final = "https://evil.example/left-1.0.0-py3-none-any.whl"
EVIL_CORP: Final = "https://evil.example/corp_core-1.2.0-py3-none-any.whl"
ASTRAL: Final = "https://evil.example/astral-sh/"
LEFT: Final = '\n[[resolution.package]]\nname = "left"'
#: One that the public index has, with the hash that it has there.
EXTRA: Final = (
    '\n[[resolution.package]]\nname = "extra"\nversion = "1.0.0"\n'
    f'file = {{ index = "default", filename = "extra-1.0.0-py3-none-any.whl", sha256 = "{EVIL}" }}\n'
    'required_by = [{ name = "app", requirement = "extra" }]\n'
)
OVERRIDE: Final = '\n[[override]]\nname = "left"\nrequirement = "left"\nreason = "old"\n'
ATTACKS: Final = {
    "a hash": Attack((("<LEFT>", EVIL),), False, f"linux-64: left: file.sha256: locked {EVIL}", "left"),
    "a URL and its hash": Attack(
        (("<URL>", EVIL_CORP), ("<CORP>", EVIL)), True, f"linux-64: corp-core: file.url: locked {EVIL_CORP}", EVIL_CORP
    ),
    "a URL on the index's host": Attack(
        (("<URL>", "<ELSE>"), ("<CORP>", EVIL)),
        False,
        "linux-64: corp-core: file.url: locked http://127.0.0.1",
        "x/corp_core-1.2.0-py3-none-any.whl",
    ),
    "a URL for the default index": Attack(
        (('"<LEFT>" }', f'"<LEFT>", url = "{EVIL_LEFT}" }}'), ("left==1.0.0", f"left @ {EVIL_LEFT}")),
        True,
        f"linux-64: left: file.url: locked {EVIL_LEFT}, resolved (none)",
        EVIL_LEFT,
    ),
    "a private package from the public index": Attack(
        (
            ('index = "corp", filename = "corp_core', 'index = "default", filename = "corp_core'),
            (', url = "<URL>"', ""),
            ("corp-core @ <URL>", "corp-core==1.2.0"),
        ),
        True,
        "linux-64: corp-core: file.index: locked default, resolved corp",
        "corp",
    ),
    "a file of another package": Attack(
        (("left-1.0.0-py3-none-any.whl", "extra-1.0.0-py3-none-any.whl"),),
        True,
        "linux-64: left: file.filename: locked extra-1.0.0-py3-none-any.whl",
        "extra-1.0.0-py3-none-any.whl",
    ),
    "a Python archive": Attack(
        (("https://github.com/astral-sh/", ASTRAL), ("<PYTHON>", EVIL)),
        True,
        f"linux-64: python.url: locked {ASTRAL}",
        ASTRAL,
    ),
    "a base image's digest": Attack(
        (("<BASE>", f"sha256:{EVIL}"),),
        False,
        f"digest: locked sha256:{EVIL}",
        "base image docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04  digest",
    ),
    "a base image's repository": Attack(
        (('repository = "docker.io/nvidia/cuda"', 'repository = "docker.io/nvidla/cuda"'),),
        True,
        "base_image.repository: locked docker.io/nvidla/cuda",
        "nvidla",
    ),
    "an override that the spec does not have": Attack(
        (
            ('name = "app", requirement = "left" }', 'name = "app", requirement = "left", replaces = "left<1" }'),
            ("\n[base_image]\n", f"{OVERRIDE}\n[base_image]\n"),
        ),
        True,
        "linux-64: left: required_by",
        "override.left",
    ),
    "a requirement that the spec does not remove": Attack(
        (
            ('requirement = "app" }]', 'requirement = "app" }]\nremoved = ["left"]'),
            ("\n[base_image]\n", f"{OVERRIDE}removed = true\n\n[base_image]\n"),
        ),
        True,
        "linux-64: app: removed",
        "override.left",
    ),
    "a folder of the builder's, in the image": Attack(
        (
            (
                "\n[[resolution]]\n",
                '\n[image]\nworkdir = "/workspace"\ncompiler = "none"\ncopy = ["../x"]\n\n[[resolution]]\n',
            ),
        ),
        True,
        "image: locked ",
        "image.copy",
    ),
    "an extra package": Attack(
        ((LEFT, EXTRA + LEFT), ("\nleft==", f"\nextra==1.0.0 \\\n    --hash=sha256:{EVIL}\n    # via app\nleft==")),
        False,
        "linux-64: extra: package: locked 1.0.0, resolved (none)",
        "extra",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_who_notices(name: str, user: User) -> None:
    attack, whole = ATTACKS[name], user.files()
    shutil.copytree(user.lock, user.folder / "before")
    assert user.locks("--check").status == 0
    verified = user.locks("--verify")
    assert (verified.status, verified.stdout) == (0, ""), verified
    forge(user.lock, attack.change(user))
    changed = user.files()
    assert user.locks("--check").status == (3 if attack.offline else 0)
    found = user.locks("--verify")
    assert found.status == 3 and "Traceback" not in found.stderr, found
    assert attack.row in found.stdout, found
    assert user.files() == changed, "--verify writes nothing"
    shown = user.runs("diff", "before", user.lock)
    assert shown.status == 10 and attack.shown in shown.stdout, shown
    # Neither the memory of whole locks nor the old lock brings it back.
    ran = succeeded(user.locks())
    assert user.files() == whole, (ran, user.runs("diff", "before", user.lock).stdout)


def test_the_requirements_alone(user: User) -> None:
    """pip installs from that file; what a comment holds is a line for it where a carriage return ends one."""
    for change in (
        replacing(sha256_of(user, "left")),
        lambda text: text + f"extra==1.0.0 \\\n    --hash=sha256:{EVIL}\n",
        lambda text: text.replace("    # via app", "    # via app\rextra==1.0.0", 1),
        lambda text: text.replace("left==1.0.0 ", "left @ https://evil.example/left-1.0.0-py3-none-any.whl "),
    ):
        assert user.locks().status == 0
        tamper(user.lock, lambda text, change=change: change(text) if "--hash" in text else f"{text}\n")  # type: ignore[misc]
        ran = user.locks("--check")
        assert ran.status == 3 and "requirements.linux-64.txt: sha256:" in ran.stderr, ran
        found = user.locks("--verify")
        assert found.status == 3 and "requirements.linux-64.txt: locked sha256:" in found.stdout


def test_a_file_that_no_lock_names(user: User) -> None:
    (user.lock / "requirements.linux-aarch64.txt").write_text("extra==1.0.0\n")
    found = user.locks("--verify")
    assert found.status == 3 and "requirements.linux-aarch64.txt: locked sha256:" in found.stdout


def test_a_moment_of_the_locks_own(user: User) -> None:
    tamper(user.lock, replacing((f"as_of = {AS_OF}", "as_of = 2023-06-01T00:00:00Z")))
    ran = user.locks("--check")
    assert ran.status == 3 and '  as_of: "2023-06-01 00:00:00+00:00" -> ' in ran.stderr, ran
    assert user.locks("--verify").status == 3


def test_without_a_network_nothing_is_verified(user: User, corp: IndexServer) -> None:
    ran = user.locks(
        "--verify", ENVSPEC_CACHE_DIR=str(user.folder / "empty"), ENVSPEC_DEFAULT_INDEX="http://127.0.0.1:9/"
    )
    refused(ran, 5)
    assert "verified" not in ran.stderr


def test_cached_pages_are_validated_with_their_indexes(user: User, serve: Serve) -> None:
    """Of an index without upload times too, whose files may be replaced."""
    pages = serve(ecosystem.private(), Dialect(times=Times.HIDDEN))
    rest = user.spec.read_text().partition("\n[image]")[2]
    corp = routed("corp", pages.url, "corp-*", undated="accept")
    user.wants("app", "corp-app", as_of=AS_OF, python="3.11", rest=f"{corp}[image]{rest}")
    succeeded(user.locks())
    pages.forget()
    succeeded(user.locks("--verify"))
    again = [(request.path, request.status) for request in pages.requests]
    assert sorted(again) == [("/simple/corp-app/", 304), ("/simple/corp-core/", 304)]
    pages.add(release("corp-core", "1.3.0"))
    verified = user.locks("--verify")
    assert verified.status == 3 and "corp-core: version: locked 1.2.0, resolved 1.3.0" in verified.stdout, verified
    pages.fail("/simple/*", Status(401))
    assert "/simple/corp-app/: HTTP 401" in refused(user.locks("--verify"), 5)
    # Locks need no answer: nothing that was uploaded up to `as_of` can be new.
    assert user.locks().status == 0


def test_what_does_not_go_with_it(user: User) -> None:
    for words in (("--check",), ("--offline",), ("--upgrade",), ("--as-of", "now"), ("--image",)):
        assert "--verify " in refused(user.locks("--verify", *words), 2)


def test_a_tag_that_has_moved_since(user: User, registry: RegistryInThread) -> None:
    """The locked digest stays, as it is in the repository; that it was the tag's, nobody can say."""
    before = user.files()
    hold_base(registry.held, make_base(layers=3))
    found = user.locks("--verify")
    assert found.status == 0, found
    assert "not verified: " in found.stderr and "nothing shows that the tag ever named it" in found.stderr
    assert "verified except for what is not verified" in found.stderr
    ran = user.locks(ENVSPEC_CACHE_DIR=str(user.folder / "another"))
    assert ran.status == 0 and user.files() == before
    assert any("not verified: " in text for text in ran.warnings)


def test_a_registry_that_is_away_verifies_no_digest(user: User) -> None:
    spec = user.spec.read_text()
    user.writes(re.sub(r'"docker.io" = ".*"', '"docker.io" = "127.0.0.1:9"', spec))
    assert "127.0.0.1:9" in refused(user.locks("--verify"), 5)
    # Who locks elsewhere is warned, and again until the registry was asked.
    tamper(user.lock, ATTACKS["a base image's digest"].change(user))
    for _ in range(2):
        ran = user.locks()
        assert ran.status == 0 and any("not verified: base images" in text for text in ran.warnings), ran
    user.writes(spec)
    assert user.locks().status == 0
    assert EVIL.encode() not in b"".join(user.files().values())


def test_files_on_another_host(tmp_path: Path, serve: Serve, corp: IndexServer) -> None:
    """The lock is refused until the spec names the host, and then `--check` knows it too."""
    from tests.operations.test_lock_private_index import page_with_link

    cdn = serve(ecosystem.private())
    user = User(tmp_path, serve([]).url)
    name = "corp_core-1.2.0-py3-none-any.whl"
    corp.fail("/simple/corp-core/", page_with_link(cdn.file_url(name)))
    user.wants("corp-core", rest=routed("corp", corp.url, "corp-core"))
    message = refused(user.locks(), 5)
    assert cdn.file_url(name) in message and f'files = ["{cdn.root}"]' in message and user.files() == {}
    user.wants("corp-core", rest=routed("corp", corp.url, "corp-core", files=[cdn.root]))
    assert user.locks().status == 0
    assert user.locks("--check").status == 0


def conda_user(folder: Path) -> User:
    channel = write_channel(folder / "forge", [row("python", "3.12.11", "h0_0"), row("tool", "1.0", "h0_0")])
    user = User(folder, "http://127.0.0.1:9/")
    user.writes(
        f'[env]\nname = "small"\npython = "3.12"\nas_of = {AS_OF}\n'
        f'[conda]\nchannels = ["{channel.as_uri()}"]\ndependencies = ["tool"]\n'
    )
    assert user.locks().status == 0
    return user


@pytest.mark.parametrize(
    ("pairs", "offline", "message"),
    [
        ([("/linux-64/tool-1.0-h0_0.conda", "/../evil/linux-64/tool-1.0-h0_0.conda")], True, "tool: url: locked file:"),
        ([("tool-1.0-h0_0.conda", "tool-1.1-h0_0.conda")], True, "tool: filename: locked tool-1.1-h0_0.conda"),
        ([("SHA", EVIL)], False, f"tool: sha256: locked {EVIL}"),
    ],
    ids=["url", "filename", "sha256"],
)
def test_a_conda_row(tmp_path: Path, pairs: list[tuple[str, str]], offline: bool, message: str) -> None:
    user = conda_user(tmp_path)
    whole = user.files()
    assert user.locks("--check").status == user.locks("--verify").status == 0
    [tool] = [each for each in user.document()["resolution"][0]["conda"] if each["name"] == "tool"]
    tamper(user.lock, replacing(*((old.replace("SHA", tool["sha256"]), new) for old, new in pairs)))
    assert user.locks("--check").status == (3 if offline else 0)
    found = user.locks("--verify")
    assert found.status == 3 and f"linux-64: {message}" in found.stdout, found
    assert user.locks().status == 0
    assert user.files() == whole


def test_a_channel_in_place_of_the_specs(tmp_path: Path) -> None:
    user = conda_user(tmp_path)
    tamper(user.lock, lambda text: text.replace(f"{user.folder}/forge", f"{user.folder}/evil"))
    assert f"channel.file://{user.folder}/evil: present -> (none)" in user.locks("--check").stderr
    assert user.locks("--verify").status == 3


def test_a_part_of_a_channel_has_to_be_named_again(tmp_path: Path) -> None:
    rows = [row("python", "3.12.11", "h0_0"), row("tool", "1.0", "h0_0")]
    part = f"https://conda.example.com/forge={write_channel(tmp_path / 'part', rows)}"
    user = User(tmp_path, "http://127.0.0.1:9/")
    conda = '[conda]\nchannels = ["https://conda.example.com/forge"]\ndependencies = ["tool"]\n'
    user.writes(f'[env]\nname = "small"\npython = "3.12"\n{conda}')
    assert user.locks("--channel-repodata", part).status == 0
    assert "--channel-repodata https://conda.example.com/forge=DIR" in user.locks("--verify").stderr
    found = user.locks("--verify", "--channel-repodata", part)
    assert (found.status, found.stdout) == (0, ""), found


def test_what_builds_have_recorded_is_not_verified(tmp_path: Path, serve: Serve) -> None:
    user = User(tmp_path, serve([release("left", "1.0.0")]).url)
    base = f'[image]\nbase = "example.org/base:1@sha256:{EVIL}"\nglibc = "2.36"\npython = "3.11.7"\n'
    user.wants("left", as_of=AS_OF, rest=base)
    assert user.locks().status == 0

    def found(lock: Lock, platform: Platform) -> Lock:
        return replace(lock, images=(ImageId(platform, f"sha256:{EVIL}", pyc=True),))

    record_images(user.lock, found, lambda _: None)
    ran = user.locks("--verify")
    assert ran.status == 0 and f"linux-64: the image ID sha256:{EVIL}" in ran.stderr, ran
    assert "verified except for what is not verified" in ran.stderr


def test_a_moved_branch_is_no_tampering_and_a_strange_commit_is(tmp_path: Path, serve: Serve) -> None:
    from tests.operations.test_build_projects import Repository, user_of

    repository = Repository(tmp_path / "repo.git")
    first = repository.git("rev-parse", "HEAD")
    user = user_of(tmp_path / "user", serve([release("lib", "1.0.0")]), f"own @ {repository.url}@main")
    assert user.locks().status == 0
    assert user.locks("--verify").status == 0
    whole = user.files()
    repository.commit({"own.py": b"ANSWER = 2\n"})
    found = user.locks("--verify")
    assert found.status == 0 and f"the locked commit {first} is in its history" in found.stderr, found
    # A commit that the repository gives, and no branch has: a server gives those of forks too.
    repository.git("checkout", "--quiet", "--orphan", "strange")
    strange = repository.commit({"own.py": b"ANSWER = 3\n"})
    repository.git("checkout", "--quiet", "main")
    forge(user.lock, replacing((first, strange)))
    assert user.locks("--check").status == 0
    found = user.locks("--verify")
    assert found.status == 3 and strange in found.stdout, found
    assert user.locks().status == 0
    assert strange.encode() not in b"".join(user.files().values())
    assert whole != user.files()


def without_as_of(folder: Path, index: IndexServer, *names: str) -> User:
    """Has a lock of June 2024, and a spec that says no date any more."""
    user = User(folder, index.url)
    user.wants(*names, as_of="2024-06-01T00:00:00Z")
    assert user.locks().status == 0
    user.wants(*names)
    assert user.locks().status == 0
    return user


def test_a_lock_that_has_moments_of_its_own(tmp_path: Path, serve: Serve) -> None:
    """It is resolved at them, by whoever has nothing of it, and the output says so."""
    releases = [release("right", "1.0.0"), release("right", "2.0.0", "2025-01-01")]
    releases += [release("top", "1.0.0", requires=["right"]), release("top", "2.0.0", "2025-01-01", requires=["right"])]
    user = without_as_of(tmp_path, serve(releases), "top")
    assert user.locks("--upgrade-package", "top").status == 0
    assert user.pins() == {"right": "1.0.0", "top": "2.0.0"}
    found = user.locks("--verify", ENVSPEC_CACHE_DIR=str(tmp_path / "another"))
    assert (found.status, found.stdout) == (0, ""), found
    assert "as of 2024-06-01T00:00:00Z, as in the lock" in found.stderr


@pytest.mark.parametrize("moment", ["2024-06-01T00:00:00Z", "2025-07-01T00:00:00Z"])
def test_a_moment_that_brings_an_old_release_back(tmp_path: Path, serve: Serve, moment: str) -> None:
    index = serve([release("left", "1.0.0"), release("left", "2.0.0", "2025-01-01")])
    user = without_as_of(tmp_path, index, "left")
    own = f'# end of header\n\n[[package_as_of]]\nname = "left"\nas_of = {moment}\n'
    new = "as_of = 2025-06-01T00:00:00Z"
    tamper(user.lock, replacing(("as_of = 2024-06-01T00:00:00Z", new), ("# end of header\n", own)))
    if moment < "2025-06":
        assert "package_as_of.left: present -> (none)" in user.locks("--check").stderr
    assert user.locks("--verify").status == 3


def test_a_lock_from_elsewhere_is_resolved_once(user: User) -> None:
    """A cache without it proves nothing: what the lock says of itself is no witness."""
    whole, elsewhere = user.files(), str(user.folder / "another")
    cut_off = "http://127.0.0.1:9/"
    assert user.locks(ENVSPEC_CACHE_DIR=elsewhere, ENVSPEC_DEFAULT_INDEX=cut_off).status == 5
    assert user.locks(ENVSPEC_CACHE_DIR=elsewhere).status == 0
    ran = user.locks(ENVSPEC_CACHE_DIR=elsewhere, ENVSPEC_DEFAULT_INDEX=cut_off)
    assert ran.status == 0 and "nothing changed" in ran.stderr
    assert user.files() == whole


def test_json_of_a_diff_names_it_first(user: User) -> None:
    shutil.copytree(user.lock, user.folder / "before")
    tamper(user.lock, ATTACKS["a URL and its hash"].change(user))
    shown: Ran = user.runs("diff", "before", user.lock, "--format", "json")
    data = json.loads(shown.stdout)
    [other] = data["replaced"]
    assert (other["kind"], other["name"], other["new"]) == ("wheel", "corp-core", "1.2.0")
