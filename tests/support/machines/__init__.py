"""Machines that tests run on, real ones and ones that they make; a test says why it cannot have what it needs."""

from __future__ import annotations

import shutil

from _pytest.outcomes import Skipped


class NotRun(Skipped):
    """Why a test does not run on this machine, in words for the list of skipped tests.

    pytest's own, since its hooks in a `conftest.py` of a folder do not see fixtures of the session.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"not run: {why}")


def program(name: str) -> str:
    """The path of an installed program. PATH of users is searched, and the folders for administrators."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise NotRun(f"{name} is not installed")
    return found
