"""Whether every row of a lock names what its spec leads to: index, host, file name, channel, Python, base image.

A checksum in a lock's first line says that nobody changed it by accident; whoever changes it on purpose writes another.
This is what can be decided of such a change without a network; `envspec lock --verify` decides the rest.

Plain dictionaries all the way, no model and no `packaging`: this is on the way of `--check`. What a lock or a spec may
hold is not known yet, so whatever has the wrong type is one more finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import unquote

from envspec import toml
from envspec.credentials import channel_without_credentials, without_credentials
from envspec.data import DATA
from envspec.names import COMMIT, SDIST_ENDINGS, SHA256, normalised
from envspec.origins import INDEX_FAMILY, PYTORCH_FILES, channel_url, origin_of

#: What NVIDIA's images are called; `envspec.base_image.request.REPOSITORY` is the same.
_REPOSITORY: Final = "docker.io/nvidia/cuda"
_OS: Final = "ubuntu24.04"
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(?:@\s*(\S+))?([^;]*)(;?)")
_GIT: Final = re.compile(r"git\+([^#]+)@([0-9a-f]{40,64})(?:#subdirectory=(.+))?")
_SUBDIRECTORY: Final = re.compile(r"(?:^|&)subdirectory=/?([^&]*?)/?(?=&|$)")
_CONDA_NAME: Final = re.compile(r"(?:[^\s\[]*::)?\s*([A-Za-z0-9_.-]+)")
_MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError)

_Table = Mapping[str, Any]


def row_faults(spec: _Table, lock: _Table, files: Mapping[str, bytes]) -> list[str]:
    """What in a lock its spec does not lead to, a line for each; empty if nothing.

    spec, lock: both documents, parsed. files: the other files of the lock's folder, as far as they are there.
    """
    try:
        return list(_faults(spec, lock, files))
    except _MALFORMED as fault:
        return [f"a table of it can't be read ({type(fault).__name__}: {fault})"]


def _faults(spec: _Table, lock: _Table, files: Mapping[str, bytes]) -> Iterator[str]:
    yield from _environment(spec, lock)
    sources = _Sources(spec)
    channels = {
        channel_without_credentials(text): channel_url(text) for text in spec.get("conda", {}).get("channels", ())
    } or ({"conda-forge": channel_url("conda-forge")} if "conda" in spec else {})
    if {row["name"]: row["url"] for row in lock.get("channel", ())} != channels:
        yield "its channels are not those of the spec"
    if lock.get("index", []) != _indexes(spec):
        yield "its package indexes are not those of the spec"
    yield from _base_image(spec, lock)
    asked = {without_credentials(text.strip()) for text in spec.get("pip", {}).get("dependencies", ())}
    for row in lock.get("decision", ()):
        # They name the ref in whose history an install looks for the commit.
        if row["what"].startswith("source.") and row["source"] not in asked:
            yield f"its {row['what']} is of {row['source']}, which the spec does not name"
    for part in lock.get("resolution", ()):
        platform = part["platform"]
        conda, wheels = part.get("conda", []), part.get("package", [])
        for text in (
            *_python(spec, part, conda),
            *(text for row in conda for text in _conda_row(row, platform, channels)),
            *_conda_askers(spec, conda),
            *(text for row in wheels for text in sources.faults(row)),
            *_askers(sources.requested, wheels, conda),
            *_files(part, wheels, conda, files),
        ):
            yield f"{platform}: {text}"


def _environment(spec: _Table, lock: _Table) -> Iterator[str]:
    env = spec["env"]
    if lock["name"] != env["name"]:
        yield f"its name is {lock['name']}, the spec's {env['name']}"
    if "as_of" in env and lock["as_of"] != env["as_of"]:
        yield f"its as_of is {lock['as_of']}, the spec's {env['as_of']}"
    own = [*lock.get("package_as_of", ()), *lock.get("conda_as_of", ())]
    if own and "as_of" in env:
        yield "packages have an as_of of their own, which the spec's as_of excludes"
    # `--upgrade-package` moves a package to the present; an older moment would bring back an older release.
    for each in own:
        if each["as_of"] <= lock["as_of"]:
            yield f"{each['name']} has an as_of of its own, {each['as_of']}, that is not after the lock's"
    names = [part["platform"] for part in lock.get("resolution", ())]
    if len(set(names)) != len(names):
        yield "it has a platform twice"


def _indexes(spec: _Table) -> list[_Table]:
    """The spec's own package indexes as a lock has them."""
    return [
        {
            "name": index["name"],
            "url": without_credentials(index["url"].rstrip("/")),
            "packages": [normalised(name) for name in index["packages"]],
            "undated": index.get("undated") == "accept",
            **({"files": [each.lower() for each in index["files"]]} if index.get("files") else {}),
        }
        for index in spec.get("pip", {}).get("index", ())
    ]


