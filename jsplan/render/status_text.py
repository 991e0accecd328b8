"""The status document as text: domains, flows, streams, consumers.

What is alike in many domains is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from jsplan import units
from jsplan.address import Address, compress_names
from jsplan.group_domains import MIN_GROUP, group_alike, replace_domain
from jsplan.render import diagnostics_text
from jsplan.render.diagnostics_text import render_interruptions
from jsplan.render.escape import safe
from jsplan.render.lines import Cell, Lines, add_table
from jsplan.units import count_text, format_age, parse_instant

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.status import Status

Row = dict[str, Any]
#: Longer lists of domains are shown as a count.
MAX_NAMES_WIDTH = 34
_STATE = {True: ("follows", "good"), False: ("unhealthy", "bad"), None: ("not known", "warn")}


def render(status: Status, console: Console, *, verbose: bool = False) -> None:
    """Print all of it, the summary last. Only a terminal has a width."""
    lines = render_text(status, console.width if console.is_terminal else None, verbose=verbose)
    lines.print(console)
    diagnostics_text.render(status.diagnostics, console, after=True, verbose=verbose)
    console.print(summary_line(status), soft_wrap=True)


def render_text(status: Status, width: int | None, *, verbose: bool = False) -> Lines:
    """Render everything except findings and summary."""
    lines = Lines()
    render_interruptions(lines, status.interrupted)
    _domains(lines, status.domains, units.parse_instant(status.timestamp), width, verbose=verbose)
    render_relocations(lines, status.relocations, units.parse_instant(status.timestamp), width)
    _flows(lines, status.replication, width, verbose=verbose)
    _streams(lines, status, width, verbose=verbose)
    _consumers(lines, status.consumers, width, verbose=verbose)
    return lines


def summary_line(status: Status) -> str:
    """Return `Status: 3 domains (1 offline), 12 streams (1 down), 4 consumers, …`."""
    s = status.summary
    flows = [f"{s['unhealthy']} unhealthy"] if s["unhealthy"] else []
    flows += [f"{s['unknown']} not known"] if s["unknown"] else []
    parts = [
        count_text(s["domains"], "domain")
        + (f" ({s['offline']:,} offline)" if s["offline"] else "")
    ]
    parts += [count_text(s["streams"], "stream") + (f" ({s['down']:,} down)" if s["down"] else "")]
    parts += [
        count_text(s["consumers"], "consumer"),
        count_text(s["flows"], "flow") + (f" ({', '.join(flows)})" if flows else ""),
    ]
    parts += [f"{s['breached']:,} need attention"] if s["breached"] else []
    return f"Status: {', '.join(parts)}."


# --- domains --------------------------------------------------------------------------------------


def _domains(
    lines: Lines, domains: list[Row], now: int, width: int | None, *, verbose: bool
) -> None:
    there = [d for d in domains if d["reachable"]]
    groups = _group_rows(
        there,
        lambda d: (d["version"], d["api_level"], *_domain_signature(d)),
        _domain_key,
        verbose=verbose,
    )
    rows = [_domain_row(members) for members in groups]
    lines.add(0, ("Domains", "strong"))
    if rows:
        head = (
            *("domain", "server", "version", "level", "streams", "consumers", "messages"),
            *("stored", "limit", "memory", "limit"),
        )
        add_table(lines, head, rows, left=2, width=width)
    for absent in _group_rows(
        [d for d in domains if not d["reachable"]], _offline_signature, _domain_key, verbose=verbose
    ):
        _render_offline(lines, absent, now)
    lines.blank()


def _render_offline(lines: Lines, members: list[Row], now: int) -> None:
    first, alone = members[0], len(members) == 1
    head, role = ("offline", "warn") if first["excused"] else ("not reached", "bad")
    why = first["reason"] or "" if alone else replace_domain(first["reason"] or "", first["domain"])
    seen = ""
    if alone and first["last_seen"]:
        seen = f"; last seen {units.format_age(now - units.parse_instant(first['last_seen']))}"
    lines.add(
        2,
        (f"{head}: ", role),
        (safe(_format_domains(members, _domain_key)), "strong"),
        f": {safe(why)}{seen}",
    )


def _domain_key(row: Row) -> str:
    return str(row["domain"])


def _domain_signature(domain: Row) -> tuple[Any, ...]:
    """Return what alike domains have in common: the same limits, and as many streams."""
    return (domain["streams"], *sorted((domain["limits"] or {}).items()))


def _offline_signature(domain: Row) -> tuple[Any, ...]:
    return (domain["excused"], replace_domain(domain["reason"], domain["domain"]))


def _domain_row(members: list[Row]) -> list[Cell]:
    first, limits = members[0], members[0]["limits"] or {}
    server = (
        first["server"]
        if len(members) == 1
        else f"{len(members)} servers"
        if any(m["server"] for m in members)
        else ""
    )
    numbers = [f"{_sum_column(members, name):,}" for name in ("streams", "consumers", "messages")]
    most = [_format_limit(limits.get(name), len(members)) for name in ("max_storage", "max_memory")]
    stored = ""
    if any(m["storage"] is not None for m in members):
        stored = units.format_bytes(_sum_column(members, "storage"))
    memory = _sum_column(members, "memory")
    return [
        (safe(_format_domains(members, _domain_key)), "strong"),
        safe(server or ""),
        safe(first["version"] or "?"),
        str(first["api_level"] or 0),
        _with_limit(numbers[0], limits.get("max_streams"), len(members)),
        _with_limit(numbers[1], limits.get("max_consumers"), len(members)),
        numbers[2],
        stored,
        most[0],
        units.format_bytes(memory) if memory else "",
        most[1],
    ]


def _with_limit(number: str, limit: int | None, domains: int) -> str:
    return f"{number}/{limit * domains:,}" if limit is not None else number


def _format_limit(limit: int | None, domains: int) -> str:
    return units.format_bytes(limit * domains) if limit is not None else ""


# --- flows ----------------------------------------------------------------------------------------


def _flows(lines: Lines, flows: list[Row], width: int | None, *, verbose: bool) -> None:
    if not flows:
        return
    lines.add(0, ("Replication", "strong"))
    # Problems come first, each cause below its own line.
    groups = sorted(
        _group_flows(flows, verbose=verbose),
        key=lambda members: {False: 0, None: 1, True: 2}[members[0]["healthy"]],
    )
    add_table(
        lines,
        ("from", "to", "kind", "lag", "last seen", "state"),
        [_flow_row(members) for members in groups],
        left=2,
        width=width,
    )
    for members in groups:
        if members[0]["cause"]:
            mark: tuple[str, str] = (
                ("! ", "bad") if members[0]["healthy"] is False else ("? ", "warn")
            )
            ends = (
                f"{safe(_format_endpoints(members, 'from'))} -> "
                f"{safe(_format_endpoints(members, 'to'))}"
            )
            lines.add(2, mark, (ends, "strong"), f": {safe(_format_cause(members))}")
    lines.blank()


def _group_flows(flows: list[Row], *, verbose: bool) -> list[list[Row]]:
    """Group flows that differ only in one domain: the origin's first, then the target's."""
    found: list[list[Row]] = []
    rest = flows
    for end in ("from", "to"):
        if verbose:
            break

        def domain(flow: Row, end: str = end) -> str:
            return str(flow[end]).partition("/")[0]

        def key(flow: Row, domain: Callable[[Row], str] = domain) -> tuple[Any, ...]:
            phrase = (flow["cause"] or "").partition(":")[0]
            return (
                replace_domain((flow["from"], flow["to"]), domain(flow)),
                flow["kind"],
                flow["healthy"],
                phrase,
            )

        groups = _group_rows(rest, key, domain, verbose=False)
        found += [members for members in groups if len(members) > 1]
        rest = [members[0] for members in groups if len(members) == 1]
    return [*found, *([flow] for flow in rest)]


def _flow_row(members: list[Row]) -> list[Cell]:
    lags, ages = [m["lag"] for m in members if m["lag"] is not None], [m["active"] for m in members]
    silent = any(age is None for age in ages) and members[0]["healthy"] is not None
    heard = (
        "never" if silent else units.format_age(max(age or 0 for age in ages)) if any(ages) else ""
    )
    kinds = {m["kind"] for m in members}
    return [
        safe(_format_endpoints(members, "from")),
        safe(_format_endpoints(members, "to")),
        kinds.pop() if len(kinds) == 1 else "",
        f"{sum(lags):,}" if lags else "?",
        heard,
        _STATE[members[0]["healthy"]],
    ]


def _format_endpoints(members: list[Row], end: str) -> str:
    """Return one end of alike flows: with one domain or many."""
    first = str(members[0][end])
    if len({m[end] for m in members}) == 1:
        return first
    rest = first.partition("/")[2]
    return f"{_format_domains(members, lambda m: str(m[end]).partition('/')[0])}/{rest}"


def _format_cause(members: list[Row]) -> str:
    """Return the cause; that of the first flow for a group."""
    cause = str(members[0]["cause"])
    return cause if len(members) == 1 else f"{len(members)} flows: {cause}"


# --- streams and consumers ------------------------------------------------------------------------


def _streams(lines: Lines, status: Status, width: int | None, *, verbose: bool) -> None:
    if not status.streams:
        return
    lines.add(0, ("Streams", "strong"))
    head = (
        *("stream", "messages", "size", "first", "last", "newest", "consumers"),
        *("leader", "replicas", ""),
    )
    now = units.parse_instant(status.timestamp)
    # Streams that are down come first.
    groups = sorted(
        _group_same_names(status.streams, verbose=verbose),
        key=lambda members: not members[0]["down"],
    )
    rows = [_stream_row(members, now) for members in groups]
    add_table(lines, head, rows, width=width)
    _breaches(lines, groups)
    lines.blank()


def _stream_row(members: list[Row], now: int) -> list[Cell]:
    one = members[0] if len(members) == 1 else None
    times = [units.parse_instant(m["last_time"]) for m in members if m["last_time"]]
    mark = ("DOWN", "bad") if members[0]["down"] else _mark(members)
    places = [f"{one[name]:,}" if one else "" for name in ("first_seq", "last_seq")]
    return [
        _address(members),
        f"{_sum_column(members, 'messages'):,}",
        units.format_bytes(_sum_column(members, "bytes")),
        *places,
        units.format_age(now - max(times)) if times else "",
        f"{_sum_column(members, 'consumers'):,}",
        *_cluster_cells(one["cluster"] if one else None),
        mark,
    ]


def _cluster_cells(cluster: Row | None) -> list[Cell]:
    """Return the leader, and how many replicas are current; nothing without a cluster."""
    if cluster is None:
        return ["", ""]
    replicas = cluster["replicas"]
    current = sum(1 for each in replicas if each["current"] and not each["offline"])
    count = f"{len(replicas)}" if current == len(replicas) else f"{current}/{len(replicas)}"
    leader: Cell = safe(cluster["leader"]) if cluster["leader"] else ("none", "bad")
    return [leader, count]


def _consumers(lines: Lines, consumers: list[Row], width: int | None, *, verbose: bool) -> None:
    if not consumers:
        return
    lines.add(0, ("Consumers", "strong"))
    head = (
        *("consumer", "pending", "unacked", "redelivered", "ack floor", "delivered"),
        *("leader", "replicas", ""),
    )
    rows: list[list[Cell]] = []
    groups: list[list[Row]] = []
    stream = ""
    for members in _group_same_names(consumers, verbose=verbose):
        if (parent := _format_stream(members)) != stream:
            stream = parent
            rows.append([stream])
        rows.append(_consumer_row(members))
        groups.append(members)
    add_table(lines, head, rows, width=width)
    _breaches(lines, groups)
    lines.blank()


def _format_stream(members: list[Row]) -> str:
    """Return the address of the stream, bucket or object store of alike consumers."""
    parent = Address.parse(members[0]["address"]).parent
    assert parent is not None
    domains = _format_domains(members, _domain_of_address)
    return safe(f"{domains}/{str(parent).partition('/')[2]}")


def _consumer_row(members: list[Row]) -> list[Cell]:
    one = members[0] if len(members) == 1 else None
    counts = [
        f"{_sum_column(members, name):,}" for name in ("pending", "ack_pending", "redelivered")
    ]
    places = [f"{one[name]['stream_seq']:,}" if one else "" for name in ("ack_floor", "delivered")]
    name = safe(Address.parse(members[0]["address"]).consumer)
    cluster = _cluster_cells(one["cluster"] if one else None)
    return [f"  {name}", *counts, *places, *cluster, _mark(members)]


def _mark(members: list[Row]) -> Cell:
    """Return the mark of the worst exceeded threshold, or of what is not managed."""
    levels = {breach["level"] for member in members for breach in member["thresholds"]}
    if "critical" in levels:
        return ("CRITICAL", "bad")
    if levels:
        return ("WARNING", "warn")
    return ("unmanaged", "dim") if any(m["managed"] is False for m in members) else ""


def _breaches(lines: Lines, groups: list[list[Row]]) -> None:
    """Add a line for each move and exceeded threshold; of alike objects, those of the first."""
    for members in groups:
        if move := (members[0]["cluster"] or {}).get("desired"):
            reason = f": {move['reason']}" if move["reason"] else ""
            text = f": moves to {', '.join(move['replicas'])}{reason}"
            lines.add(2, ("~ ", "warn"), (_address(members), "strong"), safe(text))
        for breach in members[0]["thresholds"]:
            mark = ("! ", "bad" if breach["level"] == "critical" else "warn")
            many = f"{len(members)} of these: " if len(members) > 1 else ""
            lines.add(
                2, mark, (_address(members), "strong"), f": {many}{safe(str(breach['cause']))}"
            )


def _group_same_names(rows: list[Row], *, verbose: bool) -> list[list[Row]]:
    def alike(row: Row) -> tuple[Any, ...]:
        return (
            row["address"].partition("/")[2],
            row["managed"],
            row.get("fed_by"),
            row.get("down"),
            tuple((breach["key"], breach["level"]) for breach in row["thresholds"]),
        )

    return _group_rows(rows, alike, _domain_of_address, verbose=verbose)


def _domain_of_address(row: Row) -> str:
    return str(row["address"]).partition("/")[0]


def _address(members: list[Row]) -> str:
    if len(members) == 1:
        return safe(members[0]["address"])
    return safe(
        f"{_format_domains(members, _domain_of_address)}/{members[0]['address'].partition('/')[2]}"
    )


# --- what is alike --------------------------------------------------------------------------------


def _group_rows(
    rows: Iterable[Row], key: Callable[[Row], Any], domain: Callable[[Row], str], *, verbose: bool
) -> list[list[Row]]:
    """Group rows with the same key, if enough domains have it; keep the order of the first."""
    if verbose:
        return [[row] for row in rows]
    return list(
        group_alike(rows, key, lambda members: len({domain(m) for m in members}) >= MIN_GROUP)
    )


def _format_domains(members: list[Row], domain: Callable[[Row], str]) -> str:
    """Return their domains as ranges, or their number."""
    names = sorted({domain(m) for m in members})
    text = compress_names(names)
    if len(names) < MIN_GROUP or len(text) <= MAX_NAMES_WIDTH:
        return text
    return f"{len(names):,} domains"


def _sum_column(members: Iterable[Row], name: str) -> int:
    return sum(int(m[name] or 0) for m in members)


_ROLE: Final = {"copying": "warn", "prepared": "good", "cut-over": "bad", "activated": "warn"}


def render_relocations(
    lines: Lines, found: Iterable[dict[str, Any]], now: int, width: int | None = None
) -> None:
    """Render one row for each: both sides, what the copy lacks, and the age of its last message.

    `now` is ns since the epoch.
    """
    rows: list[list[Cell]] = [
        [
            safe(item["from"]),
            safe(item["to"]),
            f"{item['lag']:,}",
            format_age(now - parse_instant(item["last_message"])) if item["last_message"] else "",
            (item["phase"], _ROLE.get(item["phase"], "warn")),
        ]
        for item in found
    ]
    if not rows:
        return
    lines.add(0, ("Relocations", "strong"))
    head = ("from", "to", "behind", "newest", "state")
    add_table(lines, head, rows, left=2, width=width)
    lines.blank()
