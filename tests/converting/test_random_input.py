from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.config.model import LoadOptions
from jsplan.converting.nack_fields import (
    CONSUMER,
    KEY_VALUE,
    KEY_VALUE_SPECIAL_KEYS,
    STREAM,
    STREAM_SPECIAL_KEYS,
)
from jsplan.converting.result import ConvertTarget, Tool
from jsplan.converting.terraform import provider_fields as terraform
from jsplan.errors import JsplanError
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
                [*STREAM, *STREAM_SPECIAL_KEYS, "jsDomain", "account", "preventDelete"], name="A"
            ),
            "Consumer": body(CONSUMER, streamName="A", durableName="C"),
            "KeyValue": body([*KEY_VALUE, *KEY_VALUE_SPECIAL_KEYS], bucket="B"),
            "Account": body(["servers", "creds", "user", "tls", "name"]),
        }
        found = [
            nest("spec", spec, apiVersion="jetstream.nats.io/v1beta2", kind=kind)
            for kind, spec in specs.items()
        ]
        return nest("items", st.lists(st.one_of(found), min_size=1, max_size=3), kind="List")
    types = {
        "stream": body([*terraform.STREAM, *terraform.STREAM_SPECIAL_KEYS], name="A"),
        "consumer": body(
            [*terraform.CONSUMER, *terraform.CONSUMER_SPECIAL_KEYS],
            stream_id="JETSTREAM_STREAM_A",
            durable_name="C",
        ),
        "kv_bucket": body([*terraform.KV, *terraform.BUCKET_SPECIAL_KEYS], name="B"),
    }
    made = [nest("values", values, type=f"jetstream_{kind}") for kind, values in types.items()]
    return nest(
        "values", nest("root_module", nest("resources", st.lists(st.one_of(made), max_size=3)))
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


HCL = [
    "1", '"a"', "true", "null", "[1, 2]", '{ a = "b" }', "var.x", "local.y", "local.loop", "var.none", "each.key", 'upper("a")', "upper(1)",
    "1 / 0", 'x["a"]', "[for s in local.y : s]", "local.y[5]", "local.y[*].id", '"${var.x}-${local.y}"', "!3", '-"a"', "length(5)",
    "jetstream_stream.name.id", "jetstream_stream.B.id", "jetstream_stream.A", "var.x > 1 ? 1 : nothing", 'format("%d", 1, 2)',
    "<<EOT\na ${var.x}\nEOT\n", "toset(1)",
]  # fmt: skip
PLACES = (
    "max_age",
    "subjects",
    "count",
    "for_each",
    "name",
    "ack",
    "provider",
    "mirror",
    "metadata",
    "placement_tags",
)


@pytest.mark.parametrize("expression", HCL)
def test_any_expression_is_evaluated_or_reported(expression: str) -> None:
    """Any expression of HCL is evaluated, or becomes a note or an error; never a traceback."""
    text = 'variable "x" { default = 5 }\nvariable "none" {}\nlocals {\n  y = ["a"]\n  loop = local.loop\n}\n'
    for place in PLACES:
        fields = {"name": f'"{place}"', "subjects": f'["{place}"]'} | {place: expression}
        inner = "".join(f"  {name} = {value}\n" for name, value in fields.items())
        text += f'resource "jetstream_stream" "{place}" {{\n{inner}}}\n'
    convert_or_refuse("terraform", text, "tf")
