"""Messages that a source copies again: the plan counts them on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.resources.server_features import PROMOTE_LEVEL
from tests.support.raw import Raw
from tests.support.workspaces import Space, hub_leaf_space, single_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.plan import Hazard, Plan
    from jsplan.sandbox import Sandbox, Server

pytestmark = pytest.mark.matrix

ORIGIN = {"name": "O", "subjects": ["o.*"]}
#: Messages of the origin by subject: 60 of o.a, 40 of o.b, 20 of o.c, one after the other.
COUNTS = {"o.a": 60, "o.b": 40, "o.c": 20}
ALL, PLAIN = sum(COUNTS.values()), {"name": "O"}
A, B, STAR = ({"name": "O", "filter_subject": subject} for subject in ("o.a", "o.b", "o.*"))


def with_transforms(*pairs: tuple[str, str]) -> dict[str, Any]:
    """A source with these transforms."""
    return {"name": "O", "subject_transforms": [{"src": src, "dest": dest} for src, dest in pairs]}


class SourceCopy:
    """An origin with messages and a stream that sources it, changed by plan and apply."""

    def __init__(self, space: Space, raw: Raw, server: Server) -> None:
        self.space, self.raw, self.server = space, raw, server

    def create_origin(self) -> None:
        """Create the origin and store its messages."""
        self.space.write(streams=[ORIGIN]).apply()
        for subject, count in COUNTS.items():
            for number in range(count):
                self.raw.request(subject, b"x" * number)

    def plan(self, *sources: dict[str, Any], **more: Any) -> Plan:
        """Plan the downstream stream with these sources."""
        downstream = (
            {"name": "T", "allow_direct": True}
            | ({"sources": list(sources)} if sources else {})
            | more
        )
        return self.space.write(streams=[ORIGIN, downstream]).plan()

    def change_sources(self, *sources: dict[str, Any], **more: Any) -> tuple[Hazard | None, int]:
        """Apply these sources; return the predicted hazard and the messages that arrived."""
        plan, before = self.plan(*sources, **more), self.messages()
        assert not plan.errored, plan.diagnostics
        hazards = [hazard for change in plan.resource_changes for hazard in change.hazards]
        result = self.space.apply_saved(
            plan, allow_hazards=tuple({hazard.code for hazard in hazards})
        )
        assert result.exit_code == 0, result
        self.wait_until_idle()
        return next(
            (h for h in hazards if h.code == "DUPLICATES_MESSAGES"), None
        ), self.messages() - before

    def messages(self) -> int:
        """Return the number of messages in the downstream stream."""
        answer = self.raw.api("$JS.API.STREAM.INFO.T")
        return int(answer["state"]["messages"]) if "state" in answer else 0

    def wait_until_idle(self) -> None:
        """Wait until every source is active without lag and no message arrives any more."""
        seen: list[int] = []

        def is_idle() -> bool:
            info = self.raw.api_ok("$JS.API.STREAM.INFO.T")
            caught_up = all(
                s["active"] >= 0 and not s["lag"]
                for s in (info.get("mirror"), *(info.get("sources") or ()))
                if s
            )
            seen.append(info["state"]["messages"] if caught_up else -len(seen) - 1)
            return len(seen) > 6 and len(set(seen[-6:])) == 1

        self.server.wait_until(is_idle, "the downstream stream to have everything", 60)


@pytest.fixture
def source_copy(server: Server, tmp_path: Path) -> Iterator[SourceCopy]:
    """An origin and its downstream stream on a single server."""
    with Raw(server.url, timeout=20) as raw:
        made = SourceCopy(single_space(tmp_path, server), raw, server)
        made.create_origin()
        yield made


CHANGES = {
    "a filter is added": (PLAIN, A, 60, 60),
    "another filter": (A, B, 0, 40),
    "a wider filter": (A, STAR, 60, 120),
    "a filter goes": (B, PLAIN, 40, 120),
    "another destination": (
        with_transforms(("o.a", "x.a")),
        with_transforms(("o.a", "y.a")),
        60,
        60,
    ),
    "a filter becomes a transform": (A, with_transforms(("o.a", "x.a")), 60, 60),
    "another order": (
        with_transforms(("o.a", "x"), ("o.b", "y")),
        with_transforms(("o.b", "y"), ("o.a", "x")),
        100,
        100,
    ),
    "the same filter as a transform": (A, with_transforms(("o.a", "")), 0, 0),
    "everything as a filter": (PLAIN, {"name": "O", "filter_subject": ">"}, 0, 0),
    "a later start": (PLAIN, STAR | {"opt_start_seq": 101}, 20, 20),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_source_copies_again(source_copy: SourceCopy, case: str) -> None:
    """The plan says how many messages at most the old and the new source both take."""
    old, new, duplicates, expected = CHANGES[case]
    assert source_copy.change_sources(old)[0] is None

    hazard, arrived = source_copy.change_sources(new)

    assert arrived == expected
    assert (hazard.messages if hazard else 0) == duplicates
    if hazard is not None:
        assert hazard.blocking
        assert f"stores up to {duplicates} messages twice" in hazard.message


def test_a_source_that_comes_back_resumes(source_copy: SourceCopy) -> None:
    """A source that comes back does not copy again what the stream still has from it."""
    source_copy.change_sources(A)
    assert source_copy.change_sources(STAR)[1] == ALL
    hazard, arrived = source_copy.change_sources(A)
    assert (hazard, arrived) == (None, 0)

    source_copy.change_sources(subjects=["t"])
    assert source_copy.change_sources(A) == (None, 0)


def test_two_sources_that_take_the_same(source_copy: SourceCopy) -> None:
    """Two sources of one origin store twice what both take, from the start or later."""
    hazard, arrived = source_copy.change_sources(A, STAR)
    assert hazard is not None
    assert (hazard.messages, arrived) == (60, ALL + 60)
    assert "stores up to 60 messages twice" in hazard.message

    hazard, arrived = source_copy.change_sources(
        A, STAR, with_transforms(("o.b", "x.b"), ("o.c", "x.c"))
    )
    assert hazard is not None
    assert (hazard.messages, arrived) == (60, 60)


def test_a_mirror_that_becomes_a_collection(source_copy: SourceCopy) -> None:
    """A promoted mirror that sources its origin copies everything a second time."""
    if source_copy.raw.api_level() < PROMOTE_LEVEL:
        return
    source_copy.change_sources(mirror=PLAIN)

    hazard, arrived = source_copy.change_sources(PLAIN)

    assert hazard is not None
    assert (hazard.messages, arrived) == (ALL, ALL)


def test_too_many_reads_give_bounds(source_copy: SourceCopy) -> None:
    """With a measure limit of 0 the number lies between the bounds."""
    source_copy.change_sources(A)
    downstream = {"name": "T", "allow_direct": True, "sources": [STAR]}

    plan = source_copy.space.write(streams=[ORIGIN, downstream]).plan(measure_limit=0)

    (hazard,) = [hazard for change in plan.resource_changes for hazard in change.hazards]
    assert (hazard.code, hazard.exact, hazard.at_least) == ("DUPLICATES_MESSAGES", False, 0)
    assert 60 <= (hazard.at_most or 0) <= ALL
    assert "stores up to" in hazard.message


def test_a_source_of_another_domain(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """An origin that does not answer may bring again what the stream has, and no more."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]

    def files(**source: Any) -> Space:
        sources = [{"name": "O", "domain": "leaf"} | source]
        return space.write(
            streams=[
                {"name": "O", "domain": "leaf", "subjects": ["o"]},
                {"name": "T", "domain": "hub", "sources": sources},
            ]
        )

    files().apply()
    with Raw(hub.url, hub.user, hub.password, timeout=20) as raw:
        for _ in range(30):
            raw.request("o", b"x")
        raw.wait_for("T", 30, "hub")
        hub.wait_until(
            lambda: raw.api_ok("$JS.hub.API.STREAM.INFO.T")["sources"][0]["lag"] == 0,
            "no lag",
            60,
        )

        (hazard,) = [
            h for c in files(filter_subject="o").plan().resource_changes for h in c.hazards
        ]
        assert (hazard.code, hazard.messages) == ("DUPLICATES_MESSAGES", 30)

        clean_hub_leaf["leaf"].stop()
        plan = files(filter_subject="o").plan()
        (hazard,) = [h for c in plan.resource_changes for h in c.hazards if c.domain == "hub"]
        assert (hazard.code, hazard.messages, hazard.exact, hazard.at_least) == (
            "DUPLICATES_MESSAGES",
            30,
            False,
            0,
        )
