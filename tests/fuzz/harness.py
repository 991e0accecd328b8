"""Documents of a seed, each read in a forked process. `findings` handles the failures."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import mmap
import os
import pkgutil
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Final

import jsplan
from jsplan.documents.lock import Lock
from jsplan.documents.plan import Plan
from jsplan.documents.reading import find_flaw
from jsplan.errors import JsplanError
from jsplan.state import State
from jsplan.state.document import JournalLine
from tests.fuzz.consistent_changes import fill_maps, rename_value
from tests.fuzz.document_run import DocumentRun, Violation, error_location
from tests.fuzz.documents import Document, size
from tests.fuzz.guard import GUARD, StoppedDocument, install
from tests.fuzz.mutate import form_of, mutate_part

#: A folder in memory, if there is one.
MEMORY: Final = Path("/dev/shm")
#: The failure of a seed that jsplan refuses, which is old or wrong.
REFUSED: Final = "is refused"
#: The part that marks seeds that must be refused.
WRONG: Final = "$wrong"
#: Documents that one process reads before the next replaces it.
CHUNK: Final = 400
#: Different failures after which a run ends.
MAX_FAILURES: Final = 25


@dataclass(frozen=True)
class Target:
    """One reader of documents. `seeds` makes correct documents, `run` lets jsplan read one."""

    name: str
    seeds: Callable[[], list[Document]]
    run: Callable[[DocumentRun], None]
    #: The parts that are changed, and hostile words of this target.
    changes: Callable[[str], bool] = lambda name: not name.startswith("$")
    words: tuple[str, ...] = ()
    #: The format of a part, where its name does not say so.
    form: Callable[[str], str] = form_of
    #: The share of the documents of a soak.
    share: int = 1

    @cached_property
    def documents(self) -> list[Document]:
        """The seeds, made once."""
        return self.seeds()

    def document(self, seed: int, number: int) -> Document:
        """Return the document of this number, which depends on nothing else."""
        dice = Random(f"{self.name} {seed} {number}")
        document = dict(dice.choice(self.documents))
        parts = [name for name in document if self.changes(name)]
        if (whole := dice.random()) < 0.15:
            return (rename_value if whole < 0.1 else fill_maps)(document, parts, dice, self.words)
        for _ in range(dice.choice((1, 1, 1, 1, 2, 3))):
            name = dice.choice(parts)
            others = [other[name] for other in self.documents if name in other]
            draw = dice.random()
            if draw < 0.01:
                document[name] = dice.choice(
                    (
                        b"",
                        b"!pipe",
                        b"!folder",
                        b"!symlink ../outside/secret.txt",
                        b"!symlink /dev/zero",
                        document[dice.choice(parts)],
                    )
                )
            else:
                document[name] = mutate_part(
                    document[name], self.form(name), dice, others, self.words
                )
        return document


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a document. `key` is the same for the same bug."""

    key: str
    detail: str


@dataclass(slots=True)
class FoundFailure:
    """A failure with its first document and its count."""

    failure: Failure
    number: int
    document: Document
    count: int = 1


@dataclass(slots=True)
class Report:
    """The documents and failures of a run."""

    target: Target
    documents: int = 0
    seconds: float = 0.0
    found: dict[str, FoundFailure] = field(default_factory=dict)

    def add(self, number: int, document: Document, failure: Failure) -> None:
        """Add a failing document."""
        known = self.found.get(failure.key)
        if known is None:
            self.found[failure.key] = FoundFailure(failure, number, document)
        else:
            known.count += 1


# --- Read one document


