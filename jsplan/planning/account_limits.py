"""Check the whole plan against the limits of each account. Exceeding one is a plan error.

The limits come from `$JS.API.INFO`. Measured on 2.11 to 2.15: a reservation counts once per
replica, `max_consumers` is per stream, and an existing stream may exceed a lowered limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from jsplan.config.model import Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import account_limits, tier_name
from jsplan.planning.consumer_count import ConsumerCount, count_consumers
from jsplan.planning.decide import account_max_ack_pending
from jsplan.planning.model import Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.resources.fields import Config
from jsplan.resources.server_features import ALL_REPLICAS_COUNT_LEVEL, DEFAULT_MAX_CONSUMERS_LEVEL
from jsplan.units import format_size

#: `DEFAULT_MAX_CONSUMERS_LEVEL`: consumers on one stream where nothing else limits them.
MAX_STREAM_CONSUMERS: Final = 1000
_RESERVATION_LIMITS: Final = {
    "file": ("max_storage", "reserved_storage", 10047),
    "memory": ("max_memory", "reserved_memory", 10028),
}
MAX_STREAM_BYTES: Final = {"file": "storage_max_stream_bytes", "memory": "memory_max_stream_bytes"}


class _StreamChange(Struct, frozen=True):
    """A stream's compact configuration before and after the plan; None if it does not exist.

    `is_written`: the plan creates or updates the stream.
    """

    decision: ResourceDecision
    before: Config | None
    after: Config | None

    @property
    def is_written(self) -> bool:
        return self.after is not None and self.decision.writes


class _Account(Struct):
    """One account on one JetStream: its INFO, the domain key for messages, its planned changes.

    A stream that is reached through two domain keys is in `streams` once. `consumers` are those
    that the plan writes.
    """

    key: str
    info: Mapping[str, Any]
    level: int = 0
    streams: dict[str, _StreamChange] = field(default_factory=dict)
    consumers: list[ResourceDecision] = field(default_factory=list)
    counts: list[ConsumerCount] = field(default_factory=list)


def check_account_limits(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield an error for each exceeded limit, with current and planned use."""
    for account in _accounts(inputs, decisions):
        for tier, use in _tiers(account):
            limits, changes = use.get("limits") or {}, list(account.streams.values())
            if tier is not None:
                changes = [_change_in_tier(change, tier) for change in changes]
            yield from _check_stream_count(account, use, limits, changes)
            yield from _check_reservations(account, use, limits, changes, per_replica=tier is None)
            for change in changes:
                yield from _check_stream_bytes(inputs, change, limits)
        yield from _check_tier(inputs, account)
        yield from _check_consumer_counts(inputs, account)


# --- accounts ---


def _accounts(inputs: PlanInputs, decisions: Decisions) -> list[_Account]:
    """List the accounts of all reachable domains, each once as far as the files identify it."""
    found: dict[object, _Account] = {}
    by_domain = {
        key: found.setdefault(
            _account_identity(inputs.workspace, key), _Account(key, facts.info, facts.level)
        )
        for key, facts in sorted(inputs.live.domains.items())
        if facts.reachable
        and (domain := inputs.workspace.domains.get(key)) is not None
        and domain.accounts is None
    }
    for address, decision in decisions.items():
        account = by_domain.get(address.domain)
        if account is None:
            continue
        if address.kind == "consumer":
            account.consumers += [decision] if decision.writes else []
        else:
            account.streams.setdefault(address.stream, _stream_change(decision))
    for count in count_consumers(inputs, decisions):
        if (account := by_domain.get(count.stream.domain)) is not None:
            account.counts.append(count)
    return list(found.values())


def _account_identity(workspace: Workspace, key: str) -> object:
    """Identify an account by its API prefix, and by its name or else its credentials."""
    domain = workspace.domains[key]
    while domain.same_as is not None and domain.same_as in workspace.domains:
        domain = workspace.domains[domain.same_as]
    connection = workspace.connections[domain.connection]
    names = ("url", "context", "user", "token", "creds", "nkey")
    login = tuple(getattr(connection, name) for name in names)
    return domain.api_prefix, connection.account or login


