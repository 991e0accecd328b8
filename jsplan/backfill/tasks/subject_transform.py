"""What `subject_transform` makes of subjects: the server's own mapping, over bytes. Equal to what a stream with that
`subject_transform` stores is what tests ask real servers.

A subject that `src` does not match stays as it is, as in such a stream. `random` is not known: a copy that is run again must come to
the same subjects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.protocol.frames import BYTES, MESSAGE_SCHEMA
from jsplan.errors import RefusedError
from jsplan.subjects import is_subset, is_valid

#: Makes a part of the new subject of the parts of the old one.
TokenMaker = Callable[[list[bytes]], bytes]
_CALL_PATTERN = re.compile(r"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}")
_COMMA_PATTERN = re.compile(r",\s*")
#: FNV-1a with 32 bits, by which servers choose a partition.
_FNV_BASIS, _FNV_PRIME, _WORD_MASK = 2166136261, 16777619, 0xFFFFFFFF
KNOWN_FUNCTIONS: Final = (
    "wildcard",
    "partition",
    "split",
    "splitfromleft",
    "splitfromright",
    "slicefromleft",
    "slicefromright",
    "left",
    "right",
)


@dataclass(frozen=True, slots=True)
class SubjectTransform:
    """Subjects that match `src` become what `dest` says. Travels to tasks as its two texts."""

    src: str
    dest: str

    def compile(self) -> CompiledTransform:
        """Ready to be used. Raises ValueError that says which part is not understood."""
        return CompiledTransform(self)


class CompiledTransform:
    """The mapping at work."""

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
        """What one subject becomes. Raises ValueError where that is no subject."""
        if not is_subset(subject.decode(errors="surrogateescape"), self._src):
            return subject
        parts = subject.split(b".")
        found = [make(parts) for make in self._makers] + (
            parts[self._tail_position :] if self._has_tail else []
        )
        whole = b".".join(found)
        if not all(whole.split(b".")):
            raise ValueError(
                f"it would become {whole.decode(errors='replace')!r}, which is no subject"
            )
        return whole

    def apply_to_column(self, subjects: pa.BinaryArray) -> tuple[pa.BinaryArray, dict[bytes, str]]:
        """A whole column, each different subject once; and which subjects become none, with why (they stay as they are)."""
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
    """Rows of a stream, in the columns of `MESSAGE_SCHEMA`, under the subjects that they get. Raises RefusedError for one that would get none."""
    if mapping is None:
        return rows
    column, failed = mapping.apply_to_column(rows["subject"])
    if failed:
        place = next(
            place for place, subject in enumerate(rows["subject"].to_pylist()) if subject in failed
        )
        subject = rows["subject"][place].as_py()
        raise RefusedError(
            f"subject_transform: message {rows['seq'][place].as_py():,} of {domain}/{stream} has subject "
            f"{subject.decode(errors='replace')}; {failed[subject]}. Nothing of this attempt was copied",
            hint="Change the transform, or leave such messages out with `where`.",
        )
    return pa.RecordBatch.from_arrays(
        [rows["seq"], rows["time"], column, rows["headers"], rows["data"]], schema=MESSAGE_SCHEMA
    )


def _has_tail_wildcard(mapping: SubjectTransform) -> bool:
    """Whether both end with `>`. Raises ValueError for what no server takes."""
    src, dest = mapping.src.split("."), mapping.dest.split(".")
    for text in (mapping.src, re.sub(r"\{\{[^}]*\}\}", "x", mapping.dest)):
        if not is_valid(text):
            raise ValueError(f"{text!r} is no subject")
    if "*" in dest:
        raise ValueError(
            "dest has a `*`; write {{wildcard(1)}} for what the first one of src stands for"
        )
    if (src[-1] == ">") != (dest[-1] == ">"):
        raise ValueError("either both src and dest end with `>`, or neither does")
    return dest[-1] == ">"


def _build_maker(part: str, wild: list[int]) -> TokenMaker:
    if part.startswith("$") and part[1:].isascii() and part[1:].isdigit():
        return _build_token(_find_wildcard(int(part[1:]), part, wild))
    if not (part.startswith("{{") and part.endswith("}}")):
        plain = part.encode(errors="surrogateescape")
        return lambda _: plain
    match = _CALL_PATTERN.fullmatch(part)
    name = match[1].lower() if match else ""
    if match is None or name not in KNOWN_FUNCTIONS:
        raise ValueError(
            f"{part} is no function that a backfill knows; it knows {', '.join(KNOWN_FUNCTIONS)}"
        )
    return _build_call(name, _COMMA_PATTERN.split(match[2]), part, wild)


def _build_call(name: str, given: list[str], part: str, wild: list[int]) -> TokenMaker:
    if name == "partition":
        return _build_partition([_parse_number(one, part) for one in given], part, wild)
    wanted = 1 if name == "wildcard" else 2
    if len(given) != wanted:
        raise ValueError(f"{part} takes {wanted} argument{'s' if wanted > 1 else ''}")
    place = _find_wildcard(_parse_number(given[0], part), part, wild)
    if name == "wildcard":
        return _build_token(place)
    if name == "split":
        return _build_split(place, given[1], part)
    size, cut = _parse_number(given[1], part), _TOKEN_FUNCTIONS[name]
    return lambda parts: cut(parts[place], size)


def _parse_number(text: str, part: str) -> int:
    if not re.fullmatch(r" *[+-]?[0-9]+ *", text):
        raise ValueError(f"{part}: {text!r} is no number")
    return int(text)


def _find_wildcard(number: int, part: str, wild: list[int]) -> int:
    if not 1 <= number <= len(wild):
        raise ValueError(f"{part}: src has {len(wild)} `*`, and there is none with number {number}")
    return wild[number - 1]


def _build_token(place: int) -> TokenMaker:
    return lambda parts: parts[place]


def _build_partition(numbers: list[int], part: str, wild: list[int]) -> TokenMaker:
    if len(numbers) < 2 or numbers[0] < 1:
        raise ValueError(
            f"{part} needs a number of partitions and the numbers of the wildcards that choose one"
        )
    count, places = numbers[0], [_find_wildcard(number, part, wild) for number in numbers[1:]]
    return lambda parts: b"%d" % (hash_fnv1a(b"".join(parts[place] for place in places)) % count)


def hash_fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits."""
    found = _FNV_BASIS
    for byte in key:
        found = (found ^ byte) * _FNV_PRIME & _WORD_MASK
    return found


