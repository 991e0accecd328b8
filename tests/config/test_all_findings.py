"""One run reports every mistake: none hides another one, and none is reported twice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Final

from jsplan.config import load
from jsplan.errors import ConfigError
from tests.config.conftest import Loader, placed
from tests.support.yaml_text import read_yaml

#: What another mistake explains: `domian` the missing domain, a wrong domain its variables.
_EXPECTED: Final = {"the domain is missing, and there are several", "${domain.size} does not exist"}
_BASE: Final[dict[str, Any]] = {
    "jsplan": 1,
    "workspace": "shop",
    "connections": {"n": {"url": "nats://h:4222"}},
    "domains": {"hub": {"connection": "n"}, "leaf": {"connection": "n"}},
    "environments": {"dev": {}, "prod": {}},
}
_DATA: Final[dict[str, Any]] = read_yaml(
    Path(__file__).with_name("mistakes.yaml").read_text("utf-8")
)


def test_no_mistake_hides_or_repeats_another(workspace: Loader) -> None:
    """Two mistakes in one entry give the findings of each of them, and nothing else."""
    wrong = list[str]()
    for case in _DATA["cases"]:
        place, entry, mistakes = case["place"], case["entry"], list(case["mistakes"])
        for shared in case.get("also", ()):
            mistakes += _DATA["shared"][shared]
        alone = [(mistake, _load(workspace, place, entry, [mistake])) for mistake in mistakes]
        wrong += [f"{mistake}: {sorted(found)}" for mistake, found in alone if len(found) != 1]
        for (a, first), (b, second) in itertools.combinations(alone, 2):
            if not a.keys().isdisjoint(b):
                continue
            found, both = _load(workspace, place, entry, [a, b]), first | second
            hidden = {text for _, text in both - found} - _EXPECTED
            if hidden or found - both:
                wrong.append(f"{a} {b}: hidden {hidden}, more {sorted(found - both)}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)


def test_a_cause_in_one_entry_is_not_reported_in_others(workspace: Loader) -> None:
    """A mistake of one entry has one finding, also where other entries refer to it."""
    wrong = list[str]()
    for case in _DATA["several"]:
        found = _load(workspace, "<>", case["document"], [])
        if sorted(case["codes"]) != sorted(code for code, _ in found):
            wrong.append(f"{case['document']}: {sorted(found)}")
    assert not wrong, "\n".join(wrong)


def _load(
    workspace: Loader, place: Any, entry: dict[str, Any], mistakes: list[dict[str, Any]]
) -> set[tuple[str, str]]:
    """Return code and text of each finding."""
    element = dict(entry)
    for mistake in mistakes:
        element |= mistake
    element = {key: value for key, value in element.items() if value != "<none>"}
    workspace.write({"jsplan.yaml": json.dumps(_BASE | placed(place, element))})
    try:
        found = load(workspace.options(environment="dev")).diagnostics
    except ConfigError as error:
        found = error.diagnostics
    return {(each.code, each.summary) for each in found}
