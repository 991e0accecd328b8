"""Mutations of documents as trees (JSON, YAML), lines and bytes, from one `Random`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any, Final

import yaml

from tests.fuzz import hostile_values
from tests.fuzz.documents import bytes_of, text_of

#: The most bytes of a part, and the depth and size up to which a tree is changed as a tree.
LARGEST: Final = 300_000
DEEPEST: Final = 60
MOST_VALUES: Final = 20_000
_NUMBER: Final = re.compile(rb"-?\d+")
_WORD: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_-]*")


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

Tree = Any
#: The place of a value: the mapping or list that holds it, and its key or index there.
Place = tuple[Any, Any]


def places(tree: Tree) -> list[Place]:
    """Return every place of the tree but its root."""
    found: list[Place] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        inside = (
            node.items()
            if isinstance(node, dict)
            else enumerate(node)
            if isinstance(node, list)
            else ()
        )
        for key, value in inside:
            found.append((node, key))
            pending.append(value)
    return found


def _depth(tree: Tree) -> int:
    """Return the depth, or more than allowed if the tree is too large, as with aliases."""
    deep, count, pending = 0, 0, [(tree, 1)]
    while pending:
        node, level = pending.pop()
        count += 1
        if count > MOST_VALUES or level > DEEPEST:
            return DEEPEST + 1
        deep = max(deep, level)
        pending += [
            (value, level + 1)
            for value in (
                node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
            )
        ]
    return deep


def copy_tree(tree: Tree) -> Tree:
    """Return a deep copy."""
    if isinstance(tree, dict):
        return {key: copy_tree(value) for key, value in tree.items()}
    return [copy_tree(value) for value in tree] if isinstance(tree, list) else tree


class Mutator:
    """Mutations of one document; `donors` are other trees of its kind, to take pieces from."""

    def __init__(
        self, dice: Random, own: tuple[str, ...], raw: tuple[str, ...], donors: list[Tree]
    ) -> None:
        self.dice = dice
        self.own = own
        self.raw = raw
        self.donors = donors

    def tree(self, tree: Tree, count: int) -> Tree:
        """Return the tree with `count` changes."""
        box = [copy_tree(tree)]
        for _ in range(count):
            candidates = places(box)
            if len(candidates) > MOST_VALUES:
                break
            place = self.dice.choice(
                candidates[1:] if len(candidates) > 1 and self.dice.random() < 0.97 else candidates
            )
            place = self._step_by_step(box) if self.dice.random() < 0.3 else place
            self.dice.choice(self._mutations_for(place))(*place)
        return box[0]

    def _step_by_step(self, box: list[Tree]) -> Place:
        """Choose a place on a random path from the root, so that high places are chosen too."""
        place: Place = (box, 0)
        while (
            (inside := place[0][place[1]])
            and isinstance(inside, dict | list)
            and (place[0] is box or self.dice.random() < 0.6)
        ):
            place = (
                inside,
                self.dice.choice(list(inside) if isinstance(inside, dict) else range(len(inside))),
            )
        return place

    def _mutations_for(self, place: Place) -> tuple[Callable[[Any, Any], None], ...]:
        holder, key = place
        value = holder[key]
        common: tuple[Callable[[Any, Any], None], ...] = (
            self._remove,
            self._replace,
            self._replace,
            self._other_type,
            self._transplant,
            self._wrap,
            self._swap,
            self._duplicate_key,
        )
        if isinstance(holder, dict):
            common += (self._rename, self._rename)
        if isinstance(value, str) and not isinstance(value, Raw):
            return (*common, self._edit, self._edit, self._edit, self._long, self._digits)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return (*common, self._number, self._number, self._number)
        if isinstance(value, list):
            return (*common, self._repeat, self._empty)
        if isinstance(value, dict):
            common += (self._empty, self._add)
        return (
            (*common, self._anchor, self._merge) if self.raw is hostile_values.RAW_YAML else common
        )

    def _remove(self, holder: Any, key: Any) -> None:
        if isinstance(holder, dict | list) and len(holder) > 0:
            del holder[key]
        if isinstance(holder, list) and not holder:
            holder.append(None)

    def text(self) -> str:
        """Return a hostile text."""
        return self.dice.choice(
            self.own if self.own and self.dice.random() < 0.4 else hostile_values.TEXTS
        )

    def _scalar(self) -> Tree:
        kind = self.dice.randrange(10)
        if kind < 4:
            return self.text()
        if kind < 6:
            return self.dice.choice(hostile_values.NUMBERS)
        if kind < 8:
            return self.dice.choice(
                (None, None, True, False, [], {}, "", [None], {"": None}, "text")
            )
        return Raw(
            self.dice.choice(
                hostile_values.BOMBS
                if self.raw is hostile_values.RAW_YAML and self.dice.random() < 0.7
                else self.raw
            )
        )

    def _replace(self, holder: Any, key: Any) -> None:
        holder[key] = self._scalar()

    def _other_type(self, holder: Any, key: Any) -> None:
        value = holder[key]
        simple = value if not isinstance(value, dict | list) else "x"
        holder[key] = self.dice.choice(
            (
                None,
                True,
                str(simple),
                [value],
                {"x": value},
                {str(simple)[:20]: value},
                0,
                1.5,
                "",
                [],
                {},
                [[]],
            )
        )

    def _transplant(self, holder: Any, key: Any) -> None:
        donor = self.dice.choice(self.donors)
        candidates = places(donor)
        if candidates:
            from_holder, from_key = self.dice.choice(candidates)
            holder[key] = copy_tree(from_holder[from_key])

    def _wrap(self, holder: Any, key: Any) -> None:
        for _ in range(self.dice.choice((1, 2, 5, 40))):
            holder[key] = [holder[key]] if self.dice.random() < 0.5 else {"a": holder[key]}

    def _swap(self, holder: Any, key: Any) -> None:
        if isinstance(holder, dict | list) and len(holder) > 1:
            other = self.dice.choice(
                list(holder) if isinstance(holder, dict) else range(len(holder))
            )
            holder[key], holder[other] = holder[other], holder[key]

    def _duplicate_key(self, holder: Any, key: Any) -> None:
        if isinstance(holder, list):
            holder.insert(self.dice.randrange(len(holder) + 1), copy_tree(holder[key]))
        else:
            holder[Key(key)] = (
                copy_tree(holder[key]) if self.dice.random() < 0.5 else self._scalar()
            )

    def _rename(self, holder: Any, key: Any) -> None:
        choices = [
            self.text(),
            f"{key}x",
            str(key)[:-1],
            str(key).upper(),
            self._known_key(),
            self._known_key(),
        ]
        holder[self.dice.choice(choices)] = holder.pop(key)

    def _known_key(self) -> str:
        candidates = [
            key for holder, key in places(self.dice.choice(self.donors)) if isinstance(holder, dict)
        ]
        return str(self.dice.choice(candidates)) if candidates else "x"

    def _add(self, holder: Any, key: Any) -> None:
        holder[key][self._known_key() if self.dice.random() < 0.5 else self.text()] = self._scalar()

    def _anchor(self, holder: Any, key: Any) -> None:
        """Make this value an anchor, and replace another value by its alias."""
        name = self.dice.choice("abc")
        others = [
            place for place in places(holder[key]) or [(holder, key)] if place != (holder, key)
        ]
        if others and self.dice.random() < 0.1:  # the alias is inside of its anchor
            other, other_key = self.dice.choice(others)
            other[other_key] = Raw(f"*{name}")
        holder[key] = Raw(f"&{name} {json_text(holder[key], escaped=False)}")
        candidates = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if (other_key := self.dice.choice(candidates)) is not key:
            holder[other_key] = Raw(f"*{name}")

    def _merge(self, holder: Any, key: Any) -> None:
        if isinstance(holder, dict):
            holder[Raw("<<")] = self.dice.choice(
                (copy_tree(holder[key]), Raw("*a"), [copy_tree(holder[key]), Raw("*b")])
            )

    def _edit(self, holder: Any, key: Any) -> None:
        text, word = str(holder[key]), self.text()
        at = self.dice.randrange(len(text) + 1)
        holder[key] = self.dice.choice(
            (
                text[:at] + word + text[at:],
                word,
                word + text,
                text + word,
                text[:at],
                text[at:],
                text[:at] + text[at + 1 :],
            )
        )

    def _long(self, holder: Any, key: Any) -> None:
        holder[key] = (
            (str(holder[key]) or "x") * self.dice.choice((2, 50, 1000, 20_000))
            if len(str(holder[key])) < 10
            else str(holder[key]) * 9
        )

    def _digits(self, holder: Any, key: Any) -> None:
        """Replace a number in a text, as in `store-{1..3}` or `30d`."""
        found = list(re.finditer(r"\d+", str(holder[key])))
        if found:
            match = self.dice.choice(found)
            number = self.dice.choice(
                (0, 5_000, 1_000_000, self.dice.choice(hostile_values.NUMBERS))
            )
            holder[key] = (
                f"{str(holder[key])[: match.start()]}{number}{str(holder[key])[match.end() :]}"
            )

    def _number(self, holder: Any, key: Any) -> None:
        value = holder[key]
        holder[key] = self.dice.choice(
            (
                self.dice.choice(hostile_values.NUMBERS),
                self.dice.choice(hostile_values.EXTREMES),
                self.dice.choice(hostile_values.EXTREMES),
                value + 1,
                value - 1,
                -value,
                value * 1000,
                Raw(f"{value}.5")
                if isinstance(value, int)
                else value + 0.5,  # an integer of any size
                str(value),
                self.dice.choice(hostile_values.NUMBERS),
            )
        )

    def _repeat(self, holder: Any, key: Any) -> None:
        times = min(self.dice.choice((2, 10, 300)), MOST_VALUES // (1 + len(places(holder[key]))))
        holder[key] = [copy_tree(value) for value in holder[key] * times][:1000]

    def _empty(self, holder: Any, key: Any) -> None:
        holder[key] = type(holder[key])()


# --- Texts of trees


def json_text(tree: Tree, *, escaped: bool = True) -> str:
    """Return the tree as JSON; raw texts are written unchanged."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, dict):
        inside = (
            f"{key if isinstance(key, Raw) else json.dumps(str(key), ensure_ascii=escaped)}: {json_text(value, escaped=escaped)}"
            for key, value in tree.items()
        )
        return "{" + ", ".join(inside) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(json_text(value, escaped=escaped) for value in tree) + "]"
    return json.dumps(tree, ensure_ascii=escaped, default=str)


