"""A stream of a backup, and what it will be where it is restored. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from jsplan.address import Address
from jsplan.backup.manifest import SavedConsumer, SavedStream
from jsplan.planning.decide import table_of
from jsplan.planning.model import ResourceDecision
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

    @property
    def request(self) -> dict[str, Any]:
        """Return the request of STREAM.RESTORE."""
        return {
            "api": f"STREAM.RESTORE.{self.address.stream}",
            "payload": {"config": self.config, "state": self.saved.before},
        }

    def consumer_address(self, consumer: SavedConsumer) -> Address:
        """Return the address that one of its consumers will have."""
        return Address(self.address.domain, "consumer", f"{self.address.stream}/{consumer.name}")


def decide_creations(targets: Iterable[RestoreTarget]) -> dict[Address, ResourceDecision]:
    """Return the decisions to create these streams and their consumers."""
    created = {
        address: table_of(address).compact(config)
        for target in targets
        for address, config in [
            (target.address, target.config),
            *((target.consumer_address(one), one.config) for one in target.saved.consumers),
        ]
    }
    return {
        address: ResourceDecision(address, ["create"], "restore_from_backup", after=config)
        for address, config in created.items()
    }
