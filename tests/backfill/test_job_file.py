"""Job files: their content, and runs of them under the lock of the same state."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jsplan.backfill import spark_job
from jsplan.backfill.spark_job_workspace import build_job_workspace, keep_references
from jsplan.backfill.tasks import endpoints
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.transforms import build_transform_spec
from jsplan.cli import job
from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.errors import ConnectError, JsplanError, RefusedError, UsageError
from jsplan.planning.backfill.model import hash_config
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, numbered_rows, without_spark
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jsplan.sandbox import Sandbox

SECRET = "s3cr3t"
#: Every field of a connection, a domain and an entry that a job file needs.
FULL: dict[str, Any] = {
    "jsplan": 1,
    "workspace": "full",
    "connections": {
        "a": {"url": "tls://h:1,tls://h:2", "user": "u", "password": "${env.P}", "timeout": "7s", "inbox_prefix": "_IN.x"},
        "b": {"url": "${env.URL}", "creds": "~/b.creds"},
        "c": {"context": "c", "tls": {"ca": "${env.CA}", "cert": "c.pem", "key": "/k.pem", "handshake_first": True}},
        "d": None,
    },
    "domains": {
        "hub": {"connection": "a"},
        "edge": {"connection": "b", "js_domain": "e7", "labels": ["edge", "x"]},
        "plain": {"connection": "c", "js_domain": None},
        "far": {"connection": "a", "api_prefix": "JS.far.API"},
    },
    "imports": [{"from": "plain", "into": "hub", "api": "JS.plain.API", "deliver": "deliver.plain"}],
    "backend": {"local": {"path": "/state/x.json"}},
    "environments": {"prod": {}},
    "backfills": [
        {
            "name": "x", "from": [{"domain": "edge", "stream": "S", "start_seq": 3, "end_time": "2026-01-01T00:00:00Z"}],
            "to": {"domain": "hub", "stream": "T"}, "rate": "2MB/s", "oversize": "skip",
        },
        {"name": "y", "from": {"domain": "hub", "stream": "S", "filter_subjects": ["a", "b.>"]}, "to": {"parquet": "/archive"}},
    ],
}  # fmt: skip
ENVIRON = {"P": SECRET, "URL": f"nats://u:{SECRET}@h:3", "CA": "/ca.pem", "HOME": "/home/me"}


def load_workspace(
    folder: Path, document: dict[str, Any], environ: dict[str, str] | None = None
) -> LoadOptions:
    """Write a workspace to a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "jsplan.yaml").write_text(json.dumps(document), "utf-8")
    return LoadOptions(
        folder, "prod" if "environments" in document else None, environ=environ or ENVIRON
    )


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_job_has_the_settings_of_its_workspace(tmp_path: Path, name: str) -> None:
    """A job file has all settings that a copy needs, and no secret."""
    options = load_workspace(tmp_path / "first", FULL)
    first = load(options)

    bare = load(keep_references(options))
    document = build_job_workspace(bare, bare.backfills[name])
    second = load(load_workspace(tmp_path / "second", document))

    assert SECRET not in json.dumps(document)
    assert hash_config(second.backfills[name]) == hash_config(first.backfills[name])
    assert second.backfills[name].rate == first.backfills[name].rate
    assert without_places(second.connections) == without_places(first.connections)
    assert without_places(second.domains) == without_places(first.domains)
    assert (second.state_name, without_places({"": second.backend})) == (
        first.state_name,
        without_places({"": first.backend}),
    )
    assert [row.api for row in second.imports] == [row.api for row in first.imports]


def without_places(things: Any) -> list[list[Any]]:
    """Return the fields of these objects that do not depend on where they were written."""
    return [
        [
            getattr(one, name)
            for name in type(one).__annotations__
            if name not in {"range", "vars", "account", "folder"}
        ]
        for one in things.values()
    ]


@pytest.mark.parametrize(
    ("connection", "what"),
    [
        ({"url": "nats://h", "user": "u", "password": SECRET}, "`password`"),
        ({"url": "nats://h", "token": SECRET}, "`token`"),
        ({"url": f"nats://a,nats://u:{SECRET}@h"}, "`url`"),
    ],
)
def test_a_secret_in_the_files_is_refused(
    tmp_path: Path, connection: dict[str, Any], what: str
) -> None:
    """A secret in the files is refused before a job file is written, without being printed."""
    document = {
        "jsplan": 1,
        "workspace": "w",
        "connections": {"a": connection},
        "domains": {"hub": None},
    }
    document["backfills"] = [{"name": "x", "from": {"stream": "S"}, "to": {"stream": "T"}}]
    options = load_workspace(tmp_path, document | {"defaults": {"domain": "hub"}})

    with pytest.raises(RefusedError, match=f"{what} of connection a is a secret") as refused:
        backfill.write_job(
            options, BackfillOptions(name="x"), tmp_path / "job.py", RecordingObserver()
        )

    assert SECRET not in refused.value.full_text
    assert not (tmp_path / "job.py").exists()


