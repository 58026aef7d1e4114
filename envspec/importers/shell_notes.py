"""Commands of shell scripts that add nothing to a spec, and what to do where that is a loss."""

from __future__ import annotations

from typing import Final, NamedTuple

from envspec.importers.types import Outcome


class Note(NamedTuple):
    """A row for commands that add nothing to a spec. command: a pattern of its words without options."""

    command: str
    outcome: Outcome
    reason: str


_NETWORK: Final = "files from the network have no hash: [image] copy puts a file of the project into the image"

#: The first that matches.
NOTES: Final = (
    Note(
        r"(apt|apt-get) (.* )?(update|upgrade|dist-upgrade|full-upgrade)( .*)?",
        Outcome.TRANSLATED,
        "needs nothing: envspec reads the archive itself, at the time of [system] snapshot",
    ),
    Note(
        r"(apt|apt-get) (.* )?(clean|autoclean|autoremove|remove|purge)( .*)?|apt-mark .*|dpkg-reconfigure .*",
        Outcome.TRANSLATED,
        "needs nothing: the system layer has no caches and no build packages",
    ),
    Note(
        r"(add-apt-repository|apt-add-repository) (.* )?(ppa:deadsnakes/ppa|universe|multiverse|main).*",
        Outcome.TRANSLATED,
        "needs nothing: the environment brings its Python, and the base's own archive is read",
    ),
    Note(
        r"(add-apt-repository|apt-add-repository|apt-key) .*",
        Outcome.REFUSED,
        "[system] apt reads the release's own archive: install from elsewhere in an image that [image] base names",
    ),
    Note(
        r"(dpkg|yum|dnf|microdnf|apk|zypper|pacman) .*",
        Outcome.REFUSED,
        "a spec lists packages of Ubuntu and Debian: write their names in [system] apt",
    ),
    Note(
        r"rm( .*)?|find .* -delete.*|fc-cache.*|ldconfig( .*)?|sync|locale-gen.*|update-locale .*|"
        r"update-ca-certificates",
        Outcome.TRANSLATED,
        "needs nothing: an image has only what its lock lists, without caches",
    ),
    Note(
        r"(pip|uv) cache .*|uv clean.*|conda clean.*|(mamba|micromamba) clean.*|pip (list|check|freeze|show|"
        r"debug|config|--version|help)( .*)?|pip",
        Outcome.TRANSLATED,
        "needs nothing: it concerns only the run of the program",
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
        r"(conda|mamba|micromamba) (init|activate|info|list|shell|run|deactivate)( .*)?|source .*activate.*|"
        r"\. .*activate.*|(source|\.) .*(conda|bashrc|profile).*",
        Outcome.TRANSLATED,
        "needs nothing: an image has one environment, always active",
    ),
    Note(
        r"poetry (config|env|self|cache|lock|check) .*|uv (lock|self|--version).*|curl .*astral\.sh/uv.*|"
        r"wget .*astral\.sh/uv.*|.*get-pip\.py.*|python - .*|.*install\.python-poetry\.org.*",
        Outcome.TRANSLATED,
        "needs nothing: envspec installs packages itself",
    ),
    Note(
        r".*(mini(conda|forge|mamba)|mambaforge|anaconda|micromamba).*",
        Outcome.TRANSLATED,
        "needs nothing: envspec installs conda's packages itself",
    ),
    Note(
        r".*(cuda-keyring|nvidia\.com/compute/cuda/repos).*",
        Outcome.TRANSLATED,
        "needs nothing: CUDA's libraries come from the wheels and the base image",
    ),
    Note(
        r"(wget|curl|aria2c|gdown|axel) .*",
        Outcome.REFUSED,
        _NETWORK,
    ),
    Note(
        r"(huggingface-cli|hf|modelscope|gsutil|aws|azcopy|rclone) .*",
        Outcome.REFUSED,
        "models and data are not part of an image: `envspec run` mounts the Hugging Face cache",
    ),
    Note(
        r"ln -?s?.*(localtime|libcuda).*",
        Outcome.TRANSLATED,
        "needs nothing: times are UTC, and the driver's libraries are mounted",
    ),
    Note(
        r"(ln|cp|mv|install|touch|tee|unzip|tar|gunzip|sed|awk|perl|patch|cat|printf|dd) .*|chmod .*|chown .*",
        Outcome.REFUSED,
        "a lock makes no files of its own: [image] copy puts files of the project into the image",
    ),
    Note(
        r"mkdir .*",
        Outcome.TRANSLATED,
        "needs nothing: folders appear with what is in them, and [image] workdir",
    ),
    Note(
        r"grep .*|echo( .*)?|true|:|set( .*)?|shopt .*|exit( .*)?|sleep .*|ls( .*)?|pwd|whoami|id|env|date|df .*|"
        r"du .*|nvidia-smi.*|nvcc( .*)?|which .*|command( .*)?|hash .*|type .*|ulimit .*|umask .*|unset .*|"
        r"popd|wait|test .*|trap .*|read .*",
        Outcome.TRANSLATED,
        "needs nothing: it changes no files",
    ),
    Note(r"pre-commit .*", Outcome.TRANSLATED, "needs nothing: it concerns the repository, not the environment"),
    Note(
        r"git (config|lfs|submodule|fetch|pull|--version|rev-parse|log|status)( .*)?|ssh-keyscan .*",
        Outcome.TRANSLATED,
        "needs nothing: envspec fetches repositories itself, with their submodules",
    ),
    Note(
        r"(useradd|adduser|groupadd|addgroup|usermod|passwd|chpasswd|chsh|deluser) .*",
        Outcome.REFUSED,
        "an image has no accounts of its own: `envspec run` starts it as the caller, and images with "
        "[services] as `envspec`",
    ),
    Note(
        r"(make|cmake|ninja|gcc|g\+\+|nvcc|cargo|go|npm|yarn|pnpm|node|rustup|bazel|meson|\./configure|"
        r"\.?/.*\.sh|bash .*|sh .*|zsh .*)( .*)?",
        Outcome.REFUSED,
        "a lock builds Python packages only: a program that is built here belongs into an image that "
        "[image] base names",
    ),
    Note(
        r"python .*|ipython .*|jupyter .*|accelerate .*|deepspeed .*|torchrun .*|nltk.*|spacy .*|playwright .*",
        Outcome.REFUSED,
        "building an image runs no code of the project: run it at the start, `envspec run LOCK -- ...`",
    ),
)
