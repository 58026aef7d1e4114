"""`envspec fleet report`: folders of receipts, whole and broken."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envspec.conformance.receipt import RECEIPT_MARK
from envspec.errors import UsageError
from envspec.operations.fleet import SCHEDULERS, read_fleet
from envspec.receipts.fleet import NodeVerdict
from envspec.receipts.model import Receipt, dump
from tests.receipts.test_fleet import run
from tests.support.machines import NotRun
from tests.support.servers.kubernetes import RUNNING, Cluster, Plan
from tests.support.user import User


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
    (where / "nodes.json").write_text(
        json.dumps({"nodes": {name: {"state": "finished", "reason": ""} for name in "abc"}}), encoding="utf-8"
    )
    damage(where / "b" / "receipt.json")
    found = {each.name: each for each in read_fleet(where).nodes}
    assert set(found) == {"a", "b", "c"}
    assert found["b"].verdict is NodeVerdict.DRAIN and found["b"].reasons[0].startswith("lost: ")
    assert found["a"].verdict is found["c"].verdict is NodeVerdict.OK


def test_names_of_nodes_lead_to_no_other_folder(tmp_path: Path) -> None:
    where = folder_of(tmp_path / "run", "a")
    folder_of(tmp_path, "elsewhere")
    names = ["a", "../elsewhere", str(tmp_path / "elsewhere"), "a/../../elsewhere", "x\0y", "n" * 300, ".", ".."]
    states = {name: {"state": "finished", "reason": ""} for name in names}
    (where / "nodes.json").write_text(json.dumps({"nodes": states}), encoding="utf-8")
    found = {each.name: each.reasons for each in read_fleet(where).nodes}
    assert found == {"a": (), **dict.fromkeys(names[1:], ("lost: no receipt",))}


@pytest.mark.parametrize(
    ("state", "reason", "lost"),
    [("lost", "NODE_FAIL", "NODE_FAIL"), ("lost", "", "its state is lost"), ("running", "", "its state is running")],
)
def test_a_node_that_did_not_finish_is_lost_whatever_it_wrote(
    tmp_path: Path, state: str, reason: str, lost: str
) -> None:
    where = folder_of(tmp_path, "a")
    (where / "nodes.json").write_text(json.dumps({"nodes": {"a": {"state": state, "reason": reason}}}), "utf-8")
    assert read_fleet(where).nodes[0].reasons == (f"lost: {lost}",)


@pytest.mark.parametrize("damage", [break_, empty, other, binary, nested, huge])
def test_a_broken_list_of_nodes_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(folder_of(tmp_path, "a") / "nodes.json")
    with pytest.raises(UsageError, match="can't be read") as caught:
        read_fleet(tmp_path)
    assert caught.value.hint == "`fleet run` writes it"


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "slurm", "--image", "x", "--dry-run"), "--image is not for --on slurm"),
        (("--on", "slurm", "--nodes", "2", "--nodelist", "a", "--dry-run"), "both choose nodes"),
        (("--on", "slurm"), "add --report DIR"),
        (("--on", "kubernetes", "--python", "x", "--dry-run"), "--python is not for --on kubernetes"),
        (("--on", "kubernetes", "--gpus-per-node", "8", "--dry-run"), "nodes of Kubernetes pull an image"),
        (("--on", "kubernetes", "--image", "r/n:t", "--dry-run"), "add --gpus-per-node 8, or 0"),
        (("--on", "slurm", "--selector", "x", "--dry-run"), "the form is NAME=VALUE"),
        (("--on", "slurm", "--pull-secret", "x", "--dry-run"), "--pull-secret is not for --on slurm"),
        (("--on", "slurm", "--resource", "a=1", "--dry-run"), "--resource is not for --on slurm"),
        (("--on", "kubernetes", "--sbatch=--account=x", "--dry-run"), "--sbatch is not for --on kubernetes"),
        (("--on", "nomad"), "'nomad' is not one of"),
    ],
)
def test_options_that_do_not_fit(user: User, words: tuple[str, ...], message: str) -> None:
    root = Path(__file__).parents[2]
    ran = user.runs("fleet", "run", str(root / "locks/pytorch-2.9"), *words)
    assert ran.status == 2 and message in ran.stderr


def test_kubernetes_prints_its_objects(user: User) -> None:
    lock = Path(__file__).parents[2] / "locks/pytorch-2.9"
    words = ("--on", "kubernetes", "--image", "r.example/n:t", "--gpus-per-node", "8", "--dry-run")
    more = ("--toleration", "busy", "--resource", "rdma/hca=1", "--pull-secret", "login", "--shm-size", "1Gi")
    ran = user.runs("fleet", "run", str(lock), *words, "--nodes", "2", "--selector", "pool=gpu", *more)
    assert ran.status == 0, ran.stderr
    documents = [json.loads(each) for each in ran.stdout.split("---\n")[1:]]
    assert [each["kind"] for each in documents] == ["Job", "ConfigMap", "Service"]
    pod = documents[0]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "gpu"} and pod["imagePullSecrets"] == [{"name": "login"}]
    assert [each["key"] for each in pod["tolerations"]] == ["nvidia.com/gpu", "busy"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    assert any(each.get("emptyDir", {}).get("sizeLimit") == "1Gi" for each in pod["volumes"])


def test_the_command_offers_every_scheduler(user: User) -> None:
    assert f"[{'|'.join(SCHEDULERS)}]" in user.runs("fleet", "run", "--help").stdout


def test_a_run_on_kubernetes_ends_with_the_comparison(tmp_path: Path, user: User) -> None:
    if importlib.util.find_spec("kubernetes") is None:
        raise NotRun("the Python package kubernetes is not installed")
    lock = Path(__file__).parents[2] / "locks/pytorch-2.9"
    words = (
        "--on",
        "kubernetes",
        "--image",
        "r.example/n:t",
        "--gpus-per-node",
        "2",
        "--report",
        str(tmp_path / "out"),
    )
    bad, good = run(status="failed"), run()
    plans = [Plan(f"node-{n}", [RUNNING], f"{RECEIPT_MARK}{_line(bad if n == 2 else good)}\n") for n in range(4)]
    with Cluster(tmp_path, *plans) as cluster:
        environ = {"KUBECONFIG": str(cluster.kubeconfig()), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        ran = user.runs("fleet", "run", lock, *words, environ=environ)
        assert cluster.left == []
    assert ran.status == 7, ran.stderr
    assert "1 of 4 nodes is odd: drain node-2" in ran.stdout
    assert (tmp_path / "out" / "fleet.html").exists() and (tmp_path / "out" / "node-3" / "receipt.json").exists()


def _line(receipt: Receipt) -> str:
    return json.dumps(json.loads(dump(receipt)))
