"""`--wait`: a command waits for servers that are still starting, and for nothing else."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.support.process import ProcessResult, jsplan, start_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Server
    from tests.conftest import MakeHubLeaf, MakeServer

#: Longer than any test may take: a command that waits for it in vain fails the test.
LONG = "1h"


def write(folder: Path, **sections: Any) -> None:
    """Write a workspace."""
    text = json.dumps({"jsplan": 1, "workspace": "w", **sections})
    (folder / "jsplan.yaml").write_text(text, encoding="utf-8")


def write_single(folder: Path, server: Server, **sections: Any) -> None:
    """Write a workspace with one stream in the domain main, on this server."""
    single = {
        "connections": {"main": connection(server)},
        "domains": {"main": {"connection": "main", "js_domain": None}},
        "streams": [{"name": "A", "subjects": ["a"]}],
    }
    write(folder, **single | sections)


def connection(server: Server) -> dict[str, Any]:
    """Return a connection to a server."""
    login = {"user": server.user, "password": server.password} if server.user else {}
    return {"url": server.url, **login}


def run_until_ready(
    folder: Path, *args: str, waiting_for: str, make_ready: Callable[[], object]
) -> ProcessResult:
    """Run a command, and call `make_ready` once it says what it waits for."""
    process = start_process(folder, "--wait", LONG, *args)
    assert process.stderr is not None
    assert process.stdout is not None
    lines: list[str] = []

    def read_errors() -> None:
        assert process.stderr is not None
        for raw in process.stderr:
            line = raw.decode()
            if "Waiting" in line and waiting_for in line and not any("Waiting" in x for x in lines):
                make_ready()
            lines.append(line)

    reader = threading.Thread(target=read_errors)
    reader.start()
    with process:
        out = process.stdout.read().decode()
        reader.join()
        return ProcessResult(process.wait(), out, "".join(lines))


def test_a_refused_connection_is_tried_again(make_server: MakeServer, tmp_path: Path) -> None:
    """A plan begins once the server accepts connections."""
    server = make_server()
    server.stop()
    write_single(tmp_path, server)

    ended = run_until_ready(
        tmp_path, "plan", waiting_for="cannot be reached", make_ready=server.start
    )

    assert ended.code == 0, ended.text
    assert "Plan: 1 to add" in ended.out


def test_the_bucket_of_the_state_is_waited_for(make_server: MakeServer, tmp_path: Path) -> None:
    """An apply with its state on the server begins once that server is there."""
    server = make_server()
    server.stop()
    write_single(tmp_path, server, backend={"kv": {"domain": "main", "bucket": "STATE"}})

    ended = run_until_ready(
        tmp_path, "apply", "-y", waiting_for="cannot be reached", make_ready=server.start
    )

    assert ended.code == 0, ended.text
    assert "1 added" in ended.out


def test_a_leaf_that_is_not_linked_yet_is_waited_for(
    make_hub_leaf: MakeHubLeaf, tmp_path: Path
) -> None:
    """A domain behind a leafnode connection is waited for, so that nothing is deferred."""
    sandbox = make_hub_leaf()
    sandbox["leaf"].stop()
    write(
        tmp_path,
        connections={"hub": connection(sandbox["hub"])},
        domains={"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
        streams=[{"name": "A", "domain": ["hub", "leaf"], "subjects": ["a.${domain}"]}],
    )

    ended = run_until_ready(
        tmp_path, "plan", waiting_for="domain leaf", make_ready=sandbox["leaf"].start
    )

    assert ended.code == 0, ended.text
    assert "Plan: 2 to add" in ended.out


def test_a_cluster_without_a_leader_is_waited_for(tmp_path: Path) -> None:
    """JetStream of a cluster answers once enough of its servers have started."""
    with Sandbox.cluster(binary=PROGRAM) as cluster:
        for name in ("n2", "n3"):
            cluster[name].stop()
        write_single(tmp_path, cluster["n1"])

        def start_others() -> None:
            for name in ("n2", "n3"):
                cluster[name].launch()

        ended = run_until_ready(
            tmp_path, "plan", waiting_for="domain main", make_ready=start_others
        )

    assert ended.code == 0, ended.text


def test_an_offline_domain_that_may_be_is_not_waited_for(
    make_hub_leaf: MakeHubLeaf, tmp_path: Path
) -> None:
    """A domain with `may_be_offline` is deferred at once."""
    sandbox = make_hub_leaf()
    sandbox["leaf"].stop()
    write(
        tmp_path,
        connections={"hub": connection(sandbox["hub"])},
        domains={
            "hub": {"connection": "hub"},
            "leaf": {"connection": "hub", "may_be_offline": "7d"},
        },
        streams=[{"name": "A", "domain": ["hub", "leaf"], "subjects": ["a.${domain}"]}],
    )

    ended = jsplan(tmp_path, "plan", "--wait", LONG)

    assert ended.code == 0, ended.text
    assert "Deferred: 1 resource" in ended.text


def test_a_wrong_password_is_not_waited_for(make_server: MakeServer, tmp_path: Path) -> None:
    """Refused credentials are the ordinary error, at once."""
    server = make_server(accounts=True)
    wrong = {"url": server.url, "user": server.user, "password": "wrong"}
    write_single(tmp_path, server, connections={"main": wrong})

    ended = jsplan(tmp_path, "plan", "--wait", LONG)

    assert ended.code == 1
    assert "the server refused the credentials" in ended.err
    assert "Waiting" not in ended.err


def test_a_wrong_name_of_a_domain_is_not_waited_for(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """A server that calls its domain otherwise is the ordinary error, at once."""
    server = make_server(domain="hub")
    write_single(tmp_path, server, domains={"main": {"connection": "main"}})

    ended = jsplan(tmp_path, "plan", "--wait", LONG)

    assert ended.code == 1
    assert "js_domain: hub" in ended.text


def test_when_the_time_is_over_the_error_is_the_ordinary_one(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """After the duration the command says what it says without --wait."""
    server = make_server()
    server.stop()
    write_single(tmp_path, server)

    waited, at_once = jsplan(tmp_path, "plan", "--wait", "1ms"), jsplan(tmp_path, "plan")

    assert waited.code == at_once.code == 1
    assert at_once.err in waited.err


def test_commands_on_files_do_not_wait(make_server: MakeServer, tmp_path: Path) -> None:
    """`validate` and `lint` use no server, also where JSPLAN_WAIT is set for all commands."""
    server = make_server()
    server.stop()
    write_single(tmp_path, server)

    for command in ("validate", "lint"):
        assert jsplan(tmp_path, command, "--wait", LONG).code == 0
