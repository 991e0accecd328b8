"""The rows of `cases.yaml`: each is one use of apply that is killed in several ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jsplan.sandbox import versions
from tests.conftest import PROGRAM
from tests.support.yaml_text import read_yaml

#: Sections of the files, as in jsplan.yaml.
Sections = dict[str, Any]
#: Counts how often a way was tried.
Count = Callable[[str, int], None]
TABLE = Path(__file__).with_name("cases.yaml")


@dataclass(frozen=True)
class Row:
    """One use. A place is `domain/stream`, with the name of the stream on the server.

    `kept` says where messages and positions were, and where they have to be in the end. `files` is
    for what a test changes in it.
    """

    use: str
    servers: str
    before: Sections
    after: Sections
    kept: dict[str, str]
    allow: tuple[str, ...] = ()
    #: The first release of nats-server that plays the row; older than 2.12 none does.
    since: str = "2.12"
    #: Messages that are published, and to which subjects, by place; then those with headers.
    messages: int = 60
    publish: dict[str, list[str]] = field(default_factory=dict)
    marks: list[dict[str, Any]] = field(default_factory=list)
    #: Streams that copy all messages before the apply; sequences that are deleted after that.
    copies: tuple[str, ...] = ()
    deleted: dict[str, list[int]] = field(default_factory=dict)
    #: How many messages each consumer finishes, and how many more its clients have then.
    work: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    #: New names of consumers, and what one has left where it is not what it had left before.
    renamed: dict[str, str] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    #: Consumers that no file has, by place.
    others: dict[str, list[str]] = field(default_factory=dict)
    #: A subject, and the places that get one copy of a message to it after the apply.
    flows: dict[str, list[str]] = field(default_factory=dict)
    parallelism: int = 4
    #: Backends of the state that `kill -9` is tried with; none where the row is only simulated.
    backends: tuple[str, ...] = ("local",)
    #: Whether the files of before can follow a kill.
    back: bool = True
    #: How many boundaries `make test` tries: simulated, and with `kill -9`.
    sample: int = 2
    killed: int = 1
    #: Whether `make test` tries each phase, else only `make soak`.
    phases: bool = False
    #: Whether publishers and workers are at work meanwhile (tests/kills/test_clients.py).
    clients: bool = False
    #: Whether the leaf is lost meanwhile (tests/kills/test_servers.py).
    leaf: bool = False

    def __str__(self) -> str:
        return self.use


def read_rows() -> list[Row]:
    """Return the table. What a row leaves out it has from the row that its `like` names."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in read_yaml(TABLE.read_bytes())["rows"]:
        base = rows[entry.pop("like")] if "like" in entry else {}
        rows[entry["use"]] = base | entry
    return [Row(**row) for row in rows.values()]


ROWS = read_rows()


def parametrize(chosen: Callable[[Row], bool]) -> pytest.MarkDecorator:
    """Play a test with each row that is chosen and that the server under test can play."""
    version = versions.parse_version(versions.read_version(PROGRAM))
    rows = [row for row in ROWS if chosen(row) and versions.parse_version(row.since) <= version]
    return pytest.mark.parametrize("row", rows, ids=str)
