from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import orjson
import pytest

from jsplan.errors import SandboxError
from jsplan.sandbox import Sandbox, shapes
from jsplan.sandbox.foreground import (
    DOCUMENTED_PORTS,
    SandboxDescription,
    describe,
    make_sandbox,
    run_in_foreground,
)
from tests.support.raw import api

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = textwrap.dedent("""
    import orjson
    from jsplan.sandbox.foreground import make_sandbox, run_in_foreground
    run_in_foreground(make_sandbox("hub-and-leaf"), lambda described: print(orjson.dumps(described.to_json()).decode(), flush=True))
    print("stopped", flush=True)
""")


def test_a_description_is_enough_to_connect(hub_leaf: Sandbox) -> None:
    """URL, user and password of the description reach the domain."""
    described = describe(hub_leaf)

    hub, leaf = described.servers
    account = described.users[0]
    assert ("ACC", "hub", "leaf") == (account["account"], hub["domain"], leaf["domain"])
    assert (
        api(leaf["url"], account["user"], account["password"], "$JS.hub.API.INFO")["domain"]
        == "hub"
    )


def test_a_server_without_accounts_has_no_users_to_describe() -> None:
    """A sandbox without accounts describes no users."""
    with Sandbox.single() as sandbox:
        assert describe(sandbox).users == ()


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_up_runs_until_a_signal_and_ends_in_order(ended_by: signal.Signals) -> None:
    """Ctrl-C and SIGTERM stop every server, after which the caller continues normally."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        described = orjson.loads(process.stdout.readline())
        url = described["servers"][0]["url"]
        assert api(url, "acc", "acc", "$JS.leaf.API.INFO")["domain"] == "leaf"

        process.send_signal(ended_by)

        assert process.stdout.read() == "stopped\n"
        assert process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        api(url, "acc", "acc", "$JS.API.INFO")


def test_up_ends_when_one_of_its_servers_does() -> None:
    """A server that ends by itself is an error; the others are stopped."""
    sandbox = make_sandbox("hub-and-leaf")

    def kill_leaf(described: SandboxDescription) -> None:
        sandbox["leaf"].kill()

    with pytest.raises(SandboxError, match="leaf has ended by itself"):
        run_in_foreground(sandbox, kill_leaf)
    assert not sandbox["hub"].is_running


def test_up_can_be_ended_from_another_thread(tmp_path: Path) -> None:
    """Outside of the main thread the event ends it, and no signal handler is changed."""
    stop, before = threading.Event(), signal.getsignal(signal.SIGINT)
    sandbox = make_sandbox("single", domain="plant", folder=tmp_path)
    thread = threading.Thread(
        target=run_in_foreground, args=(sandbox, lambda _: stop.set()), kwargs={"stop": stop}
    )

    thread.start()
    thread.join(30)

    assert (False, before) == (thread.is_alive(), signal.getsignal(signal.SIGINT))
    assert not sandbox["server"].is_running


def test_a_signal_that_comes_while_the_event_is_locked() -> None:
    """Ctrl-C ends it also at the moment in which the main thread holds the lock of its event."""

    class Locked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            del timeout
            with self._cond:  # type: ignore[attr-defined]  # as Event.wait does
                signal.raise_signal(signal.SIGINT)
            return False

    sandbox = make_sandbox("single")
    run_in_foreground(sandbox, lambda _: None, stop=Locked())
    assert not sandbox["server"].is_running


def test_the_documented_ports_are_names_of_listeners() -> None:
    """Every listener that has a documented port exists in that shape."""
    asked: set[str] = set()

    def port_of(name: str) -> int:
        asked.add(name)
        return 0

    layouts = [shapes.hub_and_leaf(port_of), shapes.single(port_of), shapes.cluster(port_of)]

    assert set(DOCUMENTED_PORTS) == {layout.shape for layout in layouts}
    assert {name for ports in DOCUMENTED_PORTS.values() for name in ports} <= asked


def test_a_cluster_is_made_by_its_name() -> None:
    """`make_sandbox` knows each shape."""
    sandbox = make_sandbox("cluster", domain="c")

    assert ("cluster", ["n1", "n2", "n3"]) == (sandbox.layout.shape, list(sandbox.servers))
    sandbox.close()
