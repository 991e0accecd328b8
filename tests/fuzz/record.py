"""Record seeds: `python -m tests.fuzz.record` runs workflows against real servers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import yaml

from jsplan.cli.main import main
from jsplan.jetstream import pool
from jsplan.jetstream.connection import Inbox, InboxMessage, NatsConnection
from jsplan.sandbox import Sandbox
from jsplan.state import bucket
from tests.fuzz.documents import Document, dump, text_of
from tests.fuzz.played_server import ANSWER, GREETING, MANY
from tests.support.raw import Raw

T = TypeVar("T")

SEEDS: Final = Path(__file__).parent / "seeds"
#: What of the greeting of a server is recorded.
GREETED: Final = (
    "server_name", "version", "domain", "jetstream", "max_payload", "api_lvl", "cluster",
)  # fmt: skip
WRITES: Final = (".CREATE", ".UPDATE", ".DELETE", ".PURGE", ".RESTORE.", "$KV.")


class RecordedLink(NatsConnection):
    """A link that records every request with its answers."""

    answers: ClassVar[dict[str, list[bytes]]] = defaultdict(list)
    many: ClassVar[dict[str, bytes]] = {}
    greeting: ClassVar[dict[str, Any]] = {}
    #: True if the same request may get another answer, and later the first one again.
    changing: ClassVar[bool] = False

    async def request(
        self,
        subject: str,
        payload: bytes,
        timeout: float | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Send the request and record the answer."""
        RecordedLink.greeting = {name: self.server[name] for name in GREETED if name in self.server}
        try:
            answer = await super().request(subject, payload, timeout, headers=headers)
        except Exception as error:
            if type(error).__name__ == "NoRespondersError":
                self.remember(subject, payload, b"!no responders")
            raise
        self.remember(subject, payload, answer)
        return answer

    @classmethod
    def remember(cls, subject: str, payload: bytes, answer: bytes) -> None:
        """Record one answer."""
        key = (
            subject
            if not payload or any(word in subject for word in WRITES)
            else f"{subject} {text_of(payload)}"
        )
        if cls.changing or cls.answers[key][-1:] != [answer]:
            cls.answers[key].append(answer)

    async def request_many(
        self, subject: str, payload: bytes, timeout: float | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Send the request and record its answers."""
        answers = await super().request_many(subject, payload, timeout)
        self.many[subject] = json.dumps(
            [[text_of(block), text_of(data)] for block, data in answers]
        ).encode()
        return answers

    async def request_each(
        self,
        requests: Sequence[tuple[str, bytes]],
        parse: Callable[[int, bytes], T],
        timeout: float | None = None,
        *,
        unheard: Callable[[int], T] | None = None,
    ) -> list[T]:
        """Send the requests one by one, and record their answers; each has one."""
        del unheard
        return [
            parse(number, await self.request(subject, payload, timeout))
            for number, (subject, payload) in enumerate(requests)
        ]

    @contextlib.asynccontextmanager
    async def open_inbox(self, subject: str | None = None, queue: str = "") -> AsyncIterator[Inbox]:
        """Open an inbox whose messages are recorded as answers to the last publish."""
        async with super().open_inbox(subject, queue) as inbox:
            yield _RecordedInbox(inbox, self)

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Publish, and keep the request for the inbox."""
        self.last_published = subject, payload
        await super().publish(subject, payload, reply)


class _RecordedInbox(Inbox):
    def __init__(self, inbox: Inbox, link: RecordedLink) -> None:
        self.subject, self._inbox, self._recorded = inbox.subject, inbox, link
        self._connection = link

    async def next(self, timeout: float, waiting_for: str) -> InboxMessage:
        message = await self._inbox.next(timeout, waiting_for)
        self._recorded.remember(*self._recorded.last_published, message.data)
        return message


def record(
    folder: Path, files: dict[str, Any], *args: str, known: tuple[str, ...] = ()
) -> Document:
    """Run one command and return its seed: the files before it, the command, the answers."""
    (folder / "jsplan.yaml").write_text(json.dumps(files), "utf-8")
    neutral = json.loads(json.dumps(files))
    neutral["connections"]["main"]["url"] = "nats://127.0.0.1:4222"
    document: Document = {
        "$": " ".join(args).encode(),
        "jsplan.yaml": json.dumps(neutral, indent=1).encode(),
    }
    for name in ("state/w.json", *known):
        if (folder / name).exists():
            document[name] = (folder / name).read_bytes()
    RecordedLink.answers.clear()
    RecordedLink.many.clear()
    RecordedLink.changing = args[0] in ("apply", "restore", "destroy")
    out, err = io.StringIO(), io.StringIO()
    os.chdir(folder)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    print(f"{' '.join(args)}: {code}", err.getvalue()[-300:] if code not in (0, 2) else "")
    document[GREETING] = json.dumps(RecordedLink.greeting).encode()
    for key, answers in RecordedLink.answers.items():
        for number, answer in enumerate(answers, 1):
            document[f"{ANSWER}{key}{f' #{number}' if number > 1 else ''}.json"] = answer
    return document | {
        f"{MANY}{subject}.json": content for subject, content in RecordedLink.many.items()
    }


def main_() -> None:
    """Write the seeds."""
    pool.NatsConnection = bucket.NatsConnection = RecordedLink  # type: ignore[attr-defined]
    os.environ |= {"HOME": tempfile.mkdtemp(), "USER": "dev", "LOGNAME": "dev"}
    socket.gethostname = lambda: "host"
    SEEDS.mkdir(exist_ok=True)
    with Sandbox.hub_and_leaf() as sandbox, tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), sandbox["hub"].url
        base = yaml.safe_load((SEEDS / "recorded.yaml").read_bytes())
        base["connections"]["main"]["url"] = url
        seeds = {
            "create": record(folder, base, "plan", "-o", "create.plan"),
            "apply": record(folder, base, "apply", "-y"),
        }
        with Raw(url, "acc", "acc") as raw:
            for number in range(40):
                raw.publish(f"A.{'one' if number % 2 else 'two'}", b"x" * 100)
            raw.api_ok("$JS.hub.API.STREAM.MSG.DELETE.A", {"seq": 7})
            raw.wait_for("A", 39, "hub")
        seeds["unchanged"] = record(folder, base, "plan")
        seeds["status"] = record(folder, base, "status")
        reduced = json.loads(json.dumps(base))
        reduced["streams"][0] |= {"max_msgs": 10, "max_age": "1d"}
        reduced["streams"][1]["max_msgs_per_subject"] = 1
        reduced["kv"], reduced["streams"][0]["consumers"][0]["filter_subject"] = [], "A.two"
        seeds["change"] = record(
            folder, reduced, "plan", "-o", "change.plan", "--allow-hazard", "DELETES_MESSAGES"
        )
        with Raw(url, "acc", "acc") as raw:
            raw.api_ok(
                "$JS.hub.API.STREAM.CREATE.X",
                {"name": "X", "subjects": ["X"], "allow_direct": True},
            )
            config = raw.api_ok("$JS.hub.API.STREAM.INFO.S")["config"]
            raw.api_ok("$JS.hub.API.STREAM.UPDATE.S", config | {"description": "someone else"})
        seeds["drift"] = record(folder, base, "drift")
        importing = "import --all --domain hub --generate-config new.jsplan.yaml -y"
        seeds["import"] = record(folder, base, *importing.split())
        (folder / "new.jsplan.yaml").unlink(missing_ok=True)
        seeds["discover"] = record(folder, base, "domains", "discover")
        seeds["access"] = record(folder, base, "access", "--check")
        pool.NatsConnection = NatsConnection  # type: ignore[attr-defined]
        main(["backup", "hub/stream/A", "hub/stream/S", "saved"])
        pool.NatsConnection = RecordedLink  # type: ignore[attr-defined]
        saved = tuple(
            str(path.relative_to(folder))
            for path in (folder / "saved").iterdir()
            if path.name != ".lock"
        )
        with Raw(url, "acc", "acc") as raw:
            raw.api_ok("$JS.hub.API.STREAM.DELETE.A")
        seeds["restore"] = record(folder, base, "restore", "saved", "-y", known=saved)
        allowed = "--allow-hazard DELETES_STREAM --allow-hazard BREAKS_REPLICATION"
        seeds["destroy"] = record(folder, base, "destroy", "-y", *allowed.split())
        plans = {
            f"{name}.plan": (folder / f"{name}.plan").read_bytes() for name in ("create", "change")
        }
    for name, document in seeds.items():
        (SEEDS / f"{name}.json").write_text(dump(document), "utf-8")
    (SEEDS / "plans.json").write_text(dump(plans), "utf-8")


if __name__ == "__main__":
    main_()
