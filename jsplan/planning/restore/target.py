"""A stream of a backup, and what it will be where it is restored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.backup.manifest import SavedConsumer, SavedStream
from jsplan.config.model import DeclaredResource, Lifecycle, Workspace
from jsplan.diagnostics import NO_LOCATION
from jsplan.resources.fields import Config


class RestoreTarget(Struct, frozen=True):
    """One saved stream, with the address and the configuration that it will have."""

    saved: SavedStream
    address: Address
    config: Config

    @classmethod
    def of(
        cls,
        saved: SavedStream,
        address: Address,
        subjects: tuple[str, ...] = (),
        replicas: int | None = None,
    ) -> RestoreTarget:
        """Return the stream as it was saved, but with its new name, and the rest where given."""
        changes: Config = {"name": address.stream}
        changes |= {"subjects": list(subjects)} if subjects else {}
        changes |= {"num_replicas": replicas} if replicas else {}
        return cls(saved, address, saved.config | changes)

    def consumer_address(self, consumer: SavedConsumer) -> Address:
        """Return the address that one of its consumers will have."""
        return Address(self.address.domain, "consumer", f"{self.address.stream}/{consumer.name}")

    @property
    def is_elsewhere(self) -> bool:
        """Return True if it is a copy: under another name, or in another domain."""
        return str(self.address) != self.saved.address

    @property
    def is_renewed(self) -> bool:
        """Return True if it gets another `created`: by an archive of nats-server 2.15.

        By that a source since 2.15 knows its origin, and copies all of another one.
        """
        return self.saved.archive.format != "tar"

    @property
    def consumers(self) -> dict[Address, SavedConsumer]:
        """The saved consumers by the address that they will have."""
        return {self.consumer_address(consumer): consumer for consumer in self.saved.consumers}

    @property
    def configs(self) -> dict[Address, Config]:
        """The configurations by address: that of the stream, then those of its consumers."""
        of_consumers = {address: one.config for address, one in self.consumers.items()}
        return {self.address: self.config} | of_consumers


#: The streams of a backup that are restored, by the address that they will have.
Backup = Mapping[Address, RestoreTarget]


def declare_saved(workspace: Workspace, targets: Iterable[RestoreTarget]) -> Workspace:
    """Return the workspace that declares what a backup holds as it was saved.

    Streams that only the files have stay, since they may read what is restored. Of the rest of the
    files only the guards of restored resources matter.
    """
    saved: dict[Address, DeclaredResource] = {}
    for target in targets:
        for address, config in target.configs.items():
            known = workspace.resources.get(address)
            guard = Lifecycle(known.lifecycle.prevent_destroy if known is not None else None)
            saved[address] = DeclaredResource(address, config, NO_LOCATION, lifecycle=guard)
    return replace(
        workspace,
        resources={a: v for a, v in workspace.resources.items() if not a.is_content} | saved,
        moved=(),
        removed=(),
        pruned=(),
        relocate=(),
        backfills={},
        diagnostics=(),
    )