class _Sources:
    """Where the spec says that each name comes from. requested: the names that the spec itself lists."""

    def __init__(self, spec: _Table) -> None:
        pip = spec.get("pip", {})
        found = [match for text in pip.get("dependencies", ()) if (match := _REQUIREMENT.match(text))]
        self.requested = frozenset(normalised(match[1]) for match in found)
        # name -> addresses; one without a marker leaves no room for an index.
        self._addresses: dict[str, list[str]] = {}
        self._always: set[str] = set()
        for match in found:
            if match[2] is not None:
                name = normalised(match[1])
                self._addresses.setdefault(name, []).append(without_credentials(match[2]))
                self._always |= set() if match[4] else {name}
        self._indexes = {index["name"]: index for index in pip.get("index", ())}
        self._routes = sorted(
            ((normalised(name), index["name"]) for index in pip.get("index", ()) for name in index["packages"]),
            key=lambda route: "*" in route[0],
        )

    def faults(self, row: _Table) -> Iterator[str]:
        """What of a package's row the spec does not lead to."""
        name, file = row["name"], row["file"]
        of = f"{name} {row['version']}"
        index, url = file["index"], file.get("url")
        for each in (file, *([row["built"]] if "built" in row else [])):
            if not SHA256.fits(each["sha256"]):
                yield f"{of}: its SHA-256 is none: {each['sha256']!r}"
            # The name of an sdist by URL is its server's own matter: v1.2.tar.gz.
            if (index != "url" or each["filename"].endswith(".whl")) and not _is_file_of(row, each["filename"]):
                yield f"{of}: {each['filename']} is not a file of {name} {row['version']}"
        if index in ("url", "git", "local"):
            matching = {"url": _is_same_url, "git": _is_same_git, "local": _is_same_folder}[index]
            if not any(matching(address, url, file["sha256"]) for address in self._addresses.get(name, ())):
                yield f"{of}: the spec does not name {url}"
            return
        if name in self._always:
            yield f"{of}: the spec names {self._addresses[name][0]}, and the lock has it from index {index}"
            return
        yield from self._of_index(name, of, index, url)

    def _of_index(self, name: str, of: str, index: str, url: str | None) -> Iterator[str]:
        routed = next((to for pattern, to in self._routes if fnmatchcase(name, pattern)), None)
        if routed is not None:
            if index != routed:
                yield f"{of}: the spec takes {name} from index {routed}, and the lock has it from index {index}"
            elif url is None or not _is_below(url, _origins(self._indexes[index])):
                yield (
                    f"{of}: its file is at {url}, which is neither on the host of index {index} nor on one of the "
                    "`files` that the spec gives it"
                )
        elif index.startswith("pytorch-") and name in INDEX_FAMILY:
            if url is None or not _is_below(url, PYTORCH_FILES):
                yield f"{of}: {url} is not on a host of PyTorch's indexes"
        elif index != "default":
            yield f"{of}: the spec names no index {index} for {name}"
        elif url is not None:
            yield f"{of}: it is of the default index, whose files have no URL in a lock, and has {url}"


def _origins(index: _Table) -> tuple[str, ...]:
    return (origin_of(index["url"]), *(origin_of(each) for each in index.get("files", ())))


def _is_below(url: str, origins: Sequence[str]) -> bool:
    return url == without_credentials(url) and origin_of(url) in {each for each in origins if each}


def _is_same_url(address: str, url: str, sha256: str) -> bool:
    bare, _, fragment = address.partition("#")
    demanded = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})", fragment)
    return bare == url and (demanded is None or demanded[1].lower() == sha256)


def _is_same_git(address: str, url: str, _: str) -> bool:
    found = _GIT.fullmatch(url)
    bare, _, fragment = address.removeprefix("git+").partition("#")
    if not found or not (bare == found[1] or bare.startswith(f"{found[1]}@")):
        return False
    ref = bare.removeprefix(found[1]).removeprefix("@")
    folder = _SUBDIRECTORY.search(fragment)
    at_commit = not COMMIT.fits(ref) or ref == found[2]
    return at_commit and (unquote(folder[1]) if folder else "") == (found[3] or "")


