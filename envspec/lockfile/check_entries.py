"""Whether every entry of a lock follows from its spec: index, host, file name, channel, Python, base image.

The checksum in a lock's first line shows changes by accident; whoever changes a lock on purpose writes another one.
These are the checks of such a change that need no network; `envspec lock --verify` makes the others.

Plain dictionaries, no model and no `packaging`: `--check` imports this. Neither lock nor spec is validated at this
point, so a value of the wrong type is one more mismatch.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import unquote

from envspec import documents
from envspec.credentials import channel_without_credentials, without_credentials
from envspec.data import DATA
from envspec.names import ARCHITECTURES, COMMIT, REMOVE, SDIST_ENDINGS, SHA256, normalised
from envspec.origins import INDEX_FAMILY, PYTORCH, PYTORCH_FILES, channel_url, origin_of
from envspec.spec.dates import Age, as_of_in, package_as_of_in

#: What NVIDIA's images are called; `envspec.base_image.cuda.REPOSITORY` is the same.
_REPOSITORY: Final = "docker.io/nvidia/cuda"
_OS: Final = "ubuntu24.04"
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(?:@\s*(\S+))?([^;]*)(;?)")
_GIT: Final = re.compile(r"git\+([^#]+)@([0-9a-f]{40,64})(?:#subdirectory=(.+))?")
_SUBDIRECTORY: Final = re.compile(r"(?:^|&)subdirectory=/?([^&]*?)/?(?=&|$)")
_CONDA_NAME: Final = re.compile(r"(?:[^\s\[]*::)?\s*([A-Za-z0-9_.-]+)")
_MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError)

_Table = Mapping[str, Any]


def mismatches(spec: _Table, lock: _Table, files: Mapping[str, bytes]) -> list[str]:
    """The entries of a lock that do not follow from its spec, a line each.

    spec, lock: both documents, parsed. files: the other files of the lock's folder, as far as they exist.
    """
    try:
        return list(_mismatches(spec, lock, files))
    except _MALFORMED as error:
        return [f"a table can't be read ({type(error).__name__}: {error})"]


def _mismatches(spec: _Table, lock: _Table, files: Mapping[str, bytes]) -> Iterator[str]:
    yield from _environment(spec, lock)
    sources = _Sources(spec)
    channels = {
        channel_without_credentials(text): channel_url(text) for text in spec.get("conda", {}).get("channels", ())
    } or ({"conda-forge": channel_url("conda-forge")} if "conda" in spec else {})
    if {entry["name"]: entry["url"] for entry in lock.get("channel", ())} != channels:
        yield "its channels are not those of the spec"
    if lock.get("index", []) != _indexes(spec):
        yield "its package indexes are not those of the spec"
    yield from _base_images(spec, lock)
    yield from _code(spec, lock)
    overrides = {
        (
            _name_of(each["requirement"]),
            f"{REMOVE if each.get('remove') else ''}{each['requirement'].strip()}",
            each["reason"],
        )
        for each in spec.get("pip", {}).get("overrides", ())
    }
    recorded = [entry for entry in lock.get("decision", ()) if entry["what"].startswith("override.")]
    # Without any package of PyPI there is nothing to override.
    if (recorded or spec.get("pip", {}).get("dependencies")) and overrides != {
        (entry["what"].removeprefix("override."), entry["value"], entry["why"]) for entry in recorded
    }:
        yield "its overrides are not those of the spec"
    requested = {without_credentials(text.strip()) for text in spec.get("pip", {}).get("dependencies", ())}
    for entry in lock.get("decision", ()):
        # They name the ref in whose history an install looks for the commit.
        if entry["what"].startswith("source.") and entry["source"] not in requested:
            yield f"its {entry['what']} is of {entry['source']}, which the spec does not name"
    for part in lock.get("resolution", ()):
        platform = part["platform"]
        conda, wheels = part.get("conda", []), part.get("package", [])
        for text in (
            *_python(spec, part, conda),
            *(text for entry in conda for text in _conda_entry(entry, platform, channels)),
            *_conda_dependents(spec, conda),
            *(text for entry in wheels for text in sources.mismatches(entry)),
            *_dependents(sources.requested, wheels, conda, part.get("installed", [])),
            *_installed(spec, part),
            *_replaced(wheels, {name for name, _, _ in overrides}),
            *_files(part, wheels, conda, files),
            *_builds(spec, part),
        ):
            yield f"{platform}: {text}"


def _environment(spec: _Table, lock: _Table) -> Iterator[str]:
    env = spec["env"]
    if lock["name"] != env["name"]:
        yield f"its name is {lock['name']}, the spec's {env['name']}"
    as_of, written = as_of_in(spec), lock.get("as_of_spec", "")
    if isinstance(as_of, datetime) and lock["as_of"] != as_of:
        yield f"its as_of is {lock['as_of']}, the spec's {env['as_of']}"
    if written != (str(as_of) if isinstance(as_of, Age) else ""):
        yield f"its as_of follows from {written!r}, which the spec does not have"
    own = [*lock.get("package_as_of", ()), *lock.get("conda_as_of", ())]
    ages = {each["name"]: each for each in lock.get("package_age", ())}
    times = package_as_of_in(spec)
    if {n: each["age"] for n, each in ages.items()} != {n: str(at) for n, at in times.items() if isinstance(at, Age)}:
        yield "its ages of single packages are not the spec's"
    # `--upgrade-package` moves a package to the present; an older time would bring back an older release.
    for each in own:
        name = normalised(each["name"])
        expected = times.get(name, None if isinstance(as_of, datetime) else each["as_of"])
        if each["as_of"] != (ages[name]["as_of"] if name in ages else expected):
            yield f"{each['name']} has its own as_of, {each['as_of']}, which is not the spec's"
        if each["as_of"] <= lock["as_of"]:
            yield f"{each['name']} has its own as_of, {each['as_of']}, which is not after the lock's"
    names = [part["platform"] for part in lock.get("resolution", ())]
    if len(set(names)) != len(names):
        yield "a platform is in it twice"


def _builds(spec: _Table, part: _Table) -> Iterator[str]:
    """Settings of builds that neither the spec nor a row of the facts has."""
    if not (listed := part.get("build", [])):
        return
    tables = {normalised(name): table for name, table in spec.get("build", {}).items()}
    rows = documents.parse_toml((DATA / "extensions.toml").read_text(encoding="utf-8"))["extension"]
    rows += spec.get("facts", {}).get("extension", [])
    for entry in listed:
        of_package = [row for row in rows if normalised(row["package"]) == entry["name"]]
        stated = [tables.get(entry["name"], {}), *of_package]
        requires = {"torch", *(text.strip() for table in stated for text in table.get("requires", ()))}
        env = {(key, value) for table in stated for key, value in table.get("env", {}).items()}
        arch = {ARCHITECTURES, *(row["arch"] for row in of_package if "arch" in row)}
        own = {key: value for key, value in entry.get("env", {}).items() if key not in arch}
        is_known = entry["name"] in tables or of_package
        if not (is_known and set(entry.get("requires", ())) <= requires and own.items() <= env):
            yield f"its [[resolution.build]] of {entry['name']} is not what the spec and the facts require"


def _indexes(spec: _Table) -> list[_Table]:
    """The spec's own package indexes as a lock has them."""
    return [
        {
            "name": index["name"],
            "url": without_credentials(index["url"].rstrip("/")),
            "packages": [normalised(name) for name in index["packages"]],
            "undated": index.get("undated") == "accept" or index.get("format") == "links",
            **({"files": [each.lower() for each in index["files"]]} if index.get("files") else {}),
            **({"format": "links"} if index.get("format") == "links" else {}),
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

    def mismatches(self, entry: _Table) -> Iterator[str]:
        """What of a package's entry does not follow from the spec."""
        name, file = entry["name"], entry["file"]
        of = f"{name} {entry['version']}"
        index, url = file["index"], file.get("url")
        for each in (file, *([entry["built"]] if "built" in entry else [])):
            if not SHA256.fits(each["sha256"]):
                yield f"{of}: not a SHA-256: {each['sha256']!r}"
            # The name of an sdist by URL is its server's own matter: v1.2.tar.gz.
            if (index != "url" or each["filename"].endswith(".whl")) and not _is_file_of(entry, each["filename"]):
                yield f"{of}: {each['filename']} is not a file of {name} {entry['version']}"
        if index in ("url", "git", "local"):
            matching = {"url": _is_same_url, "git": _is_same_git, "local": _is_same_folder}[index]
            if not any(matching(address, url, file["sha256"]) for address in self._addresses.get(name, ())):
                yield f"{of}: the spec does not name {url}"
            return
        if name in self._always:
            yield f"{of}: the spec names {self._addresses[name][0]}, but the lock has it from index {index}"
            return
        yield from self._of_index(name, of, index, url)

    def _of_index(self, name: str, of: str, index: str, url: str | None) -> Iterator[str]:
        routed = next((to for pattern, to in self._routes if fnmatchcase(name, pattern)), None)
        if routed is not None:
            if index != routed:
                yield f"{of}: the spec requires index {routed} for {name}, but the lock has it from index {index}"
            elif url is None or not _is_below(url, _origins(self._indexes[index])):
                yield (
                    f"{of}: its file is at {url}, which is neither on the host of index {index} nor on one of the "
                    "`files` that the spec gives it"
                )
        elif index.startswith(PYTORCH) and name in INDEX_FAMILY:
            if url is None or not _is_below(url, PYTORCH_FILES):
                yield f"{of}: {url} is not on a host of PyTorch's indexes"
        elif index != "default":
            yield f"{of}: the spec names no index {index} for {name}"
        elif url is not None:
            yield f"{of}: it is from the default index, whose files have no URL in a lock, but it has {url}"


def _replaced(wheels: Sequence[_Table], overridden: Set[str]) -> Iterator[str]:
    for entry in wheels:
        if not {_name_of(text) for text in entry.get("removed", ())} <= overridden:
            yield f"{entry['name']}: a requirement of it is removed, but the spec does not override it"
        if entry["name"] not in overridden and any("replaces" in by for by in entry.get("required_by", ())):
            yield f"{entry['name']}: what requires it is replaced, but the spec does not override it"


def _name_of(requirement: str) -> str:
    found = _REQUIREMENT.match(requirement)
    return normalised(found[1]) if found else ""


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


def _is_file_of(entry: _Table, filename: str) -> bool:
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
    return normalised(name) == entry["name"] and _is_same_version(unquote(version), entry["version"])


def _is_same_version(found: str, locked: str) -> bool:
    if found == locked:
        return True
    # Seldom: `1.0-1` is `1.0.post1`, and not every old file name has its version in normal form.
    from packaging.version import InvalidVersion, Version

    try:
        return Version(found.replace("_", "+", 1)) == Version(locked) or Version(found) == Version(locked)
    except InvalidVersion:
        return False


def _installed(spec: _Table, part: _Table) -> Iterator[str]:
    """What the environment is installed on top of is the spec's base, or its list."""
    below, there = part.get("on_top_of"), part.get("installed", [])
    base = spec.get("image", {}).get("base", "") if spec.get("image", {}).get("packages") == "keep" else ""
    place = base.partition("@")[0] or spec.get("pip", {}).get("on_top_of", "")
    if not place or (base and not part["platform"].startswith("linux")):
        if below or there:
            yield "it is installed on top of other packages, which the spec does not name"
        return
    if not below or below["source"] != place:
        yield f"it is installed on top of {below['source'] if below else 'nothing'}, the spec's is {place}"
    wheels = {entry["name"] for entry in part.get("package", [])}
    if twice := sorted(wheels & {entry["name"] for entry in there}):
        yield f"{', '.join(twice)}: installed by the lock, and on what it is installed on top of"


def _dependents(
    requested: frozenset[str], wheels: Sequence[_Table], conda: Sequence[_Table], there: Sequence[_Table]
) -> Iterator[str]:
    names = {entry["name"] for entry in (*wheels, *there)}
    names |= {provided["name"] for entry in conda for provided in entry.get("provides", ())}
    for entry in wheels:
        dependents = {each["name"] for each in entry.get("required_by", ())}
        texts = [each["requirement"] for each in entry.get("required_by", ())]
        named = {normalised(match[1]) if (match := _REQUIREMENT.match(text)) else "" for text in texts}
        by_spec = "spec" in dependents
        is_unknown = (by_spec and entry["name"] not in requested) or dependents - names - {"spec"}
        if not dependents - {entry["name"]} or is_unknown or named != {entry["name"]}:
            yield f"{entry['name']} {entry['version']}: neither the spec nor a package of the lock requires it"


def _conda_entry(entry: _Table, platform: str, channels: Mapping[str, str]) -> Iterator[str]:
    of = f"{entry['name']} {entry['version']}"
    channel, filename = channels.get(entry["channel"]), entry["filename"]
    stem = f"{entry['name']}-{entry['version']}-{entry['build']}"
    if not SHA256.fits(entry["sha256"]):
        yield f"{of}: not a SHA-256: {entry['sha256']!r}"
    if filename not in (f"{stem}.conda", f"{stem}.tar.bz2"):
        yield f"{of}: {filename} is not a file of {stem}"
    if channel is None:
        yield f"{of}: the spec names no channel {entry['channel']}"
    elif entry["subdir"] not in (platform, "noarch") or unquote(entry["url"]) != unquote(
        f"{channel}/{entry['subdir']}/{filename}"
    ):
        yield f"{of}: {entry['url']} is not {filename} in channel {entry['channel']}"


def _conda_dependents(spec: _Table, conda: Sequence[_Table]) -> Iterator[str]:
    own = spec.get("conda", {})
    texts = [*own.get("dependencies", ())]
    for listed in own.get("platform", {}).values():
        texts += listed.get("dependencies", ())
    requested = {match[1].lower() for text in texts if (match := _CONDA_NAME.match(text))} | {"python"}
    names = {entry["name"] for entry in conda}
    for entry in conda:
        dependents = {each["name"] for each in entry.get("required_by", ())}
        if not dependents or ("spec" in dependents and entry["name"] not in requested) or dependents - names - {"spec"}:
            yield f"{entry['name']} {entry['version']}: neither the spec nor a package of the lock requires it"


def _python(spec: _Table, part: _Table, conda: Sequence[_Table]) -> Iterator[str]:
    python, platform = part["python"], part["platform"]
    version, source = python["version"], python["source"]
    series = spec["env"]["python"]
    if version != series and not version.startswith(f"{series}.") and source != "base":
        yield f"Python {version} is not the spec's {series}"
    if source == "standalone":
        expected = {"version": version, "platform": platform, "url": python["url"], "sha256": python["sha256"]}
        if not _is_fact("python", python["sha256"], expected, spec):
            yield f"Python {version}: {python['url']} with its SHA-256 is neither in envspec's data nor in [facts]"
    elif "url" in python or "sha256" in python:
        yield f"Python {version} has source {source} and a URL, but that source has none"
    elif source == "conda" and [entry["version"] for entry in conda if entry["name"] == "python"] != [version]:
        yield f"Python {version} is not that of the conda packages"


def _is_fact(table: str, key: str, expected: _Table, spec: _Table) -> bool:
    """Whether a fact of envspec's data, or of the spec's [facts], has these values. key: a text in it.

    Only the blocks around the key are parsed: a whole table costs as much as all the rest of the check.
    """
    text = (DATA / f"{table}s.toml").read_text(encoding="utf-8")
    blocks = [block for block in text.split(f"\n[[{table}]]\n")[1:] if key in block]
    facts = [*map(documents.parse_toml, blocks), *spec.get("facts", {}).get(table, ())]
    return any(all(fact.get(name) == value for name, value in expected.items()) for fact in facts)


def _code(spec: _Table, lock: _Table) -> Iterator[str]:
    """What an image takes from the machine that builds it."""
    image, own = lock.get("image", {}), spec.get("image", {})
    if image.get("project") not in (None, own.get("project")):
        yield f"image: project = {image['project']}: the spec has another one"
    copied = map(posixpath.normpath, own.get("copy", ()))
    if others := sorted({*image.get("copy", ())} - {*copied}):
        yield f"image: {', '.join(others)} are copied into it: the spec does not list them"


def _base_images(spec: _Table, lock: _Table) -> Iterator[str]:
    cuda = spec.get("cuda")
    own = {each["platform"]: each.get("base_image") for each in lock.get("platform_cuda", ())}
    found: dict[str, None] = {}
    for platform in (part["platform"] for part in lock.get("resolution", ())):
        image = own.get(platform, lock.get("base_image"))
        if image and platform.startswith("linux"):
            keys = cuda and {**cuda, **cuda.get("platform", {}).get(platform, {})}
            pinned = [each for each in image.get("digests", ()) if each["platform"] == platform]
            found |= dict.fromkeys(_base_image(spec, {**image, "digests": pinned}, keys))
    yield from found


def _base_image(spec: _Table, image: _Table, cuda: _Table | None) -> Iterator[str]:
    """cuda: the spec's keys for the platforms of the image."""
    base = spec.get("image", {}).get("base")
    where = f"{image['repository']}:{image['tag']}"
    digest = ""
    if base is not None:
        named, _, digest = base.partition("@")
        folder, slash, last = named.rpartition("/")
        name, _, tag = last.partition(":")
        if (image["repository"], image["tag"]) != (f"{folder}{slash}{name}", tag):
            yield f"base image {where}: the spec names {base}"
    elif cuda is None or not (
        _is_tag(image, cuda) if image["repository"] == _REPOSITORY else _is_system(image, cuda, spec)
    ):
        yield f"base image {where}: it does not follow from the spec's [cuda]"
    for pinned in image.get("digests", ()):
        locked, source = pinned.get("digest"), pinned["source"]
        if locked is None:
            continue
        expected = {"tag": image["tag"], "digest": locked, "kind": pinned.get("kind", "")}
        if (
            not re.fullmatch(r"sha256:[0-9a-f]{64}", locked)
            or (digest and locked != digest)
            or (source == "spec") != bool(digest)
            or (source == "recorded" and not _is_fact("digest", locked, expected, spec))
        ):
            yield f"{pinned['platform']}: base image {where}: {locked} is not among the known digests"


def _is_system(image: _Table, cuda: _Table, spec: _Table) -> bool:
    """Whether it is the image of the system without CUDA."""
    os = cuda.get("os", _OS)
    expected = {"os": os, "image": f"{image['repository']}:{image['tag']}"}
    return image["os"] == os and _is_fact("system", f'"{os}"', expected, spec)


def _is_tag(image: _Table, cuda: _Table) -> bool:
    os, version, flavor = cuda.get("os", _OS), cuda.get("version"), cuda.get("flavor", "auto")
    release, tag = image["cuda_release"], image["tag"]
    found = re.fullmatch(r"([0-9.]+)-(?:cudnn\d*-)?([a-z-]+)-([a-z0-9.]+)", tag)
    return (
        found is not None
        and (found[1], found[3], image["os"]) == (release, os, os)
        and (flavor in ("auto", image["flavor"]))
        and found[2] == image["flavor"].removeprefix("cudnn-")
        # An image of another minor of the same major takes the place of one that is unknown.
        and (version is None or release.split(".")[0] == version.split(".")[0])
    )


def _files(
    part: _Table, wheels: Sequence[_Table], conda: Sequence[_Table], files: Mapping[str, bytes]
) -> Iterator[str]:
    """Requirements and explicit files install the entries and nothing else. pip splits lines as Python does."""
    platform = part["platform"]
    requirements, explicit = f"requirements.{platform}.txt", f"conda-{platform}.lock"
    if requirements in files and _lines(files[requirements]) != [
        line for entry in sorted(wheels, key=lambda each: each["name"]) for line in _pin(entry)
    ]:
        yield f"{requirements} does not match the packages of {platform}"
    if explicit in files:
        found = sorted(set(_lines(files[explicit])) - {"@EXPLICIT"})
        if found != sorted(f"{entry['url'].replace('$', '%24')}#sha256:{entry['sha256']}" for entry in conda):
            yield f"{explicit} does not match the packages of {platform}"


def _lines(content: bytes) -> list[str]:
    lines = (line for line in content.decode().splitlines() if line.strip() and not line.lstrip().startswith("#"))
    # Quoted in a file where it would be read as something else; a variable never stands unquoted.
    return [unquote(line) if "$" not in line and " @ " in line else line for line in lines]


def _pin(entry: _Table) -> tuple[str, str]:
    file = entry["file"]
    plain = file["index"] in ("default", "git", "local") or "url" not in file
    pin = f"{entry['name']}=={entry['version']}" if plain else unquote(f"{entry['name']} @ {file['url']}")
    return f"{pin} \\", f"    --hash=sha256:{file['sha256']}"
