"""Installs generated environments of real packages with uv, imports each with `envspec init --prefix`, and compares the
lock with what is installed: `python -m bench.init_moves [--count 200] [--seed 1] [--page init-moves.md]`.

Each environment has a seed: a date, a Python, and a few packages, some of them older than the newest of that date, some
with extras. Compared by this module's own reading of both sides: the names and versions in site-packages, and those in
the lock. A version counts as explained if `init` lists it with a reason; a package that is neither in the spec nor in
the ledger is lost. Exit code 1 if one is neither equal nor explained, or lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from bench.harness import clean, describe, published, say, table, uv
from envspec.documents import parse_toml
from envspec.names import normalised

#: Packages with wheels of a few megabytes at most, of which many require others.
_NAMES: Final = """
aiohttp anyio attrs beautifulsoup4 black boto3 celery click coverage cryptography dask datasets diskcache docker
einops faker fastapi filelock flask fsspec gradio-client grpcio h5py httpx huggingface-hub hydra-core ipython
isort jinja2 jsonschema loguru lxml markdown marshmallow matplotlib mlflow-skinny msgpack mypy networkx nltk
numpy omegaconf openai opentelemetry-sdk orjson packaging pandas pillow platformdirs pluggy poetry-core polars
protobuf psutil pyarrow pydantic pygments pytest python-dotenv pyyaml regex requests rich ruff safetensors
scikit-learn scipy seaborn sentencepiece shapely simplejson sqlalchemy starlette sympy tensorboard tokenizers
tqdm transformers typer urllib3 uvicorn wandb websockets werkzeug xarray
"""
POOL: Final = tuple(_NAMES.split())
#: Extras of some of them.
EXTRAS: Final[Mapping[str, str]] = {
    "httpx": "http2",
    "pydantic": "email",
    "requests": "socks",
    "transformers": "tokenizers",
    "uvicorn": "standard",
    "fsspec": "http",
    "sqlalchemy": "asyncio",
    "dask": "array",
}
_FIRST, _LAST = date(2024, 3, 1), date(2026, 9, 1)
_LIMIT_S: Final = 300


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed. moved: packages that are then replaced by an older release."""

    seed: int
    python: str
    day: date
    packages: tuple[str, ...]
    downgraded: str = ""


@dataclass(slots=True)
class Outcome:
    """problem: why the environment could not be made, or imported. wrong: what is neither equal nor explained."""

    environment: Environment
    installed: int = 0
    equal: int = 0
    explained: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    verified: int = 0
    seconds: float = 0.0
    problem: str = ""


def generated(seed: int, pythons: Sequence[str]) -> Environment:
    """The environment of a seed: the same in every run."""
    drawn = random.Random(seed)
    day = _FIRST + timedelta(days=drawn.randrange((_LAST - _FIRST).days))
    names = drawn.sample(POOL, drawn.randint(2, 6))
    packages = [f"{name}[{EXTRAS[name]}]" if name in EXTRAS and drawn.random() < 0.5 else name for name in names]
    downgraded = names[0] if drawn.random() < 0.3 else ""
    # The oldest dates have no wheels for the newest Python.
    usable = [each for each in pythons if each != "3.13" or day > date(2025, 3, 1)]
    return Environment(seed, drawn.choice(usable), day, tuple(packages), downgraded)


