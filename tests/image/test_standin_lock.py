"""The stand-in's lock holds the packages of `locks/pytorch-2.9`; each difference is known, with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import e2e
from tests.support.machines import standin


def test_its_spec_asks_for_what_the_original_asks_for() -> None:
    ours, original = e2e.read(e2e.SPEC), e2e.read(e2e.ORIGINAL)
    assert ours["env"].pop("name") == f"{original['env'].pop('name')}-standin"
    # What the system layer holds has other names on another system.
    assert {key: ours[key] for key in original if key != "system"} == {
        key: value for key, value in original.items() if key != "system"
    }
    assert set(ours) - set(original) <= {"image", "system", "registry"}
    assert ours["image"] == {
        "base": f"docker.io/{standin.REPOSITORY}:{standin.TAG}",
        "glibc": standin.GLIBC,
        "python": standin.PYTHON,
    }


@pytest.mark.engine
@pytest.mark.network
def test_its_lock_holds_the_same_files(tmp_path: Path, standin_base: standin.Pushed) -> None:
    user = e2e.online(tmp_path)
    user.writes(e2e.spec_text(standin_base.registry))
    ran = user.runs("lock", user.spec, "--output", "standin")
    assert ran.status == 0, ran.stderr
    document, original = e2e.read(tmp_path / "standin" / "envspec.lock"), e2e.read(e2e.ORIGINAL_LOCK)

    ours, theirs = e2e.rows(document), e2e.rows(original)
    assert ours.keys() == theirs.keys()
    others = {name: (theirs[name][0], ours[name][0]) for name in ours if ours[name] != theirs[name]}
    assert others == {name: (theirs, ours) for name, (theirs, ours, _) in e2e.DIFFERENCES.items()}
    refused = {row["name"]: row.get("rejected", {}) for row in document["resolution"][0]["package"]}
    for name, (version, _, why) in e2e.DIFFERENCES.items():
        assert refused[name] == {"version": version, "why": why}

    (digest,) = document["base_image"]["digests"]
    assert document["base_image"]["repository"] == f"docker.io/{standin.REPOSITORY}"
    assert (digest["digest"], digest["source"], digest["kind"]) == (standin_base.digest, "registry", "index")
    assert document["resolution"][0]["python"] == {"version": standin.PYTHON, "source": "base"}
    for name in ("gpu_code", "gpus", "driver"):
        assert document[name] == original[name]
    for path in (tmp_path / "standin").iterdir():
        assert standin_base.registry not in path.read_text(), path.name
