"""`envspec fleet report`: folders of receipts, whole and broken."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from envspec.conformance.receipt import RECEIPT_MARK
from envspec.errors import UsageError
from envspec.operations.fleet import read_fleet
from envspec.receipts.fleet import NodeVerdict
from envspec.receipts.model import dump
from tests.receipts.test_fleet import run
from tests.support.user import User, succeeded


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path / "user", "http://127.0.0.1:9/")


def folder_of(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).mkdir(parents=True)
        (path / name / "receipt.json").write_text(dump(run()), encoding="utf-8")
    return path


def break_(path: Path) -> None:
    path.write_text("{", encoding="utf-8")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other(path: Path) -> None:
    path.write_text(json.dumps({"format": 99}), encoding="utf-8")


def binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00" * 1000)


def nested(path: Path) -> None:
    path.write_text("[" * 100_000, encoding="utf-8")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [break_, empty, other, binary, nested, huge, folder, Path.unlink])
def test_a_node_whose_receipt_can_not_be_read_is_lost(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    where = folder_of(tmp_path, "a", "b", "c")
    (where / "nodes.txt").write_text("a\nb\nc\n", encoding="utf-8")
    damage(where / "b" / "receipt.json")
    found = {each.name: each for each in read_fleet(where).nodes}
    assert set(found) == {"a", "b", "c"}
    assert found["b"].verdict is NodeVerdict.DRAIN and found["b"].reasons[0].startswith("lost: ")
    assert found["a"].verdict is found["c"].verdict is NodeVerdict.OK


def test_names_of_nodes_lead_to_no_other_folder(tmp_path: Path) -> None:
    where = folder_of(tmp_path / "run", "a")
    folder_of(tmp_path, "elsewhere")
    names = ["a", "../elsewhere", str(tmp_path / "elsewhere"), "a/../../elsewhere", "x\0y", "n" * 300, ".", ".."]
    (where / "nodes.txt").write_text("\n".join(names), encoding="utf-8")
    found = {each.name: each.reasons for each in read_fleet(where).nodes}
    assert found == {"a": (), **dict.fromkeys(names[1:], ("lost: no receipt",))}


@pytest.mark.parametrize("damage", [binary, huge])
def test_a_broken_list_of_nodes_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(folder_of(tmp_path, "a") / "nodes.txt")
    with pytest.raises(UsageError, match="can't be read") as caught:
        read_fleet(tmp_path)
    assert caught.value.hint == "write the names of the nodes, one on a line"


def test_receipts_that_somebody_gathered_are_a_fleet(tmp_path: Path) -> None:
    where = folder_of(tmp_path, "a", "b")
    (where / "notes").mkdir()
    together = where / "a" / "together"
    together.mkdir()
    (together / "receipt.json").write_text(dump(run(status="failed")), encoding="utf-8")
    found = {each.name: each.reasons for each in read_fleet(where).nodes}
    assert found == {"a": ("with the others: health: GPU 1: no remapping pending: 1",), "b": ()}


def test_the_command_writes_pages_and_its_exit_code_says_whether_to_drain(tmp_path: Path, user: User) -> None:
    where = folder_of(tmp_path / "fleet", "a", "b", "c")
    well = user.runs("fleet", "report", str(where), "--report", str(where))
    assert (well.status, well.stdout.partition("\n")[0]) == (0, "3 nodes: none differs from the others")
    assert {"fleet.html", "fleet.md", "fleet.json"} <= {path.name for path in where.iterdir()}
    (where / "b" / "receipt.json").write_text(dump(run(status="failed")), encoding="utf-8")
    drain = user.runs("fleet", "report", str(where), "--format", "json")
    assert drain.status == 7 and "1 of 3 nodes is odd: drain b" in drain.stderr
    document = json.loads(drain.stdout)
    assert document["drain"] == ["b"]
    nothing = user.runs("fleet", "report", str(tmp_path))
    assert nothing.status == 2 and "has no receipts" in nothing.stderr


LOCK = Path(__file__).parents[2] / "locks/pytorch-2.9"
IMAGE = ("--for", "kubernetes", "--image", "r.example/n:t")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--for", "slurm"), "add --receipts DIR"),
        (("--for", "slurm", "--receipts", "/proc/none"), "/proc/none/.envspec/suite.pyz can't be written"),
        (("--for", "slurm", "--receipts", "x", "--check", "none"), "there is no check none"),
        (("--for", "kubernetes", "--gpus-per-node", "8"), "nodes of Kubernetes pull an image"),
        (IMAGE, "add --gpus-per-node 8, or 0"),
        (("--for", "kubernetes", "--image", "http://r.example/n:t", "--gpus-per-node", "0"), "can't be given a scheme"),
        (("--for", "nomad"), "'nomad' is not one of"),
    ],
)
def test_options_that_do_not_fit(user: User, words: tuple[str, ...], message: str) -> None:
    ran = user.runs("fleet", "job", str(LOCK), *words)
    assert ran.status == 2 and message in ran.stderr


def documents_of(user: User, *words: str) -> dict[str, Any]:
    ran = succeeded(user.runs("fleet", "job", str(LOCK), *IMAGE, *words))
    return {each["kind"]: each for each in yaml.safe_load_all(ran.stdout)}


@pytest.mark.parametrize("version", ["1.35", "1.36", "1.37"])
@pytest.mark.parametrize(
    "words",
    [("--gpus-per-node", "8"), ("--gpus-per-node", "0", "--nodes", "1"), ("--gpus-per-node", "8", "--nodes", "2")],
)
def test_the_schemas_of_kubernetes_accept_the_objects(user: User, words: tuple[str, ...], version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in documents_of(user, *words).values():
        # It takes an older version's if it does not have this one's.
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_pods_of_every_node_wait_and_have_no_privilege(user: User) -> None:
    objects = documents_of(user, "--gpus-per-node", "8", "--device", "cpu")
    assert set(objects) == {"ConfigMap", "DaemonSet"}
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][-2:] == ["--print-receipt", "--wait"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["automountServiceAccountToken"] is False and "hostNetwork" not in pod


def test_several_nodes_train_together(user: User) -> None:
    objects = documents_of(user, "--gpus-per-node", "8", "--nodes", "2", "--minutes", "5")
    job = objects["Job"]["spec"]
    assert (job["completions"], job["parallelism"], job["activeDeadlineSeconds"]) == (2, 2, 300)
    assert objects["Service"]["spec"]["selector"] == job["template"]["metadata"]["labels"]
    words = job["template"]["spec"]["containers"][0]["command"]
    assert "--rendezvous=envspec-conformance-0.envspec-conformance:29400" in words


def test_the_suite_runs_from_the_config_map(user: User, tmp_path: Path) -> None:
    data = documents_of(user, "--gpus-per-node", "0", "--check", "family", "--device", "cpu")["ConfigMap"]
    (tmp_path / "suite.pyz").write_bytes(base64.b64decode(data["binaryData"]["suite.pyz"]))
    (tmp_path / "request.json").write_text(data["data"]["request.json"], encoding="utf-8")
    words = [sys.executable, "suite.pyz", "--request", "request.json", "--print-receipt"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    last = ran.stdout.splitlines()[-1]
    receipt = json.loads(last.removeprefix(RECEIPT_MARK))
    assert receipt["lock"]["name"] == "pytorch-2.9" and [each["check"] for each in receipt["checks"]] == ["family"]


def test_the_script_for_slurm_is_a_shell_script(user: User, tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    ran = succeeded(user.runs("fleet", "job", str(LOCK), "--for", "slurm", "--receipts", str(folder)))
    checked = subprocess.run(["sh", "-n"], input=ran.stdout, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert {path.name for path in (folder / ".envspec").iterdir()} == {"suite.pyz", "request.json", "together.json"}
