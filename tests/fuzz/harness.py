"""Hostile documents, drawn and shrunk by hypothesis, and read in a forked process."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

import jsplan
from jsplan.documents.lock import Lock
from jsplan.documents.plan import Plan
from jsplan.documents.reading import find_flaw
from jsplan.errors import JsplanError
from jsplan.state import State
from jsplan.state.document import JournalLine
from tests.fuzz.changes import changed_document, form_of
from tests.fuzz.document_run import DocumentRun, Violation
from tests.fuzz.documents import Document, dump, load, size
from tests.fuzz.guard import GUARD, StoppedDocument, install

FOUND: Final = Path(__file__).parent / "found"
#: A folder in memory, if there is one.
MEMORY: Final = Path("/dev/shm")
#: The part that marks seeds that must be refused.
WRONG: Final = "$wrong"
#: Documents that one process reads before the next replaces it.
CHUNK: Final = 500


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

    @property
    def kept(self) -> list[Path]:
        """The documents that found something once."""
        return sorted((FOUND / self.name).glob("*.json"))


class Reader:
    """Reads documents in its folder, and prints those that fail. `failures` counts them."""

    def __init__(self, target: Target, base: Path) -> None:
        self.target, self.base = target, base
        #: The document that is read, for the parent of a process that dies.
        self.begun = base.with_suffix(".json")
        self.begun.touch()
        self.failures = 0

    def read(self, document: Document, *, is_seed: bool = False) -> None:
        """Let jsplan read a document in this process, after `install`.

        A seed must not be refused.
        """
        self.begun.write_text(dump(document), "utf-8")
        scene = DocumentRun(self.base, document)
        scene.prepare()
        allowed = max(1.0, -(-size(document) // 1024))
        try:
            with GUARD.watching((scene.ws,), scene.tmp, allowed, scene.named()):
                try:
                    self.target.run(scene)
                except JsplanError as error:
                    scene.check_refusal(error)
        except (Exception, StoppedDocument):
            if not GUARD.seen:
                raise
        finally:
            scene.clear()
        if GUARD.seen:
            raise Violation(GUARD.seen[0])
        if is_seed and scene.refusals and WRONG not in document:
            raise Violation("is refused", "\n".join(scene.refusals))

    def read_kept(self) -> None:
        """Read the kept documents and the seeds."""
        documents = [load(path) for path in self.target.kept]
        for document in documents:
            self._report(partial(self.read, document))
        seeds = {dump(document): document for document in self.target.documents}
        for document in seeds.values():
            self._report(partial(self.read, document, is_seed=True))
        print(f"{self.target.name}: {len(documents)} kept documents, {len(seeds)} seeds")

    def read_changed(self, number: int, count: int) -> None:
        """Read `count` changed documents; hypothesis shrinks one that fails."""
        target = self.target

        @seed(number)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        )
        @given(changed_document(target))
        def search(document: Document) -> None:
            self.read(document)

        self._report(search)

    def _report(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - any exception is a failure
            self.failures += 1
            shown = traceback.format_exc()[-4000:]
            print(f"--- {self.target.name}: {shown}{self.begun.read_text('utf-8')}", flush=True)


def run(target: Target, work: Callable[[Reader], None]) -> int:
    """Do the work with a reader in a forked process; return the number of failures."""
    _preload()
    assert target.documents, f"{target.name} has no seeds"
    base = Path(tempfile.mkdtemp(prefix="jsplan-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
    reader = Reader(target, base)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            install()
            work(reader)
            code = 2 if reader.failures else 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):  # SIGXCPU: it computes in C for too long
        name = signal.Signals(os.WTERMSIG(status)).name
        print(f"--- {target.name}: the process dies of {name}\n{reader.begun.read_text('utf-8')}")
    shutil.rmtree(base, ignore_errors=True)
    reader.begun.unlink(missing_ok=True)
    return int(status != 0)


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
    _read_constants()
    gc.freeze()


@settings(max_examples=1, database=None)
@given(st.integers())
def _read_constants(_number: int) -> None:
    """Let hypothesis look for constants in all modules, which it does with its first number."""
