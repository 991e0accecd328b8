"""The layout of YAML files: two spaces per level, and comments where their blocks are. Pure.

ruamel.yaml reads and writes. Scalars stay text in it, so that `010`, `~` and `1e3` are written as
they were. Its result is used only if the reader of workspaces finds the same values in the same
order, and if no comment is lost. Otherwise the file stays unchanged, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import yaml
from msgspec import Struct

from jsplan.config.findings import Findings
from jsplan.config.node import Node, Source
from jsplan.config.read import list_events, parse_document

if TYPE_CHECKING:
    from ruamel.yaml import YAML

#: Columns of a line with brackets. Text is never broken.
WIDTH: Final = 100
#: The second pass moves comments into blocks that the first one made, the next one finds no change.
MAX_PASSES: Final = 5
_START: Final = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_END: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


class Layout(Struct, frozen=True):
    """A file in its layout. With a reason in `kept`, `text` is the file unchanged."""

    text: str
    kept: str = ""


class _Comment(Struct, frozen=True):
    """A comment. `columns` are those of the blocks that one on its own line may belong to.

    The first `open` of them continue after it.
    """

    line: int
    column: int
    text: str
    columns: tuple[int, ...] = ()
    open: int = 0


def lay_out(source: Source, data: bytes, findings: Findings) -> Layout | None:
    """Return a YAML file in its layout, or None after a finding."""
    known = len(findings)
    before = parse_document(source, data, findings)
    if len(findings) > known:
        return None
    original = data.decode()
    if before is None:
        return Layout(original, "it has no values")
    text = original.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    try:
        written = _write_until_stable(text)
    except Exception as error:  # noqa: BLE001 - a fault of the library must not end the command
        return Layout(original, f"ruamel.yaml cannot write it ({type(error).__name__})")
    findings = Findings()
    after = parse_document(source, written.encode(), findings)
    if after is None or findings.failed or not _is_same(before, after):
        return Layout(original, "its values would change")
    if lost := _first_lost_comment(text, written):
        return Layout(original, f"the comment in line {lost} would be lost")
    if new := set(written) - set(text) - set("\"' \n-:,"):
        shown = ", ".join(f"U+{ord(character):04X}" for character in sorted(new))
        return Layout(original, f"its escapes would become characters ({shown})")
    return Layout(written)


def _is_same(one: Node, other: Node) -> bool:
    """Compare values, their types, and the order of keys."""
    if isinstance(one.value, dict) and isinstance(other.value, dict):
        return list(one.value) == list(other.value) and all(
            _is_same(value, other.value[key]) for key, value in one.value.items()
        )
    if isinstance(one.value, list) and isinstance(other.value, list):
        return len(one.value) == len(other.value) and all(map(_is_same, one.value, other.value))
    return type(one.value) is type(other.value) and one.value == other.value


# --- reading and writing with ruamel.yaml ---------------------------------------------------------


def _write_until_stable(text: str) -> str:
    """Write the document until writing it again changes nothing."""
    for _ in range(MAX_PASSES):
        written = _tidy_lines(text, _round_trip(text))
        if written == text:
            return written
        text = written
    raise ValueError("no stable layout")


def _round_trip(text: str) -> str:
    """Write the document again. What does not fit into a line in brackets becomes a block."""
    explicit = any(
        isinstance(event, yaml.DocumentStartEvent) and event.explicit for event in list_events(text)
    )
    blocks: set[int] = set()
    while True:
        writer, out = _make_writer(blocks), StringIO()
        writer.explicit_start = explicit
        writer.dump(writer.load(text), out)
        wide = _find_wide(out.getvalue())
        if wide <= blocks:
            return out.getvalue()
        blocks |= wide


def _find_wide(text: str) -> set[int]:
    """Return the collections in brackets that end beyond `WIDTH`, by number; the outer ones."""
    found, number, depth, opened = set[int](), -1, 0, 0
    for event in list_events(text):
        if type(event) in _START:
            number += 1
            if depth or event.flow_style:
                depth += 1
                opened = number if depth == 1 else opened
        elif type(event) in _END and depth:
            depth -= 1
            if depth == 0 and event.end_mark.column > WIDTH:
                found.add(opened)
    return found


def _make_writer(blocks: set[int]) -> YAML:
    """Return a reader and writer; the collections with the numbers in `blocks` are blocks."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - only this command needs it

    resolver, emitter = _text_classes()
    writer = YAML(typ="rt")
    writer.Resolver = resolver
    writer.Emitter = type("Emitter", (emitter,), {"blocks": blocks})
    writer.preserve_quotes = True
    writer.width = 1 << 30
    writer.indent(mapping=2, sequence=4, offset=2)
    return writer


