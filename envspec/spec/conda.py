"""Channels, match specs and virtual packages.

Match specs are read by py-rattler, and written in its form: a bare version is exactly that one. What it reads in
another way than its author meant is refused: `numpy >1 <2`, say, has the build `<2` to a solver.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from envspec.credentials import VARIABLE, channel_without_credentials
from envspec.models import Platform
from envspec.spec.errors import BadValue, quoted

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
#: In a name, what follows is not taken for a secret, and would be in the lock.
_TOKEN: Final = re.compile(r"(?:^|/)t/")
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
    rest, _, last = channel.rpartition("/")
    if last in _SUBDIRS or last in ("repodata.json", "repodata.json.zst"):
        whole = channel_without_credentials(rest) or "conda-forge"
        raise BadValue(
            f"{_quoted_channel(channel)} names a part of a channel",
            f"write the channel, {quoted(whole)}: `env.platforms` lists which of its platforms are read",
        )
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
    if _TOKEN.search(text):
        raise BadValue(
            "a name with a part `t` is not the name of a channel: servers read a token after it",
            'write the whole address, and the token as a variable: "https://conda.anaconda.org/t/${TOKEN}/channel"',
        )
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
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise BadValue(
                f"{_quoted_channel(text)} is not the address of a folder",
                'three slashes and the whole path: "file:///srv/channel"',
            )
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


_LONGEST_MATCH_SPEC: Final = 500
_FORMS: Final = 'write "ffmpeg", "ffmpeg >=7" or "conda-forge::ffmpeg"'
_VERSIONS: Final = 'write "numpy >=2,<3", "numpy 2.2.*", "numpy ==2.2.6" or "pytorch 2.8.* cuda*"'
_BRACKETS: Final = "in brackets stand version, build, build_number, md5, sha256 or fn: \"numpy[version='>=2,<3']\""
_KEYS: Final = frozenset({"version", "build", "build_number", "md5", "sha256", "fn"})

_HEAD: Final = re.compile(r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<rest>.*)", re.DOTALL)
_REST: Final = re.compile(r"(?P<plain>[^\[\]]*)(?:\[(?P<keys>[^\[\]]*)\]\s*)?")
# Source: conda's VersionOrder: an epoch, segments parted by `.`, `-` or `_`, and a local version.
# A run of digits or letters is taken whole: tried in all of its parts, 50 digits would take for ever.
_SEGMENT: Final = r"(?:[0-9]{1,15}(?![0-9])|[A-Za-z]+(?![A-Za-z]))+"
_SEGMENTS: Final = rf"{_SEGMENT}(?:[._-]{_SEGMENT})*"
VERSION: Final = rf"(?:[0-9]{{1,9}}!)?(?=[0-9]){_SEGMENTS}(?:\+{_SEGMENTS})?"
_BUILD: Final = re.compile(r"[A-Za-z0-9_.+*-]+")

#: Forms that the solver reads in another way than their author meant: of what stands after the name.
_MISREAD: Final = (
    (
        re.compile(r"[#;]"),
        "has a comment or a condition in it",
        "what is for one platform goes into [conda.platform.linux-64], comments out of the quotes",
    ),
    (
        re.compile(r"^\s*\[[\w.,\s-]*\]"),
        "has extras, which conda packages do not have",
        "list the extra's packages one by one, or move it to [pip]",
    ),
    (
        re.compile(r"^[^\[]*[\w.*]\s+[<>=!~]"),
        "has two conditions without a comma between them",
        'write "numpy >=2,<3"',
    ),
    (
        re.compile(r"[<>~]=?\s*[^\s,|()\[\]*]+\*"),
        "has a `*` in the version of a comparison, where it has no meaning",
        'leave it out: "numpy >=2"',
    ),
)


def read_match_spec(text: str) -> str:
    """A match spec in the form that has one meaning; BadValue if it is none, or not what was probably meant.

    `numpy=2.3` becomes `numpy 2.3.*`, `numpy 2.3.1` becomes `numpy ==2.3.1`, as conda reads them.
    """
    spec = text.strip()
    _refuse_other_forms(spec)
    head = _HEAD.fullmatch(spec)
    if head is None:
        raise BadValue(f"{quoted(text)} is not a conda package", _FORMS)
    for form, found, hint in _MISREAD:
        if form.search(head["rest"]):
            raise BadValue(f"{quoted(text)} {found}", hint)
    rest = _REST.fullmatch(head["rest"])
    if rest is None or not re.match(r"$|[\s=<>!~\[]", head["rest"]):
        raise BadValue(f"{quoted(text)} is not a conda package", _FORMS)
    prefix = ""
    if head["channel"] is not None:
        _check_prefix(spec, head["channel"])
        prefix = f"{head['channel']}::"
    if head["name"].startswith("__"):
        raise BadValue(
            f"{quoted(text)} is a virtual package: it describes the machine",
            "it can't be installed; set it in [conda.virtual_packages]",
        )
    if not set(re.findall(r"(\w+)\s*=", rest["keys"] or "")) <= _KEYS:
        raise BadValue(f"{quoted(text)} has a key that is not read", _BRACKETS)
    return prefix + _normal_form(spec, head["name"], head["rest"], rest["plain"])


def _normal_form(spec: str, name: str, rest: str, plain: str) -> str:
    """A match spec as py-rattler writes it. rest: what stands after the name. plain: that without brackets."""
    # The library of all conda work is large, and only specs with [conda] have match specs.
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    try:
        found, outside = MatchSpec(name + rest), MatchSpec(name + plain)
    except InvalidMatchSpecError:
        raise BadValue(f"{quoted(spec)} has a version or a build that conda can't read", _VERSIONS) from None
    if outside.version not in (None, found.version) or outside.build not in (None, found.build):
        raise BadValue(f"{quoted(spec)} has its version or its build twice", "keep one of them")
    if re.match(r"=*[A-Za-z_]", found.version or ""):
        raise BadValue(
            f"{quoted(spec)} has a build in the position of the version",
            'a build comes after the version, and `*` is any version: "pytorch * cuda*"',
        )
    if found.build is not None and not _BUILD.fullmatch(found.build):
        raise BadValue(f"{quoted(spec)}: {quoted(found.build)} is not a build that conda can read", _VERSIONS)
    try:
        strictly = MatchSpec(name + rest, strict=True)
    except InvalidMatchSpecError:
        return str(found)
    # `numpy =2.1 py313*` is one version to conda, and to rattler how a version begins.
    if strictly.version != found.version:
        meanings = f"{quoted(str(found))} to some tools, {quoted(str(strictly))} to others"
        raise BadValue(f"{quoted(spec)} is {meanings}", "write one of the two")
    return str(found)


def read_preferred_record(text: str) -> str:
    """One item of `conda.prefer`: a name, one exact version and perhaps a build; BadValue for anything else."""
    spec = read_match_spec(text)
    name, version, build = parts_of(spec)
    if (
        not re.fullmatch(rf"=={VERSION}", version)
        or "*" in build
        or spec not in (f"{name} {version}", f"{name} {version} {build}")
    ):
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
    """(name in lower case, condition on the version, condition on the build) of what `read_match_spec` gives; empty if
    there is none.
    """
    from rattler import MatchSpec

    found = MatchSpec(spec.rpartition("::")[2])
    return name_of(spec), found.version or "", found.build or ""


def channel_of(spec: str) -> str | None:
    """The channel that a match spec requires, as it is written; None if any channel will do."""
    head = _HEAD.fullmatch(spec.strip())
    return head["channel"] if head else None


def read_conda_name(text: str) -> str:
    """The plain name of a conda package, in lower case; BadValue if it is none."""
    if not re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*", text) or text.startswith("__") or len(text) > _LONGEST_MATCH_SPEC:
        meant = '"msgpack-python"'
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text):
            meant = quoted(text.lower())
        raise BadValue(
            f"{quoted(text)} is not the name of a conda package",
            f"lower-case letters, digits, `-`, `_` and `.`, without a version: {meant}",
        )
    return text


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
    if spec.endswith((".conda", ".tar.bz2")):
        raise BadValue(f"{shown} is the name of a file", 'write the package: "ffmpeg 7.1.*"')


def _check_prefix(spec: str, channel: str) -> None:
    if channel in ("pip", "pypi"):
        raise BadValue(f"{quoted(spec)} is a package on PyPI", "move it to [pip] `dependencies`")
    try:
        read_channel(channel)
    except BadValue as bad:
        raise BadValue(f"{quoted(spec)}: {bad.found}", bad.hint) from None


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
