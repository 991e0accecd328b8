"""The table of error codes: each number has one name, and the server means the same by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.resources import error_codes
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

STREAM = {"name": "CODES", "subjects": ["codes"]}
ASKED: dict[str, tuple[str, dict[str, Any] | None]] = {
    "STREAM_NOT_FOUND": ("STREAM.INFO.NONE", None),
    "CONSUMER_NOT_FOUND": ("CONSUMER.INFO.CODES.NONE", None),
    "NO_MESSAGE": ("STREAM.MSG.GET.CODES", {"seq": 7}),
    "STREAM_EXISTS": ("STREAM.CREATE.CODES", STREAM | {"max_msgs": 1}),
    "SUBJECTS_OVERLAP": ("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["codes"]}),
    "NO_CLUSTER": ("STREAM.CREATE.OTHER", {"name": "OTHER", "num_replicas": 3}),
}


@pytest.mark.matrix
def test_what_the_server_answers(server: Server) -> None:
    """The server answers with the codes of the table."""
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.CODES", STREAM)
        answers = {name: raw.api(f"$JS.API.{api}", body) for name, (api, body) in ASKED.items()}
    expected = {name: getattr(error_codes, name) for name in ASKED}
    assert {name: answer["error"]["err_code"] for name, answer in answers.items()} == expected


def test_each_code_has_one_name() -> None:
    """No code is there twice."""
    codes = [value for value in vars(error_codes).values() if type(value) is int]
    assert len(codes) > 15
    assert sorted(set(codes)) == sorted(codes)
