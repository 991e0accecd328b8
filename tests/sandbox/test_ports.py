from __future__ import annotations

import socket

import pytest

from jsplan.errors import SandboxError
from jsplan.sandbox import Sandbox
from jsplan.sandbox.servers import Ports
from jsplan.sandbox.shapes import HOST


def test_a_listener_has_one_port_for_good() -> None:
    """Each listener name has one port, and no two names share one."""
    ports = Ports()

    assert ports("hub") == ports("hub") != ports("leaf")

    ports.release()


def test_a_held_port_is_given_only_once() -> None:
    """A held port can be bound only with the option to share it; released, by any process."""
    ports = Ports()
    port = ports("hub")

    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, port))
    ports.release()
    with socket.socket() as other:
        other.bind((HOST, port))


def test_a_port_that_was_asked_for_is_used() -> None:
    """A sandbox listens on the port that it was given."""
    free = Ports()
    port = free("any")
    free.release()

    with Sandbox.single(ports={"server": port}) as sandbox:
        assert f"nats://{HOST}:{port}" == sandbox["server"].url
        assert sandbox["server"].info()["port"] == port


def test_a_port_in_use_is_reported() -> None:
    """A port on which another process listens is an error that names port and listener."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SandboxError, match=f"port {port} for hub.leafnodes"):
            Sandbox.hub_and_leaf(ports={"hub.leafnodes": port})
