from __future__ import annotations

import base64
import random
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.tasks.subject_transform import CompiledTransform, SubjectTransform
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

TRANSFORMS = [
    ("map.>", "ALL.map.>"),
    (">", "all.>"),
    ("map.*.>", "m.$1.>"),
    ("map.*.*", "m.$2.$1"),
    ("map.*.*", "m.{{wildcard(2)}}.x.{{ Wildcard( 1 ) }}"),
    ("map.*.*", "m.$x.{{wildcard(1)}}.$"),
    ("map.*.*", "m.{{partition(7,1,2)}}.$1.$2"),
    ("map.*.>", "m.{{Partition(3,1)}}.>"),
    ("map.*.*", "m.{{split(1,-)}}.$2"),
    ("map.*.*", "m.{{splitFromLeft(1,3)}}.{{SplitFromRight(2,2)}}"),
    ("map.*.*", "m.{{sliceFromLeft(1,3)}}.{{SliceFromRight(2,2)}}"),
    ("map.one.two", "m.fixed"),
    ("map.*.two", "m.fixed"),
]
#: Transforms of servers since 2.15.
LATER = [("map.*.*", "m.{{left(1,3)}}.{{right(2,2)}}")]
LETTERS = "abcXYZ019-_$"


def subjects(count: int, seed: int = 7) -> list[str]:
    """Return subjects that match and some that do not, with parts of every length."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        parts = [
            "".join(chance.choices(LETTERS, k=chance.randrange(1, 9)))
            for _ in range(chance.choice([1, 2, 2, 2, 3]))
        ]
        made.append(".".join(["map", *parts]))
    return [*made, "map.one.two", "map.-a-b-.c--d", "map.a--b.x", "map.ab-.yz"]


def transform_like_server(mapped: CompiledTransform, subject: str) -> str:
    """Return the subject that a backfill makes, also one that it refuses and a server stores."""
    try:
        return mapped(subject.encode()).decode()
    except ValueError as error:
        made = re.findall("'(.*)'", str(error))[0]
        assert not all(made.split("."))
        return str(made)


@pytest.mark.matrix
def test_transforms_match_those_of_the_server(
    server: Server, server_version: tuple[int, int, int]
) -> None:
    """A backfill maps each subject as a stream with the same `subject_transform` does."""
    every = [*TRANSFORMS, *(LATER if server_version >= (2, 15, 0) else [])]
    with Raw(server.url, server.user, server.password) as raw:
        for number, (src, dest) in enumerate(every):
            # A name for each: a stream that is recreated at once may still map as before.
            name = f"MAPPED{number}"
            config = {
                "name": name,
                "subjects": ["map.>"],
                "subject_transform": {"src": src, "dest": dest},
            }
            raw.api_ok(f"$JS.API.STREAM.CREATE.{name}", config)
            mapped = SubjectTransform(src, dest).compile()
            for seq, subject in enumerate(subjects(40), start=1):
                raw.request(subject, b"")
                stored = raw.api_ok(f"$JS.API.STREAM.MSG.GET.{name}", {"seq": seq})["message"]
                assert transform_like_server(mapped, subject) == stored["subject"], (
                    src,
                    dest,
                    subject,
                )
                assert base64.b64decode(stored.get("data", "")) == b""
            raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")


@pytest.mark.parametrize(
    ("src", "dest", "message"),
    [
        ("a.>", "b", "neither does"),
        ("a.*", "b.*", "wildcard"),
        ("a.*", "b.$2", "none with number 2"),
        ("a.*", "b.{{random(4)}}", "is not a supported function"),
        ("a.*", "b.{{partition(4)}}", "needs a number of partitions"),
        ("a.*", "b.{{splitFromLeft(1)}}", "takes 2 arguments"),
        ("a.*", "b.{{wildcard(x)}}", "not a number"),
        ("a..b", "b", "not a subject"),
    ],
)
def test_invalid_transforms_are_refused(src: str, dest: str, message: str) -> None:
    """An invalid transform is refused before anything is copied."""
    with pytest.raises(ValueError, match=message):
        SubjectTransform(src, dest).compile()


def test_a_subject_that_becomes_empty_is_reported() -> None:
    """A subject that the transform makes empty is reported."""
    column, failed = (
        SubjectTransform("a.*", "b.{{split(1,-)}}")
        .compile()
        .apply_to_column(pa.array([b"a.x-y", b"a.--", b"c"], BYTES))
    )

    assert column.to_pylist() == [b"b.x.y", b"a.--", b"c"]
    assert list(failed) == [b"a.--"]
