"""One acceptance case on real servers: its plan, its changes, and an empty second plan.

A case is a YAML file under tests/cases:

    about: one sentence that says what is expected
    level: 2                        # API level the case needs (0: every server)
    below: 5                        # and the one that it must not have
    streams: {hub/stream/A: {…}}    # made by raw requests before anything else, unmanaged
    publish: [[hub, subject, n]]    # n messages, after `streams` and `first`; or [hub, subject, n, headers], empty
    flowed: {hub/stream/B: n}       # what the flows have brought before the plan
    held: {hub/consumer/B/W: n}     # messages that workers have and have not finished
    purged: [hub/stream/B]          # after that
    first: {streams: […]}           # sections of a workspace that is applied before
    tamper: {hub/stream/A: {…}}     # then changed outside jsplan; null deletes it
    again: {hub/stream/A: {…}}      # and created again outside jsplan
    entries: {hub/kv_entry/B/key: text}   # put after `streams`; in `tamper` too, null deletes the key
    offline: leaf                   # a domain that does not answer from then on
    desired: {streams: […]}         # the workspace that is planned
    options: {adopt: true}          # planning options
    expect:
      changes: {hub/stream/A: create}           # create update delete replace import import+update forget; no others
      hazards: {hub/stream/A: [DELETES_STREAM]}
      numbers: {hub/stream/A: {DELETES_STREAM: 9}}  # the messages that these hazards name
      stays: 25                                 # seconds in which no flow may bring another one
      later: [[hub, subject, n]]                # published after the apply
      messages: {hub/stream/A: 9}               # what the streams have in the end, once flows are through
      fields: {hub/stream/A: {max_age: in_place}}   # path: effect
      drift: {hub/stream/A: changed}            # changed or missing
      live: {hub/stream/A: {max_age: 60000000000}, hub/stream/B: null}
      refused: text                             # apply refuses, and says this
      hidden: [text]                            # no part of the plan has this
      error: text                               # the plan has this error
"""

from __future__ import annotations

import base64
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.errors import RefusedError
from jsplan.options import DriftOptions
from jsplan.planning.decide import table_of
from jsplan.workflows.drift import drift
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space, left_to_do
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jsplan.documents.plan import Plan, ResourceChange
    from jsplan.sandbox import Sandbox, Server

CASES = Path(__file__).parent.parent / "cases"