def test_paths_of_archives_are_absolute(tmp_path: Path) -> None:
    """A relative path of an archive is refused, since a cluster has no workspace folder."""
    bare = load(
        keep_references(
            load_workspace(
                tmp_path,
                FULL | {"backfills": [FULL["backfills"][1] | {"to": {"parquet": "archive"}}]},
            )
        )
    )
    with pytest.raises(JsplanError, match="archive is relative to the workspace"):
        build_job_workspace(bare, bare.backfills["y"])


@pytest.mark.parametrize("place", ["/archive", "file:///archive", "s3://bucket/archive"])
def test_places_of_archives_that_every_worker_reaches(tmp_path: Path, place: str) -> None:
    """A job has the absolute folder or the URL of an archive, and nothing of an object store."""
    entry = FULL["backfills"][1] | {"to": {"parquet": place}}
    bare = load(keep_references(load_workspace(tmp_path, FULL | {"backfills": [entry]})))

    document = build_job_workspace(bare, bare.backfills["y"])
    assert document["backfills"][0]["to"] == {"parquet": place}
    assert "AWS" not in json.dumps(document)


HOSTILE = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            '"""',
            "'''",
            '"""+str(exec("1/0"))+"""',
            "'''+str(exec(\"1/0\"))+r'''",
            "\\N{x}",
            "\\U1",
            "\\",
            "{job}",
            "{0.__class__}",
            "\n1/0\n",
        ]
    ),
    st.sampled_from(
        [
            "${env.P}",
            "$${env.P}",
            "${",
            "${var.x}",
            "${domain}",
            "$$${",
            "\r1/0",
            "\u2028",
            "# coding: utf-7",
            "%s",
        ]
    ),
)


def comparable_syntax(script: str, found: str) -> str:
    """Return the syntax tree of the script, with a placeholder for the one literal."""
    tree = ast.parse(script)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == found:
            node.value = "JOB"
    return ast.dump(tree)


@given(st.dictionaries(HOSTILE, HOSTILE | st.lists(HOSTILE), max_size=4))
def test_nothing_in_a_job_becomes_code(job: dict[str, Any]) -> None:
    """Any text in a job changes only one literal of the script, which is the job."""
    script, plain = spark_job.render_script(job), spark_job.render_script({})
    names: dict[str, Any] = {}
    exec(compile(script, "job.py", "exec"), names | {"__name__": "x"}, names)  # noqa: S102 - as spark-submit does

    assert json.loads(names["JOB"]) == job
    written = re.compile(r" at [0-9TZ:-]+\.")
    found, count = written.subn("", comparable_syntax(script, names["JOB"]), count=1)
    assert count == 1
    assert found == written.sub("", comparable_syntax(plain, "{}"), count=1)
    assert script.isascii()


@example(where="", transform="", dest="", path="$${env.P}", user="u", subject="a", stream="S")
@example(where="", transform="", dest="", path="p", user="$${env.P}", subject="a", stream="S")
@given(
    where=HOSTILE,
    transform=HOSTILE,
    dest=HOSTILE,
    path=HOSTILE,
    user=HOSTILE,
    subject=HOSTILE,
    stream=HOSTILE,
)
def test_text_of_an_entry_is_the_same_in_a_job(
    tmp_path_factory: pytest.TempPathFactory,
    where: str,
    transform: str,
    dest: str,
    path: str,
    user: str,
    subject: str,
    stream: str,
) -> None:
    """Text of an entry that is no reference is read back unchanged from the job."""
    folder = tmp_path_factory.mktemp("hostile")
    side = {"domain": "hub", "stream": stream, "filter_subjects": [subject]}
    entry = {
        "name": "x",
        "from": side,
        "to": {"domain": "hub", "stream": "T"},
        "where": where,
        "transform": transform,
    }
    document = {
        "jsplan": 1,
        "workspace": "w",
        "connections": {"a": {"url": "nats://h", "user": user}},
        "domains": {"hub": {"connection": "a"}},
    }
    document |= {
        "backend": {"local": {"path": f"/state/{path}"}},
        "backfills": [entry | {"subject_transform": {"src": "a", "dest": dest}}],
    }
    try:
        first = load(load_workspace(folder / "first", document))
    except JsplanError:
        return
    bare = load(keep_references(load_workspace(folder / "first", document)))
    second = load(load_workspace(folder / "second", build_job_workspace(bare, bare.backfills["x"])))

    assert hash_config(second.backfills["x"]) == hash_config(first.backfills["x"])
    assert second.backend.path == first.backend.path
    assert second.connections["a"].url == first.connections["a"].url
    assert second.connections["a"].user == first.connections["a"].user


