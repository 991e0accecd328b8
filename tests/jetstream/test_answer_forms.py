"""The types of answers: what fits, what an error says, and what is changed in an answer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.reading import fits
from jsplan.jetstream.answer_schema import MAX_CONFIG_DEPTH, InvalidAnswer, check_answer
from jsplan.jetstream.answers import answer_types
from tests.support.raw import Raw
from tests.support.wrong_values import WRONG, JsonPath, nested_lists, paths, replace_at

if TYPE_CHECKING:
    from jsplan.sandbox import Server

API = "CONSUMER.INFO.S.C"
#: Values of the same type as a right one that no server sends.
NEVER_SENT: list[tuple[JsonPath, Any, str]] = [
    (("num_pending",), -1, "num_pending is -1, expected a whole number of at least 0"),
    (
        (
            "delivered",
            "stream_seq",
        ),
        -5,
        "delivered.stream_seq is -5, expected a whole number of at least 0",
    ),
    (("created",), "2026-02-30T00:00:00Z", "created is '2026-02-30T00:00:00Z', expected a time"),
    (("stream_name",), "a.b", "stream_name is 'a.b', expected a name"),
    (("name",), "D", "name is 'S.D', expected 'S.C'"),
    (
        (
            "config",
            "backoff",
        ),
        ["1s"],
        "config.backoff[0] is '1s', expected a whole number",
    ),
    (
        (
            "config",
            "metadata",
        ),
        {"a": 1},
        "config.metadata['a'] is 1, expected text",
    ),
]


def create_objects(raw: Raw, consumer: dict[str, Any]) -> None:
    """Create a stream with many settings, its origin, and a consumer."""
    stream = {
        "name": "S",
        "sources": [{"name": "O", "filter_subject": "a"}],
        "metadata": {"a": "b"},
    }
    stream |= {"placement": {"tags": []}, "republish": {"src": "a", "dest": "b"}}
    raw.create("O")
    raw.api_ok("$JS.API.STREAM.CREATE.S", stream)
    raw.api_ok("$JS.API.CONSUMER.CREATE.S.C", {
        "stream_name": "S", "config": consumer | {"name": "C"}})  # fmt: skip


@pytest.mark.parametrize(
    ("api", "verb"),
    [
        ("INFO", "INFO"),
        ("STREAM.INFO.S", "STREAM.INFO."),
        ("STREAM.LIST", "STREAM.LIST"),
        ("STREAM.NAMES", "STREAM.NAMES"),
        ("CONSUMER.INFO.S.C", "CONSUMER.INFO."),
        ("CONSUMER.LIST.S", "CONSUMER.LIST."),
    ],
)
def test_the_quick_check(server: Server, api: str, verb: str) -> None:
    """Answers of servers fit the closed type; an answer that fits it fits the open type too."""
    closed = answer_types(closed=True)[verb]
    with Raw(server.url) as raw:
        create_objects(raw, {"durable_name": "C", "ack_policy": "explicit", "backoff": [10**9]})
        answer = raw.api_ok(f"$JS.API.{api}")
    assert fits(answer, closed)

    changed = [replace_at(answer, path, value) for path in paths(answer) for value in WRONG]
    accepted = [each for each in changed if fits(each, closed)]
    assert all(fits(each, answer_types(closed=False)[verb]) for each in accepted)
    assert 0 < len(accepted) < len(changed)


def test_a_wrong_value_after_right_ones(server: Server) -> None:
    """A wrong value is found, and named, after right answers with the same fields."""
    config: dict[str, Any] = {"durable_name": "C", "ack_policy": "explicit", "metadata": {"a": "b"}}
    config |= {"max_deliver": 3, "backoff": [10**9]}
    with Raw(server.url) as raw:
        create_objects(raw, config)
        answer = raw.api_ok(f"$JS.API.{API}")
    for _ in range(2):
        check_answer(API, copy.deepcopy(answer))

    for path, value, text in NEVER_SENT:
        with pytest.raises(InvalidAnswer) as wrong:
            check_answer(API, replace_at(answer, path, value))
        assert str(wrong.value) == text

    del answer["delivered"]
    with pytest.raises(InvalidAnswer, match=r"^delivered is missing, expected a value$"):
        check_answer(API, answer)


def test_what_a_newer_server_adds(server: Server) -> None:
    """Unknown fields stay, with their nulls. Known fields lose theirs, and keys of maps too."""
    with Raw(server.url) as raw:
        create_objects(raw, {"durable_name": "C", "ack_policy": "explicit"})
        answer = raw.api_ok("$JS.API.STREAM.LIST")
    one = answer["streams"][0]
    one["config"] |= {"newer": {"a": [None], "b": None}}
    wanted = copy.deepcopy(answer)
    one["config"] |= {"description": None, "metadata": one["config"]["metadata"] | {"x": None}}
    one |= {"cluster": None, "sources": [{"name": "O", "error": None}]}
    wanted["streams"][0]["sources"] = [{"name": "O"}]

    check_answer("STREAM.LIST", answer)
    assert answer == wanted

    one["config"]["newer"] = nested_lists(MAX_CONFIG_DEPTH)
    with pytest.raises(
        InvalidAnswer, match=r"^streams\[0\]\.config is '…', expected at most \d+ levels$"
    ):
        check_answer("STREAM.LIST", answer)


def test_a_consumer_without_a_name(server: Server) -> None:
    """An element of a list whose servers are down has no name; the others are checked."""
    with Raw(server.url) as raw:
        create_objects(raw, {"durable_name": "C", "ack_policy": "explicit"})
        answer = raw.api_ok("$JS.API.CONSUMER.LIST.S")
    unnamed = {"name": "", "config": None}
    answer["consumers"].insert(0, unnamed)
    check_answer("CONSUMER.LIST.S", answer)
    assert len(answer["consumers"]) == 2

    answer["consumers"][1]["num_pending"] = "1"
    with pytest.raises(InvalidAnswer, match=r"^consumers\[1\]\.num_pending is '1', expected"):
        check_answer("CONSUMER.LIST.S", answer)
    with pytest.raises(InvalidAnswer, match=r"^name is '', expected a name$"):
        check_answer("CONSUMER.CREATE.S.C", answer["consumers"][1] | {"name": ""})