@dataclass
class Case:
    """One case file and the servers that it runs on."""

    text: dict[str, Any]
    space: Space
    raw: Raw
    server: Server
    sandbox: Sandbox

    @classmethod
    def load(cls, path: Path, folder: Path, sandbox: Sandbox) -> Case:
        """Read the file, for servers that are empty."""
        hub = sandbox["hub"]
        return cls(
            read_yaml(path.read_text("utf-8")),
            hub_leaf_space(folder, sandbox),
            Raw(hub.url, hub.user, hub.password),
            hub,
            sandbox,
        )

    def run(self) -> None:
        """Run the whole sequence."""
        with self.raw:
            self._prepare()
            with self._offline():
                self._require_expected()

    @contextmanager
    def _offline(self) -> Iterator[None]:
        """Let a domain not answer for a while."""
        if "offline" not in self.text:
            yield
            return
        server = self.sandbox[self.text["offline"]]
        server.pause()
        try:
            yield
        finally:
            server.resume()

    def _require_expected(self) -> None:
        expect = self.text["expect"]
        self.space.write(**self.text["desired"])
        if "drift" in expect:
            self._check_drift(expect["drift"])
        plan = self.space.plan(**self.text.get("options", {}))
        if "error" in expect:
            errors = [
                f"{d.address} {d.summary} {d.detail}"
                for d in plan.diagnostics
                if d.severity == "error"
            ]
            assert plan.errored
            assert any(expect["error"] in text for text in errors), errors
            return
        self._check_plan(plan, expect)
        self._apply(plan, expect)

    def _prepare(self) -> None:
        for address, config in self.text.get("streams", {}).items():
            self._create(Address.parse(address), config)
        for address, text in self.text.get("entries", {}).items():
            self._put(Address.parse(address), text)
        if "first" in self.text:
            _, result = self.space.write(**self.text["first"]).apply()
            assert result.exit_code == 0, result
        for row in self.text.get("publish", []):
            self._publish(*row)
        self._check_messages(self.text.get("flowed", {}))
        for address, count in self.text.get("held", {}).items():
            worker = Address.parse(address)
            self.raw.pull(worker.stream, worker.consumer, count, domain=worker.domain)
        for stream in map(Address.parse, self.text.get("purged", ())):
            assert self._api(stream.domain, f"STREAM.PURGE.{stream.stream}")["success"]
        for address, fields in self.text.get("tamper", {}).items():
            self._change_on_server(Address.parse(address), fields)
        for address, config in self.text.get("again", {}).items():
            self._create(Address.parse(address), config)

    # --- by raw requests -------------------------------------------------------------------------------------

    def _api(self, domain: str, verb: str, payload: Any = None) -> dict[str, Any]:
        return self.raw.api(f"$JS.{domain}.API.{verb}", payload)

    def _create(self, address: Address, config: dict[str, Any]) -> None:
        if address.kind == "consumer":
            answer = self._api(
                address.domain,
                f"CONSUMER.CREATE.{address.stream}.{address.consumer}",
                {"stream_name": address.stream, "config": config},
            )
        else:
            answer = self._api(
                address.domain, f"STREAM.CREATE.{address.stream}", {"name": address.stream} | config
            )
        assert "error" not in answer, answer

    def _publish(
        self, domain: str, subject: str, count: int, headers: dict[str, str] | None = None
    ) -> None:
        for number in range(count):
            text = "" if headers else f"message {number} for {domain}"
            _, answer = self.raw.request(subject, text.encode(), headers)
            assert b'"seq"' in answer, answer

    def _put(self, address: Address, text: str | None) -> None:
        """Put a key as an application does; null deletes it."""
        subject = f"$JS.{address.domain}.API.$KV.{address.name.replace('/', '.', 1)}"
        headers = {"KV-Operation": "DEL"} if text is None else None
        _, answer = self.raw.request(subject, (text or "").encode(), headers)
        assert b'"seq"' in answer, answer

    def _value(self, address: Address) -> str | None:
        """Return the value of a key as text; None for a key without one."""
        subject = f"$KV.{address.name.replace('/', '.', 1)}"
        answer = self._api(
            address.domain, f"STREAM.MSG.GET.{address.stream}", {"last_by_subj": subject}
        )
        message = answer.get("message", {"hdrs": "S1YtT3BlcmF0aW9u"})
        if b"KV-Operation" in base64.b64decode(message.get("hdrs", "")):
            return None
        return base64.b64decode(message.get("data", "")).decode()

    def _change_on_server(self, address: Address, fields: Any) -> None:
        if address.kind == "kv_entry":
            self._put(address, fields)
            return
        if fields is None:
            verb = (
                f"CONSUMER.DELETE.{address.stream}.{address.consumer}"
                if address.kind == "consumer"
                else f"STREAM.DELETE.{address.stream}"
            )
            answer = self._api(address.domain, verb)
        elif address.kind == "consumer":
            config = self.live(address)["config"] | fields
            answer = self._api(
                address.domain,
                f"CONSUMER.CREATE.{address.stream}.{address.consumer}",
                {"stream_name": address.stream, "config": config},
            )
        else:
            answer = self._api(
                address.domain,
                f"STREAM.UPDATE.{address.stream}",
                self.live(address)["config"] | fields,
            )
        assert "error" not in answer, answer

    def live(self, address: Address) -> dict[str, Any]:
        """Return the raw INFO answer, errors included."""
        verb = (
            f"CONSUMER.INFO.{address.stream}.{address.consumer}"
            if address.kind == "consumer"
            else f"STREAM.INFO.{address.stream}"
        )
        return self._api(address.domain, verb)

    # --- what is expected ------------------------------------------------------------------------------------

    def _check_drift(self, expected: dict[str, str]) -> None:
        found = drift(self.space.load, DriftOptions(), RecordingObserver())
        shown = {
            r.address: "missing" if r.change.after is None else "changed"
            for r in found.resource_drift
        }
        assert shown == expected

    def _check_plan(self, plan: Plan, expect: dict[str, Any]) -> None:
        assert not plan.errored, plan.diagnostics
        changes = {
            c.address: name for c in plan.resource_changes if (name := action_of(c)) != "no-op"
        }
        assert changes == expect.get("changes", {})
        hazards = {
            c.address: sorted(h.code for h in c.hazards) for c in plan.resource_changes if c.hazards
        }
        assert hazards == {
            address: sorted(codes) for address, codes in expect.get("hazards", {}).items()
        }
        numbers = {
            c.address: {h.code: h.messages for h in c.hazards} for c in plan.resource_changes
        }
        for address, wanted in expect.get("numbers", {}).items():
            assert {code: numbers.get(address, {}).get(code) for code in wanted} == wanted
        codes = {(d.address, d.code) for d in plan.diagnostics}
        warned = expect.get("warnings", {})
        assert {(address, code) for address in warned for code in warned[address]} <= codes
        text = json.dumps(plan.to_json())
        assert not [hidden for hidden in expect.get("hidden", ()) if hidden in text]
        for address, fields in expect.get("fields", {}).items():
            change = next(c for c in plan.resource_changes if c.address == address)
            assert {f.path: f.effect for f in change.change.fields} == fields

    def _apply(self, plan: Plan, expect: dict[str, Any]) -> None:
        options = dict(self.text.get("options", {}))
        if "refused" in expect:
            before = plan.to_json()["resource_changes"]
            with pytest.raises(RefusedError, match=expect["refused"]):
                self.space.apply(**options)
            assert self.space.plan(**options).to_json()["resource_changes"] == before
            return
        options["allow_hazards"] = tuple({h.code for c in plan.resource_changes for h in c.hazards})
        result = self.space.apply_saved(plan, allow_hazards=options["allow_hazards"])
        assert result.exit_code == 0, result
        self._check_live(expect.get("live", {}))
        for domain, subject, count in expect.get("later", ()):
            self._publish(domain, subject, count)
        self._check_messages(expect.get("messages", {}))
        self._check_predictions(plan)
        self._check_converged(options)

    def _check_live(self, expected: dict[str, Any]) -> None:
        for text, fields in expected.items():
            if Address.parse(text).kind == "kv_entry":
                assert self._value(Address.parse(text)) == fields
                continue
            answer = self.live(Address.parse(text))
            if fields is None:
                assert answer["error"]["code"] == 404
            else:
                config = answer["config"]
                assert {name: config.get(name) for name in fields} == fields

    def _check_messages(self, expected: dict[str, int]) -> None:
        """Wait until the streams have as many messages; then no flow brings another one."""
        self.server.wait_until(
            lambda: self._counts(expected) == expected, f"have these messages: {expected}", 60
        )
        if expected and (seconds := self.text["expect"].get("stays")):
            time.sleep(seconds)
            assert self._counts(expected) == expected

    def _counts(self, streams: Iterable[str]) -> dict[str, int]:
        return {s: int(self.live(Address.parse(s))["state"]["messages"]) for s in streams}

    def _check_predictions(self, plan: Plan) -> None:
        """Check that the server has what the plan showed as `after`: the tables know the defaults."""
        for change in plan.resource_changes:
            address = Address.parse(change.address)
            if change.change.after is not None and change.change.actions != ["forget"]:
                table = table_of(address)
                if address.kind == "kv_entry":
                    assert self._value(address) == change.change.after["value"]
                    continue
                found, wanted = (
                    {n: v for n, v in table.compact(config).items() if n not in unknown}
                    for config in (self.live(address)["config"], change.change.after)
                    for unknown in [change.change.after_unknown]
                )
                assert found == wanted, change.address

    def _check_converged(self, options: dict[str, Any]) -> None:
        again = self.space.plan(
            **{
                name: value
                for name, value in options.items()
                if name not in ("replace", "allow_hazards")
            }
        )
        assert left_to_do(again) == []
        assert not again.has_changes
        assert drift(self.space.load, DriftOptions(), RecordingObserver()).resource_drift == []


def action_of(change: ResourceChange) -> str:
    """Name the actions of a change in one word, as the cases write them."""
    word = "replace" if len(change.change.actions) == 2 else change.change.actions[0]
    if change.change.importing:
        return "import" if word == "no-op" else f"import+{word}"
    return word
