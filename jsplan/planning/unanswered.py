"""Domains that never answered: a wrong name, or a site that is not installed yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from jsplan.address import compressed
from jsplan.config.model import Domain
from jsplan.diagnostics import Diagnostic
from jsplan.facts.contact import last_heard
from jsplan.planning.inputs import Inputs

NEVER_ANSWERED = "JS482"
_NOT_YET = "If the name is right and the site is not installed yet, its resources stay deferred until it answers."
#: Names for which a guess is written out.
_GUESSES = 5


def never_answered(inputs: Inputs) -> list[Domain]:
    """The offline domains that neither state nor a downstream stream has ever heard of."""
    silent = sorted(key for key, facts in inputs.live.domains.items() if not facts.reachable)
    heard = last_heard(inputs.live, inputs.topology.edges, inputs.request.now) if silent else {}
    domains = (inputs.workspace.domains[key] for key in silent if key not in heard)
    return [domain for domain in domains if not _recorded(inputs, domain)]


def _recorded(inputs: Inputs, domain: Domain) -> bool:
    """Report whether an apply reached the domain under its present JetStream name."""
    server = inputs.state.domains.get(domain.key)
    if server is not None:
        return server.get("js_domain", domain.js_domain) == domain.js_domain
    return any(address.domain == domain.key for address in {*inputs.entries, *inputs.pending})


def unanswered(inputs: Inputs) -> Iterable[Diagnostic]:
    """One warning for all of them, with the names that their connections lead to."""
    found = never_answered(inputs)
    if not found:
        return
    first = found[0]
    if len(found) > 1:
        summary = f"{len(found):,} domains have never answered: {compressed([domain.key for domain in found])}"
    else:
        name = f" as {first.js_domain}" if first.js_domain not in (None, first.key) else ""
        summary = f"domain {first.key} has never answered{name}"
    known = {key: _names(inputs, key) for key in dict.fromkeys(domain.connection for domain in found)}
    detail = [*_guesses(found, known), *(_listed(key, names, found) for key, names in known.items() if names)]
    detail += ["To list the domains of every connection: jsplan domains discover"]
    detail += [_NOT_YET]
    address = f"{first.key}/**" if len(found) == 1 else None
    yield Diagnostic("warning", NEVER_ANSWERED, summary, "\n".join(detail), address, first.range)


def _names(inputs: Inputs, connection: str) -> list[str]:
    """The JetStream names behind a connection: from its servers, and from domains that answered."""
    domains = inputs.workspace.domains.values()
    answered = {d.js_domain for d in domains if d.connection == connection and inputs.live.reachable(d.key)}
    return sorted({*inputs.live.visible.get(connection, ()), *(name for name in answered if name)})


def _guesses(found: Sequence[Domain], known: dict[str, list[str]]) -> list[str]:
    near = {domain.key: _near(domain, known[domain.connection])[:1] for domain in found}
    guesses = [(key, names[0]) for key, names in near.items() if names][:_GUESSES]
    if len(found) == 1:
        return [f'Did you mean "{name}"?' for _, name in guesses]
    return [f'{key}: did you mean "{name}"?' for key, name in guesses]


def _near(domain: Domain, names: Sequence[str]) -> list[str]:
    return get_close_matches(domain.js_domain or domain.key, names, n=3, cutoff=0.6)


def _listed(connection: str, names: Sequence[str], found: Sequence[Domain]) -> str:
    """All names behind a connection, those close to a wrong one first."""
    wrong = [domain for domain in found if domain.connection == connection]
    near = dict.fromkeys(name for domain in wrong for name in _near(domain, names))
    rest = [name for name in names if name not in near]
    shown = [*list(near)[:_GUESSES], *([compressed(rest)] if rest else [])]
    return f"Behind connection {connection} there are: {', '.join(shown)}."
