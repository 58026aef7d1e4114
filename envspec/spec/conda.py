"""Channels, match specs and virtual packages.

Match specs are checked as text, so that reading a spec never costs the import of a solver. What passes here the solver
can read, and it reads what was meant: `numpy >1 <2`, say, has a build string `<2` to a solver, and is refused here.
Forms that one reader takes for this and another for that are written out: a bare version is exactly that one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from envspec.credentials import VARIABLE, channel_without_credentials
from envspec.models import Platform
from envspec.spec.errors import BadValue, quoted

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_LONGEST: Final = 2000
_OLDER_SUBDIRS: Final = ("noarch", "osx-64", "win-32", "win-arm64", "linux-32", "linux-ppc64le")
_SUBDIRS: Final = frozenset({*(platform.value for platform in Platform), *_OLDER_SUBDIRS})

# Words that mean something to conda and nothing to a server of channels.
_WORDS: Final = {
    "defaults": (
        "is conda's word for several channels",
        'name them: "https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r"',
    ),
    "nodefaults": ("is no channel", "remove it: only the channels listed here are used"),
    "local": ("is conda's word for a folder of this machine", 'write its address: "file:///srv/channel"'),
}


def read_channel(text: str) -> str:
    """A channel's name or address, without a slash at its end; it may hold credentials. BadValue if it is none."""
    if not text or len(text) > _LONGEST or not text.isprintable() or re.search(r"\s", text):
        raise BadValue(
            f"{_quoted_channel(text)} is not a channel: empty, too long, or with blanks in it",
            'write a name, "conda-forge", or an address, "https://conda.example.com/channel"',
        )
    channel = text.rstrip("/")
    if "://" in text:
        _check_address(channel)
    else:
        _check_name(channel)
    _refuse_subdir(channel)
    return channel


def unsecret(text: str) -> str:
    """`text` as a message may hold it, also where what comes before an `@` is no user and password in due form."""
    return channel_without_credentials(re.sub(r"//.*@", "//", text, flags=re.DOTALL))


def _quoted_channel(text: str) -> str:
    return quoted(unsecret(text))


def _check_name(text: str) -> None:
    if text in _WORDS:
        found, hint = _WORDS[text]
        raise BadValue(f"{_quoted_channel(text)} {found}", hint)
    if _NAME.fullmatch(text):
        return
    hint = 'write a name, "conda-forge", or an address, "https://conda.example.com/channel"'
    if re.match(r"\.{0,2}[/\\]|\.{1,2}$|~|[A-Za-z]:[/\\]", text):
        hint = 'a folder is written as an address, whole: "file:///srv/channel"'
    raise BadValue(f"{_quoted_channel(text)} is not the name of a channel", hint)


def _check_address(text: str) -> None:
    try:
        parts = urlsplit(text)
        host, is_valid = parts.hostname, parts.port is None or parts.port > 0
    except ValueError:
        host, is_valid = None, False
        parts = urlsplit("")
    if parts.scheme == "file":
        _check_file(text, parts.netloc, parts.path)
    elif parts.scheme not in ("http", "https") or not host or not is_valid:
        raise BadValue(
            f"{_quoted_channel(text)} is not the address of a channel",
            "write it as `https://host/channel`, `http://host/channel` or `file:///folder`",
        )
    if parts.query or parts.fragment or text[-1] in "?#":
        raise BadValue(
            f"{_quoted_channel(text)} has a query or a fragment",
            "a channel's address ends with its path: `https://host/channel`",
        )
    if "@" in channel_without_credentials(text):
        # `https://user:pass/word@host/...`: to every reader of addresses the host is `user`, and the path has the rest.
        raise BadValue(
            f"the address of {_quoted_channel(text)} has an `@` that ends no user and password",
            "write a slash of a password as `%2F`, and an `@` of a path as `%40`",
        )
    _check_variables(text)


def _check_file(text: str, host: str, path: str) -> None:
    if host not in ("", "localhost") or not path.startswith("/"):
        raise BadValue(
            f"{_quoted_channel(text)} is not the address of a folder",
            'three slashes and the whole path: "file:///srv/channel"',
        )


