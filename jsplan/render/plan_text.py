"""The plan as text for people; unchanged resources are only counted.

Sources that differ only in the name of a domain are one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.text import Text

from jsplan import group_domains, units
from jsplan.address import Address
from jsplan.diagnostics import quote_shell
from jsplan.group_domains import ANY_DOMAIN, MIN_GROUP, format_domains
from jsplan.planning.refusals import find_missing_permissions, join_flags
from jsplan.render import diagnostics_text, resource_text, summary
from jsplan.render.escape import quote_json, safe
from jsplan.render.lines import Lines
from jsplan.render.resource_text import action_key
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from jsplan.documents.plan import Plan, ResourceChange


#: An element of `sources` whose origin is in another domain.
_ELEMENT = re.compile(r'(\s*)[-+~] sources\["[^"]*@\$JS\.([^."]+)\.API')
LIMITED = "This plan is limited by --target or --exclude: it does not show everything that differs."
IMPORT_HINT = (
    "To take in what is only on the server, declare it first, or have it written: "
    "--generate-config NAME.jsplan.yaml; "
    "what is only in the files is made by: jsplan apply"
)
#: Listed values of `--target`; an import may have one for each domain.
_MAX_TARGETS = 5
#: Listed addresses per domain and reason of deferred resources, without -v.
_MAX_SHOWN = 5


def render(
    plan: Plan, console: Console, *, verbose: bool = False, missing_flags: bool = True
) -> None:
    """Print the whole plan, the greppable summary last; `verbose` groups nothing.

    `missing_flags` lists the flags without which an apply would refuse the plan.
    """
    lines = Lines()
    if words := reverted_entry(plan):
        lines.add(0, (safe(words), "strong"))
        lines.blank()
    add_drift(lines, relevant_drift(plan), verbose=verbose)
    lines.print(console)
    found = changed_resources(plan)
    _intro(plan, bool(found or plan.backfills), console)
    groups = group_changes(found, plan, verbose=verbose)
    _resources(groups, console, verbose=verbose)
    render_backfills(plan).print(console)
    render_deferred(plan, verbose=verbose).print(console)
    diagnostics_text.render(plan.diagnostics, console, after=True, verbose=verbose)
    if missing_flags:
        _permissions(plan).print(console)
    _summary(plan).print(console)


def reverted_entry(plan: Plan) -> str:
    """Return which entry of the history the plan reverts; empty for any other plan."""
    entry = plan.options.get("revert")
    if entry is None:
        return ""
    return "Reverting {operation} {id} of {who}@{host}, {at}:".format(**entry)


def relevant_drift(plan: Plan) -> list[ResourceChange]:
    """Return drift of resources that this plan touches; all drift with --refresh-only."""
    touched = {r.address for r in plan.resource_changes if action_key(r) != ("no-op",)}
    return [r for r in plan.resource_drift if plan.mode == "refresh-only" or r.address in touched]


def changed_resources(plan: Plan) -> list[ResourceChange]:
    """Return the resources to show, in the order of this page: consumers below their stream.

    A stream and its consumers stand where the most severe change among them belongs.
    """
    changed = [
        r
        for r in plan.resource_changes
        if r.change.importing or r.previous_address or action_key(r) != ("no-op",)
    ]
    rank = {actions: number for number, actions in enumerate(resource_text.HEADS)}
    parents = {r.address: _parent(r) for r in changed}
    worst: dict[str, int] = {}
    for r in changed:
        parent = parents[r.address]
        worst[parent] = max(worst.get(parent, 0), rank.get(action_key(r), 0))

    return sorted(
        changed,
        key=lambda r: (worst[parents[r.address]], *below_stream(r), rank.get(action_key(r), 0)),
    )


def below_stream(resource: ResourceChange) -> tuple[str, str]:
    """Return a sort key that places consumers below their stream."""
    return (_parent(resource), resource.address if resource.type == "consumer" else "")


def _parent(resource: ResourceChange) -> str:
    """Return the address of a consumer's stream or bucket, and of another resource its own."""
    if resource.type != "consumer":
        return resource.address
    stream = resource.name.rpartition("/")[0]
    return str(Address.of_stream(resource.domain, stream))


def group_changes(
    resources: list[ResourceChange], plan: Plan | None = None, *, verbose: bool = False
) -> list[group_domains.Group]:
    """Group changes that are alike in many domains; with `verbose` each stands alone."""
    if verbose:
        return [group_domains.Group(r, (r,)) for r in resources]
    return group_domains.group_resources(resources, plan)


def add_drift(lines: Lines, drift: list[ResourceChange], *, verbose: bool) -> None:
    """Add the elements of `resource_drift`, if there are any, each with an empty line after it."""
    if not drift:
        return
    lines.add(0, ("Changed outside of jsplan", "strong"), " since the last apply:")
    lines.blank()
    for group in group_changes(drift, verbose=verbose):
        _add_drifted(lines, group.resource, f", {safe(group.where)}" if group.where else "")


