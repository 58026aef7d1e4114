"""The configuration of a machine: `ENVSPEC_*` variables and one file.

`$XDG_CONFIG_HOME/envspec/config.toml`, by default `~/.config/envspec/config.toml`. A variable is named after its key:
`registry.mirrors` is `ENVSPEC_REGISTRY_MIRRORS`. Options of commands come before variables, these before the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from envspec.credentials import shown, without_registry_login
from envspec.errors import UsageError
from envspec.verifier.regular import read_regular


class Setting(NamedTuple):
    """One key. form: what its value is, in words. default: in words."""

    key: str
    form: str
    default: str
    what: str

    @property
    def variable(self) -> str:
        return "ENVSPEC_" + self.key.upper().replace(".", "_")


_TEXT: Final = "a string"
_PATH: Final = "an absolute path"
_SWITCH: Final = "true or false"
_COUNT: Final = "a positive integer"
_SECONDS: Final = "a positive number"
_TABLE: Final = "a table of strings"

SETTINGS: Final = (
    Setting(
        "cache_dir",
        _PATH,
        "the system's folder for caches, such as `~/.cache/envspec`",
        "Folder of the cache. It must be yours, in folders that only you and root can write to; envspec makes it "
        "private",
    ),
    Setting("offline", _SWITCH, "false", "`true` or `1`: use only the cache, no network, like `--offline`"),
    Setting(
        "jobs",
        _COUNT,
        "by command",
        "How many files to fetch, layers to write or platforms to resolve at the same time, like `--jobs`",
    ),
    Setting(
        "default_index", _TEXT, "the public index", "Mirror of the default package index: the URL of its simple pages"
    ),
    Setting(
        "pytorch_index", _TEXT, "PyTorch's own", "Mirror of PyTorch's indexes, with `{variant}` in place of `cu126`"
    ),
    Setting(
        "built_wheels",
        _TEXT,
        "",
        "Where to find wheels that were built elsewhere: a folder or URL with `<sha256>/<file name>`, "
        "`oci://REGISTRY/REPOSITORY`, or `index+URL`",
    ),
    Setting(
        "apt_snapshot",
        _TEXT,
        "those that the base's sources name",
        "Mirror with snapshots of Debian's and Ubuntu's archives: a URL with `{archive}` and `{time}`",
    ),
    Setting(
        "registry.mirrors",
        _TABLE,
        "",
        "Mirrors of registries: `docker.io=registry.example.com:5000`, separated by spaces. `--mirror` overrides them",
    ),
    Setting("http.connect_s", _SECONDS, "15", "Time limit for opening a connection with TLS, in seconds"),
    Setting("http.stall_s", _SECONDS, "30", "Time limit for the next byte, in seconds"),
    Setting(
        "http.total_s", _SECONDS, "600", "Time limit for a whole response, in seconds; downloads have no such limit"
    ),
    Setting("http.attempts", _COUNT, "4", "Attempts of a request, if its error may be temporary"),
    Setting("http.backoff_s", _SECONDS, "0.5", "First pause between attempts, in seconds; doubled each time"),
    Setting("http.retry_after_s", _SECONDS, "20", "Longest `Retry-After` that is obeyed, in seconds"),
    Setting("http.redirects", _COUNT, "8", "Maximum number of redirects of a request"),
)


class Variable(NamedTuple):
    """Variables that are no settings. names: those of one purpose. files: used as well, or instead of them."""

    names: tuple[str, ...]
    what: str
    files: tuple[str, ...] = ()


#: envspec's own that the file can't set.
OWN_VARIABLES: Final = (
    Variable(
        ("ENVSPEC_SUITE_GRACE_S",),
        "Seconds from SIGTERM to SIGKILL for processes of the conformance suite (default: 2)",
    ),
    Variable(
        ("ENVSPEC_NVCC_ARCHITECTURES",),
        "Only in `[build.NAME] env` of a spec: GPUs (`80;90`) that nvcc compiles for, in place of the list in "
        "the sources",
    ),
    Variable(
        ("ENVSPEC_STATE_DIR",),
        "Only in a container: folder for the services' state, if the image's own is not writable",
    ),
    Variable(
        ("_ENVSPEC_COMPLETE",),
        "Set by a shell to complete command lines: `bash_source`, `zsh_source` or `fish_source` prints the script",
    ),
)
#: Of other tools, that envspec uses on a machine.
OTHER_VARIABLES: Final = (
    Variable(("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"), "Proxies; the lower-case names override these"),
    Variable(
        ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "CA certificates: the first that is set is used"
    ),
    Variable(
        ("NETRC",),
        "Logins for the files of a lock, for channels and git; never sent over plain http, except on loopback. "
        "For indexes, `envspec lock` uses only the logins in the spec's URLs",
        ("~/.netrc",),
    ),
    Variable(
        ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"),
        "Logins for registries, as docker and podman store them, with their credential helpers",
        ("~/.docker/config.json", "$XDG_RUNTIME_DIR/containers/auth.json", "~/.config/containers/auth.json"),
    ),
    Variable(
        ("RATTLER_AUTH_FILE",),
        "Logins for conda channels, over https or loopback",
        ("~/.rattler/credentials.json",),
    ),
    Variable(("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"), "The container engine"),
    Variable(
        ("VIRTUAL_ENV", "CONDA_PREFIX"),
        "The active environment, for `envspec verify` and `envspec conformance --local`",
    ),
    Variable(("CUDA_VISIBLE_DEVICES",), "The GPUs that `envspec conformance --local` tests"),
    Variable(
        ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"),
        "Caches of Hugging Face, which `envspec run` mounts",
        ("~/.cache/huggingface",),
    ),
    Variable(
        ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"),
        "Where to find a Python of the locked version, to compile modules for an image",
        ("~/.pyenv", "~/.local/share/uv/python"),
    ),
    Variable(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), "Folders of caches, configuration and data"),
    Variable(("NO_COLOR",), "Any value: no colours"),
)
_BY_KEY: Final = {each.key: each for each in SETTINGS}
_SWITCHES: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: Of the file, in bytes.
_LARGEST: Final = 1 << 20


class SettingValue(NamedTuple):
    """A setting's value and where it comes from: a variable, a line of the file, or `default`."""

    setting: Setting
    value: str
    source: str


