"""Each folder under golden/audit is a project, and what is reported of it; then formats, offline, and odd sources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec.context import Connectivity, Context
from envspec.diagnostics.audit import CHECKS, RULES
from envspec.diagnostics.audit.types import AuditReport, Severity
from envspec.documents import parse_toml
from envspec.errors import UsageError
from envspec.models import Platform
from envspec.operations.audit_project import AuditRequest, audit_project
from envspec.report import AUDIT
from envspec.structs import replace
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import LINUX_TAGS, compiled, release
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.golden import assert_golden
from tests.support.servers.index import IndexServer
from tests.support.user import CUT_OFF, ROOT, SHORT_BACKOFF, User

GOLDEN = Path(__file__).parent / "golden" / "audit"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.toml"))
NOW = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)


def packages() -> list[File]:
    """What the cases need beside the torch family."""
    arm = "cp311-cp311-manylinux_2_28_aarch64"
    return [
        *ecosystem.torch_family(),
        *ecosystem.yanked(),
        *ecosystem.conflict(),
        *[each for each in ecosystem.diamond() if each.filename.startswith("base")],
        *compiled("torch", "2.1.0", "2023-10-04", platforms=LINUX_TAGS[:1]),
        release("old-model", "1.0.0", requires=["torch==2.1.0", "numpy"]),
        release("array-library", "1.0.0", requires=["nvidia-cuda-runtime-cu12==12.4.127"]),
        release("nvidia-cudnn-cu12", "9.10.2.21"),
        release("tensorboard", "2.20.0", requires=["setuptools>=41"]),
        release("setuptools", "84.2.1"),
        File(wheel("only-arm", "1.0.0", tag=arm), day("2024-01-01")),
        *compiled("half", "1.0.0", pythons=["cp311-cp311"]),
        *compiled("half", "1.1.0"),
        File(sdist("half", "1.0.0"), day("2024-01-01")),
        File(sdist("flash-attn", "2.8.3"), day("2025-08-01")),
        File(sdist("sklearn", "0.0"), day("2020-01-01")),
    ]


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer(packages()) as server:
        yield server


@pytest.fixture(scope="module")
def context(index: IndexServer, tmp_path_factory: pytest.TempPathFactory) -> Context:
    home = tmp_path_factory.mktemp("home")
    environ = {"HOME": str(home), "ENVSPEC_CACHE_DIR": str(home / "cache"), "ENVSPEC_DEFAULT_INDEX": index.url}
    found = Context.from_environment({**environ, **SHORT_BACKOFF, **CUT_OFF})
    return replace(found, now=lambda: NOW)


def audited(folder: Path, context: Context, **options: Any) -> AuditReport:
    chosen: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in options.items()}
    return audit_project(AuditRequest(folder, **chosen), context)


def lines(report: AuditReport) -> str:
    """What the cases expect."""
    found = [
        f"{each.source}: {each.rule.severity.value} {each.rule.code}: {each.what}\n  -> {each.todo}"
        for each in report.findings
    ]
    not_run = [f"not run: {each.what}: {each.reason}" for each in report.not_run]
    return "".join(f"{line}\n" for line in [f"Python {report.python}", *found, *not_run])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path, context: Context) -> None:
    options = parse_toml((case / "case.toml").read_text(encoding="utf-8"))
    report = audited(case / "project", context, **options)
    assert_golden(lines(report), case / "expected.txt")


def test_each_rule_is_in_a_case_and_in_the_docs() -> None:
    expected = "".join((case / "expected.txt").read_text(encoding="utf-8") for case in CASES)
    docs = (ROOT / "docs" / "reference" / "audit-rules.md").read_text(encoding="utf-8")
    rare = {
        # The facts have the GPU code of every build; and what an extension's wheel has, of few of them.
        *("ENV203", "ENV204"),
    }
    assert set(RULES) - rare - set(re.findall(r"ENV\d{3}", expected)) == set()
    documented = re.findall(r"(?m)^\| (ENV\d{3}) \| (error|warning|info) \| ([^|]+) \|", docs)
    assert documented == [(code, rule.severity.value, rule.title) for code, rule in RULES.items()]


def test_a_second_run_of_a_day_needs_no_network(context: Context) -> None:
    folder = GOLDEN / "family-open" / "project"
    first = audited(folder, context)
    offline = replace(context, connectivity=Connectivity.OFFLINE)
    assert lines(audited(folder, offline)) == lines(first)


def test_what_needs_the_index_is_not_run_without_it(context: Context, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\ngone-since==1\n")
    cold = replace(context, connectivity=Connectivity.OFFLINE, cache=tmp_path / "cache")
    report = audited(tmp_path, cold, gpus=["RTX 5090"], driver="470")
    # The pin alone says which build it is.
    assert {each.rule.code for each in report.findings} == {"ENV201", "ENV205", "ENV301"}
    names = {each.what for each in report.not_run}
    assert {"versions of the index", "packages of the index", "versions that do not work together"} <= names
    assert not names & set(report.examined)
    assert len(report.examined) + len({check.name for check in CHECKS} & names) == len(CHECKS)


def test_formats(context: Context) -> None:
    report = audited(GOLDEN / "gone-yanked-unusable" / "project", context)
    document = json.loads(AUDIT.render("json", report))
    assert [each["code"] for each in document["findings"]] == [each.rule.code for each in report.findings]
    assert set(document["findings"][0]) == {"code", "severity", "file", "line", "what", "why", "source", "todo"}
    commands = AUDIT.render("github", report).splitlines()
    assert commands[0].startswith("::error file=requirements.txt,line=2,title=ENV502::the default index does not have")
    assert all(re.match(r"::(error|warning|notice) ", line) for line in commands)
    # A message is one line: its line feeds are escaped, and so is what a yanked release's authors wrote.
    assert len(commands) == len(report.findings) + len(report.not_run)
    sarif = json.loads(AUDIT.render("sarif", report))
    (run,) = sarif["runs"]
    assert {each["ruleId"] for each in run["results"]} <= {each["id"] for each in run["tool"]["driver"]["rules"]}
    assert "not run" in json.dumps(run["invocations"])
    assert "requirements.txt:2: error ENV502" in AUDIT.render("text", report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": [Path("missing.txt")]}, "there is no missing.txt"),
        ({"python": "three"}, "not a version"),
        ({"gpus": ["RTX 9999"]}, "unknown GPU"),
    ],
)
def test_what_can_not_be_examined(
    context: Context, tmp_path: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("filelock\n")
    with pytest.raises(UsageError, match=message):
        audited(tmp_path, context, **options)


def test_a_named_folder_is_examined_like_the_current_one(context: Context, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("filelock\ngone-since==1\n")
    (project / "requirements-dev.txt").write_text("filelock\n")
    report = audited(tmp_path, context, sources=[project])
    here = audited(project, context)
    assert [each.rule.code for each in report.findings] == [each.rule.code for each in here.findings]
    assert str(report.findings[0].source) == "project/requirements.txt:2"
    assert report.sources == ("project/requirements.txt",)
    assert "project/requirements-dev.txt" in {each.what for each in report.not_run}


def test_a_named_folder_without_sources(context: Context, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty has none of the files"):
        audited(tmp_path, context, sources=[tmp_path / "empty"])


def test_a_lock_file_says_what_is_taken(context: Context, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["torch", "torchaudio"]\n'
    )
    packages = {"app": "1", "torch": "2.9.1", "torchaudio": "2.11.0", "filelock": "3.13.0"}
    rows = "".join(
        f'[[package]]\nname = "{name}"\nversion = "{version}"\n'
        + (
            'source = { virtual = "." }\ndependencies = [{ name = "torch" }, { name = "torchaudio" }]\n'
            if name == "app"
            else 'source = { registry = "https://example.org/simple" }\n'
        )
        for name, version in packages.items()
    )
    (tmp_path / "uv.lock").write_text(f'version = 1\nrequires-python = ">=3.11"\n{rows}')
    found = [each for each in audited(tmp_path, context).findings if each.rule.code == "ENV102"]
    assert [each.what for each in found] == [
        "torchaudio 2.11.0 is chosen with torch 2.9.1, and works with torch>=2.11 only"
    ]


def test_other_platforms_have_no_cuda(context: Context, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.9.1\n")
    report = audited(tmp_path, context, platform=Platform.OSX_ARM64, driver="470", gpus=["H100"])
    assert {each.rule.code for each in report.findings if each.rule.severity is Severity.ERROR} == set()


def test_the_command_fails_if_there_are_errors_alone(index: IndexServer, tmp_path: Path) -> None:
    user = User(tmp_path, index.url)
    source = tmp_path / "requirements.txt"
    source.write_text("filelock==3.13.0\nbase==1.7.0\n")
    failed = user.runs("audit-project", "requirements.txt", "--format", "github")
    assert failed.status == 10 and "::error file=requirements.txt,line=2,title=ENV502::" in failed.stdout
    assert user.runs("audit-project", "requirements.txt", "--ignore", "env502").status == 0
    assert user.runs("audit-project", "--ignore", "ENV999").status == 2
    source.write_text("filelock\n")
    assert user.runs("audit-project").status == 0