def _add_drifted(lines: Lines, resource: ResourceChange, where: str) -> None:
    grade = f" ({resource.severity})" if resource.severity else ""
    gone = resource.change.after is None
    sign, says = (("  - ", "delete"), "is gone") if gone else (("  ~ ", "update"), "was changed")
    address = (safe(resource.address), "strong")
    lines.add(0, sign, address, f" {says}{grade}", (where, "strong"))
    for change in [] if gone else resource.change.fields:
        resource_text.add_field_change(lines, resource.type, change)
    lines.blank()


def _intro(plan: Plan, anything: bool, console: Console) -> None:
    lines = Lines()
    importing = bool(plan.options.get("import"))
    limited = bool(plan.targets or plan.options.get("excludes")) and not importing
    if anything:
        where = f"workspace {safe(plan.workspace)}" + (
            f", environment {safe(plan.environment)}" if plan.environment else ""
        )
        lines.add(0, (f"{headline(plan, limited=limited)} ", "strong"), f"({where}):")
    if not importing and (shaped := format_options(plan)):
        lines.add(0, (f"Planned with {shaped}", "dim"))
    if limited:
        lines.add(0, (LIMITED, "warn"))
    if len(lines):
        lines.blank()
    lines.print(console)


def headline(plan: Plan, *, limited: bool) -> str:
    """Return a sentence about what the apply does, without its full stop."""
    if plan.options.get("import"):
        return "jsplan will import the following"
    if plan.mode != "destroy":
        return "jsplan will do the following"
    if limited:
        return "jsplan will destroy the following"
    return "jsplan will destroy everything that it manages"


def format_options(plan: Plan) -> str:
    """Return the options that shaped the plan, as they are written."""
    options: dict[str, Any] = plan.options
    words = [f"--target {safe(quote_shell(t))}" for t in plan.targets[:_MAX_TARGETS]]
    words += (
        [f"and {len(plan.targets) - _MAX_TARGETS} more"] if len(plan.targets) > _MAX_TARGETS else []
    )
    words += [f"--exclude {safe(quote_shell(e))}" for e in options.get("excludes") or ()]
    words += [f"--replace {safe(quote_shell(r))}" for r in options.get("replace") or ()]
    words += [f"--reinstalled {safe(quote_shell(d))}" for d in options.get("reinstalled") or ()]
    words += [f"--allow-hazard {safe(quote_shell(h))}" for h in plan.allowed_hazards]
    words += ["--refresh-only"] if plan.mode == "refresh-only" else []
    words += ["--adopt"] if options.get("adopt") else []
    words += ["--rehearse"] if options.get("rehearse") else []
    words += [f"--server-version {safe(v)}"] if (v := options.get("server_version")) else []
    if stage := options.get("stage"):
        words += ["--stage", safe(stage)]
    elif not options.get("backfill", True):
        words += ["--no-backfill"]
    words += [f"--safe-below {options['safe_below']}"] if options.get("safe_below") else []
    return " ".join(words)


def _resources(groups: list[group_domains.Group], console: Console, *, verbose: bool) -> None:
    for group in groups:
        lines = resource_text.render(group.resource, group.where)
        lines = lines if verbose else fold_sources(lines)
        lines.blank()
        lines.print(console)


def render_backfills(plan: Plan) -> Lines:
    """Render each backfill with its endpoints, amount and strategy."""
    lines = Lines()
    for job in plan.backfills:
        ends = f"{_format_endpoint(job.get('from'))} -> {_format_endpoint(job.get('to'))}"
        lines.add(
            0,
            ("  > ", "import"),
            (f"backfill {safe(str(job['name']))}", "strong"),
            f" {ends} [{', '.join(format_amount(job))}]",
        )
        guess = job.get("estimate")
        for words in filter(
            None,
            (job.get("reason"), f"the time is an estimate, {guess['basis']}" if guess else None),
        ):
            lines.add(resource_text.BODY_INDENT, (safe(str(words)), "dim"))
        lines.blank()
    return lines


def format_amount(job: Mapping[str, Any]) -> list[str]:
    """Return messages, bytes and duration, as far as they are known."""
    filtered = any(
        isinstance(end, dict) and end.get("filter_subjects") for end in job.get("from") or ()
    )
    most = "up to " if filtered and job.get("messages") else ""
    found = (
        [most + count_text(job["messages"], "message")] if job.get("messages") is not None else []
    )
    found += [units.format_bytes(job["bytes"])] if job.get("bytes") is not None else []
    guess = job.get("estimate")
    return (
        [*found, f"about {units.format_duration(max(1, round(guess['seconds'])) * units.SECOND)}"]
        if guess
        else found
    )


