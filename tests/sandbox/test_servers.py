from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from jsplan.errors import SandboxError
from jsplan.sandbox import Sandbox
from tests.support.raw import NoResponders, Raw, publish, streams

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer


def client(server: Server, timeout: float = 5.0) -> Raw:
    return Raw(server.url, server.user, server.password, timeout)


def test_a_single_server_answers_without_credentials_and_without_a_domain(server: Server) -> None:
    """A single server lets every client use $JS.API and belongs to no domain."""
    with client(server) as raw:
        assert "domain" not in raw.api_ok("$JS.API.INFO")
        assert raw.info["server_name"] == "server-server"


def test_a_server_with_a_domain_answers_its_prefix(make_server: MakeServer) -> None:
    """A server with a domain answers under $JS.<domain>.API."""
    server = make_server(domain="plant", accounts=True)

    with client(server) as raw:
        assert raw.api_ok("$JS.plant.API.INFO")["domain"] == "plant"
    assert ("acc", "acc") == (server.user, server.password)


def test_jetstream_can_be_left_out(make_server: MakeServer) -> None:
    """A server without JetStream accepts clients and has no responder behind $JS.API."""
    with client(make_server(jetstream=False)) as raw, pytest.raises(NoResponders):
        raw.api("$JS.API.INFO")


@pytest.mark.parametrize(("strict", "refused"), [(True, True), (False, False)])
def test_the_strict_flag_decides_about_unknown_fields(
    make_server: MakeServer, strict: bool, refused: bool
) -> None:
    """With strict an unknown request field is an error, without it is dropped in silence."""
    with client(make_server(strict=strict)) as raw:
        assert refused == ("error" in raw.api("$JS.API.STREAM.NAMES", {"_probe": 1}))


def test_extra_text_reaches_the_server(make_server: MakeServer) -> None:
    """Extra configuration text is in the configuration of the server."""
    assert make_server(extra="max_payload: 4321").info()["max_payload"] == 4321


def test_a_refused_configuration_is_reported_in_the_servers_words(make_server: MakeServer) -> None:
    """A server that ends at once raises SandboxError with the line of its log that says why."""
    with pytest.raises(
        SandboxError, match=r"unknown_word_in_configuration|does not accept clients"
    ):
        make_server(extra="unknown_word_in_configuration: 1")


def test_stored_messages_and_the_port_survive_a_restart(make_server: MakeServer) -> None:
    """A restarted server has the same URL and every acknowledged message."""
    server = make_server()
    with client(server) as raw:
        raw.create("KEPT")
    publish(server.url, None, None, "KEPT", b"one", b"two")
    url, pid = server.url, server.pid

    server.restart()

    assert (url, True) == (server.url, pid != server.pid)
    with client(server) as raw:
        assert raw.state("KEPT")["messages"] == 2


def test_a_killed_server_is_down_until_it_is_started_again(make_server: MakeServer) -> None:
    """A killed server accepts no connection until it is started again."""
    server = make_server()
    with client(server) as raw:
        raw.create("KEPT")

    server.kill()

    assert not server.is_running
    with pytest.raises(ConnectionRefusedError):
        client(server)
    with pytest.raises(SandboxError, match="is not running"):
        _ = server.pid
    server.start()
    with client(server) as raw:
        assert ["KEPT"] == streams(raw)


def test_a_paused_server_is_silent_and_continues_when_resumed(make_server: MakeServer) -> None:
    """A paused server keeps its connections; resumed, it answers what it was sent meanwhile."""
    server = make_server()
    with client(server, timeout=0.3) as raw, client(server) as patient:
        patient.subscribe("echo")
        server.pause()
        assert (True, True) == (server.is_running, server.paused)
        with pytest.raises(TimeoutError):
            raw.api("$JS.API.INFO")
        patient.publish("echo", b"sent while paused")
        server.resume()
        assert patient.next_message()[2] == b"sent while paused"


def test_a_paused_server_can_be_stopped(make_server: MakeServer) -> None:
    """A paused server can be stopped without being resumed."""
    server = make_server()
    server.pause()

    server.stop()

    assert (False, False) == (server.is_running, server.paused)


def test_stopping_and_starting_twice_changes_nothing(make_server: MakeServer) -> None:
    """A second start keeps the process, a second stop is no error."""
    server = make_server()
    pid = server.pid

    server.start()
    assert pid == server.pid

    server.stop()
    server.stop()
    server.kill()
    assert not server.is_running


def test_a_folder_of_ones_own_is_kept(tmp_path: Path) -> None:
    """A sandbox with `folder` keeps configuration, log and data, and a second one uses them."""
    for _ in range(2):
        with Sandbox.single(folder=tmp_path / "kept") as sandbox, client(sandbox["server"]) as raw:
            raw.create("KEPT")

    assert {"accounts.conf", "server.conf", "server.log", "server.store"} == {
        path.name for path in (tmp_path / "kept").iterdir()
    }


def test_a_temporary_folder_is_removed(make_server: MakeServer) -> None:
    """Without `folder` nothing stays on the disk, also when the sandbox is closed twice."""
    sandbox = Sandbox.single()
    with sandbox:
        assert sandbox["server"].log_path.exists()
    sandbox.close()

    assert not sandbox.folder.exists()


def test_reservations_do_not_depend_on_the_disk(server: Server) -> None:
    """A stream may reserve a terabyte, so that examples run on small machines."""
    with client(server) as raw:
        raw.create("BIG", max_bytes=1 << 40)


async def test_a_sandbox_serves_async_code_without_a_thread(make_server: MakeServer) -> None:
    """A sandbox is a plain context manager in an event loop too."""
    with Sandbox.single() as sandbox, client(sandbox["server"]) as raw:
        assert json.loads(raw.request("$JS.API.INFO")[1])["streams"] == 0


def test_a_server_that_ended_at_once_is_not_ready(make_server: MakeServer) -> None:
    """wait_until and wait_ready fail if a started server has ended."""
    with Sandbox.single() as sandbox:
        os.kill(sandbox["server"].pid, signal.SIGKILL)
        while sandbox["server"].is_running:
            time.sleep(0.001)

        with pytest.raises(SandboxError, match="does not accept clients"):
            sandbox.wait_ready()
        sandbox.start()
        assert sandbox["server"].is_running
