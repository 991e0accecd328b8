"""One case as plain data: a world, its load, the edits of one plan, and another person."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The sections of a workspace file that declare resources.
Sections = dict[str, list[dict[str, Any]]]
Body = dict[str, Any]
Thing = TypeVar("Thing")
SECTIONS = ("streams", "kv", "object_stores")
#: The field that names an element of a section, and what its stream is called.
NAMES = {"streams": ("name", ""), "kv": ("bucket", "KV_"), "object_stores": ("bucket", "OBJ_")}


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Publish to each of these subjects in turn, all with these headers and this size."""

    domain: str
    subjects: tuple[str, ...]
    size: int = 0
    headers: tuple[tuple[str, str], ...] = ()


class Consume(msgspec.Struct, frozen=True, tag="consume"):
    """Take messages of a consumer and acknowledge some, by their place among the taken ones."""

    domain: str
    stream: str
    consumer: str
    count: int
    acks: tuple[int, ...] = ()


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """One request to the JetStream API, such as STREAM.PURGE.

    `merge` changes the current configuration.
    """

    domain: str
    verb: str
    payload: Any = None
    merge: Any = None


Action = Publish | Consume | Ask


class Edit(msgspec.Struct, frozen=True):
    """One edit of the files.

    `what` is `set` (fields of a stream or bucket; None takes one out), `consumer` (fields of a consumer), `add` and `drop` (a
    consumer), `swap` (two streams or two consumers exchange a field), `declare` and `remove` (a stream or bucket),
    `relocate` (another domain or name for a stream or bucket, which comes with its messages), `rename` (another name for a
    consumer of a stream that is relocated).
    """

    what: str
    target: str = ""
    consumer: str = ""
    other: str = ""
    fields: Body = {}

    def apply(self, sections: Sections) -> None:
        """Change the sections; what it needs may be gone by another edit, and then it does nothing."""
        if self.what == "declare":
            sections.setdefault(self.other or "streams", []).append(copy.deepcopy(self.fields))
            return
        found = next(((s, b) for s, b in bodies(sections) if name_of(s, b) == self.target), None)
        if found is None:
            return
        section, body = found
        if self.what == "remove":
            sections[section].remove(body)
        elif self.what == "set":
            merge(body, self.fields)
        elif self.what == "relocate":
            _relocate(sections, section, body, self.fields)
        elif self.what == "rename":
            _rename(sections, address_of(section, body), body, self.consumer, self.fields["name"])
        elif self.what == "swap" and not self.consumer:
            other = next((b for s, b in bodies(sections) if name_of(s, b) == self.other), None)
            if other is not None:
                swap_fields(body, other, self.fields["field"])
        else:
            self._consumers(body)

    def _consumers(self, stream: Body) -> None:
        listed = stream.setdefault("consumers", [])
        by_name = {c["name"]: c for c in listed}
        one = by_name.get(self.consumer)
        if self.what == "add" and self.fields["name"] not in by_name:
            listed.append(copy.deepcopy(self.fields))
        elif one is not None and self.what == "drop":
            listed.remove(one)
        elif one is not None and self.what == "consumer":
            merge(one, self.fields)
        elif one is not None and self.what == "swap" and self.other in by_name:
            swap_fields(one, by_name[self.other], self.fields["field"])


