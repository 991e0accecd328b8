from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.address import Kind
from jsplan.config.model import LoadOptions
from jsplan.converting.field_map import FieldMap
from jsplan.converting.model import ConvertTarget, Tool
from jsplan.converting.nack import _FIELDS as NACK
from jsplan.converting.terraform import _FIELDS as TERRAFORM
from jsplan.errors import JsplanError
from jsplan.resources import TABLES
from jsplan.resources.consumer import CONSUMER as CONSUMER_TABLE
from jsplan.resources.stream import STREAM as STREAM_TABLE
from jsplan.workflows.convert import convert

TEXT = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
KEYS = TEXT | st.sampled_from(["name", "src", "secret"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
Any_ = st.SearchStrategy[Any]


def body(words: Iterable[str], **more: Any) -> Any_:
    """Draw a mapping of some of the words to anything."""
    return st.dictionaries(st.sampled_from(sorted(words)), VALUES, max_size=5).map(
        lambda found: {**more, **found}
    )


def nest(key: str, inner: Any_, **more: Any) -> Any_:
    """Draw a mapping that has something under a key."""
    return inner.map(lambda found: {**more, key: found})


def words(fields: FieldMap, kind: Kind) -> list[str]:
    """Return the words of a tool for a kind, and our own."""
    return [*fields.fields.get(kind, {}), *TABLES[kind].by_name]


def documents(tool: Tool) -> Any_:
    """Draw documents of the tool whose words have any values."""
    if tool == "nats":
        consumer = body([*CONSUMER_TABLE.by_name, "stream_seq", "start_time"], durable_name="C")
        return st.lists(
            body(STREAM_TABLE.by_name, name="A")
            | nest("config", consumer, stream_name="A")
            | VALUES,
            max_size=3,
        )
    if tool == "nack":
        specs = {
            "Stream": body(
                [*words(NACK, "stream"), "jsDomain", "account", "preventDelete"], name="A"
            ),
            "Consumer": body(words(NACK, "consumer"), streamName="A", durableName="C"),
            "KeyValue": body(words(NACK, "kv"), bucket="B"),
            "Account": body(["servers", "creds", "user", "tls", "name"]),
        }
        found = [
            nest("spec", spec, apiVersion="jetstream.nats.io/v1beta2", kind=kind)
            for kind, spec in specs.items()
        ]
        return nest("items", st.lists(st.one_of(found), min_size=1, max_size=3), kind="List")
    types = {
        "stream": body([*words(TERRAFORM, "stream"), "ack"], name="A"),
        "consumer": body(
            [*words(TERRAFORM, "consumer"), "deliver_all"],
            stream_id="JETSTREAM_STREAM_A",
            durable_name="C",
        ),
        "kv_bucket": body(words(TERRAFORM, "kv"), name="B"),
        "kv_entry": body(["bucket", "key", "value"], bucket="B"),
    }
    made = [nest("values", values, type=f"jetstream_{kind}") for kind, values in types.items()]
    provider = nest("jetstream", body(["name", "alias", "expressions"], name="jetstream"))
    module = nest("resources", st.lists(st.one_of(made) | VALUES, max_size=3), child_modules=[{}])
    more = body(["planned_values", "configuration", "resource_changes", "version"])
    return st.tuples(nest("root_module", module), provider, more).map(
        lambda found: {
            "configuration": {"provider_config": found[1]},
            **found[2],
            "format_version": "1.0",
            "values": found[0],
        }
    )


def convert_or_refuse(tool: Tool, text: str, suffix: str) -> None:
    """Convert, or be refused with a message; any other exception is a bug."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{suffix}"
        path.write_text(text, "utf-8")
        try:
            made = convert(tool, path, ConvertTarget(LoadOptions(Path(folder) / "none"), "shop"))
        except JsplanError:
            return
    assert made.addresses


@pytest.mark.parametrize("tool", ["nats", "nack", "terraform"])
def test_any_document_is_converted_or_refused_in_words(tool: Tool) -> None:
    """Any document becomes a file, or an error with a place; never a traceback."""

    @settings(max_examples=80, deadline=None)
    @given(documents(tool))
    def check(document: Any) -> None:
        convert_or_refuse(tool, json.dumps(document), "json")

    check()