def yaml_text(tree: Tree, indent: int = 0) -> str:
    """Return the tree as YAML in blocks."""
    pad = " " * indent
    if isinstance(tree, dict) and tree and indent < 40:
        return "".join(
            f"{pad}{key if isinstance(key, Raw) else _plain(str(key))}:{_nest_lines(value, indent)}"
            for key, value in tree.items()
        )
    if isinstance(tree, list) and tree and indent < 40:
        return "".join(f"{pad}-{_nest_lines(value, indent)}" for value in tree)
    return f"{pad}{json_text(tree, escaped=False)}\n"


def _nest_lines(value: Tree, indent: int) -> str:
    if isinstance(value, dict | list) and value and indent < 38:
        return f"\n{yaml_text(value, indent + 2)}"
    return f" {json_text(value, escaped=False)}\n"


def _plain(key: str) -> str:
    return (
        key
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key)
        else json.dumps(key, ensure_ascii=False)
    )


# --- Parts


def form_of(name: str) -> str:
    """Return the format of a part, by its name."""
    ending = name.rpartition(".")[2]
    return {"json": "json", "yaml": "yaml", "yml": "yaml", "journal": "lines", "plan": "json"}.get(
        ending, "bytes"
    )


@lru_cache(maxsize=1024)
def parse_tree(content: bytes, form: str) -> Tree:
    """Return the tree of a text, or None if there is none or it is too large."""
    try:
        found = json.loads(content) if form == "json" else yaml.safe_load(content)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    return found if isinstance(found, dict | list) and found and _depth(found) <= DEEPEST else None


