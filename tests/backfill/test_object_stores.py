"""Archives in a bucket of a real object store: lost answers, races, errors and secrets."""

from __future__ import annotations

import json
import os
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from jsplan.backfill.parquet import store as objects
from jsplan.backfill.parquet.manifest import Archive
from jsplan.backfill.parquet.store import ArchiveError, LocalFolder, ObjectFolder
from jsplan.workflows import backfill
from tests.backfill.backfill_pair import numbered_rows
from tests.backfill.test_archives import (
    archive_store,
    data_files,
    in_a_bucket,
    pair,
    put_file,
    require_archived,
    run,
    write_entries,
)
from tests.support.s3_server import (
    BUCKET,
    OPEN_BUCKET,
    READER_KEY,
    READER_SECRET,
    SECRET,
    GoogleProxy,
    LossyProxy,
    S3Server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.backfill.parquet.store import ArchiveStore
    from tests.backfill.backfill_pair import Pair

__all__ = ["pair"]


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Let this process reach the object store with other variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        objects.open_client.cache_clear()
        yield
    objects.open_client.cache_clear()


@pytest.fixture
def google(tmp_path: Path, object_store: S3Server) -> Iterator[GoogleProxy]:
    """The object store with the protocol of Google Cloud Storage; the environment leads to it."""
    with GoogleProxy(object_store.port) as proxy:
        account = proxy.write_account(tmp_path / "google.json")
        with environment(GOOGLE_SERVICE_ACCOUNT=account):
            yield proxy


@pytest.fixture(params=["folder", "s3", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    """An empty folder, and an empty path in a bucket."""
    if request.param == "folder":
        return LocalFolder(tmp_path / "place")
    request.getfixturevalue("google" if request.param == "gs" else "object_store")
    bucket = {"s3": f"s3://{BUCKET}", "gs": f"gs://{OPEN_BUCKET}"}[request.param]
    return ObjectFolder(bucket, uuid.uuid4().hex)


# --- what a place offers ---------------------------------------------------------------------------------------------


def test_a_folder_and_a_bucket_are_the_same_place(place: ArchiveStore) -> None:
    """Each operation has the same effect on a folder and on a bucket."""
    assert place.is_empty()
    assert place.list() == {}
    place.begin("mark", b"m")
    place.begin("_jsplan/a.json", b"three")
    for _ in range(2):
        place.delete("nothing")
    file = place.open_new("_jsplan/big")
    for _ in range(20):
        file.write(b"x" * (1 << 20))
    file.close()
    file.close()
    place.link("_jsplan/big", "big")
    with pytest.raises(FileExistsError):
        place.link("mark", "big")
    place.delete("_jsplan/big")

    assert place.list() == {"mark": 1, "_jsplan/a.json": 5, "big": 20 << 20}
    assert place.read("_jsplan/a.json", 5) == b"three"
    with pytest.raises(OSError, match="larger"):
        place.read("big", 1 << 20)
    for missing in (place.open, lambda name: place.read(name, 9)):
        with pytest.raises(FileNotFoundError):
            missing("nothing")
    with pickle.loads(pickle.dumps(place)).open("big") as opened:  # noqa: S301 - written here
        opened.seek(-3, os.SEEK_END)
        assert (opened.read(), opened.tell()) == (b"xxx", 20 << 20)
        opened.seek(5)
        assert len(opened.read(7)) == 7
    for name in place.list():
        place.delete(name)
    assert place.list() == {}


def test_one_of_many_writers_gets_a_name(place: ArchiveStore) -> None:
    """Of eight writers that link at once, one gets the name, and its content stays."""
    writers = range(8)
    place.begin("mark", b"")
    for writer in writers:
        put_file(place, f"draft-{writer}", b"%d" % writer)

    def link(writer: int, name: str) -> bool:
        try:
            place.link(f"draft-{writer}", name)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(len(writers)) as threads:
        for number in range(10):
            name = f"name-{number}"
            won = list(threads.map(lambda writer, name=name: link(writer, name), writers))
            assert sum(won) == 1
            assert place.read(name, 9) == b"%d" % won.index(True)


# --- lost answers ----------------------------------------------------------------------------------------------------


@in_a_bucket
@pytest.mark.parametrize("lost", [1, 1000])
def test_the_answer_to_a_manifest_is_lost(pair: Pair, object_store: S3Server, lost: int) -> None:
    """A manifest whose answer is lost, once or always, is recognized as the own one."""
    pair.stream("leaf", "S", numbered_rows(20))
    with (
        LossyProxy(object_store.port) as proxy,
        environment(AWS_ENDPOINT_URL=proxy.url),
    ):
        proxy.loses = lambda method, path: (
            method == "PUT" and "/_jsplan/manifest-" in path and len(proxy.lost) < lost
        )
        out = run(pair, "out")

    assert (out.copied, out.attempts) == (20, 1)
    assert proxy.lost[0].endswith("manifest-000001.json 200")
    assert {text.rpartition(" ")[2] for text in proxy.lost[1:]} <= {"200", "412"}
    assert Archive.read(archive_store(pair)).number == 2
    require_archived(pair, *range(1, 21))


@in_a_bucket
def test_any_answer_is_lost(pair: Pair, object_store: S3Server) -> None:
    """A run in which the answer to every third change is lost writes each message once."""
    pair.stream("leaf", "S", numbered_rows(20))
    changes = [0]

    def loses_third(method: str, _path: str) -> bool:
        is_change = method not in {"GET", "HEAD"}
        changes[0] += is_change
        return is_change and changes[0] % 3 == 0

    with (
        LossyProxy(object_store.port) as proxy,
        environment(AWS_ENDPOINT_URL=proxy.url),
    ):
        proxy.loses = loses_third
        assert run(pair, "out").copied == 20

    assert len(proxy.lost) >= 3
    require_archived(pair, *range(1, 21))


def test_a_bucket_of_google(pair: Pair, google: GoogleProxy) -> None:
    """Messages go into a bucket of Google and back, each once, also after lost answers."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.archive = f"gs://{OPEN_BUCKET}/{uuid.uuid4().hex}"
    write_entries(pair)
    google.loses = lambda method, path: (
        method == "PUT" and "/_jsplan/manifest-" in unquote(path) and len(google.lost) < 2
    )

    assert (run(pair, "out").copied, run(pair, "out").copied) == (20, 0)
    assert [text.rpartition(" ")[2] for text in google.lost] == ["200", "412"]
    store = ObjectFolder(f"gs://{OPEN_BUCKET}", pair.archive.rpartition("/")[2])
    assert Archive.read(store).number == 2
    assert "GOOGLE_SERVICE_ACCOUNT" in store.hint
    assert (run(pair, "back").copied, run(pair, "back").copied) == (20, 0)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "archive", "words"),
    [
        ({}, "s3://no-such-bucket/archive", "there is no such bucket"),
        (
            {"AWS_ACCESS_KEY_ID": READER_KEY, "AWS_SECRET_ACCESS_KEY": READER_SECRET},
            f"s3://{BUCKET}/read-only",
            r"cannot write \S+/manifest-000001\.json: the object store denies access \(AccessDenied\)",
        ),
        (
            {"AWS_SECRET_ACCESS_KEY": "another-secret"},
            f"s3://{BUCKET}/archive",
            "cannot read s3://archives/archive: the object store denies access",
        ),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            f"s3://{BUCKET}/archive",
            "cannot read s3://archives/archive: http://127.0.0.1:1 cannot be reached",
        ),
        ({"AWS_ALLOW_HTTP": "false"}, f"s3://{BUCKET}/archive", "AWS_ALLOW_HTTP=true must allow"),
    ],
    ids=["bucket", "permission", "secret", "endpoint", "http"],
)
@in_a_bucket
def test_errors_of_an_object_store(
    pair: Pair, variables: dict[str, str], archive: str, words: str
) -> None:
    """A run that the object store refuses says why in plain words, without a secret."""
    pair.stream("leaf", "S", numbered_rows(3))
    write_entries(pair, {"to": {"parquet": archive}})
    with environment(**variables), pytest.raises(ArchiveError, match=words) as refused:
        run(pair, "out")

    assert "AWS_ENDPOINT_URL" in (refused.value.hint or "")
    assert "secret" not in str(refused.value)
    assert "Debug" not in str(refused.value)


@in_a_bucket
def test_a_store_without_conditional_writes_is_refused(pair: Pair, object_store: S3Server) -> None:
    """A store that ignores `If-None-Match` is refused before a message is written."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.archive = f"s3://{OPEN_BUCKET}/{uuid.uuid4().hex}"
    write_entries(pair)
    with (
        LossyProxy(object_store.port, passes_conditions=False) as proxy,
        environment(AWS_ENDPOINT_URL=proxy.url, AWS_SKIP_SIGNATURE="true"),
    ):
        with pytest.raises(ArchiveError, match="lets two writers create the same object"):
            run(pair, "out")
        store = ObjectFolder(f"s3://{OPEN_BUCKET}", pair.archive.rpartition("/")[2])
        assert not data_files(pair)
        assert not Archive.read(store).origins


@in_a_bucket
def test_no_secret_is_written(pair: Pair) -> None:
    """Plan, state, status and the archive have no credentials of the object store."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")
    plan = json.dumps(pair.space.plan().to_json())
    run(pair, "out")
    run(pair, "back")
    status: Any = backfill.status(pair.space.load)
    state = "".join(
        path.read_text("utf-8") for path in pair.space.folder.rglob("*") if path.is_file()
    )
    store = archive_store(pair)
    log = b"".join(store.read(name, 1 << 20) for name in store.list() if name.startswith("_"))

    assert data_files(pair)
    for text in (plan, repr(status), state, log.decode()):
        assert SECRET not in text
    assert pair.archive in plan
    assert pair.archive in state