def _check_variables(text: str) -> None:
    if "$" in channel_without_credentials(text):
        raise BadValue(
            f"{_quoted_channel(text)} has a `$` outside its credentials",
            "a lock must not depend on the machine: `${VARIABLE}` may be a user, a password, or TOKEN in `/t/TOKEN/`",
        )
    if "$" in VARIABLE.sub("", text):
        raise BadValue(
            f"the credentials of {_quoted_channel(text)} have a `$` that begins no variable",
            "write a variable as `${VARIABLE}`, and a dollar of a password as `%24`",
        )


def _refuse_subdir(text: str) -> None:
    rest, _, last = text.rpartition("/")
    if last in _SUBDIRS or last in ("repodata.json", "repodata.json.zst"):
        whole = channel_without_credentials(rest) or "conda-forge"
        raise BadValue(
            f"{_quoted_channel(text)} names a part of a channel",
            f"write the channel, {quoted(whole)}: `env.platforms` lists which of its platforms are read",
        )


_LONGEST_MATCH_SPEC: Final = 500
_FORMS: Final = 'write "ffmpeg", "ffmpeg >=7" or "conda-forge::ffmpeg"'

_HEAD: Final = re.compile(r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<rest>.*)", re.DOTALL)
_REST: Final = re.compile(r"(?P<plain>[^\[\]]*)(?:\[(?P<keys>[^\[\]]*)\]\s*)?")
_KEY: Final = re.compile(r"""\s*([a-z0-9_]+)\s*=\s*(?:'([^']*)'|"([^"]*)"|([^\s,'"]+))\s*(?:,(?=.)|$)""", re.DOTALL)

# Source: conda's VersionOrder: an epoch, segments parted by `.`, `-` or `_`, and a local version; a glob ends it.
# A run of digits or letters is taken whole: tried in all of its parts, 50 digits would take for ever.
_SEGMENT: Final = r"(?:[0-9]{1,15}(?![0-9])|[A-Za-z]+(?![A-Za-z]))+"
_SEGMENTS: Final = rf"{_SEGMENT}(?:[._-]{_SEGMENT})*"
VERSION: Final = rf"(?:[0-9]{{1,9}}!)?(?=[0-9]){_SEGMENTS}(?:\+{_SEGMENTS})?"
_TERM: Final = re.compile(rf"(?P<any>\*)|(?P<sign>==|!=|<=|>=|~=|<|>|=)?(?P<version>{VERSION})(?P<glob>\.?\*)?")
_PART: Final = re.compile(r"[(),|]|[^(),|]+")
BUILD: Final = r"(?!.*\*\*)[A-Za-z0-9_.+*-]+"
# What the solver reads outside of brackets.
_PLAIN_BUILD: Final = re.compile(r"[A-Za-z0-9_*]+")
# `=1.2=py*`, which requires a version and a build at once.
_EQUALS: Final = re.compile(r"(==?[^=<>!~,|()]+)=([^=<>!~,|()]+)")

_VALUES: Final[Mapping[str, str]] = {
    "build": BUILD,
    "build_number": r"(?:==|!=|<=|>=|<|>)?[0-9]{1,9}",
    "md5": r"[0-9a-fA-F]{32}",
    "sha256": r"[0-9a-fA-F]{64}",
    "fn": r"[A-Za-z0-9_.+!-]+",
}


def read_match_spec(text: str) -> str:
    """A match spec in the form that has one meaning; BadValue if it is none, or not what was probably meant.

    `numpy=2.3` becomes `numpy 2.3.*`, `numpy 2.3.1` becomes `numpy ==2.3.1`, as conda reads them.
    """
    spec = text.strip()
    _refuse_other_forms(spec)
    head = _HEAD.fullmatch(spec)
    if not head or not re.match(r"$|[\s=<>!~\[]", head["rest"]):
        raise BadValue(f"{quoted(text)} is not a conda package", _FORMS)
    if head["channel"] is not None:
        _check_prefix(spec, head["channel"])
    if head["name"].startswith("__"):
        raise BadValue(
            f"{quoted(text)} is a virtual package: it describes the machine",
            "it can't be installed; set it in [conda.virtual_packages]",
        )
    rest = _REST.fullmatch(head["rest"])
    if not rest:
        raise BadValue(f"{quoted(text)}: brackets that can't be read", _BRACKETS)
    plain, build = _words(spec, _joined(rest["plain"]))
    keys = _keys(spec, rest["keys"])
    if (plain and "version" in keys) or (build and "build" in keys):
        raise BadValue(f"{quoted(text)} has its version or its build twice", "keep one of them")
    builds = build or keys.get("build")
    if plain is not None:
        plain = _version(spec, plain, builds)
    if "version" in keys:
        keys["version"] = _version(spec, keys["version"], builds)
    if build is not None:
        _check_build(spec, build)
    return spec[: head.start("rest")] + _written(plain, build, keys, head["rest"])


