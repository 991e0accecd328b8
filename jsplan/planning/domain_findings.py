"""Findings of a plan about whole domains: offline, never seen, reinstalled. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches

from msgspec import Struct

from jsplan.address import Address, compress_names, matches_any
from jsplan.config.model import Domain
from jsplan.diagnostics import Diagnostic
from jsplan.facts.last_seen import find_last_heard
from jsplan.facts.live import Live, LiveObject, server_names
from jsplan.planning.guards import REINSTALLED, check_environment, check_moves, is_same_server
from jsplan.planning.model import Decisions, Findings, PlanInputs
from jsplan.resources.fields import Config
from jsplan.state.document import Entry
from jsplan.units import (
    SECOND,
    format_duration,
    format_size,
    format_timestamp,
    instant_of,
    parse_instant,
    parse_moment,
)


def check_domains(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield the findings about domains. A reinstalled domain is not also a wrong environment."""
    known = find_emptied_domains(inputs)
    for found in check_environment(
        inputs.entries, inputs.state, inputs.live, inputs.workspace.removed
    ):
        key = (found.address or "").partition("/")[0]
        if key not in known and not is_confirmed(inputs, key):
            yield found
    yield from check_same_jetstream(inputs)
    yield from check_reinstalled(inputs, decisions)
    yield from check_moves(inputs)
    yield from check_overdue_domains(inputs)
    yield from check_never_answered(inputs)
    yield from check_offline_retention(inputs, decisions)


# --- two domains that are one JetStream -----------------------------------------------------------

SAME_JETSTREAM = "JS123"


def check_same_jetstream(inputs: PlanInputs) -> Findings:
    """Refuse a stream that two domains would manage or read, which lead to one JetStream.

    A flow from the one would be taken for another than a flow from the other. Both have the same
    login and API prefix, or show a stream with the same name, server, JetStream domain and time of
    its creation, in ns.
    """
    own = {key for key, domain in inputs.workspace.domains.items() if domain.is_own}
    if len(own) < 2:
        return
    seen: dict[tuple[object, ...], Address] = {}
    found: dict[tuple[str, str], tuple[Address, Address]] = {}
    origins = {edge.origin for edge in inputs.topology.edges}
    for address in sorted(inputs.entries.keys() | inputs.workspace.resources.keys() | origins):
        if address.domain not in own or not address.is_stream:
            continue
        for identity in _identities(inputs, address):
            first = seen.setdefault((address.stream, *identity), address)
            if first.domain != address.domain:
                found.setdefault((first.domain, address.domain), (first, address))
    for (first_key, key), (first, address) in found.items():
        text = f"domain {key} leads to the same JetStream as {first_key}: {address} is {first}"
        detail = (
            f"Declare it in one of them, and add `same_as: {first_key}` to domain {key}, or "
            "correct its connection."
        )
        if address in inputs.entries:
            detail += f" To forget it in state: jsplan state rm {address}"
        place = inputs.workspace.domains[key].range
        yield Diagnostic("error", SAME_JETSTREAM, text, detail, str(address), place)


def _identities(inputs: PlanInputs, stream: Address) -> Iterator[tuple[object, ...]]:
    """Yield what identifies the JetStream of a stream: by the files, and by the server."""
    domain = inputs.workspace.domains[stream.domain]
    if (way := inputs.workspace.connections.get(domain.connection)) is not None:
        certificate = way.tls.cert if way.tls is not None else None
        login = way.url, way.context, way.user, way.token, way.creds, way.nkey, certificate
        yield ("login", domain.api_prefix, login)
    live = inputs.live.get(stream)
    names = server_names(live) if live is not None else {}
    if live is not None and (server := names.get("cluster") or names.get("name")):
        js_domain = str(inputs.live.domains[stream.domain].info.get("domain") or "")
        yield ("server", server, js_domain, live.created)


# --- offline for longer than the files allow ------------------------------------------------------

OVERDUE = "JS480"