def mutate_part(
    content: bytes, form: str, dice: Random, others: list[bytes], own: tuple[str, ...] = ()
) -> bytes:
    """Return the part after some changes; `others` are other contents of the same kind."""
    if form == "number":
        return dice.choice((b"0", b"1", b"2", b"30"))
    count, draw = 1 + min(int(dice.expovariate(0.5)), 10), dice.random()
    tree = parse_tree(content, form) if form in ("json", "yaml") else None
    if tree is not None and draw < 0.85:
        some = dice.sample(others, min(3, len(others)))
        donors = [found for other in some if (found := parse_tree(other, form)) is not None]
        raw = hostile_values.RAW_YAML if form == "yaml" else hostile_values.RAW_JSON
        changed = Mutator(dice, own, raw, donors or [tree]).tree(tree, min(count, 6))
        out = bytes_of(
            yaml_text(changed)
            if form == "yaml" and dice.random() < 0.7
            else json_text(changed, escaped=form == "json" and dice.random() < 0.7)
        )
    elif form == "lines" and draw < 0.85:
        out = _mutate_lines(content, dice, others, own, count)
    elif draw < 0.95 and form != "bytes":
        out = _mutate_text(content, dice, count)
    else:
        out = mutate_bytes(content, dice, others, count)
    return out[:LARGEST]


