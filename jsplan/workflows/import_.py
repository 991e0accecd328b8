"""import: take existing resources into state, without a write."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from jsplan.address import Address, is_glob, names_content
from jsplan.codegen import GeneratedFile, ResourceToWrite
from jsplan.config.model import LoadOptions
from jsplan.config.workspace_schema import build_modeline
from jsplan.context import Context, known_domains, open_context, open_pool
from jsplan.diagnostics import Diagnostic
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import ConfigError, JsplanError, PlanError
from jsplan.event_loop import runs_to_end
from jsplan.facts.refresh import list_live
from jsplan.importing import (
    MAX_LISTED,
    GeneratedConfig,
    NewFile,
    build_codegen_context,
    create_new_file,
    exact_addresses,
    expand_globs,
    find_problems,
    matches_domain,
    read_exact,
    read_selected_entries,
    require_existing,
    require_loaded,
    require_new,
    select_objects,
    skip_internal_streams,
)
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.planning.refusals import list_refusals
from jsplan.units import count_text
from jsplan.workflows.apply import plan_and_apply


class _GeneratedConfigError(JsplanError):
    """A generated file and the workspace contradict each other; `diagnostics` say how."""

    def __init__(self, message: str, hint: str, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


@runs_to_end
async def import_(
    load: LoadOptions,
    addresses: tuple[str, ...],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
) -> tuple[Plan, ApplyResult]:
    """Import what the addresses (or globs) name; each must be in the files and on its server.

    The domain of an address may be a selector, as in `label:edge/**`. A difference from the files
    is refused without `options.adopt`; with it, the live configuration is imported and the next
    plan shows the change. Raises PlanError for addresses in no file, UsageError for unknown
    domains, and the errors of `apply`.
    """
    async with open_context(load) as context:
        globs = expand_globs(context, addresses)
        return await _plan_and_import(context, globs, globs, options, approve, observer)


@runs_to_end
async def import_with_config(
    load: LoadOptions,
    addresses: tuple[str, ...],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
    path: Path,
) -> tuple[Plan, ApplyResult, GeneratedFile | None]:
    """Import, after writing what is in no file to a new file at `path` of the workspace.

    The file stays only if the import was approved and executed. The last part of the result is None
    if there was nothing to write. Raises JsplanError when the file exists, UsageError when the
    workspace would not read it.
    """
    require_new(path)
    async with open_context(load) as context:
        globs = expand_globs(context, addresses)
        exact = [text for text in globs if not is_glob(text)]
        config = await generate_config(load, context, globs, observer)
        if config is None:
            return *await _plan_and_import(context, globs, exact, options, approve, observer), None
    while True:
        generated = config.render()
        text = build_modeline(path, load.directory) + generated.text
        try:
            with create_new_file(path, text) as file:
                async with _reopen_context(load, path) as context:
                    require_loaded(context, config.addresses, path)
                    _warn_notes(generated, observer)
                    plan, result = await _plan_and_import(
                        context,
                        globs,
                        exact,
                        options,
                        _keep_file_after(approve, file),
                        observer,
                    )
                file.keep = True
            return plan, result, generated
        except (_GeneratedConfigError, PlanError) as error:
            excluded = _unimportable(error.diagnostics, config, exact)
            if not excluded:
                raise
        for address, reason in excluded.items():
            observer.warn(f"{address} is not written: {reason}")
        config = config.without(excluded)


async def _plan_and_import(
    context: Context,
    globs: tuple[str, ...],
    needed: Iterable[str],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
) -> tuple[Plan, ApplyResult]:
    """Plan and apply the import. The globs in `needed` must match something in the files."""
    found = [
        d
        for text in needed
        for d in find_problems(
            text,
            set(context.workspace.resources),
            set(context.state.resources),
        )
    ]
    if found:
        raise PlanError(
            found, f"{found[0].address} {found[0].summary}" if len(found) == 1 else None
        )
    return await plan_and_apply(
        context, dataclasses.replace(options, targets=globs, imports=globs), approve, observer
    )


def _unimportable(
    found: Iterable[Diagnostic], config: GeneratedConfig, exact: Collection[str]
) -> dict[Address, str]:
    """Return the resources with errors and the reasons, if the others can be imported.

    Empty if that excludes a resource that was named exactly, or leaves nothing.
    """
    errors = [d for d in found if d.severity == "error"]
    named = {str(address): address for address in config.addresses}
    about = {named[d.address]: d.summary for d in errors if d.address in named}
    if (
        not all(d.address in named for d in errors)
        or len(about) == len(named)
        or {str(address) for address in about} & set(exact)
    ):
        return {}
    return about


def _warn_notes(generated: GeneratedFile, observer: Observer) -> None:
    """Warn about what the file does not declare."""
    for note in generated.notes:
        observer.warn(note)


@asynccontextmanager
async def _reopen_context(load: LoadOptions, path: Path) -> AsyncIterator[Context]:
    """Open the workspace with the new file. Raises JsplanError if they contradict each other."""
    async with AsyncExitStack() as stack:
        try:
            context = await stack.enter_async_context(open_context(load))
        except ConfigError as error:
            first = next(each for each in error.diagnostics if each.severity == "error")
            place = ""
            if first.range is not None and Path(first.range.file).name != path.name:
                place = f" ({first.range})"
            raise _GeneratedConfigError(
                f"{path.name} was generated and does not fit into the workspace:"
                f" {first.summary}{place}. It was removed again",
                f"{first.detail} Or import by address, without the resource that this is about.",
                error.diagnostics,
            ) from None
        yield context


def _keep_file_after(approve: Approve, file: NewFile) -> Approve:
    """Keep the file once a plan without refusals is approved: state may have its resources then."""

    def approving(plan: Plan) -> None:
        approve(plan)
        if not list_refusals(plan):
            file.keep = True

    return approving


# --- generated files ------------------------------------------------------------------------------


async def generate_config(
    load: LoadOptions, context: Context, globs: tuple[str, ...], observer: Observer
) -> GeneratedConfig | None:
    """Select what the globs name and no file declares, or None. Warn about what is skipped."""
    every, globs = globs, tuple(glob for glob in globs if not names_content(glob))
    keys = [
        key for key in context.workspace.domains if any(matches_domain(glob, key) for glob in globs)
    ]
    async with open_pool(context, read_only=True, guarded=True) as pool:
        observer.phase(f"Listing {count_text(len(keys), 'domain')}")
        live = await list_live(
            pool,
            context.workspace.domains,
            known_domains(context),
            exact_addresses(globs),
            domain_keys=keys,
        )
        await read_exact(pool, context, live, exact_addresses(globs))
        selection = select_objects(context, live, globs)
        await skip_internal_streams(pool, context, live, globs, selection)
        entries = await read_selected_entries(pool, context, live, every, selection)
    require_existing(context, live, exact_addresses(globs))
    for reason, named in selection.skipped.items():
        more = f" and {len(named) - MAX_LISTED} more" if len(named) > MAX_LISTED else ""
        verb = "is" if len(named) == 1 else "are"
        observer.warn(f"{', '.join(named[:MAX_LISTED])}{more} {verb} not written: {reason}")
    if not selection.selected:
        return None
    return GeneratedConfig(
        tuple(
            ResourceToWrite(
                each.address,
                each.config,
                complete=True,
                settings={"entries": found} if (found := entries.get(each.address)) else {},
            )
            for each in selection.selected
        ),
        build_codegen_context(load, context, live),
    )
