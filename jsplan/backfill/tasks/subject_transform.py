"""Apply a `subject_transform` like the server does, over bytes.

Tests compare the results with those of real servers. A subject that `src` does not match stays
unchanged, as on the server. `random` is not supported: a repeated copy must produce the same
subjects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from jsplan.backfill.protocol.frames import BYTES, MESSAGE_SCHEMA
from jsplan.errors import RefusedError
from jsplan.subjects import is_subset, is_valid
from jsplan.units import count_text

#: Makes a token of the new subject from the tokens of the old one.
TokenMaker = Callable[[list[bytes]], bytes]
_CALL_PATTERN = re.compile(r"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}")
_COMMA_PATTERN = re.compile(r",\s*")
#: 32-bit FNV-1a, with which servers choose a partition.
_FNV_BASIS, _FNV_PRIME, _WORD_MASK = 2166136261, 16777619, 0xFFFFFFFF


class SubjectTransform(Struct, frozen=True):
    """Mapping from subjects that match `src` to `dest`. Tasks receive its two texts."""

    src: str
    dest: str

    def compile(self) -> CompiledTransform:
        """Compile the mapping. Raises ValueError that names the invalid part."""
        return CompiledTransform(self)


class CompiledTransform:
    """Compiled subject mapping."""

    def __init__(self, mapping: SubjectTransform) -> None:
        self._src = mapping.src
        self._tail_position = len(mapping.src.split(".")) - 1
        self._has_tail = _has_tail_wildcard(mapping)
        wild = [place for place, part in enumerate(mapping.src.split(".")) if part == "*"]
        parts = mapping.dest.split(".")
        self._makers = [
            _build_maker(part, wild) for part in (parts[:-1] if self._has_tail else parts)
        ]

    def __call__(self, subject: bytes) -> bytes:
        """Map one subject. Raises ValueError where the result is not a subject."""
        if not is_subset(subject.decode(errors="surrogateescape"), self._src):
            return subject
        parts = subject.split(b".")
        found = [make(parts) for make in self._makers] + (
            parts[self._tail_position :] if self._has_tail else []
        )
        whole = b".".join(found)
        if not all(whole.split(b".")):
            raise ValueError(
                f"it would become {whole.decode(errors='replace')!r}, which is not a subject"
            )
        return whole

    def apply_to_column(self, subjects: pa.BinaryArray) -> tuple[pa.BinaryArray, dict[bytes, str]]:
        """Map a column, each distinct subject once.

        Also returns the subjects with an invalid result, each with the reason. They stay
        unchanged.
        """
        encoded = pc.dictionary_encode(subjects)
        made, failed = [], dict[bytes, str]()
        for subject in encoded.dictionary.to_pylist():
            try:
                made.append(self(subject))
            except ValueError as error:
                failed[subject] = str(error)
                made.append(subject)
        return pa.array(made, BYTES).take(encoded.indices), failed


def rename_subjects(
    rows: pa.RecordBatch, mapping: CompiledTransform | None, domain: str, stream: str
) -> pa.RecordBatch:
    """Rename the subjects of rows in the columns of `MESSAGE_SCHEMA`.

    Raises RefusedError for a subject with an invalid result.
    """
    if mapping is None:
        return rows
    column, failed = mapping.apply_to_column(rows["subject"])
    if failed:
        place = next(
            place for place, subject in enumerate(rows["subject"].to_pylist()) if subject in failed
        )
        subject = rows["subject"][place].as_py()
        raise RefusedError(
            f"subject_transform: message {rows['seq'][place].as_py():,} of {domain}/{stream} has "
            f"subject {subject.decode(errors='replace')}; {failed[subject]}. "
            "Nothing of this attempt was copied",
            hint="Change the transform, or skip such messages with `where`.",
        )
    return pa.RecordBatch.from_arrays(
        [rows["seq"], rows["time"], column, rows["headers"], rows["data"]], schema=MESSAGE_SCHEMA
    )


def _has_tail_wildcard(mapping: SubjectTransform) -> bool:
    """Return True if both sides end with `>`. Raises ValueError for an invalid mapping."""
    src, dest = mapping.src.split("."), mapping.dest.split(".")
    for text in (mapping.src, re.sub(r"\{\{[^}]*\}\}", "x", mapping.dest)):
        if not is_valid(text):
            raise ValueError(f"{text!r} is not a subject")
    if "*" in dest:
        raise ValueError(
            "dest has a `*`; write {{wildcard(1)}} for the token of the first one of src"
        )
    if (src[-1] == ">") != (dest[-1] == ">"):
        raise ValueError("either both src and dest end with `>`, or neither does")
    return dest[-1] == ">"


def _build_maker(part: str, wild: list[int]) -> TokenMaker:
    if part.startswith("$") and part[1:].isascii() and part[1:].isdigit():
        place = _find_wildcard(int(part[1:]), part, wild)
        return lambda parts: parts[place]
    if not (part.startswith("{{") and part.endswith("}}")):
        plain = part.encode(errors="surrogateescape")
        return lambda _: plain
    match = _CALL_PATTERN.fullmatch(part)
    name = match[1].lower() if match else ""
    known = ("wildcard", "partition", "split", *_TOKEN_FUNCTIONS)
    if match is None or name not in known:
        raise ValueError(f"{part} is not a supported function; supported are {', '.join(known)}")
    return _build_call(name, _COMMA_PATTERN.split(match[2]), part, wild)


def _build_call(name: str, given: list[str], part: str, wild: list[int]) -> TokenMaker:
    if name == "partition":
        return _build_partition([_parse_number(number, part) for number in given], part, wild)
    wanted = 1 if name == "wildcard" else 2
    if len(given) != wanted:
        raise ValueError(f"{part} takes {count_text(wanted, 'argument')}")
    place = _find_wildcard(_parse_number(given[0], part), part, wild)
    if name == "wildcard":
        return lambda parts: parts[place]
    if name == "split":
        mark = given[1].encode()
        if not mark or b" " in mark:
            raise ValueError(f"{part} needs a separator without blanks")
        # as servers do it: no empty parts, but where a token is nothing else
        return lambda parts: b".".join(filter(None, parts[place].split(mark)))
    size, cut = _parse_number(given[1], part), _TOKEN_FUNCTIONS[name]
    return lambda parts: cut(parts[place], size)


def _parse_number(text: str, part: str) -> int:
    if not re.fullmatch(r" *[+-]?[0-9]+ *", text):
        raise ValueError(f"{part}: {text!r} is not a number")
    return int(text)


def _find_wildcard(number: int, part: str, wild: list[int]) -> int:
    if not 1 <= number <= len(wild):
        raise ValueError(f"{part}: src has {len(wild)} `*`, so it has none with number {number}")
    return wild[number - 1]


def _build_partition(numbers: list[int], part: str, wild: list[int]) -> TokenMaker:
    if len(numbers) < 2 or numbers[0] < 1:
        raise ValueError(
            f"{part} needs a number of partitions and the numbers of the wildcards that choose one"
        )
    count, places = numbers[0], [_find_wildcard(number, part, wild) for number in numbers[1:]]
    return lambda parts: b"%d" % (hash_fnv1a(b"".join(parts[place] for place in places)) % count)


def hash_fnv1a(key: bytes) -> int:
    """Compute the 32-bit FNV-1a hash."""
    value = _FNV_BASIS
    for byte in key:
        value = (value ^ byte) * _FNV_PRIME & _WORD_MASK
    return value


def _split_left(token: bytes, at: int) -> bytes:
    return token[:at] + b"." + token[at:] if 0 < at < len(token) else token


def _slice_left(token: bytes, size: int, first: int = 0) -> bytes:
    if not 0 < size < len(token):
        return token
    pieces = [token[at : at + size] for at in range(first, len(token), size)]
    return b".".join(filter(None, (token[:first], *pieces)))


_TOKEN_FUNCTIONS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "splitfromleft": _split_left,
    "splitfromright": lambda token, at: _split_left(token, len(token) - at),
    "slicefromleft": _slice_left,
    "slicefromright": lambda token, size: _slice_left(token, size, len(token) % max(1, size)),
    "left": lambda token, size: token[:size] if 0 < size < len(token) else token,
    "right": lambda token, size: token[-size:] if 0 < size < len(token) else token,
}
