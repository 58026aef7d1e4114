"""Imports real projects' own files with `envspec init`, locks them, and compares with the lock of a spec that was
written by hand from the same lines: `python -m bench.import_projects FOLDER [--page init-projects.md]`.

FOLDER has the specs written by hand, NAME.toml; the projects' files are in bench/projects/NAME. Python, platform, GPUs,
system and date are those of the spec, by options of `init`. A difference is shown with both versions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.harness import describe, published, say, table
from bench.init_moves import environ_in, locked_in
from envspec.documents import parse_toml

PROJECTS: Final = Path(__file__).parent / "projects"
#: Those whose specs lock without an edit.
NAMES: Final = (
    *("audiosep", "colabfold", "comfyui", "dgl", "facefusion", "flax-testing", "fooocus", "litgpt", "llama-factory-ds"),
    *("nemo-reqs", "photomaker", "pytorch-fsdp2", "sam2", "sglang-extra", "speechbrain", "tf-models"),
    *("transformers-docker", "verl", "vllm-latest", "wan2.1-noflash", "whisperx"),
)
#: More options of `init`: the specs have these lines too.
_WORDS: Final[Mapping[str, Sequence[str]]] = {"litgpt": ("--extra", "extra")}
_LIMIT_S: Final = 600


@dataclass(slots=True)
class Row:
    """same: packages of one version in both locks. different: `NAME OURS / BY HAND`. lost: lines that init lost."""

    name: str
    same: int = 0
    different: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    problem: str = ""


def imported(name: str, spec: Path, folder: Path, environ: Mapping[str, str]) -> Row:
    """Lock a project twice: from its own file, and from the spec."""
    document = parse_toml(spec.read_text(encoding="utf-8"))
    env, cuda = document["env"], document.get("cuda", {})
    [source] = [path for path in sorted((PROJECTS / name).iterdir()) if path.is_file()]
    words = ["init", str(source), "--name", env["name"], "--python", env["python"], "--output", "spec.toml"]
    words += ["--as-of", env["as_of"].isoformat(), "--allow-incomplete", "--format", "json", "-q"]
    words += [word for each in env.get("platforms", ()) for word in ("--platform", each)]
    words += [word for each in cuda.get("gpus", ()) for word in ("--gpu", each)]
    words += ["--driver", cuda["driver"]] if "driver" in cuda else []
    words += ["--cuda", cuda["version"]] if "version" in cuda else []
    words += _WORDS.get(name, ())
    row = Row(name)
    done = _run(words, folder, environ)
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    row.lost = [f"{each['text']}: {each['reason']}" for each in answer.get("ledger", ()) if _is_lost(each)]
    by_hand = _run(["lock", str(spec), "--output", "by-hand", "-q"], folder, environ)
    if done.returncode or by_hand.returncode:
        lines = published(done.stderr if done.returncode else by_hand.stderr).splitlines()
        errors = [line for line in lines if line.startswith("error: ")] or lines
        row.problem = f"not locked: {errors[0].removeprefix('error: ')}".replace("|", "\\|")
        return row
    ours, theirs = locked_in(folder / "locks" / env["name"]), locked_in(folder / "by-hand")
    for each in sorted(ours.keys() | theirs.keys()):
        if ours.get(each) == theirs.get(each):
            row.same += 1
        else:
            row.different.append(f"{each} {ours.get(each, '-')} / {theirs.get(each, '-')}")
    return row


def _is_lost(entry: Mapping[str, Any]) -> bool:
    return entry["outcome"] in ("refused", "not understood", "not decided")


def _run(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envspec", *words]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )


def page(rows: Sequence[Row]) -> str:
    machine = describe()
    equal = sum(not (each.different or each.problem) for each in rows)
    lines = [
        "# Imported projects",
        "",
        f"`python -m bench.import_projects FOLDER` on {machine['date']}: the requirement files of real projects, "
        "imported with `envspec init` and locked, compared with locks of specs written by hand from the same lines. "
        f"{equal} of {len(rows)} have the same packages in the same versions.",
        "",
        *table(
            ("project", "equal packages", "different (import / by hand)", "lines not in the spec"),
            [
                (
                    each.name,
                    each.problem or str(each.same),
                    ", ".join(each.different[:6])
                    + (f" and {len(each.different) - 6} more" if len(each.different) > 6 else ""),
                    "; ".join(text.replace("|", "\\|")[:160] for text in each.lost[:4]),
                )
                for each in rows
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.import_projects", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--projects", default=",".join(NAMES))
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args(words)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="envspec-import-") as temporary:
        environ = environ_in(Path(temporary))
        for name in chosen.projects.split(","):
            folder = Path(temporary, name)
            folder.mkdir()
            rows.append(imported(name, (chosen.folder / f"{name}.toml").resolve(), folder, environ))
            say(f"{name}: {rows[-1].problem or rows[-1].same} {rows[-1].different} lost {rows[-1].lost}")
    if chosen.page:
        chosen.page.write_text(page(rows), encoding="utf-8")
    else:
        print(page(rows))
    return int(any(each.problem for each in rows))


if __name__ == "__main__":
    sys.exit(main())