def last_seen(inputs: PlanInputs) -> dict[str, datetime]:
    """Return by domain key the latest time (UTC) at which the domain is known to have answered.

    A domain that has never answered has no key. There are three sources: the applies that recorded
    the domain, the resources that they recorded in it, and the streams that copy from it.
    """
    found = find_last_heard(inputs.live, inputs.topology.edges, inputs.now)
    records = [(key, str(server.get("seen", ""))) for key, server in inputs.state.domains.items()]
    records += {
        (address.domain, entry.applied_at)
        for address, entry in inputs.entries.items()
        if not address.is_content
    }
    for key, text in records:
        moment = _parse_stamp(text)
        if moment is not None:
            found[key] = max(moment, found.get(key, moment))
    return found


def _parse_stamp(text: str) -> datetime | None:
    try:
        return parse_moment(text)
    except ValueError:
        return None


def is_within_offline_limit(inputs: PlanInputs, key: str, seen: datetime | None) -> bool:
    """Check whether an offline domain was last seen within its `may_be_offline`.

    False without `may_be_offline`, and for one that answers with an error. True for a domain that
    was never seen: it has nothing of ours that could be lost.
    """
    allowed, facts = inputs.workspace.domains[key].may_be_offline, inputs.live.domains.get(key)
    if facts is not None and facts.has_error:
        return False
    return allowed is not None and (
        seen is None or inputs.now - seen <= timedelta(microseconds=allowed / 1000)
    )


def check_overdue_domains(inputs: PlanInputs) -> Findings:
    """Warn about each domain that is offline for longer than its `may_be_offline`."""
    seen = last_seen(inputs)
    for key, facts in inputs.live.domains.items():
        domain = inputs.workspace.domains[key]
        if facts.reachable or facts.has_error or domain.may_be_offline is None:
            continue
        if is_within_offline_limit(inputs, key, seen.get(key)):
            continue
        since, limit = format_timestamp(seen[key]), format_duration(domain.may_be_offline)
        text = f"{key} was last seen {since}; its may_be_offline is {limit}"
        detail = (
            "Downstream streams miss messages that its streams delete by their limits "
            "before they are copied. Check its connection."
        )
        yield Diagnostic("warning", OVERDUE, text, detail, f"{key}/**", domain.range)


# --- never answered -------------------------------------------------------------------------------

NEVER_ANSWERED = "JS482"
_NOT_INSTALLED_HINT = (
    "If the name is right and the site is not installed yet, "
    "its resources stay deferred until it answers."
)
#: The most names for which a suggestion is shown.
_MAX_GUESSES = 5


def find_never_answered(inputs: PlanInputs) -> list[Domain]:
    """Return the offline domains that neither state nor a downstream stream has seen.

    One that refuses a user whose account the files may add has answered.
    """
    facts = inputs.live.domains
    silent = sorted(k for k, found in facts.items() if not (found.reachable or found.is_refused))
    heard = find_last_heard(inputs.live, inputs.topology.edges, inputs.now) if silent else {}
    domains = (inputs.workspace.domains[key] for key in silent if key not in heard)
    return [domain for domain in domains if not _was_reached(inputs, domain)]


def _was_reached(inputs: PlanInputs, domain: Domain) -> bool:
    """Check whether an apply reached the domain under its current JetStream name."""
    server = inputs.state.domains.get(domain.key)
    if server is not None:
        return server.get("js_domain", domain.js_domain) == domain.js_domain
    return any(
        address.domain == domain.key for address in {*inputs.entries, *inputs.interrupted.steps}
    )


def check_never_answered(inputs: PlanInputs) -> Findings:
    """Warn once about all of them, with the names that their connections lead to."""
    found = find_never_answered(inputs)
    if not found:
        return
    first = found[0]
    if len(found) > 1:
        names = compress_names([domain.key for domain in found])
        summary = f"{len(found):,} domains have never answered: {names}"
    else:
        name = f" as {first.js_domain}" if first.js_domain not in (None, first.key) else ""
        summary = f"domain {first.key} has never answered{name}"
    connections = dict.fromkeys(domain.connection for domain in found)
    known = {key: _known_names(inputs, key) for key in connections}
    detail = _suggest_names(found, known)
    detail += [_list_names(key, names, found) for key, names in known.items() if names]
    detail += ["To list the domains of every connection: jsplan domains discover"]
    detail += [_NOT_INSTALLED_HINT]
    address = f"{first.key}/**" if len(found) == 1 else None
    yield Diagnostic("warning", NEVER_ANSWERED, summary, "\n".join(detail), address, first.range)