@cache
def _text_classes() -> tuple[type[Any], type[Any]]:
    """Return a resolver that takes every scalar as text, and an emitter that makes blocks."""
    from ruamel.yaml.emitter import Emitter  # noqa: PLC0415 - see above
    from ruamel.yaml.events import CollectionStartEvent  # noqa: PLC0415
    from ruamel.yaml.nodes import ScalarNode  # noqa: PLC0415
    from ruamel.yaml.resolver import VersionedResolver  # noqa: PLC0415

    class TextResolver(VersionedResolver):
        """Knows text and `<<`."""

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            if kind is ScalarNode and value != "<<":
                return self.DEFAULT_SCALAR_TAG
            return super().resolve(kind, value, implicit)

    class BlockEmitter(Emitter):
        """Counts collections, and makes blocks of those in `blocks`."""

        blocks: set[int]
        count = -1

        def emit(self, event: Any) -> None:
            if isinstance(event, CollectionStartEvent):
                self.count += 1
                if self.count in self.blocks:
                    event.flow_style = False
            super().emit(event)

    return TextResolver, BlockEmitter


# --- comments and blank lines ---------------------------------------------------------------------


def _tidy_lines(before: str, after: str) -> str:
    """Move comments with their blocks, and drop trailing spaces and repeated blank lines.

    ruamel.yaml leaves a comment on its own line in its old column.
    """
    old, new = list(_find_comments(before)), list(_find_comments(after))
    columns = {
        there.line: _moved_column(here, there)
        for here, there in zip(old, new, strict=False)
        if here.text == there.text and len(here.columns) == len(there.columns) > 0
    }
    in_text, lines = _lines_of_text(after), list[str]()
    for number, line in enumerate(after.split("\n")):
        if number in columns:
            line = " " * columns[number] + line.strip()  # noqa: PLW2901
        elif number not in in_text:
            line = line.rstrip()  # noqa: PLW2901
        if line or number in in_text or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines)


def _moved_column(old: _Comment, new: _Comment) -> int:
    """Return the column of the block that the comment belonged to: the nearest on its left.

    A list may have the column of its key: a comment below its last item belongs to the key.
    """
    level = max((i for i, column in enumerate(old.columns) if column <= old.column), default=0)
    while level >= old.open and level and old.columns[level - 1] == old.columns[level]:
        level -= 1
    return new.columns[level]


def _first_lost_comment(before: str, after: str) -> int:
    """Return the line of the first comment that is not in the result, or 0."""
    found = _find_comments(after)
    for comment in _find_comments(before):
        if getattr(next(found, None), "text", "") != comment.text:
            return comment.line + 1
    return 0


def _find_comments(text: str) -> Iterator[_Comment]:
    """Find the comments, with the blocks around each one on its own line."""
    lines, events = text.split("\n"), list_events(text)
    masked = _mask_scalars(lines, events)
    stack: list[int] = []
    at = 0
    for number, line in enumerate(masked):
        column = line.find("#")
        if column < 0:
            continue
        while at < len(events) and events[at].start_mark.line < number:
            _enter(stack, events, at, lines)
            at += 1
        text = lines[number][column:].rstrip()
        if lines[number][:column].strip():
            yield _Comment(number, column, text)
        else:
            yield _Comment(number, column, text, *_find_blocks(stack, events, at, lines))


def _find_blocks(
    stack: list[int], events: list[Any], at: int, lines: list[str]
) -> tuple[tuple[int, ...], int]:
    """Return the columns of the blocks before and after a comment, and how many continue."""
    ends = 0
    while type(events[at + ends]) in _END:
        ends += 1
    around = list(stack)
    while type(events[at]) in _START:
        _enter(around, events, at, lines)
        at += 1
    return tuple(around) or (0,), len(around) - ends


def _enter(stack: list[int], events: list[Any], at: int, lines: list[str]) -> None:
    """Add or remove the column of a collection. The mark of an anchored one is its anchor."""
    event = events[at]
    if type(event) in _END:
        stack.pop()
    elif type(event) in _START:
        mark = event.start_mark
        if event.anchor is not None and not event.flow_style:
            first = lines[events[at + 1].start_mark.line]
            stack.append(len(first) - len(first.lstrip()))
        else:
            stack.append(mark.column)


def _mask_scalars(lines: list[str], events: list[Any]) -> list[str]:
    """Replace the text of scalars, in which `#` begins no comment. The header of a block stays."""
    masked = list(lines)
    for event in events:
        if not _is_scalar(event):
            continue
        start, end = event.start_mark, event.end_mark
        for number in range(start.line, min(end.line, len(lines) - 1) + 1):
            first = start.column if number == start.line else 0
            last = end.column if number == end.line else len(lines[number])
            if event.style in ("|", ">") and number == start.line:
                continue
            line = masked[number]
            masked[number] = line[:first] + "x" * (last - first) + line[last:]
    return masked


def _lines_of_text(text: str) -> set[int]:
    """Return the lines in block scalars, whose spaces and blank lines are a part of the value."""
    return {
        number
        for event in list_events(text)
        if _is_scalar(event) and event.style in ("|", ">")
        for number in range(
            event.start_mark.line + 1, event.end_mark.line + bool(event.end_mark.column)
        )
    }


def _is_scalar(event: Any) -> bool:
    return isinstance(event, yaml.ScalarEvent)
