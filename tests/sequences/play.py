"""Play one case on real servers: world, load, plan, another person, apply, judgement."""

from __future__ import annotations

import shutil
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.backup.run import BackupOptions
from jsplan.errors import JsplanError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.workflows.backup import backup
from jsplan.workflows.drift import drift
from jsplan.workflows.plan import plan as make_plan
from jsplan.workflows.restore import RestoreOptions, restore
from jsplan.workflows.revert import RevertOptions, plan_revert
from tests.sequences import checks
from tests.sequences.cases import Ask, Consume, Publish, address_of, bodies, stream_at, stream_of
from tests.sequences.checks import Announced, ConsumedResult, Finding, Snapshot
from tests.sequences.model import (
    Message,
    filters_of,
    kept_by_interest,
    passes,
    removed_before_start,
)
from tests.sequences.servers import PATIENCE, ConsumerLog, DomainClient, SetupError, Stream
from tests.support.simulated_kill import SimulatedKill, kill_after, offline_after
from tests.support.state import read_state
from tests.support.waiting import wait_until
from tests.support.workspaces import RecordingObserver, approve, hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox
    from tests.sequences.cases import Action, Body, Case, Sections
    from tests.support.workspaces import Space

DOMAINS = ("hub", "leaf")
#: Seconds that a copy may take to follow: a server looks after its copies every ten.
COPY_TIMEOUT = 30.0
#: A server keeps its own consumer for ten seconds after a source left (tests/facts/test_left_sources.py).
LEFT_SOURCE_SECONDS = 20.0
#: What allows everything, for the plans that only lead to the one that is judged.
EVERYTHING = (
    "DELETES_STREAM", "DELETES_MESSAGES", "LOSES_CONSUMER_POSITION", "DELETES_CONSUMER",
    "BREAKS_REPLICATION", "REMOVES_SUBJECTS", "IRREVERSIBLE", "DUPLICATES_MESSAGES",
)  # fmt: skip
OUTCOME_BY_EXIT_CODE = {0: "applied", 1: "errored", 3: "refused", 4: "stale", 6: "partial"}
Key = tuple[str, str]


