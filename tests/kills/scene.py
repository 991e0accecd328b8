"""One row that is played: prepared, applied, and checked while interrupted and at the end."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.support import stream_content
from tests.support.buckets import new_bucket
from tests.support.raw import delete_all_streams, encode, streams
from tests.support.state import load_context
from tests.support.waiting import wait_until
from tests.support.workspaces import RecordingObserver, left_to_do

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.drift import Drift
    from jsplan.sandbox import Sandbox
    from tests.kills.rows import Row, Sections
    from tests.kills.servers import Servers
    from tests.support.raw import Raw

#: Endings of the reasons of a plan for what was changed outside jsplan.
OUTSIDE = ("_missing", "_not_ours", "_drifted", "_recreated_elsewhere")
#: The beginning of the name of the stream that holds the state.
STATE = "KV_STATE_"
#: Seconds; old servers need half a minute until a source continues.
PATIENCE = 90
#: Leases of a lock in a bucket: short for a killed process, so that its lock expires soon.
SHORT, LONG = "2s", "1m"


class Scene:
    """The servers of a row, made the same way each time."""

    def __init__(self, row: Row, servers: Servers, backend: str = "local") -> None:
        self.row, self.servers, self.backend = row, servers, backend
        self.space = servers.space
        self.bucket = ""
        #: Messages by the place where they were, and what each consumer there has left.
        self.expected: dict[str, list[stream_content.Message]] = {}
        self.unread: dict[str, dict[str, int]] = {}

    def raw(self, domain: str) -> Raw:
        """Open a connection to the server of a domain."""
        return self.servers.places[domain].raw()

    @property
    def sandbox(self) -> Sandbox:
        """The servers of a hub and a leaf."""
        assert self.servers.sandbox is not None
        return self.servers.sandbox

    def reset(self) -> None:
        """Empty the servers, apply the first files, publish and work, and write the files after."""
        for domain in self.servers.places:
            with self.raw(domain) as raw:
                delete_all_streams(raw)
        shutil.rmtree(self.space.folder / "state", ignore_errors=True)
        if self.backend == "kv":
            self.bucket = new_bucket()
        self.declare(self.row.before)
        _, result = self.space.apply()
        assert result.exit_code == 0, result
        self.prepare()
        self.remember()
        self.declare(self.row.after)

    def prepare(self) -> None:
        """Publish, let consumers take messages, and delete some."""
        for place, names in self.row.others.items():
            domain, stream = place.split("/")
            with self.raw(domain) as raw:
                for name in names:
                    raw.consumer(stream, name)
        for place, subjects in self.row.publish.items():
            self.publish(place, subjects)
        for place in self.row.copies:
            self.wait(lambda place=place: self.count(place) == self.row.messages, place)  # type: ignore[misc]
        for place, sequences in self.row.deleted.items():
            domain, stream = place.split("/")
            with self.raw(domain) as raw:
                raw.delete(stream, *sequences)
        for place, consumers in self.row.work.items():
            domain, stream = place.split("/")
            with self.raw(domain) as raw:
                for name, (finished, taken) in consumers.items():
                    acks = raw.pull(stream, name, finished)
                    raw.ack(acks)
                    raw.pull(stream, name, taken)

    def publish(self, place: str, subjects: list[str]) -> None:
        """Publish the messages of the row to these subjects in turn, some with headers."""
        waiting: list[bytes] = []
        with self.raw(place.split("/")[0]) as raw:
            for number in range(self.row.messages):
                subject, payload = subjects[number % len(subjects)], f"{place} {number}".encode()
                if number % 1000 == 999 or number == self.row.messages - 1:
                    raw.publish_all(waiting)
                    waiting.clear()
                    assert b'"seq"' in raw.request(subject, payload)[1]
                else:
                    headers = {"X-Number": str(number)} if number % 4 == 0 else None
                    waiting.append(encode(subject, payload, headers))
            for mark in self.row.marks:
                assert b'"seq"' in raw.request(mark["subject"], b"", mark["headers"])[1]

    def count(self, place: str) -> int:
        """Return the number of messages of a stream."""
        domain, stream = place.split("/")
        with self.raw(domain) as raw:
            return int(raw.state(stream)["messages"])

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until this is so."""
        wait_until(ready, what, PATIENCE)

    def remember(self) -> None:
        """Note messages and positions as they are where they have to be kept."""
        for place in self.row.kept:
            domain, stream = place.split("/")
            with self.raw(domain) as raw:
                self.expected[place] = stream_content.messages(raw, stream)
                self.unread[place] = stream_content.unread(raw, stream)

    def declare(self, sections: Sections, lock_ttl: str = LONG) -> None:
        """Write files with these sections; `lock_ttl` is of a state in a bucket."""
        if self.backend == "kv":
            self.space.base["backend"] = {"kv": {"bucket": self.bucket, "lock_ttl": lock_ttl}}
        self.space.write(**sections)

    def apply(self) -> ApplyResult:
        """Plan and apply with the permissions of the row."""
        options: dict[str, Any] = {"lock_timeout": 40 * 10**9} if self.backend == "kv" else {}
        return self.space.apply(
            allow_hazards=self.row.allow, parallelism=self.row.parallelism, **options
        )[1]

    def require_applied(self, where: object) -> None:
        """Check that one more apply ends what was interrupted, with the same permissions."""
        result = self.apply()
        failed = [step.error for step in result.steps if step.error]
        assert (failed, result.exit_code) == ([], 0), (where, failed)

    def check_drift(self) -> Drift:
        """Check that nothing counts as changed outside jsplan, and return what drift found."""
        found = drift(self.space.load, DriftOptions(replication=False), RecordingObserver())
        assert [item.address for item in found.resource_drift] == []
        assert {item.address for item in found.unmanaged} <= set(self.other_addresses())
        return found

    def other_addresses(self) -> Iterator[str]:
        """Yield the addresses of consumers that no file has, before and after."""
        for place, names in self.row.others.items():
            for each in {place, self.row.kept[place]}:
                domain, stream = each.split("/")
                yield from (f"{domain}/consumer/{stream}/{name}" for name in names)

    def require_nothing_lost(self, where: object = "") -> None:
        """Check while interrupted: one stream has all messages, and all reports name the same."""
        found = list(self._payloads())
        for place, messages in self.expected.items():
            assert any(side >= {m[3] for m in messages} for side in found), (place, where)
        report = self.check_drift()
        assert report.exit_code == (2 if report.interrupted else 0), where
        assert status(self.space.load, RecordingObserver()).interrupted == report.interrupted
        plan = self.space.plan(allow_hazards=self.row.allow)
        said = {d.summary for d in plan.diagnostics}
        assert {item["summary"] for item in report.interrupted} <= said, where
        assert plan.resource_drift == [], where
        reasons = {change.action_reason for change in plan.resource_changes}
        assert not {reason for reason in reasons if reason.endswith(OUTSIDE)}, where

    def _payloads(self) -> Iterator[set[bytes]]:
        """Yield what each stream of all domains has."""
        for domain in self.servers.places:
            with self.raw(domain) as raw:
                for stream in streams(raw):
                    if not stream.startswith(STATE):
                        yield {message[3] for message in stream_content.messages(raw, stream)}

    def require_taken_back(self, where: object = "") -> None:
        """Check that the files of before bring everything back."""
        for place in self.row.kept:
            self._require_kept(place, place, self.unread[place], where)
        self.require_clean(self.row.before, where)

    def require_finished(self, where: object = "") -> None:
        """Check the end: messages, positions, subjects, and that nothing else is left."""
        for place, target in self.row.kept.items():
            wanted = {self.row.renamed.get(n, n): c for n, c in self.unread[place].items()}
            self._require_kept(place, target, wanted | self.row.unread, where)
        self.require_clean(self.row.after, where)
        self.require_flowing(where)

    def _require_kept(self, place: str, target: str, unread: dict[str, int], where: object) -> None:
        """Check the messages of a place, and how many each consumer has left."""
        domain, stream = target.split("/")
        with self.raw(domain) as raw:
            assert stream_content.messages(raw, stream) == self.expected[place], where
            self.wait(lambda: not paused(raw, stream), target)
            assert stream_content.unread(raw, stream) == unread, where

    def require_flowing(self, where: object) -> None:
        """Check that the streams of `flows` get new messages once."""
        for subject, targets in self.row.flows.items():
            counts = {target: self.count(target) for target in targets}
            with self.raw(targets[0].split("/")[0]) as raw:
                for _ in range(3):
                    assert b'"seq"' in raw.request(subject, b"after")[1]
            for target, count in counts.items():
                self.wait(lambda t=target, n=count: self.count(t) >= n + 3, target)  # type: ignore[misc]
                assert self.count(target) == count + 3, where

    def require_clean(self, sections: Sections, where: object) -> None:
        """Check that servers and state have what the files have and nothing else."""
        declared = declared_streams(sections)
        for domain in self.servers.places:
            with self.raw(domain) as raw:
                found = {f"{domain}/{n}" for n in streams(raw) if not n.startswith(STATE)}
                assert found == {p for p in declared if p.startswith(f"{domain}/")}, where
                for place in found:
                    self._require_stream(raw, place, declared[place], where)
        state = load_context(self.space.load).state
        assert (state.pending, state.replacements) == ({}, {}), where
        assert {str(a) for a in state.resources} == declared_addresses(sections), where
        again = self.space.plan()
        assert left_to_do(again) == [], where
        assert [d.summary for d in again.diagnostics if d.severity != "info"] == [], where
        assert self.check_drift().interrupted == [], where

    def _require_stream(self, raw: Raw, place: str, body: Sections | None, where: object) -> None:
        """Check the subjects of a stream, and which consumers it has."""
        if body is None:
            return
        config = raw.config(body["name"])
        assert config.get("subjects", []) == body.get("subjects", config.get("subjects", [])), where
        assert bool(config.get("mirror")) == ("mirror" in body), where
        names = raw.api_ok(f"$JS.API.CONSUMER.NAMES.{body['name']}", {})["consumers"] or []
        targets = {self.row.kept.get(old, old): more for old, more in self.row.others.items()}
        wanted = {c["name"] for c in body.get("consumers", [])} | set(targets.get(place, []))
        assert set(names) == wanted, where


def paused(raw: Raw, stream: str) -> bool:
    """Return True while a consumer of the stream is paused."""
    listed = raw.api_ok(f"$JS.API.CONSUMER.LIST.{stream}", {"offset": 0})["consumers"] or []
    return any(consumer.get("paused") for consumer in listed)


def declared_streams(sections: Sections) -> dict[str, Sections | None]:
    """Return the streams of the files by place; None for that of a bucket."""
    found: dict[str, Sections | None] = {
        f"{body.get('domain', 'main')}/{body['name']}": body for body in sections.get("streams", [])
    }
    return found | {
        f"{body.get('domain', 'main')}/KV_{body['bucket']}": None for body in sections.get("kv", [])
    }


def declared_addresses(sections: Sections) -> set[str]:
    """Return the addresses of what the files have."""
    found = set()
    for place, body in declared_streams(sections).items():
        domain, name = place.split("/")
        if body is None:
            found.add(f"{domain}/kv/{name.removeprefix('KV_')}")
        else:
            found.add(f"{domain}/stream/{name}")
            found |= {f"{domain}/consumer/{name}/{c['name']}" for c in body.get("consumers", [])}
    return found
