"""Random configurations of streams and consumers, drawn from the field tables.

There is one strategy for each type of row. Most values are legal on their own; which of them go together is for the server
to say. Names, subjects and origins are drawn here because the tables do not know what else is on the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from jsplan.resources import CONSUMER, STREAM, Field, Table
from jsplan.resources.nested import CONSUMER_LIMITS

MS, SECOND = 1_000_000, 1_000_000_000
#: Streams that every run makes first: what mirrors and sources copy, and one whose reads every replica answers.
ORIGINS = ("ORG", "ORG2", "ORGD")
_DURATIONS = (
    0,
    1,
    50 * MS,
    100 * MS,
    999 * MS,
    SECOND,
    5 * SECOND,
    30 * SECOND,
    120 * SECOND,
    3600 * SECOND,
    31_536_000 * SECOND,
)
_COUNTS = (-7, -1, 0, 1, 2, 5, 100, 512, 1000, 5000)
_SIZES = (-1, 0, 1, 1024, 65536, 1 << 20, 8 << 20)
_TIMES = ("2024-01-01T00:00:00Z", "2024-06-01T12:30:00.125Z", "2031-01-01T02:00:00+02:00")
_WORDS = ("", "a", "shop", "Bestellungen für Köln", "x" * 100, "one\ntwo 'quoted' $${x}")
_KEYS = ("team", "owner", "a.b", "Ü", "_nats.ver")


def _numbers(row: Field, pool: tuple[int, ...]) -> st.SearchStrategy[int]:
    low = next((least for least in (row.minimum, row.floor) if least is not None), min(pool))
    high = row.maximum if row.maximum is not None else max(pool)
    return st.sampled_from([n for n in pool if low <= n <= high])


_BY_TYPE: dict[str, Callable[[Field], st.SearchStrategy[Any]]] = {
    "string": lambda _: st.sampled_from(_WORDS),
    "bool": lambda _: st.booleans(),
    "int": lambda row: _numbers(row, _COUNTS),
    "size": lambda row: _numbers(row, _SIZES),
    "duration": lambda row: _numbers(row, _DURATIONS),
    "enum": lambda row: st.sampled_from(row.values),
    "time": lambda _: st.sampled_from(_TIMES),
    "percent": lambda _: st.sampled_from(["0", "30", "30%", "100"]),
    "durations": lambda _: st.lists(st.sampled_from([SECOND, 2 * SECOND, 60 * SECOND]), max_size=4),
    "metadata": lambda _: st.dictionaries(
        st.sampled_from(_KEYS), st.sampled_from(_WORDS), max_size=3
    ),
}


#: Inactivity after which a consumer goes: shorter ones would delete it in the middle of a test.
_LONG = [0, 3000 * SECOND, 6000 * SECOND, 6100 * SECOND, 36000 * SECOND]


def _rows(
    table: Table,
    known: dict[str, st.SearchStrategy[Any]],
    level: int,
    *,
    most: int,
    without: tuple[str, ...] = (),
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a few rows of the table with values.

    `known` are the strategies of rows that the types do not describe.
    """
    rows = [
        row
        for row in table.rows
        if not row.required and row.level <= level and row.name not in without
    ]
    strategies = {
        row.name: known[row.name] if row.name in known else _BY_TYPE[row.type](row) for row in rows
    }
    names = st.lists(st.sampled_from(sorted(strategies)), unique=True, max_size=most)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: strategies[name] for name in chosen})
    )


# --- streams -------------------------------------------------------------------------------------------------


def _subjects(name: str) -> st.SearchStrategy[list[str]]:
    tails = (".>", ".*", ".a", ".a.b", ".a.*", ".b", ".c.>", "")
    return st.lists(st.sampled_from([name + tail for tail in tails]), unique=True, max_size=3)


def _transforms(name: str) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries(
        {
            "src": st.sampled_from(["", ">", f"{name}.>", f"{name}.*", "org.a", "org.*"]),
            "dest": st.sampled_from(["", "t.>", f"{name}.t.>", "t.{{wildcard(1)}}", "t.x"]),
        }
    )


