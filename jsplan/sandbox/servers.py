"""One embedded nats-server: start, stop, kill, pause; its ports; and whether it is ready.

The sandbox is used inside and outside of event loops, so the client that asks is a blocking one.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import nkeys  # type: ignore[import-untyped]  # it has no stubs

from jsplan.errors import SandboxError
from jsplan.sandbox import shapes
from jsplan.sandbox.guardian import get_guardian

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from jsplan.sandbox.shapes import User


#: Seconds that a server may take to start; measured: 5 to 20 ms, more on a loaded machine.
START_TIMEOUT = 20.0
#: Seconds after which a server that was asked to stop is killed.
STOP_TIMEOUT = 10.0


class Server:
    """One nats-server with its files `NAME.conf`, `NAME.log` and `NAME.store/` in `folder`.

    A stopped or killed server keeps its port and its data; `start` uses both again.
    """

    def __init__(self, node: shapes.Node, binary: Path, folder: Path) -> None:
        self.node = node
        self.binary = binary
        self.folder = folder
        self.paused = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The name in the sandbox (`hub`, `leaf`, `server`, `n1`)."""
        return self.node.name

    @property
    def url(self) -> str:
        """The client URL, without credentials."""
        return self.node.url

    @property
    def port(self) -> int:
        """The client port on 127.0.0.1."""
        return self.node.port

    @property
    def user(self) -> str | None:
        """The user of JetStream clients; None if no login is needed."""
        return self.node.user.user

    @property
    def password(self) -> str | None:
        """The password of `user`."""
        return self.node.user.password

    @property
    def config_path(self) -> Path:
        """The configuration file."""
        return self.folder / f"{self.name}.conf"

    @property
    def log_path(self) -> Path:
        """The server's log, appended to at every start."""
        return self.folder / f"{self.name}.log"

    @property
    def store_path(self) -> Path:
        """The folder of its JetStream data."""
        return self.folder / f"{self.name}.store"

    @property
    def is_running(self) -> bool:
        """True if the process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def should_run(self) -> bool:
        """True if it was started and not stopped since, even if it ended by itself."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process id; raises SandboxError while it is not running."""
        return self._require_running().pid

    def launch(self) -> None:
        """Write the files and start the process, if it does not run, without waiting."""
        if self.is_running:
            return
        self._wait_ended(STOP_TIMEOUT)
        self.folder.mkdir(parents=True, exist_ok=True)
        accounts = self.folder / "accounts.conf"
        # Written once: another server that is just starting would read half a file.
        if not accounts.exists():
            accounts.write_text(shapes.ACCOUNTS, encoding="utf-8")
        self.config_path.write_text(
            shapes.render_server_config(self.node, str(self.store_path)), encoding="utf-8"
        )
        with self.log_path.open("ab") as log:
            self._process = get_guardian().launch([self.binary, "-c", self.config_path], log)

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Start it and wait until clients are accepted; raise SandboxError if it fails."""
        self.launch()
        self.wait_accepting(timeout)

    def wait_accepting(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until clients are accepted, at most `timeout` seconds."""
        self.wait_until(
            lambda: self.info()["server_name"] == f"{self.name}-server", "accept clients", timeout
        )

    def info(self) -> dict[str, Any]:
        """Return the server's INFO; raise OSError while no client can connect."""
        with Probe(self.port, self.node.user) as probe:
            return probe.info

    def request(
        self, subject: str, payload: bytes = b"", *, user: shapes.User | None = None
    ) -> dict[str, Any] | None:
        """Send one request; return its JSON answer, None without a subscriber; raise OSError."""
        with Probe(self.port, user or self.node.user) as probe:
            return probe.request(subject, payload)

    def wait_until(
        self, ready: Callable[[], bool], what: str, timeout: float = START_TIMEOUT
    ) -> None:
        """Repeat until `ready` is true; an OSError counts as false.

        Raises SandboxError once `timeout` seconds are over.
        """
        end, pause = time.monotonic() + timeout, 0.002
        while not _is_ready(ready):
            if not self.is_running or time.monotonic() > end:
                raise SandboxError(
                    f"nats-server {self.name} does not {what}; {self._last_log_error()}",
                    hint=f"Its log: {self.log_path}",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def interrupt(self) -> None:
        """Ask it to stop, without waiting."""
        self._signal(signal.SIGTERM)
        self.resume()

    def stop(self) -> None:
        """Stop it in order and wait; kill it if it does not stop."""
        self.interrupt()
        self._wait_ended(STOP_TIMEOUT)

    def kill(self) -> None:
        """Kill it as a power cut would (SIGKILL) and wait."""
        self._signal(signal.SIGKILL)
        self._wait_ended(STOP_TIMEOUT)

    def restart(self, *, binary: Path | None = None) -> None:
        """Stop and start it with the same port and data, and with `binary` if one is given."""
        self.stop()
        self.binary = binary or self.binary
        self.start()

    def pause(self) -> None:
        """Pause the process (SIGSTOP): its connections stay open and nothing answers."""
        process = self._require_running()
        if not self.paused:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)  # until each of its threads has stopped
        self.paused = True

    def resume(self) -> None:
        """Resume a paused process; nothing happens if it is not paused."""
        if self.paused:
            self._signal(signal.SIGCONT)
            self.paused = False

    def _signal(self, number: signal.Signals) -> None:
        # Popen checks first whether the process exists; one that has just ended needs no signal.
        if self._process is not None:
            self._process.send_signal(number)

    def _wait_ended(self, timeout: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        get_guardian().forget_process(self._process.pid)
        self._process, self.paused = None, False

    def _require_running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise SandboxError(
                f"nats-server {self.name} is not running", hint=f"Its log: {self.log_path}"
            )
        return self._process

    def _last_log_error(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        grave = [
            line
            for line in lines
            if "[FTL]" in line or "[ERR]" in line or line.startswith("nats-server:")
        ]
        return f"it says: {(grave or lines or ['nothing'])[-1]}"


def _is_ready(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except OSError:
        return False


# --- ports that stay reserved while a server is down ----------------------------------------------


class Ports:
    """Ports by the name of their listener (`hub`, `hub.leafnodes`), requested or free.

    A port is reserved by a socket that is bound with SO_REUSEADDR and never listens. On Linux a
    nats-server (whose sockets have SO_REUSEADDR too) can still listen on it, while no other process
    gets it: a server keeps its port over a restart. Elsewhere the socket is closed before the
    start.
    """

    def __init__(self, asked: Mapping[str, int] | None = None) -> None:
        self._asked = dict(asked or {})
        self._sockets: dict[str, socket.socket] = {}
        self._ports: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        """Return the port of this listener, always the same; raise SandboxError if it is taken."""
        if name not in self._ports:
            self._sockets[name] = self._reserve(name)
            self._ports[name] = self._sockets[name].getsockname()[1]
        return self._ports[name]

    def release_for_start(self) -> None:
        """Release the ports for the servers where a reserved port cannot be listened on."""
        if not sys.platform.startswith("linux"):
            self.release()

    def release(self) -> None:
        """Release every port."""
        for held in self._sockets.values():
            held.close()
        self._sockets.clear()

    def _reserve(self, name: str) -> socket.socket:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((shapes.HOST, self._asked.get(name, 0)))
        except OSError as error:
            held.close()
            taken = (
                f"port {self._asked[name]} for {name}"
                if name in self._asked
                else f"a port for {name}"
            )
            raise SandboxError(
                f"cannot have {taken}: {error.strerror}",
                hint="Stop what listens there, or take free ports: --free-ports.",
            ) from None
        return held


class Probe:
    """One short-lived client connection; every failure is an OSError, also a refused login.

    `timeout` is seconds for each wait. `info` is the server's INFO.
    """

    def __init__(self, port: int, user: User | None = None, timeout: float = 2.0) -> None:
        self._socket = socket.create_connection((shapes.HOST, port), timeout=timeout)
        self._socket.settimeout(timeout)
        self._stream = self._socket.makefile("rb")
        try:
            self.info: dict[str, Any] = json.loads(self._read_line().removeprefix(b"INFO "))
            self._connect(user)
        except ValueError as error:
            self.close()
            raise ConnectionError(f"no NATS server on port {port}: {error}") from None
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def request(self, subject: str, payload: bytes = b"") -> dict[str, Any] | None:
        """Return the JSON answer; None if the subject has no subscriber.

        Raises TimeoutError when no answer comes.
        """
        inbox = f"_INBOX.{os.urandom(8).hex()}"
        self._write(
            f"SUB {inbox} 1\r\nUNSUB 1 1\r\nPUB {subject} {inbox} {len(payload)}\r\n".encode()
            + payload
            + b"\r\n"
        )
        words = self._read_until(b"MSG", b"HMSG")
        body = self._stream.read(int(words[-1]) + 2)[:-2]
        if words[0] == b"HMSG":
            body = body[int(words[-2]) :]
        answer = json.loads(body) if body else None
        return answer if isinstance(answer, dict) else None

    def _connect(self, user: User | None) -> None:
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
        }
        options |= {"name": "jsplan sandbox", "lang": "python", "version": "0"}
        if user is not None and user.creds:
            options |= _jwt_login(user.creds, self.info["nonce"])
        elif user is not None and user.user:
            options |= {"user": user.user, "pass": user.password}
        self._write(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        self._read_until(b"PONG")

    def _read_until(self, *wanted: bytes) -> list[bytes]:
        while True:
            words = self._read_line().split()
            if words and words[0] in wanted:
                return words
            if words and words[0] == b"PING":
                self._write(b"PONG\r\n")
            if words and words[0] == b"-ERR":
                raise ConnectionRefusedError(b" ".join(words).decode())

    def _read_line(self) -> bytes:
        line = self._stream.readline()
        if not line:
            raise ConnectionResetError("the server hung up")
        return line.rstrip(b"\r\n")

    def _write(self, data: bytes) -> None:
        self._socket.sendall(data)


def _jwt_login(creds: Path, nonce: str) -> dict[str, str]:
    """Return the login of the user of a creds file: its JWT, and the signed nonce of the server."""
    words = [
        line
        for line in creds.read_text("utf-8").splitlines()
        if line and not line.startswith(("-", "*"))
    ]
    signature = nkeys.from_seed(bytearray(words[-1].encode())).sign(nonce.encode())
    return {"jwt": words[0], "sig": base64.urlsafe_b64encode(signature).decode().rstrip("=")}