class Case(msgspec.Struct, frozen=True):
    """A whole case.

    `between` is what another person does between `plan -o` and `apply`. `first` is applied before, as
    a plan of its own; then `second_load` comes. With `reverts` the plan takes `first` back, and has
    no edits. `lost` are addresses that are backed up; then `second_load` comes, they are deleted, and
    the plan restores them. With `kill` apply dies after so many writes, with `offline` a domain
    answers nothing after so many; another apply follows. `adopts`: the state is lost before the
    plan, which adopts what is there.
    """

    name: str
    before: Sections
    load: tuple[Action, ...]
    edits: tuple[Edit, ...]
    between: tuple[Action, ...] = ()
    options: Body = {}
    first: tuple[Edit, ...] = ()
    second_load: tuple[Publish, ...] = ()
    reverts: bool = False
    lost: tuple[str, ...] = ()
    kill: int | None = None
    offline: tuple[str, int] | None = None
    adopts: bool = False

    @property
    def after(self) -> Sections:
        """The files with all edits."""
        if self.reverts:
            return copy.deepcopy(self.before)
        sections = copy.deepcopy(self.before_apply)
        for edit in self.edits:
            edit.apply(sections)
        return sections

    @property
    def moved(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Domain and stream of what the last edits relocate: from each new one to the old one."""
        known = self.before_apply.get("relocate", [])
        return {
            stream_at(row["to"]): stream_at(row["from"])
            for row in self.after.get("relocate", [])
            if row not in known and "/consumer/" not in row["to"]
        }

    @property
    def renamed(self) -> dict[tuple[str, str, str], str]:
        """The old name of each consumer that gets another one: by domain, stream and new name."""
        known, found = self.before_apply.get("relocate", []), {}
        for row in self.after.get("relocate", []):
            if row not in known and "/consumer/" in row["to"]:
                domain, _, stream, name = row["to"].split("/")
                found[domain, stream, name] = row["from"].split("/")[3]
        return found

    @property
    def before_apply(self) -> Sections:
        """The files with the edits that are applied before, as a plan of their own."""
        sections = copy.deepcopy(self.before)
        for edit in self.first:
            edit.apply(sections)
        return sections

    def smaller_cases(self) -> Iterator[Case]:
        """The same with one thing less: an edit, a deed, an element of the world, a consumer."""
        yield from (replace(self, edits=rest) for rest in _without_one(self.edits))
        yield from (replace(self, between=rest) for rest in _without_one(self.between))
        yield from (replace(self, first=rest) for rest in _without_one(self.first))
        yield from (replace(self, second_load=rest) for rest in _without_one(self.second_load))
        yield from (replace(self, load=rest) for rest in _without_one(self.load))
        for place, deed in enumerate(self.load):
            if isinstance(deed, Publish) and len(deed.subjects) > 1:
                for cut in range(len(deed.subjects)):
                    left = replace(deed, subjects=deed.subjects[:cut] + deed.subjects[cut + 1 :])
                    yield replace(self, load=(*self.load[:place], left, *self.load[place + 1 :]))
        yield from self._fewer_resources()

    def _fewer_resources(self) -> Iterator[Case]:
        for section, body in bodies(self.before):
            rest = copy.deepcopy(self.before)
            rest[section].remove(body)
            yield replace(self, before=rest)
            for consumer in body.get("consumers", ()):
                fewer = copy.deepcopy(self.before)
                listed = next(b for b in fewer[section] if b == body)["consumers"]
                listed.remove(consumer)
                yield replace(self, before=fewer)


def _without_one(given: tuple[Thing, ...]) -> Iterator[tuple[Thing, ...]]:
    return ((*given[:place], *given[place + 1 :]) for place in range(len(given)))


def bodies(sections: Sections) -> list[tuple[str, Body]]:
    """Every declared stream, bucket and object store with its section."""
    return [(section, body) for section in SECTIONS for body in sections.get(section, ())]


def name_of(section: str, body: Body) -> str:
    """The name that is declared; unique over sections and domains in a case."""
    return str(body[NAMES[section][0]])


def stream_of(section: str, body: Body) -> str:
    """The name of the stream on the server."""
    key, prefix = NAMES[section]
    return f"{prefix}{body[key]}"


def address_of(section: str, body: Body) -> str:
    """The address of a declared stream, bucket or object store."""
    kind = {"streams": "stream", "kv": "kv", "object_stores": "object_store"}[section]
    return f"{body['domain']}/{kind}/{name_of(section, body)}"


def stream_at(address: str) -> tuple[str, str]:
    """The domain and the stream on the server of an address."""
    domain, kind, name = address.split("/")
    return domain, {"kv": "KV_", "object_store": "OBJ_"}.get(kind, "") + name


def address_at(section: str, key: tuple[str, str]) -> str:
    """The address of a stream on the server that is declared in this section."""
    prefix = NAMES[section][1]
    return address_of(section, {"domain": key[0], NAMES[section][0]: key[1].removeprefix(prefix)})


def _relocate(sections: Sections, section: str, body: Body, fields: Body) -> None:
    """Change domain or name, with the entry that says so and with what copies from it."""
    old, name = address_of(section, body), name_of(section, body)
    merge(body, fields)
    sections.setdefault("relocate", []).append({"from": old, "to": address_of(section, body)})
    for _, other in bodies(sections):
        for origin in (other.get("mirror"), *(other.get("sources") or ())):
            if origin and origin["name"] == name and section == "streams":
                origin |= {"name": body["name"], "domain": body["domain"]}


def _rename(sections: Sections, address: str, stream: Body, old: str, new: str) -> None:
    """Give a consumer another name, with the entry that says so, if its stream is relocated."""
    entry = next((e for e in sections.get("relocate", ()) if e["to"] == address), None)
    found = next((c for c in stream.get("consumers", ()) if c["name"] == old), None)
    if entry is None or found is None:
        return
    found["name"] = new
    sections["relocate"].append(
        {
            side: f"{entry[side].replace('/stream/', '/consumer/')}/{name}"
            for side, name in (("from", old), ("to", new))
        }
    )


def merge(body: Body, fields: Body) -> None:
    """Set fields; None takes one out."""
    for name, value in fields.items():
        if value is None:
            body.pop(name, None)
        else:
            body[name] = copy.deepcopy(value)


def swap_fields(one: Body, other: Body, names: str) -> None:
    """Let two exchange some fields, whether they have them or not."""
    for name in names.split():
        mine, theirs = one.pop(name, None), other.pop(name, None)
        merge(one, {name: theirs})
        merge(other, {name: mine})