def _written(version: str | None, build: str | None, keys: dict[str, str], was: str) -> str:
    """What stands after the name. was: how the user wrote it, who may have left no blank before the version."""
    if version and build and not _PLAIN_BUILD.fullmatch(build):
        keys, version, build = {"version": version, "build": build, **keys}, None, None
    plain = " ".join(word for word in (version, build) if word)
    blank = " " if plain and (was[0].isspace() or plain[0] not in "=<>!~") else ""
    brackets = ",".join(f"{key}='{value}'" for key, value in keys.items())
    return blank + plain + (f"[{brackets}]" if keys else "")


_EXACT: Final = re.compile(rf"\s==(?P<version>{VERSION})(?: (?P<build>{BUILD}))?")


def read_preferred_record(text: str) -> str:
    """One item of `conda.prefer`: a name, one exact version and perhaps a build; BadValue for anything else."""
    spec = read_match_spec(text)
    name = name_of(spec)
    if not _EXACT.fullmatch(spec[len(name) :]) or spec[: len(name)].lower() != name or "*" in spec:
        raise BadValue(f"{quoted(text)} is not one version", f'write "{name} ==1.2.3" or "{name} ==1.2.3 h0123abc_0"')
    return spec


def preferred_record(spec: str) -> tuple[str, str, str]:
    """Name, version and build of what `read_preferred_record` gives; the build is empty if any will do."""
    name, version, build = (*spec.split(), "")[:3]
    return name, version.removeprefix("=="), build


def name_of(spec: str) -> str:
    """The package that a match spec requires, in lower case."""
    head = _HEAD.fullmatch(spec.strip())
    if not head:
        raise ValueError(f"no match spec: {spec!r}")
    return head["name"].lower()


def parts_of(spec: str) -> tuple[str, str, str]:
    """(name in lower case, condition on the version, condition on the build) of a spec that `read_match_spec` takes;
    empty if there is none.
    """
    head = _HEAD.fullmatch(spec.strip())
    rest = _REST.fullmatch(head["rest"]) if head else None
    if not head or not rest:
        raise ValueError(f"no match spec: {spec!r}")
    version, build = _words(spec, _joined(rest["plain"]))
    keys = _keys(spec, rest["keys"])
    return head["name"].lower(), version or keys.get("version", ""), build or keys.get("build", "")


def channel_of(spec: str) -> str | None:
    """The channel that a match spec insists on, in its words; None where any channel will do."""
    head = _HEAD.fullmatch(spec.strip())
    return head["channel"] if head else None


def read_conda_name(text: str) -> str:
    """The plain name of a conda package, in lower case; BadValue if it is none."""
    if not re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*", text) or text.startswith("__") or len(text) > _LONGEST_MATCH_SPEC:
        meant = quoted(text.lower()) if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text) else '"msgpack-python"'
        raise BadValue(
            f"{quoted(text)} is not the name of a conda package",
            f"lower-case letters, digits, `-`, `_` and `.`, without a version: {meant}",
        )
    return text


_BRACKETS: Final = "in brackets stand version, build, build_number, md5, sha256 or fn: \"numpy[version='>=2,<3']\""


