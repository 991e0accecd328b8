"""`backfills:` as entries: which range of which streams is to be copied into which target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jsplan.config import environments
from jsplan.config.expand import choose_only_domain
from jsplan.config.findings import Findings
from jsplan.config.model import Backfill, BackfillSide
from jsplan.config.node import Node, source_range
from jsplan.config.parsing import PLACE_HINT, archive_url_problem
from jsplan.config.sections import Reading, Section, Values
from jsplan.config.tables.changes import BACKFILL, BACKFILL_FROM, BACKFILL_TO

if TYPE_CHECKING:
    from jsplan.config.resource_resolver import ResolveContext

_BOUNDS: Final = ("start_seq", "end_seq", "start_time", "end_time")


def read_backfills(section: Node | None, context: ResolveContext) -> dict[str, Backfill]:
    """Read the entries of this environment by name, and report every error in them."""
    found: dict[str, Backfill] = {}
    findings = context.findings
    seen: set[str] = set()
    reading = Reading(findings)
    for node, values in BACKFILL.read_all(section, "`backfills`", reading, context.scope):
        name = values["name"] or ""
        if name and name in seen:
            findings.error("JS110", node, f"backfill {name} is declared twice", "Keep one.")
        seen.add(name)
        entry = _make_entry(name, node, values, context)
        if _is_in_environment(node.get("environments"), context) and entry is not None:
            found[name] = entry
    return found


def _is_in_environment(node: Node | None, context: ResolveContext) -> bool:
    """Check whether an entry belongs to this environment."""
    wanted = environments.read_environment_names(node, context.environments, context.findings)
    return not wanted or context.environment in wanted


def _make_entry(name: str, node: Node, values: Values, context: ResolveContext) -> Backfill | None:
    origins = _read_sides(node, "from", BACKFILL_FROM, context)
    targets = _read_sides(node, "to", BACKFILL_TO, context)
    renamed = values["subject_transform"] or {}
    src, dest = renamed.get("src"), renamed.get("dest")
    if not origins or len(targets) != 1:
        return None
    return Backfill(
        name,
        tuple(origins),
        targets[0],
        values["order"],
        values["strategy"],
        values["mode"],
        values["oversize"],
        values["rate"],
        values["where"],
        _relative_transform(values["transform"], node, context),
        (src, dest) if src and dest else None,
        source_range(node.place),
    )


def _relative_transform(text: str | None, node: Node, context: ResolveContext) -> str | None:
    """Return FILE.py:FUNCTION with the file relative to the workspace."""
    if text is None:
        return None
    folder = node.value["transform"].place[0].path.parent.absolute()
    below = Path(os.path.relpath(folder, context.files.root.absolute())).as_posix()
    return text if Path(text).is_absolute() or below == "." else f"{below}/{text}"


def _read_sides(
    node: Node, key: str, table: Section, context: ResolveContext
) -> list[BackfillSide]:
    side = node.get(key)
    if side is None or side.value is None:
        return []
    items = side.value if key == "from" and isinstance(side.value, list) else [side]
    found = [one for item in items for one in _read_side(item, table, context)]
    if key == "to" and len(found) > 1:
        text = f"a backfill has one target, and this names {len(found)}"
        context.findings.error("JS104", side, text, "Name one domain.")
    return found


def _read_archive(node: Node, path: str | None, findings: Findings) -> list[BackfillSide]:
    """Return the side that is an archive, without its text in a message about a URL."""
    findings.missing(node, "parquet", "a side of a backfill")
    if path is None:
        return []
    if problem := archive_url_problem(path):
        findings.error("JS130", node, f"`parquet` of a backfill: {problem}", PLACE_HINT)
        return []
    return [BackfillSide(parquet=path)]


def _read_side(node: Node, table: Section, context: ResolveContext) -> list[BackfillSide]:
    """Return one side for each domain that it names."""
    findings = context.findings
    values = table.read(node, Reading(findings))
    if values is None:
        return []
    if "parquet" in node.value:
        return _read_archive(node, values["parquet"], findings)
    findings.missing(node, "stream", "a side of a backfill")
    for bound in ("start", "end"):
        if f"{bound}_seq" in node.value and f"{bound}_time" in node.value:
            findings.error(
                "JS104", node, f"both {bound}_seq and {bound}_time are given", "Keep one."
            )
    one = values.get("filter_subject")
    filters = (*([one] if one else []), *values.get("filter_subjects", ()))
    bounds = {name: values.get(name) for name in _BOUNDS}
    return [
        BackfillSide(domain, values["stream"] or "", filters=filters, **bounds)
        for domain in _select_domains(node, context)
    ]


def _select_domains(node: Node, context: ResolveContext) -> Sequence[str]:
    """Return the domains that a side names, else the default one, else the only one."""
    selector = node.get("domain")
    selector = (
        selector if selector is not None and selector.value is not None else context.default_domain
    )
    if selector is not None:
        return context.selectors.select(selector)
    return choose_only_domain(node, context.own_domains, context.findings)
