"""Strategies that change documents: as trees (JSON, YAML), as lines and as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml
from hypothesis import strategies as st

from tests.fuzz import hostile_values
from tests.fuzz.documents import Document, bytes_of

if TYPE_CHECKING:
    from tests.fuzz.harness import Target

#: The most bytes of a part, and the depth up to which a tree is changed as one.
LARGEST: Final = 300_000
DEEPEST: Final = 60
#: A word or a number.
_WORD: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_-]*|-?\d+")
#: A JSON string that is a value.
_VALUE: Final = re.compile(rb'"([A-Za-z0-9_][A-Za-z0-9_./=: -]{0,60})"(?!\s*:)')
#: The characters around a name in a text of names.
_EDGE: Final = '"/. @:'
_SIMPLE: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    [],
    {},
    "",
    0,
    1.5,
    [None],
    {"": None},
    [[]],
    "text",
)
_BYTE_WORDS: Final = (
    *hostile_values.BYTE_WORDS,
    *map(bytes_of, (*hostile_values.TEXTS, *hostile_values.RAW_YAML)),
    *(character.encode() for character in "{}[]:,-&*!|>'\"%@`#?\t"),
)
#: What may stand in the place of a whole file.
_OTHER_FILES: Final = (
    b"", b"!pipe", b"!folder", b"!symlink ../outside/secret.txt", b"!symlink /dev/zero",
)  # fmt: skip


class Raw(str):
    """A text that is written without quotes."""

    __slots__ = ()


class Key(str):
    """A key that may be in a mapping twice."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


# --- Trees

T = TypeVar("T")
Tree = Any
Place = tuple[Any, Any]
Draw = Callable[..., Any]


def levels(tree: Tree) -> list[list[Place]]:
    """Return the places of the tree, each a holder with a key or an index, by their depth."""
    found: list[list[Place]] = []
    nodes = [tree]
    while level := [
        (node, key)
        for node in nodes
        if isinstance(node, dict | list)
        for key in (list(node) if isinstance(node, dict) else range(len(node)))
    ]:
        found.append(level)
        nodes = [holder[key] for holder, key in level]
    return found


def draw_one_in(draw: Draw, count: int) -> bool:
    """Draw true once in `count` times."""
    return bool(draw(st.integers(1, count)) == count)


def _choose(draw: Draw, among: Sequence[T]) -> T:
    chosen: T = draw(st.sampled_from(among))
    return chosen


def _place(draw: Draw, tree: Tree) -> Place:
    """Choose a place, or a depth first, so that high places are chosen too."""
    found = levels(tree)
    level = draw(st.integers(0, 2 * len(found)))
    return _choose(draw, found[level] if level < len(found) else list(chain(*found)))


def _nest(value: Tree, times: int) -> Tree:
    for number in range(times):
        value = [value] if number % 2 else {"a": value}
    return value