def _refuse_other_forms(spec: str) -> None:
    if not spec:
        raise BadValue('"" is not a conda package', _FORMS)
    if "://" in spec:
        # Perhaps with a password or a token in it, somewhere.
        shown = quoted(spec.partition("://")[0] + "://\u2026")
        raise BadValue(
            f"{shown} has an address: packages and channels by URL are not supported yet",
            "list the channel in `conda.channels` and name the package alone",
        )
    shown = quoted(spec)
    if len(spec) > _LONGEST_MATCH_SPEC or not spec.isprintable():
        raise BadValue(f"{shown} is {len(spec)} characters long, or has some that can't be printed", _FORMS)
    if "#" in spec or ";" in spec:
        raise BadValue(
            f"{shown} has a comment or a condition in it",
            "what is for one platform goes into [conda.platform.linux-64], comments out of the quotes",
        )
    if re.search(r"\.(?:conda|tar\.bz2)$", spec):
        raise BadValue(f"{shown} is the name of a file", 'write the package: "ffmpeg 7.1.*"')
    if re.match(r"[A-Za-z0-9._-]+\s*\[\s*[A-Za-z0-9._-]+(?:\s*,\s*[A-Za-z0-9._-]+)*\s*\]", spec):
        raise BadValue(
            f"{shown} has extras, which conda packages do not have",
            "list the extra's packages one by one, or move it to [pip]",
        )
    if "===" in spec:
        raise BadValue(f"{shown} has three equals signs", 'exactly this version is "numpy ==2.2.6"')


def _check_prefix(spec: str, channel: str) -> None:
    if channel in ("pip", "pypi"):
        raise BadValue(f"{quoted(spec)} is a package on PyPI", "move it to [pip] `dependencies`")
    try:
        read_channel(channel)
    except BadValue as bad:
        raise BadValue(f"{quoted(spec)}: {bad.found}", bad.hint) from None


def _joined(plain: str) -> str:
    """A version and a build with one blank between them and no other."""
    joined = re.sub(r"\s*([,|)])", r"\1", " ".join(plain.split()))
    return re.sub(r"([,|(=<>!~])\s+", r"\1", joined)


def _words(spec: str, plain: str) -> tuple[str | None, str | None]:
    """The version and the build of what stands after the name, outside brackets."""
    words = plain.split()
    if len(words) == 1 and (both := _EQUALS.fullmatch(words[0])):
        return both[1].lstrip("="), both[2]
    if len(words) > 1 and re.match(r"[=<>!~]", words[1]):
        meant = f"{name_of(spec)} {words[0]},{words[1]}"
        raise BadValue(
            f"{quoted(spec)}: {quoted(words[1])} is in the position of the build",
            f"conditions on a version are joined by a comma: {quoted(meant)}",
        )
    if len(words) > 2:
        raise BadValue(f"{quoted(spec)} has more than a version and a build", 'write "pytorch 2.8.* cuda*"')
    return (words[0] if words else None), (words[1] if len(words) == 2 else None)


def _keys(spec: str, text: str | None) -> dict[str, str]:
    """What stands in brackets."""
    found: dict[str, str] = {}
    if text is None:
        return found
    at = 0
    while part := _KEY.match(text, at):
        key, value = part[1], _joined(next(value for value in part.groups()[1:] if value is not None))
        is_valid = key == "version" or bool(key in _VALUES and re.fullmatch(_VALUES[key], value))
        if not is_valid or not value or key in found:
            raise BadValue(f"{quoted(spec)}: {quoted(f'{key}={value}')} can't be read", _BRACKETS)
        found[key] = value
        at = part.end()
    if not found or at != len(text):
        raise BadValue(f"{quoted(spec)}: brackets that can't be read", _BRACKETS)
    return found


def _version(spec: str, text: str, build: str | None) -> str:
    """A condition on a version, in the form that has one meaning."""
    if re.fullmatch(r"[A-Za-z_][^,|<>=!~()]*", text):
        meant = f"{name_of(spec)} * {text}"
        raise BadValue(
            f"{quoted(spec)}: {quoted(text)} is in the position of the version",
            f"a build comes after the version, and `*` is any: {quoted(meant)}",
        )
    if not _readable(text):
        raise BadValue(
            f"{quoted(spec)}: {quoted(text)} is not a version that conda can read",
            'write "numpy 2.2.*", "numpy >=2,<3" or "numpy ==2.2.6"',
        )
    parts = _PART.findall(text)
    return "".join(part if part in "(),|" else _term(spec, part, build) for part in parts)


