"""Spec to lock folder: the stages of `envspec lock`, in order."""

from __future__ import annotations

from contextlib import closing

from envspec.context import Context, ReporterOf
from envspec.facts import load_facts
from envspec.io.store import Store
from envspec.lockfile.header import LOCK_FILE
from envspec.operations.lock.cache import check_owner, key_of, lock_of, remember, remember_ours
from envspec.operations.lock.gpus import check_cuda
from envspec.operations.lock.inputs import check_logins, document_of, for_variant, parse, previous_lock, times_of
from envspec.operations.lock.reports import report_fixed
from envspec.operations.lock.upgrade import resolve_upgrade, upgrade_text, with_known_names
from envspec.operations.lock_state import Compiled, LockRequest, LockState
from envspec.spec.load import read_text
from envspec.spec.logins import login_warnings
from envspec.spec.variants import Merged
from envspec.structs import replace


def compile_lock(
    request: LockRequest, before: bytes | None, context: Context, base: Compiled | None, text: str | None
) -> Compiled:
    """What a spec compiles to; writes nothing but the cache.

    before: see `existing_lock`.
    base: for a variant, what the spec itself compiles to.
    text: the spec's, if it is not to be the request's or its file's.
    """
    started = context.now().replace(microsecond=0)
    if request.is_adopted:
        written = request.text or ""
    else:
        written = (base.new_text if base else None) or read_text(request.spec_path)
    new_text = request.text if text is None else text
    text = written
    if new_text is not None and base is None:
        text = new_text
    if not request.variant:
        text = upgrade_text(text, request, started)
    whole = parse(text, request, started)
    spec = whole.variant(request.variant)
    check_owner(request, before)
    check_logins(spec, request, context)
    # These warnings are about the text of the spec, not about the lock.
    document = document_of(text, request)
    for warning in login_warnings(Merged(document, request.variant), request.spec_path, text):
        context.reporter.warning(warning)
    warnings: list[str] = []
    context = _recording(context, warnings).with_spec(spec.registry.mirrors, unconfined=not spec.pip.build.sandbox)
    key = None
    if new_text is None and request.is_plain:
        key = key_of(request, before, context.environ, base)
    facts = load_facts(spec.facts.tables())
    check_cuda(spec, facts, request.spec_path, request.variant, request.text)
    with closing(Store(context.cache)) as store:
        previous = previous_lock(request, before, spec, facts, context, store)
        old, recorded = previous.old, previous.recorded
        as_of, newest = times_of(request, spec, facts, old, started)
        state = LockState(request, context, store, spec, document, facts, old, started, as_of, newest, before=recorded)
        if request.variant:
            state = for_variant(state, lock_of(request, base))
        report_fixed(state)
        known = with_known_names(state, whole)
        packages, text = resolve_upgrade(known, text)
        # Imported by now, while the engines ran.
        from envspec.operations.lock.finish import finished, is_repeatable

        lock, files = finished(packages, replace(known, old=state.old))
        if previous.is_looked_up:
            remember_ours(store, files[LOCK_FILE])
            if key is not None and store.is_settled and is_repeatable(lock, spec, old):
                remember(store, key, files, warnings)
    return Compiled(files, written, None if text == written else text)


def _recording(context: Context, warnings: list[str]) -> Context:
    """The context, with every warning kept as well."""

    def warn(text: str) -> None:
        warnings.append(text)
        context.reporter.warning(text)

    return replace(context, reporter=ReporterOf(context.reporter, warning=warn))
