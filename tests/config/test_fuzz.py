"""Any content of the files gives a workspace or a ConfigError, never another exception."""

from __future__ import annotations

import contextlib
import json
import random
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsplan.config import LoadOptions, load
from jsplan.diagnostics import Diagnostic
from jsplan.errors import ConfigError

CONTRACT = (Path(__file__).parent / "contract.yaml").read_text(encoding="utf-8")
HEAD = "jsplan: 1\nworkspace: w\ndomains: {hub: {}}\n"
KEYS = sorted(set(re.findall(r"[a-z_]+(?=:)", CONTRACT)))
WORDS = [
    "$${",
    "${",
    "",
    *[
        "*",
        "label:x",
        "!hub",
        "hub/**",
        "${var.x}",
        "${domain}",
        "${domain.y}",
        "${env.X}",
        "hub",
        "S",
        "store-{1..3}",
        "30d",
        "1GiB",
        "JS201",
        ".",
    ],
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.sampled_from(WORDS),
    st.text(max_size=5),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def errors(options: LoadOptions) -> tuple[Diagnostic, ...] | None:
    """Return the findings of ConfigError, or None for a valid workspace."""
    try:
        load(options)
    except ConfigError as error:
        return error.diagnostics
    return None


def load_contents(*contents: bytes) -> None:
    """Load the contents as a workspace; only ConfigError with findings may be raised."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "jsplan.yaml").write_bytes(contents[0])
        for number, content in enumerate(contents[1:]):
            (root / f"{number}.jsplan.yaml").write_bytes(content)
        options = LoadOptions(
            root,
            environment="prod" if b"environments" in contents[0] else None,
            variables=("region=eu",),
            environ={"X": "geheim"},
        )
        found = errors(options)
        assert found is None or (
            found and all(problem.detail and problem.summary for problem in found)
        )


@FAST
@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(content: bytes) -> None:
    """Random bytes in any file raise only ConfigError."""
    load_contents(content)
    load_contents(HEAD.encode(), content)


@FAST
@given(st.text(alphabet="abc: -{}[]&*!|>'\"%@`#,?\n\t\\${}.<~019", max_size=80))
def test_random_yaml_signs_never_raise_anything_else(content: str) -> None:
    """Text of characters with a meaning in YAML raises only ConfigError."""
    load_contents(HEAD.encode(), content.encode())


@FAST
@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=6))
def test_random_shapes_never_raise_anything_else(document: object) -> None:
    """Known keys with values of any type raise only ConfigError."""
    content = json.dumps(document).encode()
    load_contents(content)
    load_contents(HEAD.encode(), content)
    load_contents(f"{HEAD}streams: [{json.dumps(document)}]\n".encode())


@pytest.mark.parametrize("seed", range(40))
def test_a_broken_contract_example_never_raises_anything_else(seed: int) -> None:
    """The contract example with random changes to its lines raises only ConfigError."""
    dice = random.Random(seed)
    lines = CONTRACT.split("\n")
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(lines))
        change = dice.choice(["drop", "double", "indent", "cut", "swap", "noise"])
        with contextlib.suppress(IndexError):
            if change == "drop":
                del lines[at]
            elif change == "double":
                lines.insert(at, lines[at])
            elif change == "indent":
                lines[at] = "  " + lines[at]
            elif change == "cut":
                lines[at] = lines[at][: dice.randint(0, 30)]
            elif change == "swap":
                lines[at], lines[at - 1] = lines[at - 1], lines[at]
            else:
                lines[at] = lines[at].replace(dice.choice("aeo:{}[]"), dice.choice("x:{}[]*&!"))
    load_contents("\n".join(lines).encode())
