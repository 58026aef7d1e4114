"""Every file of a lock's folder, from the lock alone."""

from __future__ import annotations

import hashlib

from envspec.lock.conda_lock_file import CONDA_LOCK_NAME, conda_lock_text
from envspec.lock.docker_served import NOTHING, Served
from envspec.lock.dockerfile import DOCKERFILE_NAME, dockerfile_text
from envspec.lock.document import dump
from envspec.lock.explicit import explicit_name, explicit_text
from envspec.lock.head import LOCK_FILE
from envspec.lock.requirements import requirements_name, requirements_text
from envspec.models import Lock


def files_of(lock: Lock, served: Served = NOTHING) -> dict[str, bytes]:
    """File name -> bytes, envspec.lock with the hashes of the others among them.

    Requirements for every platform, or for none where conda brings everything on all of them. An explicit file for each
    platform with conda packages, and one conda-lock.yml, unless `conda_lock_file.without_md5` says why there is none.
    A Dockerfile unless `dockerfile.without_dockerfile` says why there is none.

    served: what `lock.image` makes of a container's start, for the Dockerfile.
    """
    texts: dict[str, str] = {}
    has_conda = any(resolution.conda for resolution in lock.resolutions)
    has_wheels = any(resolution.packages for resolution in lock.resolutions)
    for resolution in lock.resolutions:
        platform = resolution.target.platform
        if has_wheels or not has_conda:
            texts[requirements_name(platform)] = requirements_text(lock, platform)
        if resolution.conda:
            texts[explicit_name(platform)] = explicit_text(lock, platform)
    whole = conda_lock_text(lock)
    if whole is not None:
        texts[CONDA_LOCK_NAME] = whole
    recipe = dockerfile_text(lock, served)
    if recipe is not None:
        texts[DOCKERFILE_NAME] = recipe
    files = {name: text.encode() for name, text in texts.items()}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return files | {LOCK_FILE: dump(lock, hashes).encode()}
