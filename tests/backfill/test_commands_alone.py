"""`jsplan backfill run` as a process with Spark: its output, its secrets and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.backfill.backfill_pair import Pair, numbered_rows
from tests.support.process import PROGRAM
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsplan.sandbox import Sandbox, Server

#: A loaded machine starts Spark in a minute.
pytestmark = pytest.mark.timeout(300)
SECRET = "hunter2-but-longer"
PROGRESS = re.compile(
    r"(Starting Spark|Copying .*|Promoting .*) \.\.\.|main/stream/S to main/stream/T: copying: .*"
)


def without_java(folder: Path) -> str:
    """Return a PATH with every program of this machine but Java."""
    folder.mkdir()
    for place in ("/bin", "/usr/bin", "/usr/local/bin"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def begin(folder: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    """Start `jsplan` in a process group of its own, as a shell does; its output goes to files."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            [PROGRAM, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def command_lines() -> Iterator[bytes]:
    """Yield the command line of every process."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield place.read_bytes()
        except OSError:
            continue


def files_with_secret(folder: Path) -> list[str]:
    """Return the files that contain the secret, without links to programs of this machine."""
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


def test_a_run_prints_no_spark_output_and_no_secret(
    start_secured_server: Callable[[str], Server],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A run without a Java of the machine prints no output of Spark and stores no secret.

    The password is in no command line, no file and no event log, and no file is left. Workers
    import nothing from the current folder.
    """
    (tmp_path / "pyarrow.py").write_text("raise ImportError('of the current folder')\n")
    server = start_secured_server(f'authorization {{users: [{{user: u, password: "{SECRET}"}}]}}')
    home, conf = tmp_path / "home", tmp_path / "conf"
    for folder in (home, conf, tmp_path / "tmp", tmp_path / "events"):
        folder.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{tmp_path}/events\n"
    )
    (tmp_path / "jsplan.yaml").write_text(
        json.dumps(
            {
                "jsplan": 1,
                "workspace": "alone",
                "connections": {
                    "main": {"url": server.url, "user": "u", "password": "${env.SECRET}"}
                },
                "domains": {"main": {"connection": "main", "js_domain": None}},
                "backfills": [
                    {
                        "name": "x",
                        "from": {"domain": "main", "stream": "S"},
                        "to": {"domain": "main", "stream": "T"},
                    }
                ],
            }
        )
    )
    with Raw(server.url, "u", SECRET) as raw:
        for name in ("S", "T"):
            raw.create(name, subjects=[f"{name.lower()}.>"])
        for number in range(10):
            raw.request("s.x", b"%d" % number)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "SECRET": SECRET,
        "HOME": str(home),
        "PATH": without_java(tmp_path_factory.mktemp("path") / "bin"),
        "TMPDIR": str(tmp_path / "tmp"),
        "SPARK_CONF_DIR": str(conf),
    }
    environment.pop("XDG_CONFIG_HOME", None)

    process, java = begin(tmp_path, environment, "backfill", "run", "x"), False
    while process.poll() is None:
        lines = list(command_lines())
        assert not [line for line in lines if SECRET.encode() in line]
        java |= any(b"SparkSubmit" in line and str(tmp_path).encode() in line for line in lines)
        assert files_with_secret(tmp_path) == []
        time.sleep(0.2)

    err = (tmp_path / "err").read_text()
    assert process.returncode == 0, err
    assert [line for line in err.splitlines() if not PROGRESS.fullmatch(line)] == []
    assert (
        "Backfill complete! Messages: 10 copied, 0 missing at the origin, 0 skipped."
        in (tmp_path / "out").read_text()
    )
    events = list((tmp_path / "events").rglob("*events*"))
    assert events, "no event log was written"
    assert files_with_secret(tmp_path) == []
    assert list((home / ".cache" / "jsplan" / "spark").iterdir()) == []


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes], what: str) -> None:
    """Wait until the condition holds. The process must not end before."""
    end = time.monotonic() + 200
    while not condition():
        assert process.poll() is None, f"it ended before {what}"
        assert time.monotonic() < end, what
        time.sleep(0.1)


def staged_count(pair: Pair) -> int:
    """Count the messages of the staging stream."""
    names = pair.ask("hub", "STREAM.NAMES").get("streams") or []
    return sum(pair.state("hub", name)["messages"] for name in names if name.startswith("JSPLAN_"))


def test_ctrl_c_keeps_what_was_copied(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Ctrl-C ends a run with 130, releases the lock and keeps the copy for the next run."""
    pair = Pair.create(tmp_path, clean_hub_leaf, rate="1KiB/s")
    pair.stream("leaf", "S", numbered_rows(3000))
    pair.stream("hub", "T")
    process = begin(tmp_path, dict(os.environ), "backfill", "run", "x")
    try:
        wait_for(lambda: staged_count(pair) > 0, process, "something was copied")
        os.killpg(process.pid, signal.SIGINT)
        process.wait(120)
    finally:
        process.kill()
        process.wait()

    err = (tmp_path / "err").read_text()
    assert process.returncode == 130, err
    assert (
        "interrupted; what was copied is kept, the state is saved and its lock released"
        in " ".join(err.split())
    )
    assert "Interrupted, stopping Spark ..." in err
    assert "Traceback" not in err
    assert "Exception" not in err
    assert not (tmp_path / "state" / "test.json.lock.info").exists()
    assert pair.state_record["origins"][0]["status"] != "done"
    pair.write_entry()
    pair.run()
    removed = "the consumer of the killed reader to be removed"
    pair.sandbox["leaf"].wait_until(
        lambda: not pair.state("leaf", "S")["consumer_count"], removed, timeout=60
    )
    pair.require_copied()
