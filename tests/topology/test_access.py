from __future__ import annotations

from pathlib import Path

import pytest

from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.topology import build_topology
from jsplan.topology.access import Grant, compute_grants
from jsplan.topology.grant_text import collect_exports, render_account_config, render_nsc_commands
from tests.topology.conftest import DOMAINS, ROW

ACCOUNTS = {"acc": "ACC", "imp": "IMP", "b": "B"}
KEY = "ADXJSK7I2VHJORTGIWCJC6L2JJEQ644ESFWTCKC6DKEHY5O5GBLBZWAJ"


def required_access(
    folder: Path, text: str, head: str = DOMAINS + ROW, accounts: dict[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Return what a workspace needs, as `kind subject -> user`, and the codes of the findings."""
    (folder / "jsplan.yaml").write_text(head + text, encoding="utf-8")
    workspace = load(LoadOptions(folder))
    found, diagnostics = compute_grants(
        workspace, build_topology(workspace), accounts if accounts is not None else ACCOUNTS
    )
    required = [f"{g.kind} {g.subject} -> {g.user}" for g in found if not g.optional]
    return required, [d.code for d in diagnostics]


MIRROR = "streams: [{name: C, domain: hub-imp, mirror: {name: S, domain: hub%s}}]\n"
FLOW = [
    "service $JS.FC.S.> -> IMP",
    "service $JS.hub.API.CONSUMER.CREATE.S%s -> IMP",
    "stream deliver.acc.hub.imp.> -> IMP",
]


@pytest.mark.parametrize(
    ("more", "suffix"),
    [
        ("", ""), (", filter_subject: a", ".>"), (", filter_subject: '>'", ".>"), (", subject_transforms: [{src: a, dest: b}]", ".>"),
        (", subject_transforms: [{src: a, dest: a}, {src: b, dest: b}]", ""),
    ],
)  # fmt: skip
def test_a_copy_asks_with_its_one_filter(more: str, suffix: str, tmp_path: Path) -> None:
    """The subject of a copy's consumer has its filter if there is exactly one, as on servers."""
    assert required_access(tmp_path, MIRROR % more) == (
        [line % suffix if "%s" in line else line for line in FLOW],
        [],
    )


def test_a_prefix_below_the_row_is_covered_by_it_and_another_is_not(tmp_path: Path) -> None:
    """A written prefix needs an export of its own only where that of the row does not cover it."""
    below = required_access(tmp_path, MIRROR % ", deliver: deliver.acc.hub.imp.mine")[0]
    beside = required_access(tmp_path, MIRROR % ", deliver: elsewhere")[0]
    assert below[-1] == "stream deliver.acc.hub.imp.> -> IMP"
    assert beside[-1] == "stream elsewhere.> -> IMP"


def test_consumers_of_other_accounts(tmp_path: Path) -> None:
    """A pull consumer needs requests and acks; a push consumer its subject and its replies."""
    row = ROW.replace("}]", ", consumers: [S/pull, S/push, S/silent, T/unknown]}]")
    text = """\
streams:
  - name: S
    domain: hub
    consumers:
      - {name: pull, ack_policy: explicit}
      - {name: push, deliver_subject: to.imp, ack_policy: all, flow_control: true, idle_heartbeat: 1s}
      - {name: silent, deliver_subject: to.imp.2}
"""
    assert required_access(tmp_path, text, DOMAINS + row) == (
        [
            "service $JS.ACK.S.pull.> -> IMP",
            "service $JS.ACK.S.push.> -> IMP",
            "service $JS.ACK.T.unknown.> -> IMP",
            "service $JS.FC.S.push.> -> IMP",
            "service $JS.hub.API.CONSUMER.MSG.NEXT.S.pull -> IMP",
            "service $JS.hub.API.CONSUMER.MSG.NEXT.T.unknown -> IMP",
            "stream to.imp -> IMP",
            "stream to.imp.2 -> IMP",
        ],
        ["JS454"],
    )


def test_streams_that_are_managed_through_an_import(tmp_path: Path) -> None:
    """A stream in a `same_as` domain of another account needs what jsplan asks for it."""
    found, _ = required_access(tmp_path, "streams: [{name: S, domain: hub-by-b, subjects: [s]}]\n")
    verbs = ["INFO", "STREAM.CREATE.S", "STREAM.DELETE.S", "STREAM.INFO.S", "STREAM.UPDATE.S"]
    assert found == [f"service $JS.hub.API.{verb} -> B" for verb in verbs]


@pytest.mark.parametrize(
    ("text", "head", "accounts", "expected"),
    [
        (MIRROR % "", DOMAINS + ROW, {"acc": "ACC"}, ["JS455"]),
        (MIRROR % "", DOMAINS + ROW, {"acc": "SAME", "imp": "SAME"}, []),
        ("streams: [{name: C, domain: leaf, mirror: {name: S, domain: hub}}]\n", DOMAINS + ROW, {}, []),
        (
            "streams: [{name: C, domain: hub-imp, mirror: {name: S, domain: theirs, deliver: d}}]\n",
            DOMAINS + "  theirs: {connection: imp, api_prefix: JS.x.API, js_domain: far}\n", ACCOUNTS, ["JS456"],
        ),
    ],
)  # fmt: skip
def test_unknown_accounts_and_owners(
    text: str, head: str, accounts: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    """Nothing is needed inside one account; an unknown account or owner is reported."""
    assert required_access(tmp_path, text, head, accounts) == ([], expected)


def grant_of(user: str, subject: str, *, streamed: bool = False) -> Grant:
    """Return one service, or a stream where the subject is a delivery subject."""
    return Grant(
        "A",
        user,
        "stream" if subject.startswith("to") else "service",
        subject,
        subject,
        "a",
        "b",
        streamed,
    )


def test_an_export_within_another_is_not_written_twice() -> None:
    """Nsc refuses overlapping exports of one kind: the wider one serves the accounts of both."""
    found = collect_exports(
        "A",
        [
            grant_of("B", "$JS.FC.S.c.>"),
            grant_of("C", "$JS.FC.S.>"),
            grant_of("C", "x", streamed=True),
            grant_of("B", "x"),
        ],
    )
    assert [(e.subject, sorted(e.importers), e.streamed) for e in found] == [
        ("$JS.FC.S.>", ["B", "C"], False),
        ("x", ["B", "C"], True),
    ]


def test_a_key_in_a_delivery_subject_is_a_token() -> None:
    """Accounts with their key in a delivery subject share one export, each for its own key."""
    other = KEY.replace("ADXJ", "AAKR")
    found = [grant_of("B", f"toaccount.{other}.>"), grant_of("C", f"toaccount.{KEY}.>")]
    assert [(e.subject, e.token_position) for e in collect_exports("A", found)] == [
        ("toaccount.*.>", 2)
    ]
    assert (
        render_account_config("A", found)
        == 'exports: [\n    {stream: "toaccount.*.>", account_token_position: 2}\n]\n'
    )
    assert render_nsc_commands("A", found) == [
        "nsc add export --account A --name 'toaccount.*.>' --subject 'toaccount.*.>' --account-token-position 2"
    ]


def test_names_that_are_no_words_are_quoted() -> None:
    """Names that a server configuration or a shell would read as something else are quoted."""
    odd = Grant("1 A", "B", "service", "x.>", "y.>", "a", "b")
    assert (
        render_account_config("B", [odd])
        == 'imports: [\n    {service: {account: "1 A", subject: "x.>"}, to: "y.>"}\n]\n'
    )
    assert render_nsc_commands("B", [odd])[0].startswith(
        "nsc add import --account B --src-account '1 A' --name 'y.>'"
    )
