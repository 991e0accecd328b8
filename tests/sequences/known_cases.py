"""Sequences given by hand in `known*.yaml`, each of a mended error.

`T` stands for the name of the case: its stream is TS, on the hub, with the subjects T.>. A consumer
has explicit acknowledgements unless it says otherwise.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.sequences.cases import Ask, Case, Consume, Edit, Publish
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from tests.sequences.cases import Action, Body

FOLDER: Final = Path(__file__).parent
_T: Final = re.compile(r"\bT(?=[.SM])")
_STREAM: Final[Body] = {"name": "TS", "domain": "hub", "subjects": ["T.>"], "consumers": []}
_CONSUMER: Final[Body] = {"ack_policy": "explicit"}


@dataclass(frozen=True)
class KnownCase:
    """A case, and how it may end; `deletes`: the plan announces a deletion, or none."""

    case: Case
    ends: frozenset[str]
    deletes: bool | None


def read_cases(name: str, letter: str) -> dict[str, KnownCase]:
    """Read a file of cases, whose names on the servers begin with this letter."""
    texts = read_yaml((FOLDER / name).read_bytes())
    return {
        text: _read_case(f"{letter}{number}x", raw)
        for number, (text, raw) in enumerate(texts.items())
    }


def _read_case(token: str, raw: Body) -> KnownCase:
    raw = json.loads(_T.sub(token, json.dumps(raw)))
    deeds = {
        part: tuple(_read_deed(token, deed) for deed in raw.get(part, ()))
        for part in ("load", "second_load", "between")
    }
    edits = {
        part: tuple(_read_edit(f"{token}S", edit) for edit in raw.get(part, ()))
        for part in ("first", "edits")
    }
    named = json.loads(_T.sub(token, json.dumps(_STREAM)))
    streams = [body if "name" in body else named | body for body in raw["streams"]]
    for body in streams:
        if "consumers" in body:
            body["consumers"] = [_CONSUMER | consumer for consumer in body["consumers"]]
    parts: dict[str, Any] = deeds | edits
    parts |= {name: raw[name] for name in ("options", "reverts", "kill", "adopts") if name in raw}
    parts["offline"] = tuple(raw["offline"]) if "offline" in raw else None
    parts["lost"] = tuple(raw.get("lost", ()))
    case = Case(token, {"streams": streams}, **parts)
    return KnownCase(case, frozenset(raw.get("ends", ["applied"])), raw.get("deletes"))


def _read_deed(token: str, raw: Body) -> Action:
    """Read messages by the last tokens of their subjects, deliveries, or a request.

    Of the messages that are taken all are acknowledged, unless `acks` names their places.
    """
    if "publish" in raw:
        subjects = tuple(f"{token}.{last}" for last in raw["publish"].split())
        return Publish("hub", subjects, raw.get("size", 0))
    if "take" in raw:
        count = raw["take"]
        acks = tuple(raw.get("acks", range(count)))
        return Consume("hub", f"{token}S", raw["of"], count, acks)
    return Ask("hub", raw["ask"], merge=raw["merge"])


def _read_edit(stream: str, raw: Body) -> Edit:
    """Read an edit: the first key says what it is, the others are fields."""
    (what, target), *rest = raw.items()
    fields = dict(rest)
    match what:
        case "declare":
            return Edit("declare", fields=target)
        case "swap":
            one, other = target
            return Edit("swap", stream, one, other, fields)
        case "change":
            return Edit("consumer", stream, target, fields=fields)
        case "drop":
            return Edit("drop", stream, target)
        case "add":
            return Edit("add", stream, target, fields={"name": target} | _CONSUMER | fields)
    return Edit(what, target, fields=fields)


KNOWN: Final = read_cases("known.yaml", "f")
RELOCATED: Final = read_cases("known_relocations.yaml", "ra")
#: Cases that were drawn, by their kind and seed.
FOUND: Final = msgspec.convert(read_yaml((FOLDER / "found.yaml").read_bytes()), dict[str, Case])
