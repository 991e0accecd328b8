"""From what was found to the text of a file: bodies, references, entries, defaults, lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from jsplan.address import Address, Kind
from jsplan.generating import factoring, human, layout
from jsplan.generating.bodies import Body, body_of
from jsplan.generating.entries import Entry, Said, entries
from jsplan.generating.model import Found, Surroundings, Written
from jsplan.generating.references import by_domain
from jsplan.generating.selectors import selector
from jsplan.resources import TABLES
from jsplan.resources.buckets import is_bucket

_SECTIONS: Final[dict[Kind, str]] = {"stream": "streams", "consumer": "consumers", "kv": "kv", "object_store": "object_stores"}
_NAME: Final[dict[Kind, str]] = {"stream": "name", "consumer": "name", "kv": "bucket", "object_store": "bucket"}


def document(found: Iterable[Found], world: Surroundings, title: Iterable[str] = ()) -> Written:
    """The text of a file that declares all of it, `title` as comments above. Nothing but what it is given is looked at.

    Each resource is declared so that a plan against exactly its configuration is empty, and an apply to an empty server gives
    exactly it; where the files cannot say something, a note says so.
    """
    everything = sorted(found, key=lambda one: one.address)
    there = {**world.others, **{one.address: one.config for one in everything if one.address.kind != "consumer"}}
    notes: list[str] = []
    made = entries([_said(one, world, there, notes) for one in everything])
    lines = [*layout.comments(title)]
    defaults = factoring.defaults(made, world)
    domain = factoring.default_domain(made, world)
    if domain is not None:
        defaults = {"domain": domain} | defaults
    if defaults:
        lines += ["", *layout.block("defaults", defaults)]
    usual = domain or world.default_domain or _only(world)
    for kind, section in _SECTIONS.items():
        some = [(entry.comment, _written(entry, usual, world)) for entry in made if entry.kind == kind]
        if some:
            lines += ["", *layout.section(section, some)]
    return Written("\n".join(lines).lstrip("\n") + "\n", len(everything), tuple(notes))


def _only(world: Surroundings) -> str | None:
    own = [key for key, domain in world.domains.items() if domain.same_as is None]
    return own[0] if len(own) == 1 else None


def _said(found: Found, world: Surroundings, there: Mapping[Address, Mapping[str, Any]], notes: list[str]) -> Said:
    address = found.address
    body = body_of(found, world, there)
    notes += [f"{address}: {note}" for note in (*body.notes, *_unsaid(address, body))]
    fields = human.fields(TABLES[address.kind], by_domain(address, body.fields, world))
    if "subject_transforms" in str(fields):
        fields = _whole_transforms(fields)
    if body.raw:
        fields["x_raw"] = human.literal(body.raw)
    settings = dict(found.settings)
    if body.kept:
        lifecycle = dict(settings.get("lifecycle") or {})
        settings["lifecycle"] = lifecycle | {"ignore_changes": sorted({*lifecycle.get("ignore_changes", ()), *body.kept})}
    stream = address.stream if address.kind == "consumer" else None
    name = address.consumer if address.kind == "consumer" else address.name
    return Said(address, human.literal(name), fields | settings, human.literal(stream), found.comment)


def _unsaid(address: Address, body: Body) -> Iterator[str]:
    copied = [name for name in body.kept if name in ("mirror", "sources")] if is_bucket(address.kind) else []
    rest = [name for name in body.kept if name not in copied]
    if copied:
        text = f"its {copied[0]} {'reads' if copied == ['mirror'] else 'read'} a stream that is not a bucket, which the files cannot say"
        yield f"{text}: left as it is by ignore_changes; a new one would read a bucket of that name"
    if rest:
        yield f"the files cannot say its {', '.join(rest)}: left as it is by ignore_changes; a new one would have the server's default"


def _whole_transforms(fields: dict[str, Any]) -> dict[str, Any]:
    """Transforms with both ends, as people write them and as older servers want them."""

    def whole(origin: Mapping[str, Any]) -> dict[str, Any]:
        transforms = origin.get("subject_transforms")
        return {**origin, "subject_transforms": [{"src": ">"} | one for one in transforms]} if transforms else dict(origin)

    out = dict(fields)
    if out.get("mirror"):
        out["mirror"] = whole(out["mirror"])
    if out.get("sources"):
        out["sources"] = [whole(origin) for origin in out["sources"]]
    return out


def _written(entry: Entry, usual: str | None, world: Surroundings) -> dict[str, Any]:
    """One element of a section with its keys in the order in which people write them."""
    out: dict[str, Any] = {_NAME[entry.kind]: entry.name}
    if entry.kind == "consumer":
        out = {"stream": entry.stream} | out
    if entry.domains != [usual]:
        out["domain"] = selector(entry.domains, world.domains)
    out |= _in_order(entry)
    if entry.consumers:
        out["consumers"] = [{"name": consumer.name} | _in_order(consumer) for consumer in entry.consumers]
    return out


def _in_order(entry: Entry) -> dict[str, Any]:
    """Fields in the order of the table; factoring may have put some at the end."""
    rows = TABLES[entry.kind].by_name
    fields = {name: entry.fields[name] for name in rows if name in entry.fields}
    return fields | {name: value for name, value in entry.fields.items() if name not in rows}
