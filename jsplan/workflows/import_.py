"""import: take things that exist on the servers into state, without a write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from jsplan.address import Address, is_glob, matches
from jsplan.codegen import GeneratedFile
from jsplan.config.expand import DomainSelectors, has_range
from jsplan.config.findings import Findings
from jsplan.config.model import LoadOptions
from jsplan.config.node import Source, from_plain
from jsplan.context import Context, open_context
from jsplan.diagnostics import Diagnostic, list_known
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import ConfigError, JsplanError, PlanError, UsageError
from jsplan.event_loop import run_until_complete
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.planning.guards import refusal_reasons
from jsplan.workflows.apply import plan_and_apply
from jsplan.workflows.import_config import (
    GeneratedConfig,
    NewFile,
    create_new_file,
    generate_config,
    require_loaded,
    require_new,
)


class _GeneratedConfigError(JsplanError):
    """A file that was generated and the workspace contradict each other; `diagnostics` say how."""

    def __init__(self, message: str, hint: str, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


def import_(
    load: LoadOptions,
    addresses: tuple[str, ...],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
) -> tuple[Plan, ApplyResult]:
    """Adopt what the addresses (or globs) name; each must be in the files and on its server.

    The domain of an address may be a selector, as in `label:edge/**`. What differs from the files is refused without
    `options.adopt`; with it, it is taken as it is and shows as a change in the next plan. Raises PlanError for what is in no
    file, UsageError for a domain that does not exist, and what `apply` raises.
    """
    return run_until_complete(_import(load, addresses, options, approve, observer))


def import_with_config(
    load: LoadOptions,
    addresses: tuple[str, ...],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
    path: Path,
) -> tuple[Plan, ApplyResult, GeneratedFile | None]:
    """The same, after what is in no file was written into a new one at `path`, which the workspace must read.

    The file stays only if the import was approved and carried out. None as the last part: there was nothing to write. Raises
    JsplanError when the file exists, UsageError when the workspace would not read it.
    """
    require_new(path)
    return run_until_complete(
        _import_with_config(load, addresses, options, approve, observer, path)
    )


async def _import(
    load: LoadOptions,
    addresses: tuple[str, ...],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
) -> tuple[Plan, ApplyResult]:
    async with open_context(load) as world:
        globs = expand_globs(world, addresses)
        return await _plan_and_import(world, globs, globs, options, approve, observer)


async def _plan_and_import(
    world: Context,
    globs: tuple[str, ...],
    needed: Iterable[str],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
) -> tuple[Plan, ApplyResult]:
    """`needed` are those of the globs that must name something in the files."""
    found = [
        d
        for text in needed
        for d in _address_problems(text, set(world.workspace.resources), set(world.state.resources))
    ]
    if found:
        raise PlanError(
            found, f"{found[0].address} {found[0].summary}" if len(found) == 1 else None
        )
    return await plan_and_apply(
        world, replace(options, targets=globs, imports=globs), approve, observer
    )


async def _import_with_config(
    load: LoadOptions,
    addresses: tuple[str, ...],
    options: PlanOptions,
    approve: Approve,
    observer: Observer,
    path: Path,
) -> tuple[Plan, ApplyResult, GeneratedFile | None]:
    async with open_context(load) as world:
        globs = expand_globs(world, addresses)
        exact = [text for text in globs if not is_glob(text)]
        chosen = await generate_config(load, world, globs, observer)
        if chosen is None:
            return *await _plan_and_import(world, globs, exact, options, approve, observer), None
    while True:
        written = chosen.render()
        try:
            with create_new_file(path, written.text) as file:
                async with _reopen_context(load, path) as world:
                    require_loaded(world, chosen.addresses, path)
                    _warn_notes(written, observer)
                    plan, result = await _plan_and_import(
                        world, globs, exact, options, _keep_file_after(approve, file), observer
                    )
                file.keep = True
            return plan, result, written
        except (_GeneratedConfigError, PlanError) as error:
            odd = _unimportable(error.diagnostics, chosen, exact)
            if not odd:
                raise
        for address, reason in odd.items():
            observer.warn(f"not written: {address}: {reason}")
        chosen = chosen.without(odd)


def _unimportable(
    found: Iterable[Diagnostic], chosen: GeneratedConfig, exact: Collection[str]
) -> dict[Address, str]:
    """The resources that the errors are about, with why, where the others can be imported without them.

    What was named one by one is not left out in silence, and a file with nothing in it is of no use.
    """
    errors = [d for d in found if d.severity == "error"]
    named = {str(address): address for address in chosen.addresses}
    about = {named[d.address]: d.summary for d in errors if d.address in named}
    if (
        not all(d.address in named for d in errors)
        or len(about) == len(named)
        or {str(address) for address in about} & set(exact)
    ):
        return {}
    return about


def _warn_notes(written: GeneratedFile, observer: Observer) -> None:
    """What the file does not say."""
    for note in written.notes:
        observer.warn(note)


@asynccontextmanager
async def _reopen_context(load: LoadOptions, path: Path) -> AsyncIterator[Context]:
    """The workspace with the new file. Raises JsplanError where the two do not fit together: then the file is removed again."""
    async with AsyncExitStack() as stack:
        try:
            world = await stack.enter_async_context(open_context(load))
        except ConfigError as error:
            first = next(one for one in error.diagnostics if one.severity == "error")
            place = (
                f" ({first.range})"
                if first.range is not None and Path(first.range.file).name != path.name
                else ""
            )
            raise _GeneratedConfigError(
                f"{path.name} was generated and does not fit into the workspace: {first.summary}{place}. It was removed again",
                f"{first.detail} Or import by address, without the resource that this is about.",
                error.diagnostics,
            ) from None
        yield world


def _keep_file_after(approve: Approve, file: NewFile) -> Approve:
    """From the approval of a plan that is not refused on something may be in state: then the file stays, whatever happens."""

    def approving(plan: Plan) -> None:
        approve(plan)
        if not refusal_reasons(plan):
            file.keep = True

    return approving


def expand_globs(world: Context, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses and globs with selectors of domains (`label:edge`, `store-{001..100}`, `!store-099`) written out.

    Raises UsageError for one that matches no domain.
    """
    domains = world.workspace.domains
    out: dict[str, None] = {}
    for text in addresses:
        key, _, rest = text.partition("/")
        if key.startswith(("label:", "!")) or has_range(key):
            found = DomainSelectors(domains, Findings()).select(
                from_plain(key, (Source(world.workspace.root, text), 0, 0))
            )
            if not found:
                raise UsageError(
                    f"{key} matches no domain",
                    hint="Labels are given under `domains:` in jsplan.yaml.",
                )
            out |= dict.fromkeys(f"{name}/{rest}" for name in found)
        elif rest == "**" and key not in domains and not is_glob(key):
            raise UsageError(f'there is no domain "{key}". {list_known("domains", domains, key)}')
        else:
            out[text] = None
    return tuple(out)


def _address_problems(text: str, declared: set[Address], managed: set[Address]) -> list[Diagnostic]:
    try:
        named = {text} if is_glob(text) else {str(Address.parse(text))}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not any(matches(glob, address) for glob in named for address in declared):
        detail = "Declare it first; the plan shows what differs from what is live. Or have it written: --generate-config NAME.jsplan.yaml."
        return [Diagnostic("error", "JS418", "is in no file", detail, text)]
    if not is_glob(text) and Address.parse(text) in managed:
        return [
            Diagnostic("error", "JS419", "is managed already", "There is nothing to import.", text)
        ]
    return []