def _term(spec: str, text: str, build: str | None) -> str:
    """One condition. conda, and rattler when it is strict and when it is not, differ on what is changed or refused."""
    term = _TERM.fullmatch(text)
    if not term or term["any"]:
        return text
    sign, version, glob = term["sign"] or "", term["version"], term["glob"] or ""
    if glob and sign in ("<", "<=", ">", ">=", "~="):
        raise BadValue(
            f"{quoted(spec)}: `*` has no meaning after `{sign}`",
            f"leave it out: {quoted(f'{name_of(spec)} {sign}{version}')}",
        )
    if sign == "=" and not glob and build:
        raise BadValue(
            f"{quoted(spec)}: beside a build, {quoted(text)} is one version to some, and how one begins to others",
            f"write `=={version}`, or `{version}.*`",
        )
    if glob:
        return f"{sign if sign == '!=' else ''}{version}{glob}"
    if sign == "=":
        return f"{version}.*"
    return f"{sign or '=='}{version}"


def _readable(version: str) -> bool:
    """Whether it is terms joined by `,` and `|`, perhaps in parentheses."""
    depth, term_next = 0, True
    for part in _PART.findall(version):
        if part == "(" and term_next:
            depth += 1
        elif part == ")" and not term_next and depth:
            depth -= 1
        elif part in (",", "|") and not term_next:
            term_next = True
        elif term_next and _is_term(part):
            term_next = False
        else:
            return False
    return depth == 0 and not term_next


def _is_term(text: str) -> bool:
    # conda's versions part their segments by dashes or by underscores, never by both.
    return bool(_TERM.fullmatch(text)) and not ("-" in text and "_" in text)


def _check_build(spec: str, build: str) -> None:
    if not re.fullmatch(BUILD, build):
        raise BadValue(
            f"{quoted(spec)}: {quoted(build)} is not a build that conda can read",
            'letters, digits, `_` and `.`, and `*` for any text: "pytorch 2.8.* cuda*"',
        )


#: The name that holds a microarchitecture, in its build string.
ARCHSPEC: Final = "__archspec"
#: The name that holds the newest CUDA that the driver runs.
CUDA: Final = "__cuda"
#: The name that holds the smallest compute capability of the machine's GPUs. Source: CEP 46.
CUDA_ARCH: Final = "__cuda_arch"

# archspec's names are of this form: x86_64_v3, zen4, neoverse_n1, armv8.2a.
_MICROARCHITECTURE: Final = r"[a-z][a-z0-9_.]*"
_LONGEST_VIRTUAL_PACKAGE: Final = 100

#: Where the virtual packages exist that not every platform has.
#: Source: conda's documentation, "Managing virtual packages".
VIRTUAL_PACKAGE_PLATFORMS: Final = {
    "__unix": frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.OSX_ARM64}),
    "__linux": frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64}),
    "__glibc": frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64}),
    "__osx": frozenset({Platform.OSX_ARM64}),
    "__win": frozenset({Platform.WIN_64}),
    CUDA: frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.WIN_64}),
    CUDA_ARCH: frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.WIN_64}),
}


def read_virtual_value(text: str) -> str:
    """What a virtual package may be set to, whatever its name; BadValue if it is nothing of the kind."""
    if len(text) <= _LONGEST_VIRTUAL_PACKAGE and (
        re.fullmatch(VERSION, text) or re.fullmatch(_MICROARCHITECTURE, text)
    ):
        return text
    raise BadValue(
        f"{quoted(text)} is neither a version nor a microarchitecture", 'write "6.8", or "x86_64_v3" for `__archspec`'
    )


def version_and_build(name: str, value: str) -> tuple[str, str]:
    """The version and the build string of a virtual package: `__archspec`'s value is its build, other values versions.

    Raises:
        BadValue: a value of the other kind.
    """
    if name == ARCHSPEC:
        if not re.fullmatch(_MICROARCHITECTURE, value):
            raise BadValue(f"{quoted(value)} is not a microarchitecture", 'write archspec\'s name for it: "x86_64_v3"')
        return "1", value
    if not re.fullmatch(VERSION, value):
        raise BadValue(f"{quoted(value)} is not a version", f'write the version that {name} has: "6.8"')
    return value, "0"
