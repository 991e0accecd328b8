"""Domains that have never answered. The name is wrong, or the site is not installed yet."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from jsplan.address import compress_names
from jsplan.config.model import Domain
from jsplan.diagnostics import Diagnostic
from jsplan.facts.last_seen import find_last_heard
from jsplan.planning.model import Findings, PlanInputs

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