@dataclass(frozen=True)
class Settings:
    """What is set on this machine. from_file: variable -> (value, line of the file)."""

    own: Mapping[str, str]
    path: Path
    from_file: Mapping[str, tuple[str, int]]

    @cached_property
    def environ(self) -> Mapping[str, str]:
        """The environment, with the file's values for the variables that are not set."""
        if not self.from_file:
            return self.own
        return {**self.own, **{name: text for name, (text, _) in self.from_file.items() if not self.own.get(name)}}

    @property
    def offline(self) -> bool:
        text = self.environ.get("ENVSPEC_OFFLINE") or "false"
        if text.lower() not in _SWITCHES:
            raise UsageError(f"ENVSPEC_OFFLINE={text}: neither true nor false", hint="set it to 1, or unset it")
        return _SWITCHES[text.lower()]

    @property
    def jobs(self) -> int | None:
        text = self.environ.get("ENVSPEC_JOBS")
        if not text:
            return None
        if not re.fullmatch(r"[1-9]\d{0,5}", text):
            raise UsageError(f"ENVSPEC_JOBS={text}: not a positive integer", hint="set it to 4, or unset it")
        return int(text)

    @property
    def mirrors(self) -> dict[str, str]:
        return parse_mirrors(self.environ.get("ENVSPEC_REGISTRY_MIRRORS", "").split())

    def check(self) -> None:
        """Raise UsageError for a variable that can't be used."""
        from envspec.io.http_settings import timeouts
        from envspec.io.http_types import Timeouts

        _ = (self.offline, self.jobs, self.mirrors, timeouts(self.environ, Timeouts()))

    def rows(self) -> list[SettingValue]:
        """Every setting, without credentials."""
        from envspec.io.cache import cache_path

        found = []
        for each in SETTINGS:
            value = self.environ.get(each.variable) or ""
            if self.own.get(each.variable):
                source = each.variable
            elif each.variable in self.from_file:
                source = f"{self.path}:{self.from_file[each.variable][1]}"
            else:
                source, value = "default", each.default
                if each.key == "cache_dir":
                    value = str(cache_path(self.environ))
            found.append(SettingValue(each, shown(value), source))
        return found

    def other_variables(self) -> list[tuple[str, str, str]]:
        """Variables that are set and no settings: name, value without credentials, what it is for."""
        found = []
        for each in (*OWN_VARIABLES, *OTHER_VARIABLES):
            # Programs read a proxy's name in small letters, too.
            proxies = [name.lower() for name in each.names if name.endswith("_PROXY")]
            for name in (*each.names, *proxies):
                if self.own.get(name):
                    found.append((name, shown(self.own[name]), each.what))
        return found