@dataclass(frozen=True)
class TreeChanges:
    """Changes of a tree; `donor` is one to take pieces from, `words` are of the target."""

    draw: Draw
    donor: Tree
    words: tuple[str, ...]
    is_yaml: bool = False

    def text(self) -> str:
        """Draw a hostile text."""
        own = self.words and self.draw(st.booleans())
        return _choose(self.draw, self.words if own else hostile_values.TEXTS)

    def _edited(self, text: str) -> str:
        """Insert a hostile text, cut, repeat, or replace a number in it, as in `store-{1..3}`."""
        numbers = list(re.finditer(r"\d+", text))
        if numbers and draw_one_in(self.draw, 3):
            match = _choose(self.draw, numbers)
            number = _choose(self.draw, hostile_values.NUMBERS)
            return f"{text[: match.start()]}{number}{text[match.end() :]}"
        at, word = self.draw(st.integers(0, len(text))), self.text()
        times = _choose(self.draw, (2, 50, 1000, 20_000)) if len(text) < 10 else 9
        kinds = (word + text, text + word, text[:at] + word + text[at:], text[:at], text[at:])
        return _choose(self.draw, (*kinds, (text or "x") * times))

    def _scalar(self) -> Tree:
        kind = _choose(self.draw, ("simple", "text", "text", "number", "raw"))
        if kind == "text":
            return self.text()
        if kind == "raw" and self.is_yaml:
            raw = hostile_values.BOMBS if self.draw(st.booleans()) else hostile_values.RAW_YAML
            return Raw(_choose(self.draw, raw))
        others = {"number": hostile_values.NUMBERS, "simple": _SIMPLE}
        return (
            _choose(self.draw, others[kind])
            if kind != "raw"
            else Raw(_choose(self.draw, hostile_values.RAW_JSON))
        )

    def _key(self) -> str:
        """Draw a hostile key, or one that is right elsewhere."""
        holder, key = _place(self.draw, self.donor)
        known = isinstance(holder, dict) and self.draw(st.booleans())
        return str(key) if known else self.text()

    def _value(self, value: Tree) -> Tree:
        """Draw what may stand in the place of a value."""
        kind = _choose(self.draw, ("scalar", "scalar", "piece", "other", "own", "own", "own"))
        if kind == "piece":
            holder, key = _place(self.draw, self.donor)
            return holder[key]
        if kind == "other":
            deep, text = Raw("[" * 5000 + "]" * 5000), str(value)
            nested = _nest(value, _choose(self.draw, (1, 2, 5, 40)))
            kinds = (text, [value], {"x": value}, {text[:20]: value}, nested, deep)
            return _choose(self.draw, kinds)
        if kind == "own" and isinstance(value, str) and not isinstance(value, Raw):
            return self._edited(value)
        if kind == "own" and isinstance(value, int | float) and not isinstance(value, bool):
            near = (value + 1, value - 1, -value, value * 1000, Raw(f"{value}.5"), value + 0.5)
            return _choose(self.draw, (*hostile_values.EXTREMES, *near))
        if kind == "own" and isinstance(value, list):
            return (value * _choose(self.draw, (0, 2, 10, 300)))[:1000]
        if kind == "own" and isinstance(value, dict):
            return value | {self._key(): self._scalar()} if self.draw(st.booleans()) else {}
        return self._scalar()

    def change(self, box: list[Tree]) -> None:
        """Change one place of the tree in the box."""
        draw = self.draw
        holder, key = _place(draw, box)
        value, keys = holder[key], list(holder) if isinstance(holder, dict) else range(len(holder))
        kinds: tuple[str, ...] = (*["replace"] * 6, "remove", "twice", "swap")
        kinds += ("rename", "rename") if isinstance(holder, dict) else ()
        kinds += ("alias", "merge") if self.is_yaml and isinstance(holder, dict) else ()
        match _choose(draw, kinds):
            case "remove" if holder is not box:
                del holder[key]
            case "twice" if isinstance(holder, dict):
                holder[Key(key)] = value if draw(st.booleans()) else self._scalar()
            case "twice":
                holder.insert(_choose(draw, keys), deepcopy(value))
            case "swap":
                other = _choose(draw, keys)
                holder[key], holder[other] = holder[other], value
            case "rename":
                own = (f"{key}x", str(key)[:-1], str(key).upper())
                new = _choose(draw, own) if draw(st.booleans()) else self._key()
                holder[new] = holder.pop(key)
            case "merge":
                holder[Raw("<<")] = _choose(draw, (value, Raw("*a"), [value, Raw("*b")]))
            case "alias":
                self._alias(holder, key, _choose(draw, keys))
            case _:
                holder[key] = deepcopy(self._value(value))

    def _alias(self, holder: Any, key: Any, other: Any) -> None:
        """Make this value an anchor, and another value, perhaps inside of it, its alias."""
        if levels(holder[key]) and draw_one_in(self.draw, 10):
            within, at = _place(self.draw, holder[key])
            within[at] = Raw("*a")
        holder[key] = Raw(f"&a {json_text(holder[key], escaped=False)}")
        if other is not key:
            holder[other] = Raw("*a")


