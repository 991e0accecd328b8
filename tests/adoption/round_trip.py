"""Adoption of a configuration, and a new apply after a destroy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.options import PlanOptions
from jsplan.planning.decide import table_of
from jsplan.workflows.import_ import import_with_config
from tests.adoption.known_configs import KnownConfig
from tests.support.workspaces import RecordingObserver, Space, approve, left_to_do

if TYPE_CHECKING:
    from jsplan.address import Address
    from tests.support.raw import Raw

#: What a destroy of all would have to be allowed.
DELETION_HAZARDS = (
    "DELETES_STREAM",
    "DELETES_MESSAGES",
    "DELETES_CONSUMER",
    "BREAKS_REPLICATION",
    "REMOVES_SUBJECTS",
    "LOSES_CONSUMER_POSITION",
)
#: A pause that ended before this is over.
LONG_AGO = "2026-01-01"


class RoundTrip:
    """One workspace, its servers, and the streams that raw requests created on them."""

    def __init__(self, space: Space, raw: Raw) -> None:
        self.space, self.raw = space.write(), raw
        self.configs: list[KnownConfig] = []

    def ask(self, domain: str, verb: str, payload: Any = None) -> dict[str, Any]:
        """Send one request; the domain main has no name on its server."""
        prefix = "$JS.API" if domain == "main" else f"$JS.{domain}.API"
        return self.raw.api(f"{prefix}.{verb}", payload)

    def level(self, domain: str) -> int:
        """Return the API level of the domain's server."""
        return int((self.ask(domain, "INFO").get("api") or {}).get("level", 0))

    def make(self, known: KnownConfig) -> bool:
        """Create the object; return whether the server takes it."""
        taken = "error" not in self.ask(known.address.domain, *known.create_request)
        if taken:
            self.configs.append(known)
        return taken

    def update(self, known: KnownConfig) -> bool:
        """Update the object of that name; return whether the server takes it.

        The configuration of the answer replaces the known one: it says whether a consumer is durable.
        """
        address = known.address
        verb = (
            f"STREAM.UPDATE.{address.stream}"
            if address.kind != "consumer"
            else known.create_request[0]
        )
        answer = self.ask(
            address.domain,
            verb,
            known.create_request[1] | ({"action": "update"} if address.kind == "consumer" else {}),
        )
        if "error" not in answer:
            self.configs = [
                KnownConfig(address, answer["config"]) if one.address == address else one
                for one in self.configs
            ]
        return "error" not in answer

    def live(self, address: Address) -> dict[str, Any]:
        """Return the configuration in one form for all that mean the same.

        A past pause is none, and so is the start of a source before all of its origin.
        """
        verb = (
            f"CONSUMER.INFO.{address.stream}.{address.consumer}"
            if address.kind == "consumer"
            else f"STREAM.INFO.{address.stream}"
        )
        config = table_of(address).compact(self.ask(address.domain, verb)["config"])
        for source in config.get("sources", ()):
            if source.get("opt_start_seq") == 1 or source.get("opt_start_time", "9") < LONG_AGO:
                source.pop("opt_start_seq", None)
                source.pop("opt_start_time", None)
        return {
            key: value for key, value in config.items() if key != "pause_until" or value > LONG_AGO
        }

    def adopt(self) -> str:
        """Import all with a new file, check that the plan is empty, and return the text of the file.

        Consumers that are not durable are named one by one: `--all` leaves them out.
        """
        fleeting = [
            str(one.address)
            for one in self.configs
            if one.address.kind == "consumer" and not one.config.get("durable_name")
        ]
        path = self.space.folder / "found.jsplan.yaml"
        _, result, written = import_with_config(
            self.space.load, ("**", *fleeting), PlanOptions(), approve, RecordingObserver(), path
        )
        assert (result.exit_code, written is None) == (0, False), result
        plan = self.space.plan()
        assert not plan.errored, plan.diagnostics
        assert left_to_do(plan) == []
        assert not plan.has_changes
        return path.read_text("utf-8")

    def adopt_and_recreate(self) -> str:
        """Adopt, destroy and apply: everything is as before. Return the text of the file."""
        before = {one.address: self.live(one.address) for one in self.configs}
        text = self.adopt()
        assert self.space.apply(destroy=True, allow_hazards=DELETION_HAZARDS)[1].exit_code == 0
        _, result = self.space.apply()
        assert result.exit_code == 0, [step for step in result.steps if step.status != "done"]
        after = {one.address: self.live(one.address) for one in self.configs}
        assert {
            str(address): (before[address], after[address])
            for address in before
            if before[address] != after[address]
        } == {}
        return text