@dataclass
class Outcome:
    """End of a case: `word` is of `OUTCOME_BY_EXIT_CODE`, `empty` or `no world`."""

    case: Case
    word: str = "no world"
    output: str = ""
    plan: Plan | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of what is wrong."""
        return frozenset(f.kind for f in self.findings)


def play(case: Case, sandbox: Sandbox, folder: Path) -> Outcome:
    """Play the case from an empty workspace; its streams are gone afterwards."""
    outcome = Outcome(case)
    sides = {domain: DomainClient(sandbox[domain], domain) for domain in DOMAINS}
    try:
        _CaseRun(case, hub_leaf_space(folder, sandbox), sides, outcome).run()
    except SetupError as trouble:
        outcome.output = f"{outcome.output}\n{trouble}".strip()
        if outcome.word != "no world":  # it was there, so something is wrong with what became of it
            outcome.findings.append(Finding("trouble", case.name, str(trouble)))
    except Exception:  # noqa: BLE001 - any surprise is a failure of this case, and others run beside it
        outcome.findings.append(Finding("crash", case.name, traceback.format_exc()))
    finally:
        for side in sides.values():
            side.close()
        for domain in DOMAINS:
            _clear(DomainClient(sandbox[domain], domain), case.name)
    return outcome


def _clear(side: DomainClient, token: str) -> None:
    for name in side.names(token):
        side.api(f"STREAM.DELETE.{name}")
    side.close()


class _CaseRun:
    def __init__(
        self, case: Case, space: Space, sides: dict[str, DomainClient], outcome: Outcome
    ) -> None:
        self.case, self.space, self.sides, self.outcome = case, space, sides, outcome
        self.books: dict[tuple[str, str, str], ConsumerLog] = {}
        self.published: dict[Key, list[Message]] = {}
        #: Consumers whose log still says what they are owed, of those before; None: all.
        self.known: set[tuple[str, str, str]] | None = None
        self._count = 0
        self.died = False

    def run(self) -> None:
        """Everything in order. What is found is in the outcome."""
        self._prepare()
        case, outcome = self.case, self.outcome
        saved = self._lose() if case.lost else {}
        self.space.write(**case.after)
        plan = self._plan()
        before = self._snapshot() | saved
        owed = before | {key: self._leave_owed(key, stream) for key, stream in saved.items()}
        if plan is None:
            return
        outcome.plan = plan
        announced = Announced(plan)
        outcome.findings += checks.check_plan(plan)
        for deed in case.between:
            self._perform(deed)
            self._wait_for_effects_of(deed)
        middle = self._snapshot() if case.between else owed
        code = self._apply(plan, announced)
        # A part of the files leaves the rest for later.
        is_whole = not case.options.keys() & {"targets", "excludes"}
        outcome.word = (
            OUTCOME_BY_EXIT_CODE.get(code, f"exit {code}") if plan.has_changes or code else "empty"
        )
        if code == 0 and not case.between:
            self._wait_for_copies(case.after if is_whole else case.before_apply)
        after = self._snapshot()
        if self.died and code:
            return
        if code in (1, 3, 4):
            outcome.findings += checks.check_unchanged(middle, after)
            return
        safe = int(case.options.get("safe_below", 0))
        # What an apply has deleted before it was cut off, its successor may announce no more.
        is_exact = not (case.between or safe or case.offline or case.kill is not None)
        slack = None if is_exact else safe
        found = list(checks.check_messages(case, announced, middle, after, slack))
        end = time.monotonic() + LEFT_SOURCE_SECONDS
        while case.first and any(f.kind == "count" for f in found) and time.monotonic() < end:
            time.sleep(0.5)  # a source that left keeps messages of its origin for some seconds
            after = self._snapshot()
            found = list(checks.check_messages(case, announced, middle, after, slack))
        outcome.findings += found
        outcome.findings += checks.check_doubles(announced, before, after)
        if code == 0 and not case.between and is_whole:
            self._check_converged(announced)
            for key in set(self.case.moved.values()) & after.keys():
                outcome.findings.append(Finding("left", "/stream/".join(key), "is still there"))
            self._check_consumers(announced, before, after)
            self._check_notified(after)

    # --- up to the plan ---------------------------------------------------------------------------

    def _prepare(self) -> None:
        case = self.case
        self._apply_all(case.before)
        self._note_starts(case.before)
        for deed in case.load:
            self._perform(deed)
        self._wait_until_settled(case.before)
        if case.first:
            self._apply_earlier()
        if case.reverts and len(read_state(self.space.folder).history) == 1:
            raise SetupError("the earlier apply changed nothing")
        if case.adopts:
            shutil.rmtree(self.space.folder / "state")
        self._note_removed(case.before_apply)

    def _lose(self) -> Snapshot:
        """Back up what gets lost, publish, and delete it; return what the backup has."""
        lost = [stream_at(address) for address in self.case.lost]
        result = backup(
            self.space.load, BackupOptions(self.case.lost, self._folder), RecordingObserver()
        )
        if result.exit_code:
            raise SetupError(f"no backup: {result.manifest.missing}")
        saved = {key: stream for key, stream in self._snapshot().items() if key in lost}
        for deed in self.case.second_load:
            self._perform(deed)
        self._wait_for_copies(self.case.before)
        for body in self.case.before.get("streams", ()) if not self.case.first else ():
            self._wait_for_interest(body, self.case.before)
        for domain, name in lost:
            self.sides[domain].api_ok(f"STREAM.DELETE.{name}")
        return saved

    def _leave_owed(self, key: Key, stream: Stream) -> Stream:
        """Leave out what no consumer is owed: a server may delete that when it restores a stream."""
        if stream.config["retention"] != "interest" or not stream.consumers:
            return stream
        declared = [(k[2], body) for k, _, body in _declared(self.case.before) if k[:2] == key]
        owed = {
            message
            for name, body in declared
            for message in self._log_of(key, name).position.unfinished(
                body, stream.messages.values()
            )
        }
        return replace(stream, messages={s: m for s, m in stream.messages.items() if m in owed})

    @property
    def _folder(self) -> Path:
        return self.space.folder / "backup"

    def _note_removed(self, sections: Sections) -> None:
        """Note what the server may take for acknowledged because a limit removed a later message."""
        for key, _, body in _declared(sections):
            books = self.books.get(key)
            found = self._read_stream(key[:2])
            if books is None or found is None or body.get("ack_policy") != "all":
                continue
            out = books.position.outstanding
            removed = max(out - found.messages.keys(), default=0)
            books.position.acked_or_not = {seq for seq in out if seq <= removed}

    def _apply_earlier(self) -> None:
        """Apply the plan that came before, and publish what came after it."""
        case, before = self.case, self._list_consumers()
        self._apply_all(case.before_apply)
        now = self._list_consumers()
        self.known = {key for key, was in before.items() if now.get(key, was)[:2] == was[:2]}
        for key in self.known & now.keys():
            if now[key][2] != before[key][2]:
                position = self._log_of(key[:2], key[2]).position
                position.passed_or_not.update(range(1, before[key][3] + 1))
        for deed in case.second_load:
            self._perform(deed)
        self._wait_for_copies(case.before_apply)

    def _list_consumers(self) -> dict[tuple[str, str, str], Any]:
        """Each consumer with both creations, its filters, and the last sequence of its stream."""
        return {
            (domain, name, consumer): (
                stream.created,
                info["created"],
                filters_of(info["config"]),
                int(stream.state["last_seq"]),
            )
            for (domain, name), stream in self._snapshot().items()
            for consumer, info in stream.consumers.items()
        }

    def _apply_all(self, sections: Sections) -> None:
        """Apply files of which nothing is judged but that they do not end half way."""
        self.space.write(**sections)
        try:
            _, result = self.space.apply(allow_hazards=EVERYTHING)
        except JsplanError as error:
            raise SetupError(f"no world: {_full_message(error)}") from None
        if result.exit_code:
            errors = "; ".join(f"{s.address} {s.op}: {s.error}" for s in result.steps if s.error)
            if "nothing was written" not in errors:  # a copy acknowledged messages meanwhile
                self.outcome.findings.append(Finding("half-made", self.case.name, errors))
            raise SetupError("the world was made in part")

    def _perform(self, deed: Action) -> None:
        side = self.sides[deed.domain]
        if isinstance(deed, Publish):
            for subject in deed.subjects:
                self._publish(side, subject, deed)
        elif isinstance(deed, Consume):
            self._consume(side, deed)
        else:
            self._ask(side, deed)

    def _publish(self, side: DomainClient, subject: str, deed: Publish) -> None:
        self._count += 1
        body = f"{self.case.name}:{self._count}:".encode().ljust(deed.size, b"x")
        taken = side.publish(subject, body, dict(deed.headers))
        if taken is not None:
            stream, seq = taken
            message = Message(seq, subject, body)
            self.published.setdefault((side.domain, stream), []).append(message)

    def _consume(self, side: DomainClient, deed: Consume) -> None:
        books = self._log_of((deed.domain, deed.stream), deed.consumer)
        info = side.api(f"CONSUMER.INFO.{deed.stream}.{deed.consumer}")
        if "error" in info:  # it may be gone when another person consumes
            return
        taken = side.take(deed.stream, deed.consumer, deed.count)
        policy = info["config"].get("ack_policy", "none")
        for reply in books.record(taken, deed.acks, policy):
            side.raw.request(reply, b"+ACK")

    @staticmethod
    def _ask(side: DomainClient, deed: Ask) -> None:
        payload = deed.payload
        if deed.merge is not None:
            kind, _, name = deed.verb.partition(".")
            name = name.partition(".")[2]
            payload = side.api_ok(f"{kind}.INFO.{name}")["config"] | deed.merge
            if kind == "CONSUMER":
                payload = {"stream_name": name.partition(".")[0], "config": payload}
        side.api_ok(deed.verb, payload)

    # --- waiting for what servers do by themselves --------------------------------------------------

    def _wait_until_settled(self, sections: Sections) -> None:
        """Wait until acknowledgements have had their effect and copies have what their origins hold."""
        for (domain, stream, consumer), books in self.books.items():
            self.sides[domain].wait_for_acks(stream, consumer, len(books.position.outstanding))
        self._wait_for_copies(sections)
        if self.case.first:
            return
        for body in sections.get("streams", ()):
            self._wait_for_interest(body, sections)

    def _wait_for_effects_of(self, deed: Action) -> None:
        """Wait until copies have what a deed published, and acknowledgements have had their effect.

        An interest stream deletes what its mirror has, or what the consumer acknowledged if it is
        still there.
        """
        if isinstance(deed, Publish) and not self.case.first:
            self._wait_for_copies(self.case.before)
            for body in self.case.before.get("streams", ()):
                self._wait_for_interest(body, self.case.before)
        if not isinstance(deed, Consume):
            return
        side, books = (
            self.sides[deed.domain],
            self.books.get((deed.domain, deed.stream, deed.consumer)),
        )
        if books is not None and "error" not in side.api(
            f"CONSUMER.INFO.{deed.stream}.{deed.consumer}"
        ):
            side.wait_for_acks(deed.stream, deed.consumer, len(books.position.outstanding))
            for body in self.case.before.get("streams", ()) if not self.case.first else ():
                if (body["domain"], body["name"]) == (deed.domain, deed.stream):
                    self._wait_for_interest(body, self.case.before)

    def _wait_for_interest(self, body: Body, sections: Sections) -> None:
        """Wait until an interest stream holds no more than it keeps: it deletes after its answer."""
        if body.get("retention") != "interest" or not body.get("subjects"):
            return
        key = (body["domain"], body["name"])
        stands = [(c, self._log_of(key, c["name"]).position) for c in body.get("consumers", ())]
        published, side = self.published.get(key, []), self.sides[key[0]]
        kept = {m.seq for m in kept_by_interest(published, stands)}
        if side.version >= (2, 14):
            readers = [
                o
                for b in sections.get("streams", ())
                for name, o in checks.origins_of(b).items()
                if name == key[1]
            ]
            copied = [m for m in published if any(_is_selected(origin, m) for origin in readers)]
            kept -= {m.seq for m in removed_before_start(published, stands, copied)}

        def settled() -> bool:
            found = side.stream(key[1])
            return found is not None and set(found.messages) <= kept

        what = f"{key[1]} to keep no more than {sorted(kept)}"
        wait_until(settled, what, PATIENCE, SetupError)

    def _log_of(self, key: Key, consumer: str) -> ConsumerLog:
        return self.books.setdefault((*key, consumer), ConsumerLog())

    def _note_starts(self, sections: Sections) -> None:
        """Starts of new consumers: up to 2.10 a start behind the end is the end."""
        for (domain, stream, name), _, _ in _declared(sections):
            given = self.sides[domain].consumer(stream, name)["delivered"]["stream_seq"]
            self._log_of((domain, stream), name).position.start = given + 1

    def _wait_for_copies(self, sections: Sections) -> None:
        """Wait until each copy has all that its origins hold and its files ask for."""
        streams = {b["name"]: b for b in sections.get("streams", ())}
        for body in streams.values():
            for origin in checks.origins_of(body).values():
                known = streams.get(origin["name"])
                if known is not None:
                    self._wait_for_copy(body, known, origin)

    def _wait_for_copy(self, body: Body, known: Body, origin: dict[str, Any]) -> None:
        key, source = (body["domain"], body["name"]), (known["domain"], known["name"])
        # Nothing brings back what the limits before had deleted.
        before = self.case.before_apply.get("streams", ())
        deleting = (b for b in before if b["name"] == body["name"] and b.get("discard") != "new")
        reader = self._read_stream(key)
        limited = any(
            b.get(name, 0) > 0 or b.get("retention") == "interest"
            for b in (body, *deleting, *([reader.config] if reader else ()))
            for name in ("max_msgs", "max_bytes", "max_msgs_per_subject")
        )

        def copied() -> bool:
            there, here = self._read_stream(source), self._read_stream(key)
            if there is None or here is None:
                return True
            if not self.sides[key[0]].is_connected(key[1], source[1]):
                return False
            wanted = {m.body for m in there.messages.values() if _is_selected(origin, m)}
            return limited or wanted <= set(here.bodies)

        wait_until(copied, f"{key[1]} to copy {source[1]}", COPY_TIMEOUT, SetupError)

    def _read_stream(self, key: Key) -> Stream | None:
        return self.sides[key[0]].stream(key[1])

    def _snapshot(self) -> Snapshot:
        found: Snapshot = {}
        for domain, side in self.sides.items():
            for name in side.names(self.case.name):
                stream = side.stream(name)
                if stream is not None:
                    found[domain, name] = stream
        return found

    # --- plan and apply -----------------------------------------------------------------------------

    @property
    def _options(self) -> Body:
        return self.case.options | ({"adopt": True} if self.case.adopts else {})

    def _plan(self) -> Plan | None:
        """None where it cannot even be planned, which changes nothing."""
        options, observer = PlanOptions(**self._options), RecordingObserver()
        shown: list[Plan] = []

        def decline(plan: Plan) -> None:
            shown.append(plan)
            raise JsplanError("this plan is only looked at")

        try:
            if self.case.lost:
                restore(self.space.load, RestoreOptions(self._folder), decline, observer)
            if self.case.reverts:
                *_, last = (entry["id"] for entry in read_state(self.space.folder).history)
                return plan_revert(self.space.load, RevertOptions(last, planning=options), observer)
            return make_plan(self.space.load, options, observer)
        except JsplanError as error:
            if shown:
                return shown[0]
            self.outcome.word, self.outcome.output = "errored", _full_message(error)
            return None

    def _apply(self, plan: Plan, announced: Announced) -> int:
        """Its exit code; a result that is partial is a finding of its own."""
        try:
            result = self._execute(plan, announced.flags)
        except JsplanError as error:
            code = int(error.exit_code)
            self.outcome.output = _full_message(error)
            errors = [f"{d.code} {d.address}: {d.summary}" for d in plan.diagnostics]
            self.outcome.output += "".join(f"\n  {e}" for e in errors) if plan.errored else ""
        else:
            code = result.exit_code
            errors = [f"{s.address} {s.op}: {s.error}" for s in result.steps if s.error]
            self.outcome.output = "; ".join(errors)
        allowed = [0, 1, 3]
        if self.case.between:  # what another person did may stop it half way
            allowed += [4, 6]
        elif self.died:
            allowed = [0]
            if "do not stay in a work queue" in self.outcome.output:
                # That is an upper bound: the consumers are gone by which it was counted.
                return 6
        if code not in allowed:
            text = f"exit {code}: {self.outcome.output}"
            self.outcome.findings.append(Finding("exit", self.case.name, text))
        return code

    def _execute(self, plan: Plan, flags: tuple[str, ...]) -> ApplyResult:
        """Apply, or restore. One that is cut off is followed by another, with no more permissions."""
        with ExitStack() as stack:
            if self.case.kill is not None:
                stack.enter_context(kill_after(self.case.kill))
            if self.case.offline is not None:
                stack.enter_context(offline_after(*self.case.offline))
            with suppress(SimulatedKill):
                result = self._restore(flags) or self.space.apply_saved(plan, allow_hazards=flags)
                if result.exit_code != 6 or self.case.offline is None:
                    return result
        self.died = True
        if restored := self._restore(flags):
            return restored
        return self.space.apply(**self._options, allow_hazards=flags)[1]

    def _restore(self, flags: tuple[str, ...]) -> ApplyResult | None:
        """Restore what was lost, if anything was."""
        if not self.case.lost:
            return None
        options = RestoreOptions(self._folder, allow_hazards=flags)
        return restore(self.space.load, options, approve, RecordingObserver())[1]

    def _check_converged(self, announced: Announced) -> None:
        """The second plan is empty, nothing has drifted, and nothing of jsplan's own is left."""
        note, name = self.outcome.findings.append, self.case.name
        again = self.space.plan()
        # A revert knows what changed on the servers, not which other fields the files had.
        steps = [s for s in again.steps if not (self.case.reverts and s.op == "state.update")]
        if steps or again.has_changes:
            note(Finding("second plan", name, f"{[(s.op, s.address) for s in again.steps]}"))
        declared = {address_of(section, body) for section, body in bodies(self.case.after)}
        drifted = drift(self.space.load, DriftOptions(), RecordingObserver())
        for one in drifted.resource_drift:
            note(Finding("drift", one.address, f"{[f.path for f in one.change.fields]}"))
        discards_new = {
            stream_of(section, body)
            for section, body in bodies(self.case.after)
            if body.get("discard") == "new"
        }
        for flow in drifted.replication:
            removed = flow["from"] not in declared
            full = Address.parse(flow["to"]).stream in discards_new  # takes nothing more
            draining = (flow["cause"] or "").startswith("draining")
            # A source of a restored origin begins again, or waits: both are announced.
            behind = bool(self.case.lost) and announced.is_behind(flow["from"], flow["to"])
            # A server takes up to a minute to see that a stream of this name is there again.
            is_new = announced.actions.get(flow["from"]) == ("create",)
            if not (flow["healthy"] or removed or draining or full or behind or is_new):
                note(Finding("replication", flow["to"], str(flow.get("cause"))))
        for domain, side in self.sides.items():
            left = [n for n in side.names(name) if n.startswith("JSPLAN_")]
            if left:
                note(Finding("orphan", f"{domain}/stream/{left[0]}", "is left"))

    # --- consumers ----------------------------------------------------------------------------------

    def _check_consumers(self, announced: Announced, before: Snapshot, after: Snapshot) -> None:
        """Consume each declared consumer to its end."""
        old = {k: c for k, _, c in _declared(self.case.before_apply)}
        renamed, moved = self.case.renamed, self.case.moved
        new_names = {(*moved[d, s], old): new for (d, s, new), old in renamed.items()}
        for (domain, stream, name), address, body in _declared(self.case.after):
            key = (domain, stream)
            old_key, old_name = self.case.moved.get(key, key), renamed.get((*key, name), name)
            # Where another consumer got its name, it is a new one.
            is_new = old_name == name and (*old_key, name) in new_names
            was = None if is_new else old.get((*old_key, old_name))
            if key not in after or name not in after[key].consumers:
                self.outcome.findings.append(Finding("missing", f"{address}/{name}", "is gone"))
                continue
            if (
                was is not None
                and self.known is not None
                and (*old_key, old_name) not in self.known
            ):
                continue
            books = self._log_of(old_key, old_name)
            got = self.sides[domain].drain(stream, name, books.unacknowledged)
            workqueue = after[key].config["retention"] == "workqueue"
            others = (
                self._log_of(old_key, other)
                for d, s, other in old
                if (d, s) == old_key
                and other != old_name
                and new_names.get((d, s, other), other) in after[key].consumers
            )
            out = {seq for other in others for seq in other.position.outstanding}
            one = ConsumedResult(
                key, address, was, body, books, got, workqueue, frozenset(out), old_key
            )
            self.outcome.findings += checks.check_consumer(announced, one, before, after)

    def _check_notified(self, after: Snapshot) -> None:
        """Check that each consumer is notified of a new message."""
        for (domain, stream, name), address, body in _declared(self.case.after):
            now = after.get((domain, stream))
            subjects = now.config.get("subjects") if now else None
            if not subjects or now is None or name not in now.consumers:
                continue
            if now.config.get("subject_transform"):  # it is stored under another subject
                continue
            subject = (filters_of(body) or subjects)[0].replace(">", "a")
            side = self.sides[domain]
            taken = side.publish(subject, f"{self.case.name}:{name}:new".encode(), {})
            if taken is None or taken[0] != stream:
                continue
            try:
                side.wait_until_notified(stream, name, taken[1])
            except SetupError as error:
                self.outcome.findings.append(
                    Finding("not notified", f"{address}/{name}", str(error))
                )


def _declared(sections: Sections) -> Iterator[tuple[tuple[str, str, str], str, Body]]:
    """Every declared consumer: domain, stream and name; the stream's address; its configuration."""
    for section, body in bodies(sections):
        for consumer in body.get("consumers", ()):
            key = (str(body["domain"]), stream_of(section, body), str(consumer["name"]))
            yield key, address_of(section, body), consumer


def _is_selected(origin: dict[str, Any], message: Message) -> bool:
    """Return True if a mirror or source copies the message."""
    if message.seq < int(origin.get("opt_start_seq") or 0):
        return False
    pattern = origin.get("filter_subject")
    return not pattern or passes(pattern, message.subject)


def _full_message(error: JsplanError) -> str:
    found: Iterable[Any] = getattr(error, "diagnostics", ())
    lines = [f"{d.code} {d.address}: {d.summary}" for d in found if d.severity == "error"]
    return "\n  ".join([error.full_text, *lines])
