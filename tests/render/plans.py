"""Plans that try the pages: hostile words, and very many changes."""

from __future__ import annotations

from html.parser import HTMLParser

from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import FieldChange, Hazard, Plan
from jsplan.documents.types import Deferred
from tests.render import samples

EVIL = 'hub/stream/"><script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m\u202e-->`|@all</code>'


def many(count: int) -> Plan:
    """Return so many changes that all differ, in forty domains, some of them with hazards."""
    changes = []
    for number in range(count):
        address = f"d{number % 40:02}/stream/S{number:04}"
        fields = (
            FieldChange("max_msgs", number + 1, number + 2, "in_place"),
            FieldChange("description", "before", f"after {number}", "in_place"),
        )
        hazards = (
            (samples.deletes_messages(address, allowed=number % 14 == 0),)
            if number % 7 == 0
            else ()
        )
        kind = number % 5
        if kind == 0:
            changes.append(
                samples.resource(
                    address, ["create"], after=samples.STREAM | {"name": f"S{number:04}"}
                )
            )
        elif kind == 1:
            changes.append(
                samples.resource(address, ["delete"], before=samples.STREAM, hazards=hazards)
            )
        else:
            changes.append(
                samples.resource(
                    address,
                    ["update"],
                    before=samples.STREAM,
                    after=samples.STREAM,
                    fields=fields,
                    hazards=hazards,
                )
            )
    return samples.plan(*changes)


def hostile() -> Plan:
    """Return a plan whose every foreign word tries to be markup or code."""
    field = FieldChange(
        'metadata["</pre><script>"]', "~~~\n</code>", "</script><b>&amp;`~~~~~~`", "in_place"
    )
    hazard = Hazard(
        "DELETES_MESSAGES",
        EVIL,
        flag=f"--allow-hazard DELETES_MESSAGES:{EVIL}",
        causes=[EVIL + "!"],
    )
    changed = samples.resource(
        "hub/stream/x",
        ["update"],
        fields=(field,),
        hazards=(hazard,),
        before={},
        after={},
        previous="hub/stream/y",
    )
    changed.address, changed.name, changed.previous_address = EVIL, EVIL, EVIL
    made = samples.resource(
        "hub/stream/z", ["create"], after=samples.STREAM | {"description": EVIL, "subjects": [EVIL]}
    )
    made.address, made.name = EVIL + "2", EVIL + "2"
    return samples.plan(
        changed,
        made,
        environment="--><script>",
        variables={"a": EVIL},
        targets=[EVIL],
        allowed_hazards=[EVIL],
        diagnostics=[
            Diagnostic("warning", "JS999", EVIL, f"{EVIL}\n<script>", EVIL, SourceRange(EVIL, 1, 1))
        ],
        deferred=[Deferred(EVIL, EVIL)],
        backfills=[{"name": EVIL, "from": {"parquet": EVIL}, "to": EVIL, "reason": EVIL}],
        resource_drift=[samples.resource("hub/stream/x", ["delete"], severity="destructive")],
    )


class Page(HTMLParser):
    """A page as its tags, their attributes, and the text in them; the changes with their own."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[dict[str, str]] = []
        self.text = ""
        self.inside = ""
        self.texts: dict[str, str] = {}
        self._nested: list[bool] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count a tag; a change of its own begins a row."""
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag
        given = {name: value or "" for name, value in attrs}
        if tag == "details":
            self._nested.append(given.get("class", "").startswith("change "))
            if self._nested[-1]:
                self.rows.append(given | {"text": ""})

    def handle_endtag(self, tag: str) -> None:
        """A row ends with its element."""
        self.inside = ""
        if tag == "details":
            self._nested.pop()

    def handle_data(self, data: str) -> None:
        """Collect the text, whole and by row."""
        self.texts[self.inside] = self.texts.get(self.inside, "") + data
        if self.inside in ("script", "style"):
            return
        self.text += data
        if any(self._nested):
            self.rows[-1]["text"] += data