def _build_split(place: int, mark: str, part: str) -> TokenMaker:
    if not mark or " " in mark:
        raise ValueError(f"{part} needs what to split at, without blanks")
    at = mark.encode()
    return lambda parts: _join_tokens(parts[place].split(at))


def _join_tokens(pieces: list[bytes]) -> bytes:
    """As servers do it: no empty parts, but where a token is nothing else."""
    return b".".join(piece for piece in pieces if piece)


def _split_left(token: bytes, at: int) -> bytes:
    return token[:at] + b"." + token[at:] if 0 < at < len(token) else token


def _split_right(token: bytes, at: int) -> bytes:
    return _split_left(token, len(token) - at)


def _slice_left(token: bytes, size: int) -> bytes:
    if not 0 < size < len(token):
        return token
    return b".".join(token[start : start + size] for start in range(0, len(token), size))


def _slice_right(token: bytes, size: int) -> bytes:
    if not 0 < size < len(token):
        return token
    first = len(token) % size
    return b".".join(
        [
            *([token[:first]] if first else []),
            *(token[at : at + size] for at in range(first, len(token), size)),
        ]
    )


def _left(token: bytes, size: int) -> bytes:
    return token[:size] if 0 < size < len(token) else token


def _right(token: bytes, size: int) -> bytes:
    return token[-size:] if 0 < size < len(token) else token


_TOKEN_FUNCTIONS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "splitfromleft": _split_left, "splitfromright": _split_right, "slicefromleft": _slice_left, "slicefromright": _slice_right,
    "left": _left, "right": _right,
}  # fmt: skip
