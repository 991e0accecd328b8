"""Plans with several edits, applied to real servers and compared with what they announced.

`python -m tests.sequences --seed N --print` plays one, `--shrink` makes one that fails smaller.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.sequences.known_cases import FOUND, KNOWN, RELOCATED
from tests.sequences.play import play
from tests.sequences.random_cases import make_case
from tests.sequences.show import format_outcome
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Sandbox
    from tests.sequences.cases import Case
    from tests.sequences.play import Outcome

#: Seeds of one test: enough to fill the waiting of each other, few enough to share them among workers.
PORTION = 25
#: First seeds of the tests of `make soak`, each with so many seeds: 20,000 of eight kinds.
LARGE_PORTION = 250
LARGE_PORTIONS = range(10_000, 12_500, LARGE_PORTION)
#: Cases at a time; most of a case is waiting for servers.
AT_ONCE = 6


def play_all(
    cases: list[Case],
    sandbox: Sandbox,
    note: Callable[[str, object], None],
    *,
    some: bool = True,
    at_once: int = AT_ONCE,
) -> None:
    """Play cases, several at a time, without findings; with `some` most must be applied."""

    def one(case: Case) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            return play(case, sandbox, Path(folder))

    words: Counter[str] = Counter()
    failed: list[str] = []
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        for outcome in pool.map(one, cases):
            words[outcome.word] += 1
            if outcome.findings:
                failed.append(format_outcome(outcome))
    note("sequences", dict(words))
    assert failed == [], "\n\n".join(failed)
    assert not some or words["applied"] + words["stale"] > len(cases) / 2


@pytest.mark.parametrize("name", RELOCATED)
def test_known_relocations(name: str, hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Each mended sequence with a relocation loses and repeats nothing, or is refused."""
    known = RELOCATED[name]
    outcome = play(known.case, hub_leaf, tmp_path)

    assert outcome.findings == [], format_outcome(outcome)
    assert outcome.word in known.ends, format_outcome(outcome)


@pytest.mark.matrix
@pytest.mark.parametrize("name", KNOWN)
def test_known_sequences(name: str, hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Each mended sequence is announced with its number, done in a safe order, or refused."""
    known = KNOWN[name]
    outcome = play(known.case, hub_leaf, tmp_path)

    assert outcome.findings == [], format_outcome(outcome)
    assert outcome.word in known.ends, format_outcome(outcome)
    if known.deletes is not None:
        assert outcome.plan is not None
        codes = {h.code for c in outcome.plan.resource_changes for h in c.hazards}
        assert ("DELETES_MESSAGES" in codes) == known.deletes, format_outcome(outcome)


#: How the seeds of each kind are made into cases.
KINDS: dict[str, dict[str, bool]] = {
    "alone": {},
    "another person": {"with_outside_change": True},
    "earlier apply": {"with_earlier_apply": True},
    "reverted": {"with_earlier_apply": True, "with_revert": True},
    "restored": {"with_restore": True},
    "adopted": {"with_adoption": True},
    "selected": {"with_selection": True},
}
#: Portions of each kind in the matrix; `make test` plays the first of each.
PORTIONS = [
    pytest.param(kind, portion, marks=[pytest.mark.soak] if portion else [])
    for kind, many in zip(KINDS, (4, 3, 2, 2, 2, 2, 2), strict=True)
    for portion in range(many)
]


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "portion"), PORTIONS)
def test_plans_of_several_edits(
    kind: str, portion: int, hub_leaf: Sandbox, record_property: Callable[[str, object], None]
) -> None:
    """Nothing is lost but what the plan announced, and the next plan is empty.

    A change of another person makes the plan stale, or nothing more is deleted. What is reverted,
    restored, adopted or selected is judged alike.
    """
    seeds = range(portion * PORTION, (portion + 1) * PORTION)
    play_all([make_case(seed, **KINDS[kind]) for seed in seeds], hub_leaf, record_property)


#: The kinds with relocations, whose targets need 2.12.
RELOCATED_KINDS: dict[str, dict[str, bool]] = {
    f"{kind}, relocated": more | {"with_relocation": True}
    for kind, more in KINDS.items()
    if kind in ("alone", "another person", "earlier apply")
}


@pytest.mark.parametrize("kind", RELOCATED_KINDS)
def test_plans_with_relocations(
    kind: str, hub_leaf: Sandbox, record_property: Callable[[str, object], None]
) -> None:
    """The same for streams and buckets that move among other edits, most of which are possible."""
    cases = [make_case(seed, **RELOCATED_KINDS[kind]) for seed in range(60, 75)]
    play_all(cases, hub_leaf, record_property)


@pytest.mark.parametrize(
    ("end", "kind", "first", "count"),
    [
        ("kill", "alone", 1, 10),
        ("kill", "earlier apply", 1, 6),
        ("offline", "alone", 1, 10),
        *(
            pytest.param(end, kind, 100, 150, marks=pytest.mark.soak)
            for end in ("kill", "offline")
            for kind in ("alone", "relocated")
        ),
    ],
)
@pytest.mark.timeout(600)
def test_applies_that_are_cut_off(
    end: str,
    kind: str,
    first: int,
    count: int,
    hub_leaf: Sandbox,
    record_property: Callable[[str, object], None],
) -> None:
    """The next apply needs no more permissions, ends what was begun, and loses nothing.

    Deaths and outages are simulated in this whole process, so there is one at a time.
    """
    more = (KINDS | {"relocated": {"with_relocation": True}})[kind] | {f"with_{end}": True}
    cases = [make_case(seed, **more) for seed in range(first, first + count)]
    play_all(cases, hub_leaf, record_property, at_once=1)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", sorted({name.split(", ")[0] for name in FOUND}))
def test_seeds_that_found_something(
    kind: str, hub_leaf: Sandbox, record_property: Callable[[str, object], None]
) -> None:
    """The drawn cases that found errors stay mended."""
    cases = [case for name, case in FOUND.items() if name.startswith(f"{kind}, ")]
    play_all(cases, hub_leaf, record_property, some=False)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", LARGE_PORTIONS)
@pytest.mark.parametrize("kind", KINDS | RELOCATED_KINDS)
def test_very_many_plans(
    kind: str, first: int, hub_leaf: Sandbox, record_property: Callable[[str, object], None]
) -> None:
    """The same for thousands of seeds that `make test` does not play."""
    seeds, more = range(first, first + LARGE_PORTION), (KINDS | RELOCATED_KINDS)[kind]
    play_all([make_case(seed, **more) for seed in seeds], hub_leaf, record_property)


@pytest.mark.matrix
def test_a_consumer_made_again_by_hand_is_drift(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Drift and plan say that a recreated consumer of equal configuration lost its position."""
    hub = clean_hub_leaf["hub"]
    body = {
        "name": "S",
        "domain": "hub",
        "subjects": ["s.>"],
        "consumers": [{"name": "C", "ack_policy": "explicit"}],
    }
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[body])
    space.apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        config = raw.api_ok("$JS.hub.API.CONSUMER.INFO.S.C")["config"]
        raw.api_ok("$JS.hub.API.CONSUMER.DELETE.S.C")
        raw.api_ok("$JS.hub.API.CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})

    found = [
        r.address for r in drift(space.load, DriftOptions(), RecordingObserver()).resource_drift
    ]
    assert found == ["hub/consumer/S/C"]
