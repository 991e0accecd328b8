"""Copies on the Spark of `spark-submit`, and what other machines receive of a connection."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from jsplan import spark_submit
from jsplan.backfill.spark.session import LOCAL_SETTINGS, QUIET_SETTINGS, find_java_home
from jsplan.backfill.tasks import endpoints
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.errors import ConnectError, ExitCode
from jsplan.jetstream.contexts import resolve_settings
from tests.backfill.backfill_pair import Pair, create_bulk_stream
from tests.backfill.process_kills import await_progress, require_complete

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Sandbox

SECRET = "s3cr3t"
ENVIRON = {"P": SECRET, "LOGIN": f"nats://u:{SECRET}@h:3", "HOST": "h", "CERTS": "/certs", "HOME": "/home/me"}  # fmt: skip
#: Connections that other machines receive.
DECLARED: dict[str, Any] = {
    "every-field": {"url": "tls://h:1,tls://h:2", "user": "u", "password": "${env.P}", "timeout": "7s", "inbox_prefix": "_IN.x."},
    "a-url-from-the-environment": {"url": "${env.LOGIN}", "creds": "~/b.creds"},
    "a-part-of-it": {"url": "nats://${env.HOST}:4222", "token": "${env.P}"},
    "files": {"url": "nats://h", "nkey": "k.nk", "tls": {"ca": "${env.CERTS}/a", "cert": "c.pem", "key": "/k", "handshake_first": True}},
    "no-references": {"url": "nats://h", "user": "$${env.P}", "creds": None, "tls": None},
    "a-variable": {"url": "nats://${var.port}", "user": "u", "password": "${ env.P }"},
    "nothing": None,
}  # fmt: skip
#: Connections with a secret in the files.
SECRETS: dict[str, Any] = {
    "password": {"url": "nats://h", "user": "u", "password": SECRET},
    "a-part-of-a-password": {"url": "nats://h", "user": "u", "password": f"{SECRET}${{env.P}}"},
    "token": {"url": "nats://h", "token": SECRET},
    "url": {"url": f"nats://a,nats://u:{SECRET}@h"},
    "a-part-of-a-url": {"url": f"nats://u:{SECRET}@${{env.HOST}}"},
}


def test_connections_for_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other machines resolve a connection as this one does; none that has a secret is sent."""
    document = {"jsplan": 1, "workspace": "w", "vars": {"port": "h:7"}, "domains": {"hub": {"connection": "files"}}}  # fmt: skip
    document["connections"] = DECLARED | SECRETS
    (tmp_path / "jsplan.yaml").write_text(json.dumps(document), "utf-8")
    connections = load(LoadOptions(tmp_path, environ=ENVIRON)).connections
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)

    for key, connection in connections.items():
        assert (connection.declared == "") == (key in SECRETS), key
        assert SECRET not in connection.declared, key
        if key in DECLARED:
            there = endpoints.resolve_declared(key, json.loads(connection.declared))
            here = resolve_settings(replace(connection, folder=None), os.environ)
            assert there == here, key


def test_executors_read_secrets_from_their_environment(clean_hub_leaf: Sandbox) -> None:
    """An executor takes secrets from its environment, and reports a variable that is not set."""
    hub = clean_hub_leaf["hub"]
    declared = {"url": hub.url, "user": hub.user, "password": "${env.THERE_PASSWORD}", "timeout": "3s"}  # fmt: skip
    endpoint = Endpoint("there", "$JS.API", json.dumps(declared))
    code = "import pickle, sys; wire = pickle.load(sys.stdin.buffer).open(); print(wire.request('$JS.API.INFO')['type']); wire.close()"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JSPLAN_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(endpoint),
        capture_output=True,
        check=True,
        env=environ | {"THERE_PASSWORD": "acc"},
    )
    assert done.stdout.strip() == b"io.nats.jetstream.api.v1.account_info_response"
    for one, problem in (
        (endpoint, "the environment variable THERE_PASSWORD is not set in this process"),
        (replace(endpoint, declared=""), "JSPLAN_ENDPOINT_there is not set in the environment"),
    ):
        with pytest.raises(ConnectError, match=f"connection there: {problem}"):
            one.open()


@contextmanager
def submitted(pair: Pair, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command line outside of the workspace; kill Spark and the driver in the end."""
    place, spark = pair.space.folder, Path(pyspark.__file__).parent / "bin/spark-submit"
    java = find_java_home(os.environ, Path(tempfile.gettempdir()) / "jsplan-java")
    pythons = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environ = os.environ | pythons | {"JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1"}
    options = [
        f"--conf={name}={value}" for name, value in (QUIET_SETTINGS | LOCAL_SETTINGS).items()
    ]
    command = [spark, "--master=local[2]", *options, spark_submit.__file__, "-C", place, *args]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=place.parent,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.timeout(300)
def test_a_submitted_run_is_killed_and_resumed(
    tmp_path: Path, clean_hub_leaf: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on the Spark of `spark-submit` reads the workspace, and resumes one that was killed.

    It ends with the exit code of `backfill run`.
    """
    pair = Pair.create(tmp_path, clean_hub_leaf)
    pair.space.base["connections"]["hub"]["password"] = "${env.HUB_PASSWORD}"
    monkeypatch.setenv("HUB_PASSWORD", "acc")
    count = 20_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")
    pair.write_entry(rate="1MB/s")

    with submitted(pair, "backfill", "run", "x") as process:
        assert await_progress(pair, 500), (pair.space.folder / "log").read_text()
    pair.delete("leaf", "S", count)
    result = tmp_path / "result.json"
    with submitted(
        pair, "backfill", "run", "x", "--fail-on-gap", "--json-into", str(result)
    ) as process:
        code = process.wait(120)
    assert code == ExitCode.CHANGES, (pair.space.folder / "log").read_text()

    (origin,) = json.loads(result.read_text())["origins"]
    assert (origin["gap_messages"], origin["verified"]) == (1, True)
    assert origin["copied"] < count
    require_complete(pair, count - 1)
    pair.require_nothing_left(readers=2)