def _origin(name: str, level: int) -> st.SearchStrategy[dict[str, Any]]:
    optional: dict[str, st.SearchStrategy[Any]] = {
        "opt_start_seq": st.sampled_from([0, 1, 7]),
        "opt_start_time": st.sampled_from(_TIMES),
        "filter_subject": st.sampled_from(["", "org.a", "org.*", ">"]),
        "subject_transforms": st.lists(_transforms(name), max_size=2),
        "external": st.fixed_dictionaries(
            {"api": st.sampled_from(["$JS.x.API", "$JS.y.API"])},
            optional={"deliver": st.sampled_from(["", "deliver.x"])},
        ),
    }
    if level >= 4:
        optional["consumer"] = st.fixed_dictionaries(
            {"name": st.just("c"), "deliver_subject": st.just("d.c")}
        )
    names = st.lists(st.sampled_from(sorted(optional)), unique=True, max_size=2)
    return st.tuples(st.sampled_from(ORIGINS), names).flatmap(
        lambda drawn: st.fixed_dictionaries(
            {"name": st.just(drawn[0])} | {n: optional[n] for n in drawn[1]}
        )
    )


def streams(name: str, level: int) -> st.SearchStrategy[dict[str, Any]]:
    """Draw bodies of one stream, as files may hold them (API units), for a server of this level."""
    known: dict[str, st.SearchStrategy[Any]] = {
        "subjects": _subjects(name),
        "mirror": _origin(name, level),
        "sources": st.lists(_origin(name, level), max_size=3),
        "placement": st.fixed_dictionaries(
            {},
            optional={
                "cluster": st.sampled_from(["", "c"]),
                "tags": st.sampled_from([[], ["a"], ["b", "a"]]),
            },
        ),
        "republish": st.fixed_dictionaries(
            {"dest": st.sampled_from([f"r.{name}.>", f"{name}.r.>", "r.x"])},
            optional={
                "src": st.sampled_from(["", ">", f"{name}.>", f"{name}.a"]),
                "headers_only": st.booleans(),
            },
        ),
        "subject_transform": _transforms(name),
        "consumer_limits": _rows(
            CONSUMER_LIMITS, {"inactive_threshold": st.sampled_from(_LONG)}, level, most=2
        ),
    }
    return _rows(STREAM, known, level, most=7).map(lambda body: {"name": name} | body)


# --- consumers -----------------------------------------------------------------------------------------------


def consumers(name: str, stream: str, level: int) -> st.SearchStrategy[dict[str, Any]]:
    """Draw bodies of one consumer of the stream, as files may hold them (API units)."""
    filters = st.sampled_from([f"{stream}.a", f"{stream}.b", f"{stream}.*", f"{stream}.>", "zzz"])
    known: dict[str, st.SearchStrategy[Any]] = {
        "filter_subject": filters | st.just(""),
        "filter_subjects": st.lists(filters, unique=True, max_size=3),
        "deliver_subject": st.sampled_from(["", f"d.{name}", f"e.{name}"]),
        "deliver_group": st.sampled_from(["", "g"]),
        "priority_groups": st.lists(st.sampled_from(["g", "h"]), unique=True, max_size=1),
        "opt_start_seq": st.sampled_from([0, 1, 9]),
        "inactive_threshold": st.sampled_from(_LONG),
    }
    durable = st.sampled_from(
        [
            {"durable_name": name},
            {"durable_name": name},
            {"durable_name": None, "inactive_threshold": 5500 * SECOND},
        ]
    )
    rows = _rows(
        CONSUMER,
        known,
        level,
        most=6,
        without=("durable_name", "direct", "sourcing", "pause_until"),
    )
    return st.tuples(durable, rows).map(lambda drawn: {"name": name} | drawn[1] | drawn[0])


#: What a consumer keeps in every change: its name, and when it expires if it may.
_KEPT = ("name", "durable_name", "inactive_threshold")


def pairs(
    strategy: st.SearchStrategy[dict[str, Any]],
) -> st.SearchStrategy[tuple[dict[str, Any], dict[str, Any]]]:
    """Draw a body and a second one: some rows of the first, some of another."""

    def mixed(
        drawn: tuple[dict[str, Any], dict[str, Any], int],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        old, other, mask = drawn
        kept = {
            name: value
            for at, (name, value) in enumerate(old.items())
            if mask >> at & 1 or name in _KEPT
        }
        return old, kept | {name: value for name, value in other.items() if name not in _KEPT}

    return st.tuples(strategy, strategy, st.integers(0, 255)).map(mixed)