def read(target: Target, document: Document, base: Path, *, seed: bool = False) -> Failure | None:
    """Let jsplan read a document in this process, after `install`.

    A `seed` must not be refused.
    """
    scene = DocumentRun(base, document)
    scene.prepare()
    allowed = max(1.0, -(-size(document) // 1024))
    failure = None
    try:
        with GUARD.watching((scene.ws,), scene.tmp, allowed, scene.named()):
            failure = _read(target, scene)
    except StoppedDocument:
        pass
    finally:
        scene.clear()
    if GUARD.seen:
        action = GUARD.seen[0]
        key = (
            action
            if action.startswith(("computes", "waits", "compiles"))
            else action.split(" ")[0] + " " + action.rpartition(" ")[2]
        )
        return Failure(key, f"{action}\n{failure.detail if failure else ''}")
    if seed and failure is None and scene.refusals and WRONG not in document:
        return Failure(REFUSED, "\n".join(scene.refusals))
    return failure


def _read(target: Target, scene: DocumentRun) -> Failure | None:
    try:
        target.run(scene)
    except Violation as violation:
        return Failure(violation.key, violation.detail)
    except JsplanError as error:
        try:
            scene.check_refusal(error)
        except Violation as violation:
            return Failure(violation.key, violation.detail)
    except Exception:  # noqa: BLE001 - any other exception is a failure
        text = traceback.format_exc()
        return Failure(f"raises {error_location(text)}", text[-3000:])
    return None


# --- Read many documents


def _forked(
    target: Target,
    documents: Iterable[tuple[int, Document]],
    at: mmap.mmap,
    report_failure: Callable[[int, Failure], None],
    *,
    seeds: bool = False,
) -> int:
    """Read the documents in a forked process and return its exit status.

    `at` has the number of the document that it began last.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    base = Path(tempfile.mkdtemp(prefix="jsplan-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(target, documents, at, writer, base, seeds=seeds)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            number, key, detail = json.loads(line)
            report_failure(number, Failure(key, detail))
    status = os.waitpid(child, 0)[1]
    shutil.rmtree(base, ignore_errors=True)  # also after a process that died
    return status


def _child(
    target: Target,
    documents: Iterable[tuple[int, Document]],
    at: mmap.mmap,
    writer: int,
    base: Path,
    *,
    seeds: bool,
) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        install()
        for number, document in documents:
            at[:8] = struct.pack("q", number)
            failure = read(target, document, base, seed=seeds)
            if failure is not None:
                os.write(writer, json.dumps([number, failure.key, failure.detail]).encode() + b"\n")
                gc.collect()
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


@cache
def _preload() -> None:
    """Import all of jsplan once, so that no forked process does so."""
    for found in pkgutil.walk_packages(jsplan.__path__, "jsplan."):
        if found.name != "jsplan.__main__":
            importlib.import_module(found.name)
    with contextlib.suppress(ImportError):
        importlib.import_module("pandas")  # pyarrow imports it with its first array
    for kind in (Plan, State, JournalLine, Lock):
        find_flaw({}, kind)  # prepares the structs
    gc.freeze()


def check_document(target: Target, document: Document) -> Failure | None:
    """Return the failure of one document, or None."""
    _preload()
    failures: list[Failure] = []
    with mmap.mmap(-1, 8) as at:
        status = _forked(target, [(0, document)], at, lambda _, failure: failures.append(failure))
    return failures[0] if failures else _describe_exit(status)


def check_documents(
    target: Target, documents: Mapping[str, Document], *, seeds: bool = False
) -> dict[str, Failure]:
    """Return the failures of the documents, by name."""
    found: dict[str, Failure] = {}
    names = [*documents]
    _preload()
    with mmap.mmap(-1, 8) as at:
        pending = range(len(names))
        while pending:
            status = _forked(
                target,
                ((n, documents[names[n]]) for n in pending),
                at,
                lambda n, failure: found.update({names[n]: failure}),
                seeds=seeds,
            )
            death = _describe_exit(status)
            if death is None:
                break
            number = struct.unpack("q", at[:8])[0]
            found[names[number]] = death
            pending = range(number + 1, len(names))
    return found


def _describe_exit(status: int) -> Failure | None:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Failure(
            f"the process dies of {name}",
            "computing in C for too long" if name == "SIGXCPU" else "",
        )
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError("the fuzzer itself failed")
    return None


def run(
    target: Target,
    seed: int,
    numbers: range,
    *,
    most: int = MAX_FAILURES,
    clock: Callable[[], float] = lambda: sum(os.times()[:4]),
) -> Report:
    """Read the documents of these numbers. `seconds` of the report are CPU time."""
    _preload()
    report, begun, chunks = Report(target), clock(), iter(_chunks(numbers))
    assert target.documents, f"{target.name} has no seeds"
    with mmap.mmap(-1, 8) as at:
        for chunk in chunks:
            pending = chunk
            while pending and len(report.found) < most:
                status = _forked(
                    target,
                    ((n, target.document(seed, n)) for n in pending),
                    at,
                    lambda n, failure: report.add(n, target.document(seed, n), failure),
                )
                death = _describe_exit(status)
                if death is None:
                    break
                number = struct.unpack("q", at[:8])[0]
                report.add(number, target.document(seed, number), death)
                pending = range(number + 1, chunk.stop)
            report.documents = chunk.stop - numbers.start
            if len(report.found) >= most:
                break
    report.seconds = clock() - begun
    return report


def _chunks(numbers: range) -> Iterator[range]:
    for start in range(numbers.start, numbers.stop, CHUNK):
        yield range(start, min(start + CHUNK, numbers.stop))