def _is_same_folder(address: str, url: str, _: str) -> bool:
    return address.partition("#")[0] == url.partition("#sha256=")[0]


def _is_file_of(row: _Table, filename: str) -> bool:
    if "/" in filename or "\\" in filename or not filename.isprintable():
        return False
    if filename.endswith(".whl"):
        parts = filename.removesuffix(".whl").split("-")
        if len(parts) not in (5, 6):
            return False
        name, version = parts[0], parts[1]
    else:
        ending = next((each for each in SDIST_ENDINGS if filename.endswith(each)), None)
        name, _, version = filename.removesuffix(ending or "").rpartition("-")
        if ending is None:
            return False
    return normalised(name) == row["name"] and _is_same_version(unquote(version), row["version"])


def _is_same_version(found: str, locked: str) -> bool:
    if found == locked:
        return True
    # Seldom: `1.0-1` is `1.0.post1`, and not every old file name has its version in normal form.
    from packaging.version import InvalidVersion, Version

    try:
        return Version(found.replace("_", "+", 1)) == Version(locked) or Version(found) == Version(locked)
    except InvalidVersion:
        return False


def _askers(requested: frozenset[str], wheels: Sequence[_Table], conda: Sequence[_Table]) -> Iterator[str]:
    known = {row["name"] for row in wheels}
    known |= {provided["name"] for row in conda for provided in row.get("provides", ())}
    for row in wheels:
        askers = {each["name"] for each in row.get("askers", ())}
        texts = [each["requirement"] for each in row.get("askers", ())]
        named = {normalised(match[1]) if (match := _REQUIREMENT.match(text)) else "" for text in texts}
        by_spec = "spec" in askers
        is_unknown = (by_spec and row["name"] not in requested) or askers - known - {"spec"}
        if not askers - {row["name"]} or is_unknown or named != {row["name"]}:
            yield f"{row['name']} {row['version']}: neither the spec nor a package of the lock requires it"


def _conda_row(row: _Table, platform: str, channels: Mapping[str, str]) -> Iterator[str]:
    of = f"{row['name']} {row['version']}"
    channel, filename = channels.get(row["channel"]), row["filename"]
    stem = f"{row['name']}-{row['version']}-{row['build']}"
    if not SHA256.fits(row["sha256"]):
        yield f"{of}: its SHA-256 is none: {row['sha256']!r}"
    if filename not in (f"{stem}.conda", f"{stem}.tar.bz2"):
        yield f"{of}: {filename} is not a file of {stem}"
    if channel is None:
        yield f"{of}: the spec names no channel {row['channel']}"
    elif row["subdir"] not in (platform, "noarch") or unquote(row["url"]) != unquote(
        f"{channel}/{row['subdir']}/{filename}"
    ):
        yield f"{of}: {row['url']} is not {filename} in channel {row['channel']}"


def _conda_askers(spec: _Table, conda: Sequence[_Table]) -> Iterator[str]:
    own = spec.get("conda", {})
    texts = [*own.get("dependencies", ())]
    for listed in own.get("platform", {}).values():
        texts += listed.get("dependencies", ())
    requested = {match[1].lower() for text in texts if (match := _CONDA_NAME.match(text))} | {"python"}
    known = {row["name"] for row in conda}
    for row in conda:
        askers = {each["name"] for each in row.get("askers", ())}
        if not askers or ("spec" in askers and row["name"] not in requested) or askers - known - {"spec"}:
            yield f"{row['name']} {row['version']}: neither the spec nor a package of the lock requires it"


def _python(spec: _Table, part: _Table, conda: Sequence[_Table]) -> Iterator[str]:
    python, platform = part["python"], part["platform"]
    version, source = python["version"], python["source"]
    series = spec["env"]["python"]
    if version != series and not version.startswith(f"{series}.") and source != "base":
        yield f"Python {version} is not the spec's {series}"
    if source == "standalone":
        wanted = {"version": version, "platform": platform, "url": python["url"], "sha256": python["sha256"]}
        if not _is_known("python", python["sha256"], wanted, spec):
            yield f"Python {version}: neither envspec's data nor [facts] has {python['url']} with its SHA-256"
    elif "url" in python or "sha256" in python:
        yield f"Python {version} is of source {source}, which has no URL, and has one"
    elif source == "conda" and [row["version"] for row in conda if row["name"] == "python"] != [version]:
        yield f"Python {version} is not that of the conda packages"


