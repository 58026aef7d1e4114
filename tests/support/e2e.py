"""The stand-in's spec, for a registry on loopback that nobody knew when it was written."""

from __future__ import annotations

import ensurepip
import os
import shutil
from pathlib import Path
from typing import Any, Final

from envspec import documents
from tests.support.machines import NotRun
from tests.support.machines.standin import CACHE
from tests.support.user import User

SPEC: Final = Path(__file__).parents[1] / "e2e" / "pytorch-2.9-standin.toml"
_MIRROR: Final = "127.0.0.1:5000"
#: The wheels, the layers' own parts, a registry's copy, an engine's, and 9 GB unpacked.
DISK_BYTES: Final = 30_000_000_000


def spec_text(registry: str) -> str:
    """The spec, its mirror at that host and port."""
    text = SPEC.read_text(encoding="utf-8")
    assert text.count(_MIRROR) == 1
    return text.replace(_MIRROR, registry)


def rows(document: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """name -> (version, file) of a lock's packages on its one platform."""
    (resolution,) = document["resolution"]
    return {package["name"]: (package["version"], package["file"]) for package in resolution["package"]}


def read(path: Path) -> dict[str, Any]:
    return documents.parse_toml(path.read_text(encoding="utf-8"))


def online(folder: Path, **environ: str) -> User:
    """A user who reaches the index as this machine does: its proxies, its certificates, its mirror if it names one."""
    index = "ENVSPEC_DEFAULT_INDEX"
    names = {"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", index}
    reach = {name: value for name, value in os.environ.items() if name.upper() in names}
    user = User(folder, "", **reach, **environ)
    for name in {"HTTP_PROXY", "HTTPS_PROXY", index} - set(reach):
        del user.environ[name]
    if kept := os.environ.get(CACHE):
        user.environ["ENVSPEC_CACHE_DIR"] = str(Path(kept, "envspec"))
    return user


def enough_disk(*folders: Path) -> None:
    """Raises NotRun where one of the file systems is too full for the full stack."""
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < DISK_BYTES:
            raise NotRun(f"{free / 1e9:.0f} GB are free at {folder}, and {DISK_BYTES / 1e9:.0f} GB are needed")


def pip_wheel() -> bytes:
    """pip as this Python brings it, to be run from its wheel where none is installed."""
    places = (Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels"))
    for path in (path for place in places for path in sorted(place.glob("pip-*.whl"))):
        return path.read_bytes()
    raise NotRun("this Python brings no wheel of pip (Debian: python3-venv)")


#: Run in a container of the image. Every module that a distribution brings at its top (`pyannote.audio`, if it has a
#: namespace alone), imported in one process; printed as JSON: the distribution of each that is imported, and of others
#: with the error.
IMPORTS: Final = """
import importlib, json, os, sys, warnings
from importlib.metadata import distributions
warnings.simplefilter("ignore")
found, failed = {}, {}
for held in distributions():
    inner = {file.parts[:-1] for file in held.files or () if file.name == "__init__.py"}
    if all(len(folders) > 1 for folders in inner):
        for folders in inner:
            above = [folders[:depth] for depth in range(1, len(folders))]
            if inner.isdisjoint(above) and all(map(str.isidentifier, folders)):
                found[".".join(folders)] = held.name
    for file in held.files or ():
        folders, stem = file.parts[:-1], file.name.split(".")[0]
        if not folders and file.suffix in (".py", ".so"):
            found[stem] = held.name
        elif len(folders) == 1 and file.name == "__init__.py":
            found[folders[0]] = held.name
names = sorted(name for name in found if name.replace(".", "").isidentifier() and not name.startswith("_"))
out = os.dup(1)
os.dup2(2, 1)
for name in names:
    try:
        importlib.import_module(name)
    except BaseException as fault:
        failed[name] = f"{found[name]}: {type(fault).__name__}: {fault}"
imported = {name: found[name] for name in names if name not in failed}
os.write(out, json.dumps({"imported": imported, "failed": failed}).encode())
os._exit(0)
"""

#: Run in a container of the image, with requirements and wheels at /given. pip installs the lock a second time, some
#: wheels at once so that the disk holds one copy, and each file is laid beside the image's: path, mode, SHA-256. Known
#: to differ, see `wheel_trees.differences`: INSTALLER, REQUESTED, RECORD, and programs that are made of entry points.
#: Bytecode that a wheel brings (numpy's, of one module) is in the image compiled anew, as all others are. The image's
#: own files are pyvenv.cfg and a pip that says how to install.
SAME: Final = """
import hashlib, json, shutil, subprocess, sys
from pathlib import Path
image, other = Path("/opt/env"), Path("/tmp/other")
def known(path):
    if path.parent.name == "__pycache__":
        return True
    return path.name in ("INSTALLER", "REQUESTED", "RECORD") and path.parent.name.endswith(".dist-info")
def made(path):
    return path.parent.name == "bin" and b"sys.exit(" in path.read_bytes()[:4096]
def mode(path):
    return oct(path.stat().st_mode & 0o7777), hashlib.sha256(path.read_bytes()).hexdigest()
def files(root):
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
def batches():
    batch, size = [], 0
    for line in Path("/given/requirements.txt").read_text().split("\\n--\\n"):
        batch.append(line)
        size += int(line.split("# ")[1])
        if size > 400e6:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
seen, wrong = set(), []
for batch in batches():
    Path("/tmp/some.txt").write_text("\\n".join(batch))
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", "/given/wheels",
        "--no-deps", "--no-compile", "--require-hashes", "--ignore-installed", "--no-warn-script-location",
        "--prefix", str(other), "--requirement", "/tmp/some.txt"], check=True)
    for path in files(other):
        inside = path.relative_to(other)
        ours = image / inside
        seen.add(inside)
        if known(path):
            continue
        if not ours.is_file():
            wrong.append(f"only pip has {inside}")
        elif made(path):
            wrong += [] if made(ours) and ours.stat().st_mode == path.stat().st_mode else [f"{inside} is no program"]
        elif mode(ours) != mode(path):
            wrong.append(f"{inside}: {mode(ours)}, pip's {mode(path)}")
    shutil.rmtree(other)
own = {Path("pyvenv.cfg"), Path("bin/pip"), Path("bin/pip3")}
for path in files(image):
    inside = path.relative_to(image)
    if inside not in seen and inside not in own and not known(path):
        wrong.append(f"only the image has {inside}")
print(json.dumps({"seen": len(seen), "wrong": wrong[:50]}))
"""

#: A transformer's encoder learns to tell the sign of a sum, on the CPU; the same seed gives the same losses.
TRAINING: Final = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(2)
layer = nn.TransformerEncoderLayer(d_model=32, nhead=4, dim_feedforward=64, batch_first=True)
model = nn.Sequential(nn.Linear(8, 32), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32 * 4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 4, 8)
labels = (inputs.sum(dim=(1, 2)) > 0).long()
losses = []
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(losses[0], losses[-1])
"""

#: Inductor compiles C++ against Python's headers; what it gives is what eager mode gives.
COMPILE: Final = """
import torch
from torch._dynamo.utils import counters
def function(x, y):
    return (torch.sin(x) + torch.cos(y)).relu().sum(dim=1)
x, y = torch.randn(64, 64), torch.randn(64, 64)
torch.testing.assert_close(torch.compile(function, fullgraph=True)(x, y), function(x, y))
print(dict(counters["stats"])["unique_graphs"])
"""
