"""The streams of a backup that a restore creates, and what they will be. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address, is_glob, is_selected, matches
from jsplan.backup.manifest import SavedConsumer, SavedStream
from jsplan.config.model import DeclaredResource, Domain, Lifecycle, Workspace
from jsplan.diagnostics import NO_LOCATION, did_you_mean
from jsplan.errors import JsplanError, UsageError
from jsplan.resources.fields import Config
from jsplan.state.document import State
from jsplan.subjects import is_valid


class RestoreTarget(Struct, frozen=True):
    """One saved stream, with the address and the configuration that it will have.

    `was_begun`: an earlier restore of it was interrupted, and may have left a part of it. `noted`
    has the `created` in state of what the files declare; "" of what a restore began.
    """

    saved: SavedStream
    address: Address
    config: Config
    was_begun: bool = False
    noted: Mapping[Address, str] = {}

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
    def first_config(self) -> Config:
        """Return the configuration that it is restored with; then it is updated to `config`.

        A server since 2.15 deletes all messages of a restored interest stream, also those that
        another consumer wants, where a consumer begins behind the newest one; not when an update
        sets the retention (measured).
        """
        floors = (one.before["ack_floor"]["stream_seq"] for one in self.saved.consumers)
        last = int(self.saved.before["last_seq"])
        is_outrun = self.saved.is_kept_by_interest and any(floor > last for floor in floors)
        return self.config | {"retention": "limits"} if is_outrun else self.config

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


# --- a stream of a backup, and what it will be where it is restored -------------------------------


@dataclass(frozen=True, slots=True)
class RestoreSelection:
    """`folder` is a backup; `targets` and `excludes` are globs over saved addresses.

    `rename` is an address, or `DOMAIN/**`. `subjects` replace those of the one stream that is
    restored, `replicas` those of all.
    """

    folder: Path
    rename: str | None = None
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    replicas: int | None = None


def select_streams(
    saved: Mapping[Address, SavedStream], domains: Mapping[str, Domain], options: RestoreSelection
) -> Backup:
    """Select the saved streams, by their new addresses. Raises UsageError and JsplanError."""
    for option, globs in (("--target", options.targets), ("--exclude", options.excludes)):
        for glob in globs:
            if not any(matches(glob, address) for address in saved):
                raise UsageError(
                    f"{option} {glob} names nothing in the backup", hint=_list_backup(saved)
                )
    wanted = (a for a in sorted(saved) if is_selected(a, options.targets, options.excludes))
    chosen = [saved[address] for address in wanted]
    if not chosen:
        raise JsplanError(
            f"there is nothing to restore from {options.folder}", hint=_list_backup(saved)
        )
    found: dict[Address, RestoreTarget] = {}
    for stream in chosen:
        address = _target_address(Address.parse(stream.address), options, len(chosen))
        subjects = _checked_subjects(options, len(chosen))
        target = RestoreTarget.of(stream, address, subjects, options.replicas)
        _require_domain(target.address, domains)
        other = found.setdefault(target.address, target)
        if other is not target:
            raise UsageError(
                f"{other.saved.address} and {stream.address} would both be {target.address}",
                hint="Choose one with --target.",
            )
    return found


def _require_domain(address: Address, domains: Mapping[str, Domain]) -> None:
    if address.domain not in domains:
        near = did_you_mean(address.domain, domains)
        raise UsageError(
            f"{address}: there is no domain {address.domain}.{near}",
            hint="Give another with --as, as in: --as hub/**",
        )


def _list_backup(saved: Mapping[Address, SavedStream]) -> str:
    shown = ", ".join(map(str, sorted(saved)[:5])) + (" …" if len(saved) > 5 else "")
    return f"It holds {shown}." if saved else "It holds no stream."


def _target_address(address: Address, options: RestoreSelection, count: int) -> Address:
    """Return the new address. Raises UsageError if it does not fit, or is one for several."""
    if options.rename is None:
        return address
    domain, _, rest = options.rename.partition("/")
    if rest == "**" and not is_glob(domain):
        return address._replace(domain=domain)
    try:
        new = Address.parse(options.rename)
    except ValueError as error:
        raise UsageError(
            f"--as: {error}", hint="Give an address, or DOMAIN/** for all of it."
        ) from None
    if is_glob(options.rename) or new.kind != address.kind:
        raise UsageError(
            f"--as {new}: {address} is a {address.kind}",
            hint=f"Give {new.domain}/{address.kind}/NAME, or {new.domain}/**",
        )
    if count > 1:
        raise UsageError(
            f"--as {new} is one place for {count} streams",
            hint="Choose one with --target, or give --as DOMAIN/**",
        )
    return new


def _checked_subjects(options: RestoreSelection, count: int) -> tuple[str, ...]:
    if options.subjects and count > 1:
        raise UsageError(
            f"--subjects is for one stream, and {count} would be restored",
            hint="Choose one with --target.",
        )
    for subject in options.subjects:
        if not is_valid(subject):
            raise UsageError(f'"{subject}" is not a subject')
    return options.subjects


def mark_known(backup: Backup, state: State, declared: Collection[Address]) -> Backup:
    """Return the backup with what state knows of it and of interrupted restores."""
    begun = {name for name, step in state.pending.items() if step.get("op") == "stream.restore"}
    known = {a: entry.created for a, entry in state.resources.items() if str(a) not in begun}
    return {
        address: replace(
            target,
            was_begun=str(address) in begun,
            noted={
                a: known.get(a, "")
                for a in target.configs
                if a in declared and (a in known or str(address) in begun)
            },
        )
        for address, target in backup.items()
    }
