"""The words of buckets and the fields of their streams, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from jsplan.address import Address
from jsplan.resources import KV, OBJECT_STORE, STREAM
from jsplan.resources.buckets import client_defaults, lift, lift_change, lower, with_aliases

CONFIG, ASSETS = Address("hub", "kv", "CONFIG"), Address("hub", "object_store", "ASSETS")
DAY = 86400 * 10**9

#: Words, and the stream that `nats kv add` or `nats object add` makes of them (beside the server's defaults).
CLIENT_CONFIGS: list[tuple[Address, dict[str, Any], dict[str, Any]]] = [
    (
        CONFIG, {"bucket": "CONFIG"},
        {"subjects": ["$KV.CONFIG.>"], "max_msgs_per_subject": 1, "duplicate_window": 120 * 10**9, "discard": "new", "deny_delete": True,
         "allow_rollup_hdrs": True, "allow_direct": True},
    ),
    (
        CONFIG, {"bucket": "CONFIG", "history": 64, "ttl": DAY, "max_value_size": 10, "max_bytes": 20, "limit_marker_ttl": 10**9},
        {"subjects": ["$KV.CONFIG.>"], "max_msgs_per_subject": 64, "max_age": DAY, "max_msg_size": 10, "max_bytes": 20, "discard": "new",
         "subject_delete_marker_ttl": 10**9, "allow_msg_ttl": True, "duplicate_window": 120 * 10**9, "deny_delete": True,
         "allow_rollup_hdrs": True, "allow_direct": True},
    ),
    (
        CONFIG, {"bucket": "CONFIG", "ttl": 10**9, "compression": True},
        {"subjects": ["$KV.CONFIG.>"], "max_msgs_per_subject": 1, "max_age": 10**9, "duplicate_window": 10**9, "compression": "s2",
         "discard": "new", "deny_delete": True, "allow_rollup_hdrs": True, "allow_direct": True},
    ),
    (
        CONFIG, {"bucket": "CONFIG", "mirror": {"name": "A", "external": {"api": "$JS.b.API"}}},
        {"mirror": {"name": "KV_A", "external": {"api": "$JS.b.API"}}, "mirror_direct": True, "max_msgs_per_subject": 1,
         "duplicate_window": 120 * 10**9, "discard": "new", "deny_delete": True, "allow_rollup_hdrs": True, "allow_direct": True},
    ),
    (
        ASSETS, {"bucket": "ASSETS", "ttl": DAY, "max_bytes": 7, "compression": True},
        {"subjects": ["$O.ASSETS.C.>", "$O.ASSETS.M.>"], "max_age": DAY, "max_bytes": 7, "compression": "s2", "discard": "new",
         "allow_rollup_hdrs": True, "allow_direct": True},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("address", "words", "stream"), CLIENT_CONFIGS)
def test_a_new_bucket_is_what_nats_go_makes(
    address: Address, words: dict[str, Any], stream: dict[str, Any]
) -> None:
    """A new bucket has exactly the fields that nats.go sends."""
    lowered = lower(address, words)

    assert lowered | client_defaults(address.kind, lowered) == stream


@pytest.mark.parametrize(("address", "words", "stream"), CLIENT_CONFIGS)
def test_a_stream_is_shown_in_the_words_that_made_it(
    address: Address, words: dict[str, Any], stream: dict[str, Any]
) -> None:
    """A stream is shown in the words of its bucket, without those that go without saying."""
    table = KV if address.kind == "kv" else OBJECT_STORE
    full = STREAM.with_defaults(STREAM.compact({"name": address.stream} | stream))

    assert table.compact(
        {"bucket": address.name} | lift(address.kind, address.name, full)
    ) == table.compact(words)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (
            {"name": "A"},
            {"name": "KV_A", "subject_transforms": [{"src": "$KV.A.>", "dest": "$KV.CONFIG.>"}]},
        ),
        (
            {"name": "KV_A"},
            {"name": "KV_A", "subject_transforms": [{"src": "$KV.A.>", "dest": "$KV.CONFIG.>"}]},
        ),
        (
            {"name": "CONFIG", "external": {"api": "x"}},
            {"name": "KV_CONFIG", "external": {"api": "x"}},
        ),
        (
            {"name": "A", "external": {"api": "x"}},
            {
                "name": "KV_A",
                "external": {"api": "x"},
                "subject_transforms": [{"src": "$KV.A.>", "dest": "$KV.CONFIG.>"}],
            },
        ),
        (
            {"name": "A", "subject_transforms": [{"src": "$KV.A.x", "dest": "$KV.CONFIG.y"}]},
            {"name": "KV_A", "subject_transforms": [{"src": "$KV.A.x", "dest": "$KV.CONFIG.y"}]},
        ),
    ],
)
def test_sources_are_other_buckets(origin: dict[str, Any], expected: dict[str, Any]) -> None:
    """Sources of a bucket are other buckets; their keys become keys of this one by default."""
    assert lower(CONFIG, {"sources": [origin]})["sources"] == [expected]


def test_named_fields_are_not_filled_in() -> None:
    """A stream field beside the words wins over what nats.go would choose."""
    lowered = lower(CONFIG, {"allow_direct": False, "discard": "old", "compression": None})

    assert not client_defaults("kv", lowered).keys() & {"allow_direct", "discard"}
    assert "compression" not in lowered


def test_other_kinds_are_not_touched() -> None:
    """A stream is not changed by the words of buckets."""
    body = {"max_age": 1, "compression": "s2"}

    assert lower(Address("hub", "stream", "A"), body) == body
    assert client_defaults("stream", body) == {}
    assert lift("stream", "A", body) == body
    assert lift_change("stream", "A", "max_age", 1, 2) == ("max_age", 1, 2)


AUTOMATIC = [{"src": "$KV.A.>", "dest": "$KV.CONFIG.>"}]


def test_changes_are_shown_in_words() -> None:
    """A change has the bucket's word in its path, and the values of the files."""
    for path, before, after, expected in [
        ("max_msgs_per_subject", 1, 5, ("history", 1, 5)),
        ("max_age", 0, DAY, ("ttl", 0, DAY)),
        ("subject_delete_marker_ttl", 0, 1, ("limit_marker_ttl", 0, 1)),
        ("compression", "none", "s2", ("compression", False, True)),
        ("placement.cluster", "a", "b", ("placement.cluster", "a", "b")),
        ("allow_msg_ttl", False, True, ("allow_msg_ttl", False, True)),
        ("mirror.name", "KV_A", "KV_B", ("mirror.name", "A", "B")),
        ("mirror", None, {"name": "KV_A"}, ("mirror", None, {"name": "A"})),
        ('sources["KV_A"].opt_start_seq', 1, 2, ('sources["A"].opt_start_seq', 1, 2)),
        (
            'sources["KV_A#$KV.A.>>$KV.CONFIG.>"]',
            None,
            {"name": "KV_A", "subject_transforms": AUTOMATIC},
            ('sources["A"]', None, {"name": "A"}),
        ),
        ('sources["KV_A@$JS.b.API#$KV.A.>"].x', 1, 2, ('sources["A@$JS.b.API"].x', 1, 2)),
        (
            "sources",
            None,
            [{"name": "KV_A", "subject_transforms": AUTOMATIC}],
            ("sources", None, [{"name": "A"}]),
        ),
    ]:
        assert lift_change("kv", "CONFIG", path, before, after) == expected, path


def test_a_sentence_about_the_stream_speaks_of_the_bucket() -> None:
    """Words of a message about the stream are replaced only whole."""
    assert (
        with_aliases("kv", "max_age is longer than max_age_of") == "ttl is longer than max_age_of"
    )
