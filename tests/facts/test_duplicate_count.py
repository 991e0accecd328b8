"""Messages that a source copies again: as many as the plan says, on real servers, also across domains and where the copy held some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

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
    """An origin with messages and a copy of it, made and changed by plan and apply."""

    def __init__(self, space: Space, raw: Raw, server: Server) -> None:
        self.space, self.raw, self.server = space, raw, server

    def create_origin(self) -> None:
        """Make the origin and store its messages."""
        self.space.write(streams=[ORIGIN]).apply()
        for subject, count in COUNTS.items():
            for number in range(count):
                self.raw.request(subject, b"x" * number)

    def plan(self, *sources: dict[str, Any], **more: Any) -> Plan:
        """The plan for a copy with these sources."""
        copy = (
            {"name": "T", "allow_direct": True}
            | ({"sources": list(sources)} if sources else {})
            | more
        )
        return self.space.write(streams=[ORIGIN, copy]).plan()

    def change_sources(self, *sources: dict[str, Any], **more: Any) -> tuple[Hazard | None, int]:
        """What the plan predicts of a copy with these sources, and how many messages it has got of it in the end."""
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
        """How many messages the copy holds."""
        answer = self.raw.api("$JS.API.STREAM.INFO.T")
        return int(answer["state"]["messages"]) if "state" in answer else 0

    def wait_until_idle(self) -> None:
        """Wait until every source has given all it has: it was heard of, nothing is under way, and nothing more came since."""
        seen: list[int] = []

        def still() -> bool:
            info = self.raw.api_ok("$JS.API.STREAM.INFO.T")
            heard = all(
                s["active"] >= 0 and not s["lag"]
                for s in (info.get("mirror"), *(info.get("sources") or ()))
                if s
            )
            seen.append(info["state"]["messages"] if heard else -len(seen) - 1)
            return len(seen) > 6 and len(set(seen[-6:])) == 1

        self.server.wait_until(still, "the copy to have everything", 60)


@pytest.fixture
def source_copy(server: Server, tmp_path: Path) -> Iterator[SourceCopy]:
    """On a single server, filled."""
    with Raw(server.url, timeout=20) as raw:
        bank = SourceCopy(single_space(tmp_path, server), raw, server)
        bank.create_origin()
        yield bank


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
    "a filter said in another way": (A, with_transforms(("o.a", "")), 0, 0),
    "everything said in another way": (PLAIN, {"name": "O", "filter_subject": ">"}, 0, 0),
    "it begins later": (PLAIN, STAR | {"opt_start_seq": 101}, 20, 20),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_source_copies_again(source_copy: SourceCopy, case: str) -> None:
    """As many messages are predicted as both take, exactly; what only the new one takes is no duplicate."""
    old, new, again, comes = CHANGES[case]
    assert source_copy.change_sources(old)[0] is None

    hazard, came = source_copy.change_sources(new)

    assert came == comes
    assert (hazard.messages if hazard else 0) == again
    if hazard is not None:
        assert hazard.exact
        assert hazard.blocking
        assert f"copies {again} messages of main/stream/O again" in hazard.message


def test_a_source_that_comes_back_resumes(source_copy: SourceCopy) -> None:
    """What the copy still holds of just this source is not copied again: neither after it was away nor after it had another filter."""
    source_copy.change_sources(A)
    assert source_copy.change_sources(STAR)[1] == ALL
    hazard, came = source_copy.change_sources(A)
    assert (hazard, came) == (None, 0)

    source_copy.change_sources(subjects=["t"])
    assert source_copy.change_sources(A) == (None, 0)


def test_two_sources_that_take_the_same(source_copy: SourceCopy) -> None:
    """Two sources of one origin store what both take twice: on create, and when the second one comes later."""
    hazard, came = source_copy.change_sources(A, STAR)
    assert hazard is not None
    assert (hazard.messages, came) == (60, ALL + 60)
    assert "stores 60 messages of main/stream/O twice" in hazard.message

    hazard, came = source_copy.change_sources(
        A, STAR, with_transforms(("o.b", "x.b"), ("o.c", "x.c"))
    )
    assert hazard is not None
    assert (hazard.messages, came) == (60, 60)


def test_a_mirror_that_becomes_a_collection(source_copy: SourceCopy) -> None:
    """Promoted and given its origin as a source, a mirror copies everything a second time."""
    if (source_copy.raw.api_ok("$JS.API.INFO").get("api") or {}).get("level", 0) < 2:
        return  # no promotion before 2.12
    source_copy.change_sources(mirror=PLAIN)

    hazard, came = source_copy.change_sources(PLAIN)

    assert hazard is not None
    assert (hazard.messages, hazard.exact, came) == (ALL, True, ALL)


def test_bounds_where_counting_takes_too_many_reads(source_copy: SourceCopy) -> None:
    """With a measure limit of 0 the number lies between the bounds."""
    source_copy.change_sources(A)
    copy = {"name": "T", "allow_direct": True, "sources": [STAR]}

    plan = source_copy.space.write(streams=[ORIGIN, copy]).plan(measure_limit=0)

    (hazard,) = [hazard for change in plan.resource_changes for hazard in change.hazards]
    assert (hazard.code, hazard.exact, hazard.at_least) == ("DUPLICATES_MESSAGES", False, 0)
    assert 60 <= (hazard.at_most or 0) <= ALL
    assert "copies up to" in hazard.message


def test_a_source_of_another_domain(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """The origin is counted where it is; away, or in a domain that no file names, the number is unknown and the hazard stays."""
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
        hub.wait_until(
            lambda: raw.api_ok("$JS.hub.API.STREAM.INFO.T")["state"]["messages"] == 30,
            "30 messages",
            60,
        )
        hub.wait_until(
            lambda: raw.api_ok("$JS.hub.API.STREAM.INFO.T")["sources"][0]["lag"] == 0,
            "nothing under way",
            60,
        )

        (hazard,) = [
            h for c in files(filter_subject="o").plan().resource_changes for h in c.hazards
        ]
        assert (hazard.code, hazard.messages, hazard.exact) == ("DUPLICATES_MESSAGES", 30, True)

        clean_hub_leaf["leaf"].stop()
        plan = files(filter_subject="o").plan()
        (hazard,) = [h for c in plan.resource_changes for h in c.hazards if c.domain == "hub"]
        assert (hazard.code, hazard.messages, hazard.exact, hazard.at_least) == (
            "DUPLICATES_MESSAGES",
            None,
            False,
            0,
        )
        assert "the number is not known" in hazard.message