def parse_mirrors(texts: Sequence[str]) -> dict[str, str]:
    """`REGISTRY=HOST` -> registry and the one that is used instead.

    Raises:
        UsageError: another form, or a login in it.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, host = text.partition("=")
        if "@" in text:
            raise UsageError(
                f"{without_registry_login(text)!r}: a login stood before the mirror's host",
                hint="log in with `docker login HOST`, and name the mirror by its host",
            )
        if not (name and equals and host):
            raise UsageError(
                f"{text!r} names no mirror", hint="the form is REGISTRY=HOST: docker.io=registry.corp:5000"
            )
        found[name] = host
    return found


def config_path(environ: Mapping[str, str]) -> Path:
    """The user's file, which may not exist."""
    named = environ.get("XDG_CONFIG_HOME") or ""
    # XDG Base Directory Specification: a relative path is ignored.
    folder = Path(named)
    if not folder.is_absolute():
        folder = Path(environ.get("HOME") or Path.home(), ".config")
    return folder / "envspec" / "config.toml"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of a machine.

    Raises:
        UsageError: the file can't be read, or has a key or a value that is wrong.
    """
    path = config_path(environ)
    try:
        data = read_regular(path, _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return Settings(environ, path, {})
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", hint="make it readable, or remove it") from error
    from envspec import documents

    try:
        text = data.decode("utf-8")
        document = documents.parse_toml(text)
    except ValueError as error:
        at = str(path)
        if line := re.search(r"line (\d+)", str(error)):
            at += f":{line[1]}"
        raise UsageError(f"{at}: not a TOML document: {error}", hint="correct the file") from error
    found: dict[str, tuple[str, int]] = {}
    for key, value in _values(document):
        number = _line_of(text, key)
        if key not in _BY_KEY:
            raise _unknown(f"{path}:{number}", key)
        setting = _BY_KEY[key]
        found[setting.variable] = (_text_of(setting, value, f"{path}:{number}", environ), number)
    return Settings(environ, path, found)


def _values(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Keys with dots, and their values."""
    tables = {each.key.rpartition(".")[0] for each in SETTINGS} - {""}
    for name, value in document.items():
        if name in tables and isinstance(value, dict):
            yield from ((f"{name}.{below}", inner) for below, inner in value.items())
        else:
            yield name, value


def _unknown(at: str, key: str) -> UsageError:
    from difflib import get_close_matches

    hint = f"use one of {', '.join(_BY_KEY)}"
    if near := get_close_matches(key, _BY_KEY, n=1):
        hint = f"write {near[0]}"
    return UsageError(f"{at}: unknown key {key}", hint=hint)


def _text_of(setting: Setting, value: object, at: str, environ: Mapping[str, str]) -> str:
    """A value of the file as its variable has it.

    Raises:
        UsageError: another form.
    """
    form, text = setting.form, None
    if form is _TABLE and isinstance(value, dict):
        text = _mirrors_text(value, f"{at}: {setting.key}")
    elif form is _SWITCH and isinstance(value, bool):
        text = str(value).lower()
    elif form in (_COUNT, _SECONDS) and isinstance(value, (int, float)):
        text = _number_text(value, form)
    elif form in (_TEXT, _PATH) and isinstance(value, str) and value:
        text = value
        if value.startswith("~/"):
            text = environ.get("HOME", "~") + value[1:]
        if form is _PATH and not Path(text).is_absolute():
            text = None
    if text is None:
        raise UsageError(f"{at}: {setting.key} is not {setting.form}", hint="correct the value, or remove the line")
    return text


def _mirrors_text(table: Mapping[str, object], at: str) -> str | None:
    """None if the table has other values than names of hosts."""
    pairs = []
    for name, host in table.items():
        if not isinstance(host, str) or re.search(r"\s", name + host):
            return None
        pairs.append(f"{name}={host}")
    try:
        parse_mirrors(pairs)
    except UsageError as error:
        raise UsageError(f"{at}: {error.message}", hint=error.hint) from error
    return " ".join(pairs)


def _number_text(value: float, form: str) -> str | None:
    """None for a number that the form does not allow."""
    if isinstance(value, bool) or not 0 < value < 10**6:
        return None
    if isinstance(value, int):
        return str(value)
    if form is _SECONDS:
        return f"{value:f}".rstrip("0").rstrip(".")
    return None


def _line_of(text: str, key: str) -> int:
    """The line of a key; 1 if it is written in an unusual way."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\]]*?)\s*\]", line):
            current = re.sub(r"[\"'\s]", "", header[1])
            if current == key:
                return number
        elif (written := re.match(r"\s*([\w.\"'-]+)\s*=", line)) and (
            re.sub("[\"']", "", f"{current}.{written[1]}".strip(".")) == key
        ):
            return number
    return 1
