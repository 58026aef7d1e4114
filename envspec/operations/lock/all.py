"""A spec and its variants, locked together: all of their locks are written, or none.

On the way of `envspec lock` before anything heavy is imported: locks that are cached need no more than this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from envspec.context import Context
from envspec.errors import EnvspecError, UsageError
from envspec.io.files import replace_user_file
from envspec.lockfile.folder import folder_changes, write_folder
from envspec.operations.lock.cache import check_owner, existing_lock, recall_lock
from envspec.operations.lock_state import Compiled, LockRequest, variants_of
from envspec.structs import replace

#: The context of one request, for as long as it takes.
ContextOf = Callable[[LockRequest], AbstractContextManager[Context]]


def lock_all(request: LockRequest, context_of: ContextOf) -> None:
    """Lock a spec and its variants, and write their locks.

    Raises:
        EnvspecError: the first error of one of them. Nothing is written then, unless a folder can't be written after
            those of others.
    """
    requests = variants_of(request)
    made: list[Compiled] = []
    for each in compile_all(requests, context_of):
        if isinstance(each, EnvspecError):
            raise each
        made.append(each)
    for written in write_all(requests, made):
        if isinstance(written, EnvspecError):
            raise written


def compile_all(
    requests: Sequence[LockRequest], context_of: ContextOf, *, cached: bool = True
) -> list[Compiled | EnvspecError]:
    """What a spec and its variants compile to, or why not; writes nothing but the cache.

    requests: as `variants_of` gives them. If the spec itself can't be locked, its error is the only item, since its
    variants prefer its versions. cached: whether locks that were made before need not be resolved.
    """
    pending, text = list(requests), None
    made: list[Compiled | EnvspecError] = []
    while len(made) < len(pending) and not (made and isinstance(made[0], EnvspecError)):
        found = _compile(pending[len(made)], context_of, made[0] if made else None, text, cached=cached)
        if made and isinstance(found, Compiled) and found.new_text is not None:
            # `--upgrade-package` of a variant gives dates to packages in the spec, which all share.
            text = found.new_text
            for at in range(len(made) + 1):
                pending[at] = replace(pending[at], upgrade_packages=(), as_of=None)
            made = []
        else:
            made.append(found)
    return made


def _compile(
    request: LockRequest, context_of: ContextOf, base: Compiled | EnvspecError | None, text: str | None, *, cached: bool
) -> Compiled | EnvspecError:
    of_spec = base if isinstance(base, Compiled) else None
    try:
        with context_of(request) as context:
            before = existing_lock(request)
            if cached and text is None and (found := recall_lock(request, before, context, of_spec)) is not None:
                return found
            from envspec.operations.lock.stages import compile_lock

            return compile_lock(request, before, context, of_spec, text)
    except EnvspecError as error:
        return error


def write_all(requests: Sequence[LockRequest], made: Sequence[Compiled]) -> list[tuple[Path, ...] | EnvspecError]:
    """Write the locks, and the spec if its dates have changed; the paths that were written or removed, the spec first.

    made: of each request. Each folder is written as one step; a run that is killed between two of them leaves locks of
    which `--check` finds one stale.

    The last item is an error if another run has changed the spec, or locked another one, or if something is in the way
    of a lock: nothing is written then. If the disk is full, the locks before the error are written; if none of them has
    changed, the spec is as it was.
    """
    path, new_text = requests[0].spec_path, made[0].new_text
    changed: list[tuple[Path, ...] | EnvspecError] = []
    try:
        for request, each in zip(requests, made, strict=True):
            if each.files:
                # Another run may have locked another spec meanwhile.
                check_owner(request, existing_lock(request))
                # Fails if something is in the way of one of them.
                folder_changes(request.directory, each.files)
        if new_text is not None:
            _write_spec(path, made[0].original_text, new_text)
    except EnvspecError as error:
        return [error]
    for request, each in zip(requests, made, strict=True):
        try:
            changed.append(write_folder(request.directory, each.files) if each.files else ())
        except UsageError as error:
            if new_text is not None and not any(changed):
                new_text = None
                # The first error is the one to report.
                with suppress(UsageError):
                    replace_user_file(path, made[0].original_text.encode())
            changed.append(error)
            break
    if new_text is not None and isinstance(changed[0], tuple):
        changed[0] = (path, *changed[0])
    return changed


def _write_spec(path: Path, original_text: str, new_text: str) -> None:
    from envspec.spec.load import read_text

    if read_text(path) != original_text:
        raise UsageError(f"{path} was changed while it was locked", hint="lock it again")
    replace_user_file(path, new_text.encode())
