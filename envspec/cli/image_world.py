"""The machine that commands about images work on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.credentials import without_registry_login
from envspec.errors import UsageError

if TYPE_CHECKING:
    from envspec.cli.progress import DownloadProgress
    from envspec.image.options import ImageWorld


def image_world(
    progress: DownloadProgress,
    mirrors: Sequence[str],
    of_spec: Mapping[str, str] | None = None,
    *,
    unconfined: bool = False,
) -> ImageWorld:
    """This machine. mirrors: `REGISTRY=HOST` of the command line. of_spec: the spec's own, which these go before.

    unconfined: whether `--unconfined` is given.

    Raises:
        UsageError: a mirror that names none.
    """
    from envspec.image.options import ImageWorld
    from envspec.io.cache import cache_root
    from envspec.io.confine import Unconfined

    found = {**(of_spec or {}), **mirrors_of(mirrors)}
    return ImageWorld(
        os.environ,
        Path.home(),
        cache_root(os.environ),
        progress.report,
        progress.warn,
        found,
        unconfined=Unconfined.ALLOWED if unconfined else Unconfined.REFUSED,
    )


def mirrors_of(texts: Sequence[str]) -> dict[str, str]:
    """Registry -> what stands in for it: the environment's, and `REGISTRY=HOST` of the command line.

    Raises:
        UsageError: a mirror that names none.
    """
    found: dict[str, str] = {}
    for text in (*os.environ.get("ENVSPEC_REGISTRY_MIRRORS", "").split(), *texts):
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
