"""A store of an earlier time is put back, as a restored backup of a disk does."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server


def keep_store(server: Server) -> None:
    """Keep a copy of the present store."""
    server.kill()
    shutil.copytree(server.store_path, _kept(server))
    server.start()


def put_store_back(server: Server) -> None:
    """Replace the store by the copy that was kept."""
    server.kill()
    shutil.rmtree(server.store_path)
    shutil.move(_kept(server), server.store_path)
    server.start()


def _kept(server: Server) -> Path:
    return server.store_path.with_name(f"{server.store_path.name}-kept")
