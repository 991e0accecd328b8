"""The users that `jsplan access --own` prints play every command.

The workspace has entries, objects, schedules and a backfill.
The server's trace says what was sent and what was denied.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from jsplan.config.model import LoadOptions
from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import User
from jsplan.workflows.access import access
from tests.backfill.backfill_pair import without_spark
from tests.conftest import PROGRAM
from tests.examples.test_drift_job import ACCOUNTS, allowed, matches
from tests.support.account_sharing import start_servers
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Server

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(240)]

BASE: Final[dict[str, Any]] = {
    "jsplan": 1,
    "workspace": "shop",
    "connections": {
        "hub": {
            "url": "${env.SHOP_URL}",
            "user": "${env.SHOP_USER}",
            "password": "${env.SHOP_USER}",
            "inbox_prefix": "_INBOX_jsplan_${env.SHOP_USER}",
        }
    },
    "domains": {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
    "backend": {"kv": {"domain": "hub", "bucket": "JSPLAN_STATE"}},
    "drift": {"sinks": [{"subject": "ops.drift", "domain": "hub"}]},
}


def workspace(domain: str, number: int, *, is_old: bool) -> dict[str, Any]:
    """The workspace before (1) and after (2) changes of every kind.

    An old server, before 2.12, has no schedules and replaces nothing with its content.
    """
    first = number == 1 or is_old
    kept = {"on_replace": "preserve"}
    c = {"name": "c", "ack_policy": "explicit"}
    moved_on = c | {"max_waiting": 64, "position": {"seq": 5, "once": "w"}}
    schedule = {"at": f"2090-01-0{number}T00:00:00Z", "target": "jobs.out", "payload": "x"}
    streams = [
        {"name": "ORDERS", "subjects": ["orders.>"], "max_age": f"{number}d", "consumers": [c if first else moved_on]},
        {"name": "JOBS", "subjects": ["jobs.>"], **({} if is_old else {"allow_msg_schedules": True, "schedules": {"jobs.tick": schedule}})},
        {"name": "KEEP", "subjects": ["keep"], "storage": "file" if first else "memory", "lifecycle": kept, "consumers": [c]},
        {"name": "MOVED1" if first else "MOVED2", "subjects": ["moved"], "consumers": [c]},
        {"name": "COPY", "subjects": ["copy"]},
        *([{"name": "GONE", "subjects": ["gone"]}] if number == 1 else []),
    ]  # fmt: skip
    entries = {"a.b": "x", "gone": "y"} if number == 1 else {"a.b": "z"}
    objects = {
        "logo": {"file": "large" if number == 1 else "small"},
        **({"gone": {"file": "small"}} if number == 1 else {}),
    }
    moved = [{"from": f"{domain}/stream/MOVED1", "to": f"{domain}/stream/MOVED2"}]
    ends = {
        side: {"domain": domain, "stream": name}
        for side, name in (("from", "ORDERS"), ("to", "COPY"))
    }
    return (
        BASE
        | {
            "defaults": {"domain": domain},
            "backfills": [{"name": "b", "strategy": "spark"} | ends],
            "streams": streams,
            "kv": [{"bucket": "CONFIG", "history": 5, "entries": entries}],
            "object_stores": [{"bucket": "ASSETS", "objects": objects}],
        }
        | ({} if first else {"relocate": moved})
    )


HAZARDS: Final = " ".join(
    f"--allow-hazard {code}"
    for code in (
        "DELETES_STREAM", "DELETES_MESSAGES", "DELETES_CONSUMER", "DUPLICATES_MESSAGES",
        "LOSES_CONSUMER_POSITION", "REMOVES_SUBJECTS",
    )
)  # fmt: skip
#: What needs more messages than these, the watch, or another release of nats-server.
UNUSED: Final = {
    "drift ops.drift", "deploy $JS.SNAPSHOT.ACK.>", "deploy $JS.FC.>", "deploy $JS.API.STREAM.MSG.DELETE.*",
    "drift $JS.API.STREAM.MSG.GET.KV_CONFIG", "drift $JS.API.STREAM.MSG.GET.OBJ_ASSETS", "drift $JS.API.CONSUMER.LIST.*",
}  # fmt: skip
READING: Final = (
    "validate", "lint", "lint --live", "plan", "plan --refresh-only", "status", "drift", "graph", "access", "history", "state list",
    "state show DOMAIN/kv_entry/CONFIG/a.b", "backfill status", "domains discover",
)  # fmt: skip
#: The user, the commands, and the exit code.
FIRST: Final = (
    ("plan", ("validate", "lint", "plan", "status", "drift"), 0),
    ("deploy", ("apply -y --no-backfill",), 0),
)
SECOND: Final = (
    ("plan", READING, 0),
    ("drift", ("drift", "status"), 0),
    ("deploy", ("backfill plan b", "backfill run b", "backup DOMAIN/** saved"), 0),
)
THIRD: Final = (
    ("plan", ("plan -o x.plan", "show x.plan"), 0),
    ("deploy", (f"apply -y {HAZARDS}",), 0),
    ("plan", ("plan --detailed-exitcode", "drift", "history"), 0),
    ("deploy", (f"revert 3 --target DOMAIN/kv_entry/** -y {HAZARDS}", "state rm DOMAIN/stream/COPY", "import DOMAIN/stream/COPY -y"), 0),
    ("deploy", (f"destroy -y {HAZARDS}", f"restore saved -y {HAZARDS}"), 0),
)  # fmt: skip


@pytest.fixture(scope="module", params=["hub", "leaf"])
def domain(request: pytest.FixtureRequest) -> str:
    """The domain that has everything but the state."""
    return str(request.param)


@pytest.fixture(scope="module")
def conf(
    domain: str, tmp_path_factory: pytest.TempPathFactory, server_version: tuple[int, ...]
) -> str:
    """The permissions of the users for this workspace."""
    folder = tmp_path_factory.mktemp("own")
    document = workspace(domain, 2, is_old=server_version < (2, 12))
    (folder / "jsplan.yaml").write_text(json.dumps(document), "utf-8")
    for name in ("small", "large"):
        (folder / name).write_text("x")
    environ = {"SHOP_URL": "nats://x", "SHOP_USER": "x"}
    found = access(LoadOptions(folder, environ=environ), RecordingObserver(), own=True)
    return "\n".join(app.configuration for app in found.apps)


@pytest.fixture(scope="module")
def hub(domain: str, conf: str) -> Iterator[Server]:
    """Start a leaf, and a hub with these permissions, which logs what it is sent."""
    login = User("SHOP", "admin", "admin")
    with start_servers(
        f"trace: true\nmax_traced_msg_len: 1\n{conf}{ACCOUNTS}",
        login,
        leaf="accounts {SHOP: {jetstream: enabled, users: [{user: admin, password: admin}]}}",
        leaf_login=login,
        remotes=[("admin:admin", "SHOP")],
        binary=PROGRAM,
    ) as sandbox:
        assert isinstance(sandbox, Sandbox)
        yield sandbox["hub"]


class Shop:
    """A workspace whose commands run as one of the users. `sent` has what each published."""

    def __init__(
        self, folder: Path, hub: Server, domain: str, patch: pytest.MonkeyPatch, *, is_old: bool
    ) -> None:
        self.folder, self.hub, self.domain = folder, hub, domain
        self._patch, self._is_old = patch, is_old
        self.sent: dict[str, set[str]] = {"plan": set(), "drift": set(), "deploy": set()}
        (folder / "small").write_text("x")
        (folder / "large").write_text("x" * 300_000)
        patch.setenv("SHOP_URL", hub.url)

    def play(self, number: int, steps: tuple[tuple[str, tuple[str, ...], int], ...]) -> list[str]:
        """Run commands in the workspace `number`; return what was wrong with any of them."""
        (self.folder / "jsplan.yaml").write_text(
            json.dumps(workspace(self.domain, number, is_old=self._is_old)), "utf-8"
        )
        wrong = []
        for user, commands, code in steps:
            self._patch.setenv("SHOP_USER", user)
            for command in commands:
                before = self.hub.log_path.stat().st_size
                with without_spark():
                    words = command.replace("DOMAIN", self.domain).split()
                    ended = jsplan(self.folder, *words)
                with self.hub.log_path.open("rb") as log:
                    log.seek(before)
                    text = log.read().decode(errors="replace")
                self.sent[user] |= {
                    re.sub(r"^\$JS\.hub\.API\.(?!\$)|^\$JS\.hub\.API\.", _own_name, subject)
                    for subject in re.findall(r"<<- \[H?PUB (\S+)", text)
                }
                denied = set(re.findall(r"Violation - .*?ubject \"([^\"]+)", text))
                if ended.code != code or denied or "permit" in ended.text:
                    wrong.append(f"{user}: {command}: {ended.code} {denied or ended.text[-3000:]}")
        return wrong


def _own_name(match: re.Match[str]) -> str:
    return "$JS.API." if match.string[match.end() : match.end() + 1] != "$" else ""


def test_every_command_of_the_documented_users(
    hub: Server,
    domain: str,
    conf: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server_version: tuple[int, ...],
) -> None:
    """No command of the documented users is denied anything, and each permission is used."""
    shop = Shop(tmp_path, hub, domain, monkeypatch, is_old=server_version < (2, 12))
    wrong = shop.play(1, FIRST)
    with Raw(hub.url, "admin", "admin") as admin:
        for subject in ("orders.a", "keep", "moved", "gone", "jobs.a"):
            for _ in range(20):
                admin.request(subject, b"x")
        config = {"name": "theirs", "durable_name": "theirs"}
        admin.api_ok(
            f"$JS.{domain}.API.CONSUMER.CREATE.COPY.theirs",
            {"stream_name": "COPY", "config": config},
        )
    wrong += shop.play(1, SECOND)
    wrong += shop.play(2, THIRD)
    assert wrong == []
    if domain == "hub" and server_version >= (2, 14):  # older ones have less
        assert {
            f"{user} {pattern}"
            for user in ("plan", "drift", "deploy")
            for pattern in allowed(f"jsplan-{user}_permissions", conf)
            if not pattern.startswith(("$JS.*.", "$JS.hub."))
            and not any(matches(pattern, s) for s in shop.sent[user])
        } <= UNUSED


def test_no_user_hears_what_another_one_is_answered(hub: Server) -> None:
    """The users drift and plan may subscribe to no inbox of another one."""
    for user in ("plan", "drift"):
        for other in {"plan", "drift", "deploy"} - {user}:
            for subject in (f"_INBOX_jsplan_{other}.>", "_INBOX_jsplan.>", "_INBOX.>", ">"):
                with (
                    Raw(hub.url, user, user) as raw,
                    pytest.raises(AssertionError, match="Violation for Subscription"),
                ):
                    raw.subscribe(subject)