@pytest.mark.parametrize("name", ["../shared.py", "{absolute}", "a.py", "a/../../../shared.py"])
def test_files_in_a_job_are_not_written_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file of a transform is read from the job and written nowhere, also with an outside path."""
    folder, shared = tmp_path / "temporary", tmp_path / "shared.py"
    folder.mkdir()
    shared.write_text("mine")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    name = name.format(absolute=shared)
    document = {key: FULL[key] for key in ("jsplan", "workspace", "domains")}
    document |= {
        "connections": {
            "a": FULL["connections"]["a"],
            "b": {"url": "${env.URL}"},
            "c": {"context": "c"},
        }
    }
    document |= {"backfills": [FULL["backfills"][1] | {"transform": f"{name}:run"}]}
    record = {"name": "y", "entry_hash": "", "pinned_at": "2026-01-31T12:00:00Z", "origins": []}
    job = {
        "format": spark_job.FORMAT,
        "environment": None,
        "document": document,
        "record": record,
        "files": {name: "carried"},
    }

    with spark_job.unpack_job(json.dumps(job)) as (words, _):
        entry = load(LoadOptions(Path(words[1]), environ=ENVIRON)).backfills["y"]
        function = build_transform_spec(Path(words[1]), entry).transform
        files = [path.name for path in folder.rglob("*") if path.is_file()]

    assert function is not None
    assert (function.text, function.path, files) == ("carried", name, ["jsplan.yaml"])
    assert shared.read_text() == "mine"


# --- on executors ----------------------------------------------------------------------------------------------------


def test_executors_read_secrets_from_their_environment(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor takes secrets from its environment, and reports a variable that is not set."""
    hub = pair.sandbox["hub"]
    monkeypatch.setattr(endpoints, "_DECLARED", {})
    endpoints.declare_connection(
        "there",
        {"url": hub.url, "user": hub.user, "password": "${env.THERE_PASSWORD}", "timeout": "3s"},
    )
    endpoint = Endpoint("there", "$JS.API")
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
    with pytest.raises(
        ConnectError,
        match="connection there: the environment variable THERE_PASSWORD is not set on the worker",
    ):
        endpoint.open()


# --- runs of a job ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Hub and leaf without a stream, an entry, and a password in the environment."""
    found = Pair.create(tmp_path, clean_hub_leaf)
    found.space.base["connections"]["hub"]["password"] = "${env.HUB_PASSWORD}"
    monkeypatch.setenv("HUB_PASSWORD", "acc")
    found.write_entry()
    return found


def write_and_read_job(pair: Pair, **options: Any) -> tuple[Path, str]:
    """Write a job file of the entry, and return its path and the job in it."""
    path = pair.space.folder / "job.py"
    load_options = LoadOptions(pair.space.folder, environ=dict(os.environ))
    backfill.write_job(
        load_options, BackfillOptions(name="x", **options), path, RecordingObserver()
    )
    return path, str(runpy.run_path(str(path))["JOB"])


class FakeSession:
    """Stands for the session of spark-submit where tasks run in threads."""

    def stop(self) -> None:
        """Do nothing."""


def run_job_text(text: str, *options: str) -> int:
    """Run a job without Spark."""
    with pytest.MonkeyPatch.context() as patch, without_spark():
        patch.setattr("jsplan.backfill.spark.session.get_submitted_session", FakeSession)
        return job.main(text, list(options))