def environ_in(folder: Path) -> dict[str, str]:
    """Variables for this envspec, with an empty HOME and an empty cache in a folder."""
    home = folder / "home"
    home.mkdir()
    paths = {"ENVSPEC_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(Path(__file__).parents[1])}
    return {**clean(os.environ, home=home), **paths}


def installed_in(prefix: Path) -> dict[str, str]:
    """Names and versions in site-packages, as the standard library reads them."""
    [site] = prefix.glob("lib/python3.*/site-packages")
    found = metadata.distributions(path=[str(site)])
    return {normalised(each.metadata["Name"]): each.version for each in found}


def locked_in(folder: Path) -> dict[str, str]:
    """Names and versions in a lock, of its first platform."""
    resolution = parse_toml((folder / "envspec.lock").read_text(encoding="utf-8"))["resolution"][0]
    return {each["name"]: each["version"] for each in resolution.get("package", ())}


def interpreter(series: str) -> str:
    """The Python of a series that uv finds."""
    command = [str(uv()), "python", "find", "--no-config", "--no-managed-python", series]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def install(environment: Environment, prefix: Path, environ: Mapping[str, str]) -> str:
    """Make the environment; why it could not be made."""
    program, until = str(uv()), (environment.day + timedelta(days=1)).isoformat()
    common = [program, "pip", "install", "--quiet", "--no-config", "--only-binary", ":all:", "--python", str(prefix)]
    commands = [
        [program, "venv", "--quiet", "--no-config", "--python", interpreter(environment.python), str(prefix)],
        [*common, "--exclude-newer", until, *environment.packages],
    ]
    if environment.downgraded:
        older = (environment.day - timedelta(days=200)).isoformat()
        commands.append([*common, "--exclude-newer", older, "--upgrade-package", environment.downgraded])
        commands[-1] += ["--reinstall-package", environment.downgraded, environment.downgraded]
    for command in commands:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        if done.returncode:
            if command is commands[-1] and environment.downgraded:
                # There was no older one: what is installed is as good.
                continue
            return published(done.stderr)
    return ""


def imported(environment: Environment, folder: Path, environ: Mapping[str, str]) -> Outcome:
    """Make one environment, import it, and compare."""
    prefix = folder / "venv"
    outcome = Outcome(environment, problem=install(environment, prefix, environ))
    if outcome.problem:
        return outcome
    before = installed_in(prefix)
    began = time.perf_counter()
    words = ["init", "--prefix", "venv", "--name", "mine", "--format", "json", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "envspec", *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    outcome.seconds = time.perf_counter() - began
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    if not answer.get("lock"):
        outcome.problem = published(done.stderr)
        return outcome
    compare(outcome, before, locked_in(folder / "locks" / "mine"), answer)
    return outcome


def compare(outcome: Outcome, before: Mapping[str, str], after: Mapping[str, str], answer: Mapping[str, Any]) -> None:
    """before, after: names and versions that are installed, and that are locked. answer: of `envspec init`."""
    moved = {each["name"]: each["why"] for each in answer["moved"]}
    text = json.dumps(answer["ledger"])
    for name, version in sorted(before.items()):
        outcome.installed += 1
        if after.get(name) == version:
            outcome.equal += 1
        elif moved.get(name):
            outcome.explained[f"{name} {version} -> {after.get(name, 'not locked')}"] = moved[name]
        elif not re.search(rf"\b{re.escape(name)}\b", text.lower().replace("_", "-")):
            outcome.lost.append(f"{name} {version}")
        elif name not in after and any(
            each["text"].lower().replace("_", "-").startswith(name) and each["reason"] for each in answer["ledger"]
        ):
            outcome.explained[f"{name} {version} -> not locked"] = "an entry of the ledger"
        else:
            outcome.wrong.append(f"{name} {version} -> {after.get(name, 'not locked')}")
    outcome.verified = sum(len(each["findings"]) for each in answer["proofs"])


def page(outcomes: Sequence[Outcome]) -> str:
    """The results as Markdown."""
    made = [each for each in outcomes if not each.problem]
    machine = describe()
    reasons = Counter(why for each in made for why in each.explained.values())
    rows = [
        ("environments imported", f"{len(made)} of {len(outcomes)}"),
        ("packages installed in them", str(sum(each.installed for each in made))),
        ("locked in the same version", str(sum(each.equal for each in made))),
        ("in another version or not locked, with a reason", str(sum(len(each.explained) for each in made))),
        ("in another version without a reason", str(sum(len(each.wrong) for each in made))),
        ("missing in spec and ledger", str(sum(len(each.lost) for each in made))),
        ("environments equal to their locks, file by file", str(sum(not each.verified for each in made))),
        (
            "seconds for an import, median",
            f"{sorted(each.seconds for each in made)[len(made) // 2]:.1f}" if made else "",
        ),
    ]
    lines = [
        "# Imported environments",
        "",
        f"`python -m bench.init_moves --count {len(outcomes)}` on {machine['date']}, {machine['cores']} cores: virtual "
        "environments of random real packages (seeded), installed by uv with the versions of a day between "
        f"{_FIRST} and {_LAST}, imported with `envspec init --prefix`, and locked as of the day of the run.",
        "",
        *table(("", ""), rows),
        "",
        "## Reasons",
        "",
        *table(("reason", "packages"), [(why, str(count)) for why, count in reasons.most_common(30)]),
    ]
    failed = [each for each in outcomes if each.problem]
    if failed:
        lines += ["", "## Not imported", ""]
        lines += table(
            ("seed", "environment", "why"),
            [
                (str(each.environment.seed), _shown(each.environment), " ".join(each.problem.split())[:300])
                for each in failed
            ],
        )
    return "\n".join(lines) + "\n"


def _shown(environment: Environment) -> str:
    return f"Python {environment.python}, {environment.day}: {' '.join(environment.packages)}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.init_moves", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first environment")
    parser.add_argument("--pythons", default="3.11,3.12,3.13", help="series, of interpreters that uv finds")
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args(words)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="envspec-init-") as temporary:
        environ = environ_in(Path(temporary))
        for seed in range(chosen.seed, chosen.seed + chosen.count):
            environment = generated(seed, chosen.pythons.split(","))
            with tempfile.TemporaryDirectory(dir=temporary) as folder:
                outcome = imported(environment, Path(folder), environ)
            outcomes.append(outcome)
            bad = [*outcome.wrong, *outcome.lost]
            say(
                f"{seed}: {_shown(environment)}: {outcome.problem or f'{outcome.equal} of {outcome.installed} equal'}, "
                f"{len(outcome.explained)} explained, {len(bad)} wrong {bad}, {outcome.verified} differences, "
                f"{outcome.seconds:.1f} s"
            )
    text = page(outcomes)
    if chosen.page:
        chosen.page.write_text(text, encoding="utf-8")
    else:
        print(text)
    return int(any(each.wrong or each.lost for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
