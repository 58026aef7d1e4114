"""Commands of shell scripts that add nothing to a spec, and what to do where a package is lost with them."""

from __future__ import annotations

from typing import Final, NamedTuple

from envspec.importers.types import Outcome


class Note(NamedTuple):
    """A row for commands that add nothing to a spec. command: a pattern of its words without options."""

    command: str
    outcome: Outcome
    reason: str


#: The first that matches. What concerns packages has a row; a command without one is `OTHERS`.
NOTES: Final = (
    Note(
        r"(apt|apt-get|yum|dnf|microdnf|zypper|apk) (.* )?"
        r"(update|upgrade|dist-upgrade|full-upgrade|clean|autoclean|autoremove|remove|purge|makecache)( .*)?"
        r"|apt-(mark|key|cache) .*|dpkg-reconfigure .*|dpkg (?!.*\.deb).*",
        Outcome.OUTSIDE,
        "envspec reads the archive itself, at the time of [system] snapshot, and leaves no caches",
    ),
    Note(
        r".*(cuda-keyring|nvidia\.com/compute/cuda/repos).*",
        Outcome.OUTSIDE,
        "CUDA's libraries come from the wheels and the base image",
    ),
    Note(
        r"(add-apt-repository|apt-add-repository) (.* )?(ppa:deadsnakes/ppa|universe|multiverse|main).*",
        Outcome.OUTSIDE,
        "the environment brings its Python, and the base's own archive is read",
    ),
    Note(
        r"(add-apt-repository|apt-add-repository) .*",
        Outcome.REFUSED,
        "[system] apt reads the release's own archive: install from elsewhere in an image that [image] base names",
    ),
    Note(
        r"(dpkg|yum|dnf|microdnf|apk|zypper|pacman) .*",
        Outcome.REFUSED,
        "a spec lists packages of Ubuntu and Debian: write their names in [system] apt",
    ),
    Note(
        r"(uv )?pip uninstall .*",
        Outcome.REFUSED,
        "a lock has what packages require; an entry of [pip] overrides with `remove = true` leaves a package out",
    ),
    Note(
        r"(uv tool|pipx) install .*",
        Outcome.REFUSED,
        "a program in an environment of its own: require it in [pip] dependencies if the image needs it",
    ),
    Note(
        r"(pip|uv|conda|mamba|micromamba|poetry)( .*)?|.*(mini(conda|forge|mamba)|mambaforge|anaconda|micromamba).*"
        r"|.*(astral\.sh/uv|get-pip\.py|install\.python-poetry\.org).*|python -( .*)?"
        r"|(source|\.) .*(activate|conda|bashrc|profile).*",
        Outcome.OUTSIDE,
        "envspec installs packages itself, into one environment that is always active",
    ),
    Note(
        r"(huggingface-cli|hf|modelscope|gsutil|aws|azcopy|rclone) .*",
        Outcome.OUTSIDE,
        "models and data are not part of an image: `envspec run` mounts the Hugging Face cache",
    ),
    Note(
        r"((ba|z|da)?sh |source |\. )?(?!\S*(uv-?install|_dockerfile_))"
        r"\S*(install|setup|requirements|depend|deps)\S*\.sh( .*)?",
        Outcome.REFUSED,
        "the script is not among the files that are copied from the project: what it installs is not in the spec",
    ),
)

#: Files, downloads, accounts, programs that are built or run: not what an environment consists of.
OTHERS: Final = "files, programs and accounts: [image] copy puts files of the project into the image"