def test_a_job_copies_its_pinned_range(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """A job copies the range that was pinned when it was written, in the state of the workspace."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    path, text = write_and_read_job(pair)
    pair.publish("leaf", numbered_rows(5, first=21))

    assert run_job_text(text, "--json") == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["origins"][0]["copied"], found["origins"][0]["verified"]) == (20, True)
    pair.require_copied(seqs=range(1, 21))
    assert pair.state_record["done_at"]
    script = path.read_text("utf-8")
    assert json.loads(text)["about"]["origins"] == [
        "leaf/stream/S -> hub/stream/T: sequences 1 to 20"
    ]
    assert "${env.HUB_PASSWORD}" in script
    assert not re.search(r'"password": "acc"', script)
    assert run_job_text(text) == 0
    assert len(pair.stored("hub", "T")) == 20


def test_a_stream_whose_name_looks_like_code(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stream whose name looks like code is copied, and nothing of the name runs."""
    name = 'A"""+str(int("code"))+"""'
    pair.space.write(
        backfills=[
            {
                "name": "x",
                "from": {"domain": "leaf", "stream": name},
                "to": {"domain": "hub", "stream": "T"},
            }
        ]
    )
    pair.ask("leaf", f"STREAM.CREATE.{name}", {"name": name, "subjects": ["s.>"]})
    pair.publish("leaf", numbered_rows(3))
    pair.stream("hub", "T")
    _, text = write_and_read_job(pair)

    assert run_job_text(text, "--json") == 0
    assert json.loads(capsys.readouterr().out)["origins"][0]["copied"] == 3


def test_a_job_of_a_fleet(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """A job has the ranges of reachable origins; an offline one is pinned by a later run."""
    sides = [{"domain": "leaf", "stream": "S"}, {"domain": "hub", "stream": "H"}]
    pair.space.write(
        backfills=[{"name": "x", "from": sides, "to": {"domain": "hub", "stream": "T"}}]
    )
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "H", numbered_rows(7, subject=b"h.x"))
    pair.stream("hub", "T")
    pair.sandbox["leaf"].kill()
    path, text = write_and_read_job(pair)
    pair.publish("hub", numbered_rows(2, subject=b"h.x"))

    first = run_job_text(text, "--json")
    offline = json.loads(capsys.readouterr().out)
    pair.start_leaf()
    second = run_job_text(text, "--json")
    found = json.loads(capsys.readouterr().out)

    assert (first, second) == (0, 0)
    assert [one["address"] for one in offline["deferred"]] == ["leaf/stream/S"]
    assert [(origin["from"], origin["copied"]) for origin in offline["origins"]] == [
        ("hub/stream/H", 7)
    ]
    assert [(origin["from"], origin["copied"]) for origin in found["origins"]] == [
        ("leaf/stream/S", 20),
        ("hub/stream/H", 0),
    ]
    script = path.read_text("utf-8")
    waits, known = (
        "leaf/stream/S -> hub/stream/T: the run that reaches it pins its range",
        "hub/stream/H -> hub/stream/T: sequences 1 to 7",
    )
    assert json.loads(text)["about"]["origins"] == [known, waits]
    assert not re.search(r'"password": "acc"', script)
    assert len(pair.stored("hub", "T")) == 27
    pair.require_nothing_left()


TRANSFORM = """
from pyspark.sql import functions as f


def _tenfold(data):
    return b"%d" % (int(data) * 10)


def run(frame):
    return frame.withColumn("data", f.udf(_tenfold, "binary")("data"))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("archived", [False, True], ids=["partitions", "archive"])
def test_a_job_with_sql_and_a_function(
    pair: Pair, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, archived: bool
) -> None:
    """A job includes `where` and the file of the function, and needs only the state."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    (pair.space.folder / "tenfold.py").write_text(TRANSFORM, "utf-8")
    shape = {
        "where": "seq % 2 = 0",
        "transform": "tenfold.py:run",
        "subject_transform": {"src": "s.>", "dest": "new.>"},
    }
    folder = pair.space.folder / "archive"
    pair.write_entry(**shape | ({} if archived else {"order": "subject"}))
    if archived:
        pair.space.write(backfills=[pair.entry | {"to": {"parquet": str(folder)}}])
    _, text = write_and_read_job(pair)
    (pair.space.folder / "tenfold.py").unlink()
    (pair.space.folder / "jsplan.yaml").unlink()
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setattr("jsplan.backfill.spark.session.get_submitted_session", lambda: spark)

    assert job.main(text, []) == 0

    rows = pq.read_table(folder).to_pylist() if archived else []
    found = [(row["subject"], int(row["data"])) for row in rows] or [
        (one.subject, int(one.data)) for one in pair.stored("hub", "T")
    ]
    assert sorted(found, key=lambda one: one[1]) == [("new.x", n * 10) for n in range(2, 21, 2)]
    pair.require_nothing_left()


def test_an_invalid_job_is_refused(pair: Pair) -> None:
    """An entry that no run accepts is refused when the job is written, and nothing is pinned."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")
    for entry, words in (
        ({"transform": "gone.py:run"}, "gone.py cannot be read"),
        ({"order": "none", "mode": "exact"}, "only Spark applies"),
    ):
        pair.write_entry(**entry)
        with pytest.raises(UsageError, match=words):
            write_and_read_job(pair)
    assert not (pair.space.folder / "state/test.json").exists()


def test_a_job_of_another_state_is_refused(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """A job whose range was pinned again, or whose state is elsewhere, copies nothing."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")
    _, text = write_and_read_job(pair)
    old = json.loads(text)
    old["record"]["pinned_at"] = "2020-01-01T00:00:00Z"

    assert run_job_text(json.dumps(old)) == 1
    assert "has another range of it, pinned at 20" in capsys.readouterr().err
    (pair.space.folder / "state/test.json").unlink()
    assert run_job_text(text) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "has no such range" in error
    assert "use the kv backend" in error
    assert pair.stored("hub", "T") == []
    old["format"] = "jsplan-job/9"
    assert run_job_text(json.dumps(old)) == 1
    assert "this jsplan runs jsplan-job/1" in capsys.readouterr().err