def _mutate_lines(
    content: bytes, dice: Random, others: list[bytes], own: tuple[str, ...], count: int
) -> bytes:
    """Change lines of JSON, each a document."""
    lines = content.split(b"\n")
    known = [line for other in (content, *others) for line in other.split(b"\n") if line]
    for _ in range(count):
        at = dice.randrange(len(lines))
        change = dice.randrange(8)
        if change < 5:
            lines[at] = mutate_part(lines[at] or dice.choice(known), "json", dice, known, own)
        elif change == 5:
            lines.insert(at, dice.choice(known))
        elif change == 6 and len(lines) > 1:
            del lines[at]
        else:
            other = dice.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)


def _mutate_text(content: bytes, dice: Random, count: int) -> bytes:
    lines = text_of(content).split("\n")
    for _ in range(count):
        at = dice.randrange(len(lines))
        line, place = lines[at], dice.randrange(len(lines[at]) + 1)
        match dice.randrange(8):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(dice.randrange(len(lines)), line)
            case 2:
                lines[at] = " " * dice.choice((1, 2, 7)) + line
            case 3:
                lines[at] = line[:place]
            case 4:
                lines[at] = line[:place] + dice.choice(hostile_values.TEXTS) + line[place:]
            case 5:
                lines[at] = line[:place] + dice.choice("{}[]:,-&*!|>'\"%@`#?\t") + line[place:]
            case 6:
                other = dice.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                lines[at] = f"{line[:place]} {dice.choice(hostile_values.RAW_YAML)}"
    return bytes_of("\n".join(lines))


def mutate_bytes(content: bytes, dice: Random, others: list[bytes], count: int) -> bytes:
    """Change bits, numbers, words, cuts and splices."""
    for _ in range(count):
        content = _bytes_once(content, dice, others)[:LARGEST]
    return content


def _bytes_once(content: bytes, dice: Random, others: list[bytes]) -> bytes:
    at = dice.randrange(len(content) + 1)
    end = min(len(content), at + dice.choice((1, 2, 8, 64, 1000)))
    match dice.randrange(9):
        case 0 if at < len(content):
            return (
                content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :]
            )
        case 1:
            return content[:at]
        case 2:
            return content[:at] + content[end:]
        case 3:
            return content[:end] + content[at:end] * dice.choice((1, 3, 50)) + content[end:]
        case 4:
            other = dice.choice(others) if others else content
            return content[:at] + other[dice.randrange(len(other) + 1) :]
        case 5:
            return content[:at] + dice.choice(hostile_values.BYTE_WORDS) + content[at:]
        case 6:
            return _substituted(
                content, _WORD, dice.choice((*hostile_values.BYTE_WORDS, b"x")), dice
            )
        case 7:
            return content[:at] + dice.randbytes(dice.choice((1, 4, 30))) + content[end:]
        case _:
            return _substituted(
                content,
                _NUMBER,
                dice.choice((*hostile_values.BYTE_NUMBERS, b"-%d" % dice.randrange(1, 100))),
                dice,
            )


def _substituted(content: bytes, pattern: re.Pattern[bytes], by: bytes, dice: Random) -> bytes:
    found = list(pattern.finditer(content))
    if not found:
        return content + by
    match = dice.choice(found)
    return content[: match.start()] + by + content[match.end() :]