def _stream_change(decision: ResourceDecision) -> _StreamChange:
    before = decision.live.compact if decision.live else None
    after = decision.after if decision.writes else before
    return _StreamChange(decision, before, None if decision.actions == ["delete"] else after)


def _tiers(account: _Account) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield the whole account, or each of its tiers (`R1`, `R3`) with its own limits."""
    tiers = account.info.get("tiers") or {}
    yield from sorted(tiers.items()) if tiers else [(None, account.info)]


def _tier_name(config: Config) -> str:
    return tier_name(config.get("num_replicas", 1))


def _change_in_tier(change: _StreamChange, tier: str) -> _StreamChange:
    """Restrict a change to one tier. A new replica count removes the stream from one tier only."""
    before, after = (
        config if config is not None and _tier_name(config) == tier else None
        for config in (change.before, change.after)
    )
    return _StreamChange(change.decision, before, after)


# --- streams ---


def _check_stream_count(
    account: _Account,
    use: Mapping[str, Any],
    limits: Mapping[str, Any],
    changes: list[_StreamChange],
) -> Findings:
    most, used = limits.get("max_streams", -1), use.get("streams", 0)
    new = sum(1 for c in changes if c.before is None and c.after is not None)
    planned = used + new - sum(1 for c in changes if c.before is not None and c.after is None)
    if new and 0 < most < planned:
        text = f"max_streams is {most}: {used} used, {planned} with this plan (10027)"
        yield _limit_exceeded(account, "JS440", text, "streams")


def _check_reservations(
    account: _Account,
    use: Mapping[str, Any],
    limits: Mapping[str, Any],
    changes: list[_StreamChange],
    *,
    per_replica: bool,
) -> Findings:
    """Check the `max_bytes` of all streams against the account.

    Bytes that other streams reserved count once: INFO does not report their replicas.
    """
    for storage, (limit, reserved, err) in _RESERVATION_LIMITS.items():
        most = limits.get(limit, -1)
        if most < 0:
            continue
        before, after = [c.before for c in changes], [c.after for c in changes]
        others = max(0, use.get(reserved, 0) - _reserved_bytes(before, storage, per_replica=False))
        used = others + _reserved_bytes(before, storage, per_replica=per_replica)
        planned = others + _reserved_bytes(after, storage, per_replica=per_replica)
        new = (c.after for c in changes if c.before is None and c.after is not None)
        endless = sum(_storage(config) == storage and not _max_bytes(config) for config in new)
        spared = _uncounted_replicas(account, storage, changes) if per_replica else 0
        if most < planned + endless - spared and (planned > used or endless):
            text = (
                f"{limit} is {_format_bytes(most)}: {_format_bytes(used)} reserved by max_bytes, "
                f"{_format_bytes(planned)} with this plan ({err})"
            )
            what = "storage" if storage == "file" else "memory"
            yield _limit_exceeded(account, "JS441", text, what)


def _uncounted_replicas(account: _Account, storage: str, changes: list[_StreamChange]) -> int:
    """Return the bytes by which the last stream may exceed the limit.

    Servers up to 2.12 count one replica of the stream that they create.
    """
    if account.level >= ALL_REPLICAS_COUNT_LEVEL:
        return 0
    written = [[c.after] for c in changes if c.is_written]
    once, all_of_them = (
        [_reserved_bytes(config, storage, per_replica=each) for config in written]
        for each in (False, True)
    )
    return max((more - less for less, more in zip(once, all_of_them, strict=True)), default=0)


def _storage(config: Config) -> str:
    return str(config.get("storage", "file"))


def _max_bytes(config: Config) -> int:
    return max(0, int(config.get("max_bytes", -1)))


def _reserved_bytes(configs: Iterable[Config | None], storage: str, *, per_replica: bool) -> int:
    """Return what these streams reserve together, counted once or for each of their replicas."""
    return sum(
        _max_bytes(config) * (int(config.get("num_replicas", 1)) if per_replica else 1)
        for config in configs
        if config is not None and _storage(config) == storage
    )


def _format_bytes(count: int) -> str:
    return f"{count:,} bytes" if count % 1024 or not count else format_size(count)


def _limit_exceeded(account: _Account, code: str, summary: str, what: str) -> Diagnostic:
    detail = (
        f"Remove something from this plan, or raise the {what} limit of the account of domain "
        f"{account.key}."
    )
    return Diagnostic("error", code, summary, detail, f"{account.key}/**")


def _check_stream_bytes(
    inputs: PlanInputs, change: _StreamChange, limits: Mapping[str, Any]
) -> Findings:
    if not change.is_written or change.after is None:
        return
    address, size = change.decision.address, _max_bytes(change.after)
    most = limits.get(MAX_STREAM_BYTES.get(_storage(change.after), ""), -1)
    if limits.get("max_bytes_required") and not size:
        text = "the account requires max_bytes of every stream (10113)"
        yield inputs.finding("error", "JS443", text, "Add `max_bytes:`.", address, "max_bytes")
    if 0 < most < size:
        text = (
            f"max_bytes is {_format_bytes(size)}; a stream of this account may have "
            f"{_format_bytes(most)} (10122)"
        )
        detail = "Lower it, or raise the limit of the account."
        yield inputs.finding("error", "JS443", text, detail, address, "max_bytes")


def _check_tier(inputs: PlanInputs, account: _Account) -> Findings:
    tiers = account.info.get("tiers") or {}
    for change in account.streams.values() if tiers else ():
        if change.is_written and change.after is not None and _tier_name(change.after) not in tiers:
            replicas = change.after.get("num_replicas", 1)
            text = f"the account has no limits for streams with num_replicas {replicas} (10120)"
            detail, at = f"It has them for {', '.join(sorted(tiers))}.", change.decision.address
            yield inputs.finding("error", "JS440", text, detail, at, "num_replicas")


# --- consumers ---


def _check_consumer_counts(inputs: PlanInputs, account: _Account) -> Findings:
    for decision in account.consumers:
        yield from _check_ack_pending(inputs, decision)
    for count in account.counts:
        change, live = account.streams.get(count.stream.stream), inputs.live.get(count.stream)
        config = (change.after if change else None) or (live.compact if live else {})
        most, why = _consumer_limit(account, config, count, inputs.level(count.stream))
        if 0 < most < count.total:
            there = count.unchanged + sum(one.live is not None for one in count.replaced)
            text = f"{why}: {count.stream.stream} has {there}, {count.total} with this plan (10026)"
            detail, at = "Remove consumers, or split the stream.", count.created[-1].address
            yield inputs.finding("error", "JS442", text, detail, at, "name")


def _consumer_limit(
    account: _Account, stream: Config, count: ConsumerCount, level: int
) -> tuple[int, str]:
    """Return the consumer limit that account or server set for the stream, and why; 0 for none."""
    most = account_limits(account.info, stream.get("num_replicas", 1)).get("max_consumers", -1)
    if most > 0:
        return most, f"max_consumers of the account is {most} per stream"
    if level >= DEFAULT_MAX_CONSUMERS_LEVEL and count.limit == 0:
        why = f"a stream without max_consumers has at most {MAX_STREAM_CONSUMERS:,} consumers"
        return MAX_STREAM_CONSUMERS, why
    return 0, ""


def _check_ack_pending(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    most = account_max_ack_pending(inputs, decision.address)
    asked = decision.planned.get("max_ack_pending", 0)
    if 0 < most < asked:
        text = f"max_ack_pending is {asked}; a consumer of this account may have {most} (10121)"
        detail = "Lower it, or omit it to get the maximum of the account."
        yield inputs.finding("error", "JS444", text, detail, decision.address, "max_ack_pending")