@st.composite
def changed_json(draw: Draw, tree: Tree) -> bytes:
    """Change one to three places of a document."""
    box = [deepcopy(tree)]
    for _ in range(draw(st.integers(1, 3))):
        TreeChanges(draw, tree, ()).change(box)
    return bytes_of(json_text(box[0]))


# --- Texts of trees


def json_text(tree: Tree, *, escaped: bool = True) -> str:
    """Return the tree as JSON, compact as servers write it; raw texts are written unchanged."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, dict):
        inside = (
            f"{key if isinstance(key, Raw) else json.dumps(str(key), ensure_ascii=escaped)}:"
            f"{' ' if not escaped else ''}{json_text(value, escaped=escaped)}"
            for key, value in tree.items()
        )
        return "{" + ",".join(inside) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(json_text(value, escaped=escaped) for value in tree) + "]"
    return json.dumps(tree, ensure_ascii=escaped, default=str)


def yaml_text(tree: Tree, indent: int = 0) -> str:
    """Return the tree as YAML: its upper levels in blocks, the others as JSON."""
    pad = " " * indent
    if not isinstance(tree, dict | list) or not tree or indent >= 40:
        return f"{pad}{json_text(tree, escaped=False)}\n"
    entries = (
        [
            (f"{key if isinstance(key, Raw) else json_text(key, escaped=False)}:", tree[key])
            for key in tree
        ]
        if isinstance(tree, dict)
        else [("-", value) for value in tree]
    )
    return "".join(
        f"{pad}{begin}\n{yaml_text(value, indent + 2)}"
        if isinstance(value, dict | list) and value
        else f"{pad}{begin} {yaml_text(value)}"
        for begin, value in entries
    )


@cache
def parse_tree(content: bytes, form: str) -> Tree:
    """Return the tree of a text, or None where there is none or it is too deep."""
    try:
        found = json.loads(content) if form == "json" else yaml.safe_load(content)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    return found if 0 < len(levels(found)) <= DEEPEST else None


# --- Parts


def form_of(name: str) -> str:
    """Return the format of a part, by its name."""
    ending = name.rpartition(".")[2]
    known = {"yaml": "yaml", "yml": "yaml", "journal": "lines", "plan": "json", "json": "json"}
    return known.get(ending, "bytes")


def changed_part(
    draw: Draw, content: bytes, form: str, others: list[bytes], words: tuple[str, ...] = ()
) -> bytes:
    """Change a part; `others` are contents of the same kind."""
    if form == "number":
        return _choose(draw, (b"0", b"1", b"2", b"30"))
    count, way = _choose(draw, (1, 1, 1, 2, 3, 6)), draw(st.integers(0, 19))
    tree = parse_tree(content, form) if form in ("json", "yaml") else None
    if tree is not None and way < 17:
        donor = parse_tree(_choose(draw, others), form) or tree
        box, changes = [deepcopy(tree)], TreeChanges(draw, donor, words, form == "yaml")
        for _ in range(count):
            changes.change(box)
        in_blocks = form == "yaml" and not draw_one_in(draw, 3)
        escaped = form == "json" and not draw_one_in(draw, 3)
        content = bytes_of(yaml_text(box[0]) if in_blocks else json_text(box[0], escaped=escaped))
    elif form != "bytes" and way < 19:
        pieces = content.split(b"\n")
        for _ in range(count):
            _change_lines(draw, pieces, form, others, words)
        content = b"\n".join(pieces)
    else:
        for _ in range(count):
            content = _changed_bytes(draw, content, others)[:LARGEST]
    return content[:LARGEST]


def _change_lines(
    draw: Draw, lines: list[bytes], form: str, others: list[bytes], words: tuple[str, ...]
) -> None:
    """Change, remove, repeat or swap lines; those of the form `lines` are documents."""
    at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    kind = draw(st.integers(0, 7))
    if kind == 7:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 6 and len(lines) > 1:
        del lines[at]
    elif kind == 5:
        lines.insert(at, lines[other])
    elif form == "lines":
        known = [line for text in others for line in text.split(b"\n") if line]
        lines[at] = changed_part(draw, lines[at] or _choose(draw, known), "json", known, words)
    else:
        lines[at] = _changed_bytes(draw, lines[at], lines)


def _changed_bytes(draw: Draw, content: bytes, others: list[bytes]) -> bytes:
    """Cut, repeat, splice or replace some bytes, a word or a number."""
    words = list(_WORD.finditer(content))
    if words and draw(st.booleans()):
        match = _choose(draw, words)
        numbers = hostile_values.BYTE_NUMBERS
        by = numbers if match[0][-1:].isdigit() and draw(st.booleans()) else _BYTE_WORDS
        return content[: match.start()] + _choose(draw, by) + content[match.end() :]
    at = draw(st.integers(0, len(content)))
    end = min(len(content), at + _choose(draw, (0, 1, 2, 8, 64, 1000)))
    rest = content[_choose(draw, (at, end, end, len(content))) :]
    match _choose(draw, ("cut", "word", "flip", "random", "repeat", "splice")):
        case "word":
            return content[:at] + _choose(draw, _BYTE_WORDS) + rest
        case "flip":
            flipped = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in content[at : at + 1])
            return content[:at] + flipped + content[at + 1 :]
        case "random":
            noise: bytes = draw(st.binary(max_size=30))
            return content[:at] + noise + rest
        case "repeat":
            return content[:at] + content[at:end] * _choose(draw, (2, 4, 51)) + rest
        case "splice":
            return content[:at] + _choose(draw, others or [content])[end:]
    return content[:at] + rest


# --- Documents


def _renamed(draw: Draw, document: Document, among: list[str], words: tuple[str, ...]) -> Document:
    """Replace one value everywhere: in values, addresses, subjects and requests.

    So a hostile name gets past the checks that parts of the document agree.
    """
    known = sorted({match[1] for name in among for match in _VALUE.finditer(document[name])})
    if not known:
        return document
    old, new = _choose(draw, known).decode(), TreeChanges(draw, {}, words).text()
    pattern = f"(?<=[{_EDGE}]){re.escape(old)}(?=[{_EDGE}])"
    escaped = json.dumps(new)[1:-1].encode()
    return {
        re.sub(pattern, lambda _: new, name) if name.startswith("$") else name: content
        if name == "$"
        else re.sub(pattern.encode(), lambda _: escaped, content)
        for name, content in document.items()
    }


def _filled(draw: Draw, document: Document, among: list[str], words: tuple[str, ...]) -> Document:
    """Add hostile entries to all maps of one name, such as metadata, whose keys are free."""
    trees = {name: deepcopy(parse_tree(document[name], "json")) for name in among}
    maps = [
        (str(key), value)
        for tree in trees.values()
        for level in levels(tree)
        for holder, key in level
        if isinstance(holder, dict) and isinstance(value := holder[key], dict) and value
        if all(isinstance(text, str) for text in value.values())
    ]
    if not maps:
        return document
    wanted, changes = (
        _choose(draw, sorted({name for name, _ in maps})),
        TreeChanges(draw, {}, words),
    )
    more = {changes.text(): changes.text() for _ in range(3)}
    for name, value in maps:
        if name == wanted:
            value.update(more)
    return document | {
        name: json_text(tree).encode() for name, tree in trees.items() if tree is not None
    }


@st.composite
def changed_document(draw: Draw, target: Target) -> Document:
    """Change parts of a right document, or one name wherever it stands."""
    document = dict(_choose(draw, target.documents))
    words = target.words
    parts = [name for name in document if target.changes(name)]
    way = draw(st.integers(0, 99))
    if 80 <= way < 90:
        return _renamed(draw, document, parts, words)
    if 90 <= way < 95:
        return _filled(draw, document, parts, words)
    for name in draw(st.lists(st.sampled_from(parts), min_size=1, max_size=3, unique=True)):
        others = [other[name] for other in target.documents if name in other]
        if way < 99:
            form = target.form(name)
            document[name] = changed_part(draw, document[name], form, others, words)
        else:
            document[name] = _choose(draw, (*_OTHER_FILES, *(document[part] for part in parts)))
    return document