def _known_names(inputs: PlanInputs, connection: str) -> list[str]:
    """Return the JetStream names of a connection: from its servers and its answering domains."""
    domains = (d for d in inputs.workspace.domains.values() if d.connection == connection)
    answered = {d.js_domain for d in domains if d.js_domain and inputs.live.is_reachable(d.key)}
    return sorted(answered.union(inputs.live.visible_domains.get(connection, ())))


def _suggest_names(found: Sequence[Domain], known: dict[str, list[str]]) -> list[str]:
    near = {domain.key: _close_names(domain, known[domain.connection])[:1] for domain in found}
    guesses = [(key, names[0]) for key, names in near.items() if names][:_MAX_GUESSES]
    if len(found) == 1:
        return [f'Did you mean "{name}"?' for _, name in guesses]
    return [f'{key}: did you mean "{name}"?' for key, name in guesses]


def _close_names(domain: Domain, names: Sequence[str]) -> list[str]:
    return get_close_matches(domain.js_domain or domain.key, names, n=3, cutoff=0.6)


def _list_names(connection: str, names: Sequence[str], found: Sequence[Domain]) -> str:
    """List all names of a connection, those close to a wrong one first."""
    wrong = [domain for domain in found if domain.connection == connection]
    near = dict.fromkeys(name for domain in wrong for name in _close_names(domain, names))
    rest = [name for name in names if name not in near]
    shown = [*list(near)[:_MAX_GUESSES], *([compress_names(rest)] if rest else [])]
    return f"Behind connection {connection} there are: {', '.join(shown)}."


# --- reinstalled ----------------------------------------------------------------------------------

#: One missing stream may have been deleted. From this number on they are not missing by chance.
MIN_MISSING_STREAMS = 2


