"""`backfills:` as entries: which range of which streams is to be copied into which target."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, TypedDict

from msgspec import Struct

from jsplan import units
from jsplan.config import environments, parsing
from jsplan.config.archive_url import PLACE_HINT, archive_url_problem
from jsplan.config.expand import DomainSelectors, choose_only_domain
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Backfill, BackfillSide
from jsplan.config.node import Node, source_range

_KEYS: Final = (
    "name", "from", "to", "order", "strategy", "mode", "oversize", "rate", "where",
    "transform", "subject_transform", "environments",
)  # fmt: skip
_FROM: Final = (
    "domain",
    "stream",
    "start_seq",
    "start_time",
    "end_seq",
    "end_time",
    "filter_subject",
    "filter_subjects",
    "parquet",
)
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "order": ("stream", "subject", "none"),
    "strategy": ("auto", "snapshot", "spark"),
    "mode": ("tagged", "exact"),
    "oversize": ("error", "skip"),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_WINDOW = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")


class _EntryOptions(TypedDict):
    order: str
    strategy: str
    mode: str
    oversize: str


#: The values of an entry that does not set them.
_DEFAULTS: Final[_EntryOptions] = {
    "order": "stream",
    "strategy": "auto",
    "mode": "tagged",
    "oversize": "error",
}


class EntryContext(Struct, frozen=True):
    """The context of reading entries: domains, the default domain and the environment."""

    selectors: DomainSelectors
    default_domain: Node | None
    environment: str | None
    environments: tuple[str, ...]
    own_domains: tuple[str, ...]
    scope: Scope
    findings: Findings
    root: Path


def read_backfills(section: Node | None, context: EntryContext) -> dict[str, Backfill]:
    """Read the entries of this environment by name, and report every error in them."""
    found: dict[str, Backfill] = {}
    findings = context.findings
    seen: set[str] = set()
    for written in parsing.read_list(section, "`backfills`", findings):
        node = interpolate(written, context.scope, findings)
        if not parsing.check_mapping(node, "a backfill", _KEYS, findings):
            continue
        name = parsing.read_required_text(node, "name", "a backfill", findings) or ""
        if name and not _NAME.fullmatch(name):
            findings.error(
                "JS131",
                node.value["name"],
                f'"{name}" is not a name for a backfill',
                "Use letters, digits, - and _.",
            )
        if name and name in seen:
            findings.error("JS110", node, f"backfill {name} is declared twice", "Keep one.")
        seen.add(name)
        entry = _read_entry(name, node, context)
        if _is_in_environment(node.get("environments"), context) and entry is not None:
            found[name] = entry
    return found


def _is_in_environment(node: Node | None, context: EntryContext) -> bool:
    """Check whether an entry belongs to this environment."""
    wanted = environments.read_environment_names(node, context.environments, context.findings)
    return not wanted or context.environment in wanted


def _read_entry(name: str, node: Node, context: EntryContext) -> Backfill | None:
    findings = context.findings
    choices = _DEFAULTS.copy()
    for key, values in _CHOICES.items():
        if (value := parsing.read_choice(node.get(key), f"`{key}`", values, findings)) is not None:
            choices[key] = value  # type: ignore[literal-required]  # both have the same four keys
    origins, targets = (
        _read_sides(node, "from", _FROM, context),
        _read_sides(node, "to", ("domain", "stream", "parquet"), context),
    )
    where = parsing.read_text(node.get("where"), "`where`", findings)
    transform = _read_transform(node.get("transform"), context)
    rate = parsing.read_parsed(node.get("rate"), "`rate`", _parse_rate, findings)
    renamed = _read_subject_transform(node.get("subject_transform"), findings)
    if not origins or len(targets) != 1:
        return None
    return Backfill(
        name,
        tuple(origins),
        targets[0],
        rate=rate,
        where=where,
        transform=transform,
        subject_transform=renamed,
        range=source_range(node.place),
        **choices,
    )


def _read_transform(node: Node | None, context: EntryContext) -> str | None:
    """Return FILE.py:FUNCTION with the file relative to the workspace."""
    text = parsing.read_path(node, "`transform`", context.findings)
    if text is None or node is None:
        return None
    folder = node.place[0].path.parent.absolute()
    below = Path(os.path.relpath(folder, context.root.absolute())).as_posix()
    return text if Path(text).is_absolute() or below == "." else f"{below}/{text}"


def _read_subject_transform(node: Node | None, findings: Findings) -> tuple[str, str] | None:
    if node is None or not parsing.check_mapping(
        node, "`subject_transform`", ("src", "dest"), findings
    ):
        return None
    src, dest = (
        parsing.read_required_text(node, key, "`subject_transform`", findings)
        for key in ("src", "dest")
    )
    return (src, dest) if src and dest else None


def _read_sides(
    node: Node, key: str, keys: Collection[str], context: EntryContext
) -> list[BackfillSide]:
    side, findings = node.get(key), context.findings
    if side is None or side.value is None:
        detail = f"Add {key}: {{domain: …, stream: …}} or {key}: {{parquet: PATH}}."
        findings.missing(node, key, "a backfill", detail)
        return []
    items = side.value if key == "from" and isinstance(side.value, list) else [side]
    found = [one for item in items for one in _read_side(item, keys, context)]
    if key == "to" and len(found) > 1:
        findings.error(
            "JS104",
            side,
            f"a backfill has one target, and this names {len(found)}",
            "Name one domain.",
        )
    return found


def _read_archive(node: Node, findings: Findings) -> list[BackfillSide]:
    """Return the side that is an archive, without its text in a message about a URL."""
    path = parsing.read_required_text(node, "parquet", "a side of a backfill", findings)
    if not path or not parsing.read_path(node.get("parquet"), "`parquet`", findings):
        return []
    if problem := archive_url_problem(path):
        findings.error("JS130", node, f"`parquet` of a backfill: {problem}", PLACE_HINT)
        return []
    return [BackfillSide(parquet=path)]


def _read_side(node: Node, keys: Collection[str], context: EntryContext) -> list[BackfillSide]:
    """Return one side for each domain that it names."""
    findings = context.findings
    if not parsing.check_mapping(node, "a side of a backfill", keys, findings):
        return []
    if "parquet" in node.value:
        return _read_archive(node, findings)
    stream = parsing.read_required_text(node, "stream", "a side of a backfill", findings)
    for bound in ("start", "end"):
        if f"{bound}_seq" in node.value and f"{bound}_time" in node.value:
            findings.error(
                "JS104", node, f"both {bound}_seq and {bound}_time are given", "Keep one."
            )
    start_seq, end_seq = (
        parsing.read_parsed(node.get(f"{b}_seq"), f"`{b}_seq`", _parse_sequence, findings)
        for b in ("start", "end")
    )
    start_time, end_time = (
        parsing.read_parsed(node.get(f"{b}_time"), f"`{b}_time`", units.normalize_time, findings)
        for b in ("start", "end")
    )
    filters = parsing.read_texts(node.get("filter_subjects"), "`filter_subjects`", findings)
    one = parsing.read_text(node.get("filter_subject"), "`filter_subject`", findings)
    every = (*([one] if one else []), *filters)
    return [
        BackfillSide(domain, stream or "", None, start_seq, end_seq, start_time, end_time, every)
        for domain in _select_domains(node, context)
    ]


def _select_domains(node: Node, context: EntryContext) -> Sequence[str]:
    """Return the domains that a side names, else the default one, else the only one."""
    selector = node.get("domain")
    selector = (
        selector if selector is not None and selector.value is not None else context.default_domain
    )
    if selector is not None:
        return context.selectors.select(selector)
    return choose_only_domain(node, context.own_domains, context.findings)


def _parse_sequence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a sequence is a whole number from 1")
    return value


def _parse_rate(value: object) -> int:
    if isinstance(value, str) and not value.endswith("/s"):
        raise ValueError(f'"{value}" is not a rate; write 2MB/s')
    return units.parse_size(value.removesuffix("/s") if isinstance(value, str) else value)
