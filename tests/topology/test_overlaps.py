"""Overlapping subjects of declared streams: the files, a plan and the server agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config import LoadOptions, load
from jsplan.errors import ConfigError
from jsplan.topology import build_topology
from jsplan.workflows.lint import lint
from jsplan.workflows.validate import validate
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space, single_space
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from jsplan.diagnostics import Diagnostic
    from jsplan.sandbox import Sandbox, Server


CASES: dict[str, dict[str, Any]] = read_yaml(
    Path(__file__).with_name("overlaps.yaml").read_text("utf-8")
)


def overlaps(found: tuple[Diagnostic, ...] | list[Diagnostic]) -> list[tuple[str | None, str, Any]]:
    return [(d.address, d.summary, d.range) for d in found if d.code == "JS438"]


def find_in_files(options: LoadOptions) -> list[tuple[str | None, str, Any]]:
    """Return what `validate` finds, and require that `lint` finds the same."""
    found: list[list[tuple[str | None, str, Any]]] = []
    for check in (validate, lambda o: lint(o, RecordingObserver())):
        try:
            check(options)
            found.append([])
        except ConfigError as error:
            found.append(overlaps(error.diagnostics))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("name", CASES)
def test_files_plan_and_server_agree(name: str, tmp_path: Path, server: Server) -> None:
    """The files show the overlaps that a plan finds and that the server refuses."""
    refused, sections = CASES[name].values()
    space = single_space(tmp_path, server).write(**sections)
    in_files = find_in_files(space.load)

    assert [address for address, _, _ in in_files] == ([refused] if refused else [])
    assert overlaps(space.plan().diagnostics) == in_files
    bodies = build_topology(load(space.load)).bodies
    with Raw(server.url) as raw:
        answers = [
            raw.api(
                f"$JS.API.STREAM.CREATE.{address.stream}",
                {"name": address.stream}
                | {k: v for k, v in body.items() if k in ("subjects", "mirror", "sources") and v},
            )
            for address, body in bodies.items()
        ]
    codes = [answer["error"]["err_code"] for answer in answers if "error" in answer]
    assert codes == ([10065] if refused else [])


def test_the_places_of_both_streams(tmp_path: Path) -> None:
    """The error names file and line of both, also where one is in another file."""
    (tmp_path / "jsplan.yaml").write_text(
        "jsplan: 1\nworkspace: w\ndomains: {hub: {}}\ninclude: [more.jsplan.yaml]\n"
        "streams:\n  - name: A\n    subjects: [a]\n",
        "utf-8",
    )
    (tmp_path / "more.jsplan.yaml").write_text(
        "streams:\n  - name: B\n    max_age: 1d\n    subjects: ['*']\n", "utf-8"
    )
    with pytest.raises(ConfigError) as raised:
        validate(LoadOptions(tmp_path))

    [found] = raised.value.diagnostics
    places = {str(found.range), found.detail.rpartition(" is at ")[2].removesuffix(".")}
    assert {place.rpartition(":")[0] for place in places} == {
        "jsplan.yaml:7",
        "more.jsplan.yaml:4",
    }


def test_domains_are_apart(tmp_path: Path) -> None:
    """Each domain has its own subjects, also where one entry declares a stream in several."""
    space = Space(
        tmp_path, {"jsplan": 1, "workspace": "w", "connections": {"c": {"url": "nats://h"}}}
    )
    domains = {key: {"connection": "c"} for key in ("hub", "s1", "s2")}
    shops = [
        {"name": "A", "domain": "s*", "subjects": ["a.${domain}"]},
        {"name": "B", "domain": "hub", "subjects": ["a.>"]},
    ]
    assert find_in_files(space.write(domains=domains, streams=shops).load) == []

    shops.append({"name": "C", "domain": "s2", "subjects": ["a.*"]})
    found = find_in_files(space.write(domains=domains, streams=shops).load)
    assert [(address, summary) for address, summary, _ in found] == [
        ("s2/stream/C", 'subjects: "a.*" overlaps with s2/stream/A (10065)')
    ]


def test_two_names_of_one_domain(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Streams of one JetStream under two names overlap, in the files and in a plan."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    again = {"connection": "again", "same_as": "hub", "api_prefix": "$JS.hub.API"}
    space.write(
        connections=space.base["connections"] | {"again": space.base["connections"]["hub"]},
        domains=space.base["domains"] | {"again": again},
        streams=[
            {"name": "A", "domain": "hub", "subjects": ["a"]},
            {"name": "B", "domain": "again", "subjects": ["*"]},
        ],
    )
    found = find_in_files(space.load)

    assert [(address, summary) for address, summary, _ in found] == [
        ("hub/stream/A", 'subjects: "a" overlaps with again/stream/B (10065)')
    ]
    assert overlaps(space.plan().diagnostics) == found


def test_what_does_not_count(tmp_path: Path) -> None:
    """Another environment's streams, and ignored subjects, are not what would be stored."""
    space = Space(tmp_path, {"jsplan": 1, "workspace": "w", "domains": {"hub": {}}})
    wide = {"name": "B", "subjects": ["*"]}
    narrow = {"name": "A", "subjects": ["a"]}
    ignored = wide | {"lifecycle": {"ignore_changes": ["subjects"]}}
    assert find_in_files(space.write(streams=[narrow, ignored]).load) == []

    elsewhere = wide | {"environments": ["prod"]}
    space.write(environments={"dev": {}, "prod": {}}, streams=[narrow, elsewhere])
    assert find_in_files(LoadOptions(tmp_path, "dev")) == []
    assert len(find_in_files(LoadOptions(tmp_path, "prod"))) == 1
