"""The cycles that nats-server refuses: the model of them against real servers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.topology.cycles import find_server_cycle, order_for_server
from tests.support.raw import Raw, delete_all_streams

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

NAMES = "ABCDEF"
REFUSED = "detected cycle"


def any_stream(rng: random.Random, name: str) -> dict[str, Any]:
    """Draw a mirror, or a stream with up to four sources and perhaps subjects of its own.

    Filters meet these or not.
    """
    others = [other for other in NAMES if other != name]
    elsewhere = {"external": {"api": "JS.elsewhere.API", "deliver": "elsewhere"}}
    renamed = {"subject_transforms": [{"src": "t.>", "dest": "u.>"}]}
    filters: list[dict[str, Any]] = [
        {},
        {},
        renamed,
        {"filter_subject": f"{name}.>"},
        {"filter_subject": "x"},
        elsewhere,
    ]
    if rng.random() < 0.25:
        return {
            "name": name,
            "storage": "memory",
            "mirror": {"name": rng.choice(others)} | rng.choice(filters),
        }
    sources = [
        {"name": other} | rng.choice(filters) for other in rng.sample(others, rng.randint(0, 4))
    ]
    subjects = (
        {"subjects": [f"{name}.a", f"{name}.b.>"]} if not sources or rng.random() < 0.5 else {}
    )
    return (
        {"name": name, "storage": "memory"} | ({"sources": sources} if sources else {}) | subjects
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_model_agrees_with_the_server(seed: int, server: Server) -> None:
    """The model and the server refuse the same random streams, and take the same.

    The streams copy each other, are created in any order, and are then updated.
    """
    rng, there = random.Random(seed), dict[str, dict[str, Any]]()
    refused = 0
    with Raw(server.url) as raw:
        for _ in range(20):
            there.clear()
            delete_all_streams(raw)
            for name in rng.sample(NAMES, len(NAMES)):
                wanted = any_stream(rng, name)
                there |= {name: wanted} if (taken := is_taken(raw, "CREATE", wanted, there)) else {}
                refused += not taken
            for name in list(there):
                wanted = there[name] | {"description": "x"}
                if wanted.get("sources"):
                    wanted["sources"] = rng.sample(wanted["sources"], len(wanted["sources"]))
                there |= {name: wanted} if (taken := is_taken(raw, "UPDATE", wanted, there)) else {}
                refused += not taken
    assert refused > 10


def is_taken(raw: Raw, verb: str, wanted: dict[str, Any], there: dict[str, dict[str, Any]]) -> bool:
    """Check that server and model agree; return whether they take the stream."""
    answer = raw.api(f"$JS.API.STREAM.{verb}.{wanted['name']}", wanted)
    said = answer.get("error", {}).get("description", "")
    assert "error" not in answer or REFUSED in said, answer
    assert (find_server_cycle(wanted, there.get) is not None) == (REFUSED in said), (
        verb,
        wanted,
        there,
    )
    return "error" not in answer


def test_sources_are_put_in_an_order_that_the_server_takes() -> None:
    """Sources are put in an order that the server takes, and kept where it takes them already."""
    streams: dict[str, dict[str, Any]] = {
        "O": {"name": "O", "subjects": ["o"]},
        "M": {"name": "M", "mirror": {"name": "O"}},
        "G": {"name": "G", "sources": [{"name": "M"}]},
    }

    def taken(*names: str) -> list[str] | None:
        given = {"name": "NEW", "sources": [{"name": name} for name in names]}
        found = order_for_server(given, streams.get)
        return (
            [s["name"] for s in found["sources"]]
            if find_server_cycle(found, streams.get) is None
            else None
        )

    assert taken("M", "O") == ["M", "O"]
    assert taken("O", "M") == ["M", "O"]
    assert taken("M", "G") == ["G", "M"]
    assert taken("O", "G") is None
    assert taken("G", "O") is None