def _format_endpoint(end: Any) -> str:
    if isinstance(end, list):
        return ", ".join(dict.fromkeys(_format_endpoint(item) for item in end))
    if isinstance(end, dict) and "stream" in end:
        return safe(f"{end.get('domain', '?')}/stream/{end['stream']}")
    return (
        safe(str(end["parquet"])) if isinstance(end, dict) and "parquet" in end else quote_json(end)
    )


def render_deferred(plan: Plan, *, verbose: bool) -> Lines:
    """Render the reasons of deferred resources, with a few addresses; equal reasons together."""
    lines, reasons = Lines(), dict[tuple[str, str], list[str]]()
    for item in plan.deferred:
        reasons.setdefault((item.address.partition("/")[0], item.reason), []).append(item.address)
    entries = [(domain, (reason, *addresses)) for (domain, reason), addresses in reasons.items()]
    for (reason, *addresses), domains in (
        [(w, [d]) for d, w in entries] if verbose else group_domains.group_by_domain(entries)
    ):
        where = f", {group_domains.format_domains(domains)}" if len(domains) > 1 else ""
        lines.add(0, ("Deferred: ", "warn"), safe(reason), (safe(where), "strong"))
        shown = addresses if verbose else addresses[:_MAX_SHOWN]
        for address in shown:
            lines.add(4, safe(address))
        if len(shown) < len(addresses):
            lines.add(4, (f"and {len(addresses) - len(shown):,} more", "dim"))
        lines.blank()
    return lines


def _permissions(plan: Plan) -> Lines:
    """Render all flags that are still missing, as one line to be copied."""
    lines = Lines()
    if flags := join_flags(find_missing_permissions(plan)):
        lines.add(0, ("Not allowed yet.", "bad"), " Apply will refuse without:")
        lines.add_command(4, safe(flags))
        lines.blank()
    return lines


def _summary(plan: Plan) -> Lines:
    lines = Lines()
    if rehearsed := summary.rehearsal_line(plan):
        lines.add(0, safe(rehearsed))
    if plan.errored:
        lines.add(0, ("The plan has errors; nothing can be applied.", "bad"))
    if plan.has_changes or changed_resources(plan):
        lines.add(0, (summary.plan_line(plan), "strong"))
    elif not plan.errored:
        lines.add(0, (safe(summary.no_changes_line(plan)), "good"))
        if plan.options.get("import"):
            lines.add(0, (IMPORT_HINT, "dim"))
    if plan.steps and all(step.op == "state.update" for step in plan.steps):
        text = "Nothing is sent to a server: only jsplan's own record is brought up to date."
        lines.add(0, (text, "dim"))
    if line := summary.deferred_line(d.address for d in plan.deferred):
        lines.add(0, line)
    return lines


def fold_sources(lines: Lines) -> Lines:
    """Return the lines with each run of alike sources as one."""
    out = Lines()
    for blocks in _group_runs(_blocks(lines.rows)):
        if len(blocks) < MIN_GROUP:
            for _, rows in blocks:
                out.add_rows(rows)
        else:
            name, rows = blocks[0]
            first, *rest = (_replace_domain(row, name) for row in rows)
            first.append(f" {format_domains([name for name, _ in blocks])}")
            out.add_rows([first, *rest])
    return out


Block = tuple[str, list[Text]]


def _blocks(rows: list[Text]) -> Iterator[Block]:
    """Yield each source with its lines and its origin's domain; all other lines one by one."""
    index = 0
    while index < len(rows):
        end, found = index + 1, _ELEMENT.match(rows[index].plain)
        while found and end < len(rows) and _indent(rows[end]) > len(found[1]):
            end += 1
        yield (found[2] if found else "", rows[index:end])
        index = end


def _group_runs(blocks: Iterator[Block]) -> Iterator[list[Block]]:
    run: list[Block] = []
    for block in blocks:
        if run and not (
            block[0] and run[-1][0] and _comparable_text(block) == _comparable_text(run[-1])
        ):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _comparable_text(block: Block) -> str:
    name, rows = block
    return "\n".join(row.plain for row in rows).replace(f"$JS.{name}.", f"$JS.{ANY_DOMAIN}.")


def _indent(row: Text) -> int:
    return len(row.plain) - len(row.plain.lstrip())


def _replace_domain(row: Text, name: str) -> Text:
    """Return the line with the domain's name in an API prefix as `${domain}`, with its styles."""
    out, at = Text(), 0
    for found in re.finditer(rf"(?<=\$JS\.){re.escape(name)}(?=\.)", row.plain):
        out.append_text(row[at : found.start()]).append(ANY_DOMAIN)
        at = found.end()
    return out.append_text(row[at:])