def _is_known(table: str, key: str, wanted: _Table, spec: _Table) -> bool:
    """Whether a row of envspec's data, or of the spec's [facts], has these values. key: a text that its row contains.

    Only the blocks around the key are parsed: a whole table costs as much as all the rest of the check.
    """
    text = (DATA / f"{table}s.toml").read_text(encoding="utf-8")
    blocks = [block for block in text.split(f"\n[[{table}]]\n")[1:] if key in block]
    rows = [*map(toml.loads, blocks), *spec.get("facts", {}).get(table, ())]
    return any(all(row.get(name) == value for name, value in wanted.items()) for row in rows)


def _base_image(spec: _Table, lock: _Table) -> Iterator[str]:
    image = lock.get("base_image")
    if image is None:
        return
    base, cuda = spec.get("image", {}).get("base"), spec.get("cuda")
    where = f"{image['repository']}:{image['tag']}"
    digest = ""
    if base is not None:
        named, _, digest = base.partition("@")
        folder, slash, last = named.rpartition("/")
        name, _, tag = last.partition(":")
        if (image["repository"], image["tag"]) != (f"{folder}{slash}{name}", tag):
            yield f"base image {where}: the spec names {base}"
    elif cuda is None or image["repository"] != _REPOSITORY or not _is_tag(image, cuda):
        yield f"base image {where}: not what the spec's [cuda] leads to"
    for pinned in image.get("digests", ()):
        locked, source = pinned.get("digest"), pinned["source"]
        if locked is None:
            continue
        wanted = {"tag": image["tag"], "digest": locked, "kind": pinned.get("kind", "")}
        if (
            not re.fullmatch(r"sha256:[0-9a-f]{64}", locked)
            or (digest and locked != digest)
            or (source == "spec") != bool(digest)
            or (source == "recorded" and not _is_known("digest", locked, wanted, spec))
        ):
            yield f"{pinned['platform']}: base image {where}: nothing that is known here has {locked} for it"


def _is_tag(image: _Table, cuda: _Table) -> bool:
    os, version, flavor = cuda.get("os", _OS), cuda.get("version"), cuda.get("flavor", "auto")
    release, tag = image["cuda_release"], image["tag"]
    found = re.fullmatch(r"([0-9.]+)-(?:cudnn\d*-)?([a-z-]+)-([a-z0-9.]+)", tag)
    return (
        found is not None
        and (found[1], found[3], image["os"]) == (release, os, os)
        and (flavor in ("auto", image["flavor"]))
        and found[2] == image["flavor"].removeprefix("cudnn-")
        # An image of an older minor stands in for a CUDA that is newer than all that are known.
        and (version is None or release.split(".")[0] == version.split(".")[0])
    )


def _files(
    part: _Table, wheels: Sequence[_Table], conda: Sequence[_Table], files: Mapping[str, bytes]
) -> Iterator[str]:
    """Requirements and explicit files install what the rows say, and nothing else. pip splits lines as Python does."""
    platform = part["platform"]
    requirements, explicit = f"requirements.{platform}.txt", f"conda-{platform}.lock"
    if requirements in files and _lines(files[requirements]) != [
        line for row in sorted(wheels, key=lambda each: each["name"]) for line in _pin(row)
    ]:
        yield f"{requirements} does not install what {platform}'s rows say"
    if explicit in files:
        found = sorted(set(_lines(files[explicit])) - {"@EXPLICIT"})
        if found != sorted(f"{row['url'].replace('$', '%24')}#sha256:{row['sha256']}" for row in conda):
            yield f"{explicit} does not install what {platform}'s rows say"


def _lines(content: bytes) -> list[str]:
    lines = (line for line in content.decode().splitlines() if line.strip() and not line.lstrip().startswith("#"))
    # Quoted in a file where it would be read as something else; a variable never stands unquoted.
    return [unquote(line) if "$" not in line and " @ " in line else line for line in lines]


def _pin(row: _Table) -> tuple[str, str]:
    file = row["file"]
    plain = file["index"] in ("default", "git", "local") or "url" not in file
    pin = f"{row['name']}=={row['version']}" if plain else unquote(f"{row['name']} @ {file['url']}")
    return f"{pin} \\", f"    --hash=sha256:{file['sha256']}"
