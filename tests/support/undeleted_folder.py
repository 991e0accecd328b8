"""A folder that makes a server's next deletion of a stream remove nothing.

The server leaves one itself for as long as it removes an earlier stream of that name. This one
stays, so no test depends on how long that takes.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server


def streams_folder(server: Server) -> Path:
    """Return the folder with one folder for each file stream of the account of JetStream."""
    return server.store_path / "jetstream" / (server.node.user.account or "$G") / "streams"


def place(server: Server, stream: str) -> Path:
    """Create the folder that the server would move the deleted stream to, with a file in it."""
    folder = streams_folder(server) / f".{stream}"
    folder.mkdir()
    (folder / "1.blk").touch()
    return folder


@contextmanager
def until_recreated(server: Server, stream: str) -> Iterator[list[str]]:
    """Place the folder, and remove it when the stream is created over its old messages.

    Yields the advisories about the stream so far. The first creation, or begin of a restore, is the
    one over the old messages.
    """
    folder, actions, end = place(server, stream), list[str](), "$JS.EVENT.ADVISORY.STREAM.END."
    login = (server.url, server.user, server.password)
    with Raw(*login, timeout=300) as raw, Raw(*login) as other:
        raw.subscribe(f"$JS.EVENT.ADVISORY.STREAM.*.{stream}")

        def listen() -> None:
            while (action := raw.next_message()[0].split(".")[4]) != "END":
                actions.append(action)
                if action in ("CREATED", "RESTORE_CREATE"):
                    shutil.rmtree(folder, ignore_errors=True)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield actions
        finally:
            other.publish(end + stream)
            other.flush()
            thread.join()
            shutil.rmtree(folder, ignore_errors=True)
