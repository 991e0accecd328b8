"""A web server of a test on loopback; a function answers each request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

#: Status, headers and body.
Answer = tuple[int, Mapping[str, str], bytes]
#: Takes method, path, headers by their names in lower case, and body; None ends the connection.
Answering = Callable[[str, str, dict[str, str], bytes], Answer | None]


def json_answer(said: Any, status: int = 200) -> Answer:
    """Return an answer with a document."""
    return status, {}, json.dumps(said).encode()


class HttpServer:
    """A web server on a free port, until `close`."""

    def __init__(self, answering: Answering) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Write nothing."""

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = answering(self.command, self.path, headers, body)
                if answer is None:
                    self.close_connection = True
                    return
                status, more, data = answer
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                if "content-length" not in {name.lower() for name in more}:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(data)

            do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server calls these names

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