def check_reinstalled(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Refuse to apply to a reinstalled domain until `--reinstalled` confirms it.

    Recreating everything would be right for the streams and wrong for their mirrors. A mirror keeps
    its last sequence and waits silently until the new origin passes it (server_semantics, section
    5).
    """
    for key in sorted(find_emptied_domains(inputs)):
        recreated = [
            v
            for v in decisions.values()
            if v.address.domain == key and v.actions == ["create"] and v.entry is not None
        ]
        if not recreated or is_confirmed(inputs, key):
            continue
        streams = len({v.address for v in recreated if v.address.is_stream})
        text = (
            f"DOMAIN_REINSTALLED: {key} answers and has none of the {streams} streams that jsplan "
            "created or adopted there. Its server came back empty, or is another one"
        )
        hint = f"To create all of them again, empty: --reinstalled {key}"
        place = inputs.workspace.domains[key].range
        yield Diagnostic("error", REINSTALLED, text, hint, f"{key}/**", place)


def is_confirmed(inputs: PlanInputs, key: str) -> bool:
    """Check whether the request confirms that this domain was reinstalled."""
    return matches_any(inputs.options.reinstalled, key)


def find_emptied_domains(inputs: PlanInputs) -> set[str]:
    """Return the domains that answer and have none of the streams that state has of them.

    Another server name counts only if another domain of the same connection is unchanged. Otherwise
    the whole connection leads elsewhere: that is the wrong environment (JS410).
    """
    managed = _managed_streams(inputs)
    missing = {
        key for key, entries in managed.items() if not _has_known_stream(inputs.live, entries)
    }
    sound = {inputs.workspace.domains[key].connection for key in managed.keys() - missing}
    found = set()
    for key in missing:
        domain, facts = inputs.workspace.domains[key], inputs.live.domains[key]
        another = not is_same_server(inputs.state.domains.get(key, {}), facts.server)
        if domain.connection in sound if another else len(managed[key]) >= MIN_MISSING_STREAMS:
            found.add(key)
    return found


def _managed_streams(inputs: PlanInputs) -> dict[str, dict[Address, Entry]]:
    """Return the selected streams and buckets in state, by reachable domain.

    Those that a `removed` block releases are omitted.
    """
    found: dict[str, dict[Address, Entry]] = {
        key: {} for key, facts in inputs.live.domains.items() if facts.reachable
    }
    for address, entry in inputs.entries.items():
        if not address.is_stream or address not in inputs.selected:
            continue
        if address.domain in found and not inputs.workspace.forgets(address):
            found[address.domain][address] = entry
    return {key: entries for key, entries in found.items() if entries}


def _has_known_stream(live: Live, entries: Mapping[Address, Entry]) -> bool:
    return any(
        a in live.unreadable or ((o := live.get(a)) is not None and o.created == entry.created)
        for a, entry in entries.items()
    )


# --- offline for longer than the streams of others keep -------------------------------------------

RETENTION_TOO_SHORT = "JS481"
#: A limit is assessed by the measured rate once this part of it is used. Before that is a guess.
MIN_USED_PART = 100
#: Nanoseconds. A rate that was measured for less than this is a burst, and says nothing of a week.
MIN_RATE_SPAN = 3600 * SECOND


class RetentionTime(Struct, frozen=True):
    """The time for which a stream keeps what it stores (ns), its limit, and the reason in words."""

    duration: int
    limit: str
    reason: str


def check_offline_retention(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Warn about each origin whose limits are reached before its domain must be back.

    The server reports nothing: when a link is back after the origin has deleted messages, the
    downstream stream continues behind the gap.
    """
    edges = inputs.topology.edges
    for address in sorted({e.origin for e in edges if e.origin.domain != e.downstream.domain}):
        domain, decision = inputs.workspace.domains.get(address.domain), decisions.get(address)
        limit = domain.may_be_offline if domain is not None else None
        if limit is None or decision is None or decision.after is None:
            continue
        found = shortest_retention(decision.after, decision.live, inputs.now)
        if found is None or found.duration >= limit:
            continue
        text = (
            f"keeps its messages for {_format_rough_duration(found.duration)} ({found.reason}), "
            f"and {address.domain} may be offline for {format_duration(limit)}"
        )
        detail = (
            f"What {found.limit} deletes before the link is back is lost to every mirror and "
            "source, without an error. Raise it, or lower may_be_offline."
        )
        yield inputs.finding("warning", RETENTION_TOO_SHORT, text, detail, address, found.limit)


def shortest_retention(
    config: Config, live: LiveObject | None, now: datetime
) -> RetentionTime | None:
    """Return the limit that is reached first, or None if nothing limits it.

    `config` is compact. `live` is the stream whose rate is measured.
    """
    age, found = config.get("max_age") or 0, list[RetentionTime | None]()
    if age > 0:
        found.append(RetentionTime(age, "max_age", f"max_age is {format_duration(age)}"))
    if config.get("discard", "old") == "old" and live is not None:
        span = _message_span(live, now)
        found.append(_size_retention(config, "max_msgs", live.state.get("messages", 0), span))
        found.append(_size_retention(config, "max_bytes", live.state.get("bytes", 0), span))
    return min(filter(None, found), key=lambda reach: reach.duration, default=None)


def _size_retention(config: Config, name: str, used: int, span: int) -> RetentionTime | None:
    """Return the time for which the limit lasts at the rate of the current messages."""
    limit = config.get(name) or 0
    if limit <= 0 or span < MIN_RATE_SPAN or used * MIN_USED_PART < limit:
        return None
    shown, what = (
        (f"{limit:,}", "messages") if name == "max_msgs" else (format_size(limit), "bytes")
    )
    reason = f"{name} is {shown}, and {used:,} {what} came in {_format_rough_duration(span)}"
    return RetentionTime(limit * span // used, name, reason)


def _message_span(live: LiveObject, now: datetime) -> int:
    """Return the nanoseconds since the oldest message was stored; 0 if there is none.

    To whole seconds of that time. Quiet times count: the rate is an average.
    """
    first = live.state.get("first_ts")
    if not live.state.get("messages") or not first:
        return 0
    return max(0, instant_of(now) - parse_instant(first) // SECOND * SECOND)


def _format_rough_duration(duration: int) -> str:
    """Format a duration in its two largest units, as `3d 4h`."""
    seconds = duration // SECOND
    for big, small, name, rest in (
        (86400, 3600, "d", "h"),
        (3600, 60, "h", "m"),
        (60, 1, "m", "s"),
    ):
        if seconds >= big:
            part = seconds % big // small
            return f"{seconds // big}{name}" + (f" {part}{rest}" if part else "")
    return f"{seconds}s" if seconds else "less than a second"
