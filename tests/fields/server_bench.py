"""A real server that judges the tables: what it takes, echoes and updates.

Everything is sent as jsplan sends it; the expectations come from the checks and the tables alone.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.planning.merge import build_create, build_update, expected_new
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.fields import Config, Table
from tests.fields.measured_rules import (
    ACCEPTED_BUT_REPLACED,
    inherited_from_origin,
    predict,
    problems,
    without_server_metadata,
)
from tests.fields.strategies import ORIGINS
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.config.findings import Body
    from jsplan.sandbox import Server

SECOND = 1_000_000_000
#: Streams in which consumers are made, by what is special about each.
PARENTS: dict[str, dict[str, Any]] = {
    "PLAIN": {},
    "INTEREST": {"retention": "interest"},
    "QUEUE": {"retention": "workqueue"},
    "LIMITED": {"consumer_limits": {"inactive_threshold": 6000 * SECOND, "max_ack_pending": 50}},
    "MEMORY": {"storage": "memory"},
    "UNLIMITED": {"consumer_limits": {"max_ack_pending": -1}},
}
REPLACED_ON_PURPOSE = {case.split()[1] for case in ACCEPTED_BUT_REPLACED} | {"durable_name"}


#: Seconds after which a connection is not trusted any more.
IDLE = 20.0


@dataclass
class ServerBench:
    """The server, at its API level; `counts` proves that a run saw every kind of answer."""

    level: int
    server: Server
    counts: dict[str, int] = field(default_factory=dict)
    _raw: Raw | None = None
    _used: float = 0.0

    @property
    def raw(self) -> Raw:
        """Return a connection that is fresh enough.

        The server closes one that was quiet too long: other tests may have run in between.
        """
        if self._raw is None or time.monotonic() - self._used > IDLE:
            self.close()
            self._raw = Raw(self.server.url, self.server.user, self.server.password, timeout=30)
        self._used = time.monotonic()
        return self._raw

    def close(self) -> None:
        """Close the connection."""
        if self._raw is not None:
            self._raw.close()

    @classmethod
    @contextmanager
    def on_server(cls, server: Server) -> Iterator[ServerBench]:
        """Start the bench on an empty server."""
        bench = cls(0, server)
        bench.level = bench.raw.api_level()
        for name in ORIGINS:
            body = {"name": name, "subjects": [f"{name.lower()}.>"], "allow_direct": name == "ORGD"}
            bench.raw.api_ok(f"$JS.API.STREAM.CREATE.{name}", body)
        for name, config in PARENTS.items():
            bench.raw.api_ok(
                f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]} | config
            )
        yield bench
        bench.close()

    @property
    def permanent_streams(self) -> set[str]:
        """Create the streams that stay for all tests."""
        return {*ORIGINS, *PARENTS}

    def live(self, address: Address) -> Config:
        """Return the configuration of an object as the server shows it."""
        name = (
            f"CONSUMER.INFO.{address.stream}.{address.consumer}"
            if address.kind == "consumer"
            else f"STREAM.INFO.{address.stream}"
        )
        config = self.raw.api_ok(f"$JS.API.{name}")["config"]
        assert isinstance(config, dict)
        return config

    @contextmanager
    def listening(self, subject: str | None) -> Iterator[None]:
        """Listen on the subject with another client meanwhile, or with none for None."""
        with Raw(self.server.url) as other:
            if subject:
                other.subscribe(subject)
            yield

    def count(self, what: str) -> None:
        """Count one event."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- streams ---------------------------------------------------------------------------------------------

    def stream(self, old: Body, new: Body, *, seal: bool = False) -> None:
        """Create `old` and update it to `new`: answers, echoes and classes are as predicted.

        `seal` seals it before the update. Raises AssertionError if something is not as predicted.
        """
        sent = build_create(STREAM, old, self.level)
        answer = self.raw.api(f"$JS.API.STREAM.CREATE.{old['name']}", sent)
        try:
            if self._check_created(STREAM, self._stream_problems(old, None), answer, old):
                self._check_echo(STREAM, old, answer["config"], inherited_from_origin(old))
                if seal:
                    sealed = answer["config"] | {"sealed": True}
                    answer = self.raw.api_ok(f"$JS.API.STREAM.UPDATE.{old['name']}", sealed)
                if not self._stream_problems(new, answer["config"]) and not self._unknown_fields(
                    STREAM, new
                ):
                    self._check_update(
                        STREAM,
                        f"STREAM.UPDATE.{old['name']}",
                        new,
                        answer["config"],
                        inherited_from_origin(new),
                        {},
                    )
        finally:
            self.raw.api(f"$JS.API.STREAM.DELETE.{old['name']}")

    def _stream_problems(self, body: Body, live: Config | None) -> list[str]:
        if live is None:
            return problems(STREAM, body, self.level)
        found = predict(STREAM, dict(body), live, self.level, inherited_from_origin(body))
        before = None if found.effect == "replace" else STREAM.compact(live)
        return problems(STREAM, body, self.level, before=before, after=found.after)

    # --- consumers -------------------------------------------------------------------------------------------

    def consumer(self, stream: str, old: Body, new: Body) -> None:
        """Do the same for a consumer of one of the `PARENTS`."""
        api, limits = (
            f"CONSUMER.CREATE.{stream}.{old['name']}",
            PARENTS[stream].get("consumer_limits", {}),
        )
        sent = build_create(CONSUMER, old, self.level)
        answer = self.raw.api(
            f"$JS.API.{api}", {"stream_name": stream, "action": "create", "config": sent}
        )
        try:
            if self._check_created(
                CONSUMER, self._consumer_problems(stream, old, None), answer, old
            ):
                self._check_echo(CONSUMER, old, answer["config"], limits)
                if not self._consumer_problems(
                    stream, new, answer["config"]
                ) and not self._unknown_fields(CONSUMER, new):
                    self._check_update(
                        CONSUMER,
                        api,
                        new,
                        answer["config"],
                        limits,
                        {"stream_name": stream, "action": "update"},
                    )
        finally:
            self.raw.api(f"$JS.API.CONSUMER.DELETE.{stream}.{old['name']}")

    def _consumer_problems(self, stream: str, body: Body, live: Config | None) -> list[str]:
        parent = STREAM.compact({"name": stream, "subjects": [f"{stream}.>"]} | PARENTS[stream])
        before = CONSUMER.compact(live) if live else None
        return problems(CONSUMER, body, self.level, before=before, stream=parent)

    # --- the server's word -----------------------------------------------------------------------------------

    def _unknown_fields(self, table: Table, body: Body) -> list[str]:
        return [path for path, level in table.required_levels(dict(body)) if level > self.level]

    def _check_created(
        self, table: Table, predicted: list[str], answer: dict[str, Any], body: Body
    ) -> bool:
        """Check that the object was created, or refused, as predicted; return whether it was.

        A field that the server does not know is refused since 2.12, and was dropped before.
        """
        self.count("create refused" if "error" in answer else "create taken")
        if unknown := self._unknown_fields(table, body):
            names = {path.split(".")[0] for path in unknown}
            kept = [
                n
                for n in names
                if "error" not in answer
                and table.compact(answer["config"]).get(n) == table.compact({n: body[n]}).get(n)
            ]
            assert kept == [], (dict(body), answer)
            assert "error" in answer or self.level < 2, (dict(body), unknown)
            return False
        assert bool(predicted) == ("error" in answer), (dict(body), predicted, answer.get("error"))
        return "error" not in answer

    def _check_echo(self, table: Table, body: Body, raw: Config, around: Config) -> None:
        """Check that the echo has the predicted fields, with the same values once normalised."""
        expected, live = expected_new(table, body, self.level, around), table.compact(raw)
        assert expected == live, (dict(body), differences(expected, live))
        assert table.with_defaults(expected, self.level).keys() == without_server_metadata(
            raw
        ).keys() - {
            name
            for name in ("placement", "subject_transform")
            if name in raw and not STREAM.compact({name: raw[name]})
        }, dict(body)
        needed, ours = (
            (raw.get("metadata") or {}).get("_nats.req.level"),
            max([0, *(level for _, level in table.required_levels(raw))]),
        )
        assert (
            needed is None
            or int(needed) == ours
            or (int(needed) < ours and has_uncounted_fields(raw))
        ), raw

    def _check_update(
        self,
        table: Table,
        api: str,
        new: Body,
        live: Config,
        around: Config,
        envelope: dict[str, Any],
    ) -> None:
        prediction = predict(table, dict(new), live, self.level, around)
        config = build_update(table, live, new, table.compact(live), prediction.after)
        answer = self.raw.api(
            f"$JS.API.{api}", envelope | {"config": config} if envelope else config
        )
        self.count(prediction.effect)
        if prediction.effect == "replace" and "error" not in answer:
            replacing = {change.path for change in prediction.changes if change.effect == "replace"}
            assert replacing <= REPLACED_ON_PURPOSE, (replacing, live, dict(new))
            return
        assert (prediction.effect == "replace") == ("error" in answer), (
            prediction,
            live,
            dict(new),
            answer.get("error"),
        )
        if "error" not in answer:
            after = table.compact(answer["config"])
            assert after == prediction.after, (
                live,
                dict(new),
                differences(prediction.after, after),
            )


def has_uncounted_fields(raw: Config) -> bool:
    """Check for newer words of older fields, and for consumers of origins.

    Older servers do not know them, and `_nats.req.level` does not say so.
    """
    origins = [raw.get("mirror") or {}, *(raw.get("sources") or ())]
    return raw.get("priority_policy") == "prioritized" or any(
        "consumer" in origin for origin in origins
    )


def differences(expected: Config, found: Config) -> str:
    """Return what is expected and what is found where the two differ."""
    names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    return json.dumps(
        {name: [expected.get(name), found.get(name)] for name in names}, ensure_ascii=False
    )
