"""Small files that expand to huge values end soon with an error."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from jsplan.config import findings, load
from jsplan.config.findings import MAX_VALUES, Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.node import Source, to_plain
from jsplan.config.read import parse_document
from jsplan.errors import ConfigError
from jsplan.topology import build_topology, resolve
from tests.config.conftest import HEAD, Loader

DOMAINS = 'domains: {"d-{1..%d}": {}}\nconnections: {c: {url: u}}\n'


def aliases(levels: int, width: int, leaf: str = '"a${domain}"') -> str:
    """Build lists of aliases with `width` to the power of `levels` values in the last one."""
    lines = [f"  - &a0 [{', '.join([leaf] * width)}]"]
    lines += [f"  - &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "x-a:\n" + "\n".join(lines) + "\n"


def repeat_numbered(text: str, count: int) -> str:
    """Repeat the text for each number."""
    return "".join(text % n for n in range(count))


BIG = ", ".join(["x"] * 100)
EVERYWHERE = 'streams: [{name: S, domain: "*"}]\n'
BOMBS = {
    "aliases in many domains": DOMAINS % 200 + aliases(4, 25) + 'streams: [{name: S, domain: "*", metadata: {a: *a3}}]\n',
    "aliases in many entries": DOMAINS % 1 + aliases(3, 30, "a") + "streams:\n"
    + repeat_numbered("- {name: S%d, metadata: {a: *a2}}\n", 1000),
    "sources everywhere": DOMAINS % 5000 + 'streams: [{name: A, domain: "*", sources: [{name: A, domain: "*"}]}]\n',
    "streams in every domain": DOMAINS % 10000 + "streams:\n" + repeat_numbered('- {name: S%d, domain: "*"}\n', 500),
    "variables in many entries": DOMAINS % 1 + f"vars: {{big: [{BIG}]}}\nstreams:\n"
    + repeat_numbered('- {name: S%d, subjects: "${var.big}"}\n', 3000),
    "defaults everywhere": DOMAINS % 5000 + aliases(3, 20, "a") + "defaults: {stream: {metadata: {a: *a2}}}\n" + EVERYWHERE,
    "overrides of everything": DOMAINS % 5000 + EVERYWHERE + "overrides:\n" + '- {address: "**", max_msgs: 1}\n' * 1000,
    "variables of a range": aliases(3, 30, "a") + 'domains: {"d-{1..10000}": {vars: {a: *a2}}}\n',
    "removed": DOMAINS % 1000 + EVERYWHERE + "removed:\n" + repeat_numbered("- {address: d-*x/stream/S%d, destroy: false}\n", 900),
}  # fmt: skip


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_multiplied_values_are_counted(
    text: str, workspace: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are counted where aliases, variables, ranges, selectors or defaults multiply them."""
    monkeypatch.setattr(findings, "MAX_VALUES", 100_000)
    (workspace.root / "jsplan.yaml").write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(workspace.options())
    found = [d for d in caught.value.diagnostics if d.code in ("JS148", "JS101")]
    assert len(found) in (1, 2), caught.value.diagnostics[:5]
    assert found[0].range is not None
    assert "more than" in found[0].summary or "aliases repeat too much" in found[0].summary


@pytest.mark.soak
@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
@pytest.mark.timeout(180)
def test_multiplied_values_are_refused_soon(text: str, workspace: Loader) -> None:
    """With the real limit, each file loads or is refused within the time limit of the test."""
    (workspace.root / "jsplan.yaml").write_text(HEAD + text, encoding="utf-8")
    with suppress(ConfigError):
        load(workspace.options())


def test_a_fleet_is_below_the_limit() -> None:
    """Fleets of 500 and of 10,000 domains stay below the limit.

    500 domains have twenty streams of thirty values each, and one stream with a source in each of
    2,000. 10,000 domains have five streams each.
    """
    assert 500 * 20 * (40 + 30) + 2000 * 30 < MAX_VALUES / 5
    assert 10_000 * 5 * (40 + 30) < MAX_VALUES


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_aliases_count_into_the_depth(brackets: str, workspace: Loader) -> None:
    """Depth that is made with aliases is refused like written depth."""
    opened, closed = ("[", "]") if brackets == "[]" else ("{a: ", "}")
    lines = [f"  - &a0 {opened * 40}x{closed * 40}"] + [
        f"  - &a{n} {opened * 40}*a{n - 1}{closed * 40}" for n in range(1, 60)
    ]
    found = workspace.single_finding("x-a:\n" + "\n".join(lines) + "\n")
    assert (found.code, found.summary) == ("JS101", "nested deeper than 64 levels")
    assert not workspace(
        f"x-a:\n  - &a0 {opened * 30}x{closed * 30}\n  - &a1 {opened * 30}*a0{closed * 30}\n"
    ).resources


def test_aliases_are_resolved_once() -> None:
    """The values of an alias are resolved once for each domain."""
    found = Findings()
    node = parse_document(
        Source(Path("a.yaml"), "a.yaml"), (aliases(3, 20) + "a: *a2\n").encode(), found
    )
    assert node is not None
    resolved = interpolate(node, Scope({}, domain="hub"), found).value["a"]
    assert {id(inner) for item in resolved.value for inner in item.value} == {
        id(resolved.value[0].value[0])
    }
    assert to_plain(resolved) == [[["ahub"] * 20] * 20] * 20


def test_a_long_chain_of_copies(workspace: Loader) -> None:
    """A chain of 1,100 `copy_of` entries loads without recursion."""
    streams = "- {name: S0, subjects: [a], max_msgs: 5}\n" + "".join(
        f"- {{name: S{n}, subjects: [a{n}], copy_of: hub/stream/S{n - 1}}}\n"
        for n in range(1100, 0, -1)
    )
    loaded = workspace(f"streams:\n{streams}")
    assert {declared.body["max_msgs"] for declared in loaded.resources.values()} == {5}


def test_dependencies_are_counted(workspace: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many dependencies are an error before the graph is built."""
    text = (
        "streams:\n"
        + repeat_numbered("- {name: A%d}\n", 30)
        + repeat_numbered('- {name: S%d, depends_on: ["hub/stream/A*", hub/stream/A0]}\n', 30)
    )
    loaded = workspace(text)
    assert {
        len(after)
        for address, after in build_topology(loaded).dependencies.items()
        if address.name.startswith("S")
    } == {30}
    monkeypatch.setattr(resolve, "MAX_DEPENDENCIES", 100)
    assert [d.code for d in build_topology(loaded).diagnostics] == ["JS148"]
