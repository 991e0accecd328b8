"""Balance of leaders over the servers of a domain: `balance: {leaders: true}` in the files.

Streams and consumers are counted apart, and only those of this workspace that the plan leaves where
they are. What it creates, moves or scales gets its leader from the cluster, and the next plan
counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan_types import Op
from jsplan.facts.live import LiveObject
from jsplan.planning.drafts import Draft
from jsplan.planning.leader_balance import LeaderMove, LedObject, balance_leaders
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.planning.split_updates import is_reorganised
from jsplan.resources.server_features import LEADER_MOVE_LEVEL
from jsplan.units import count_text

Decisions = Mapping[Address, ResourceDecision]
#: The codes of a balance that is planned, and of one that the server cannot make.
MOVED: Final = "JS468"
NOT_POSSIBLE: Final = "JS469"


class _Leaders(Struct):
    """The streams or the consumers of one domain, and its servers that are down.

    `waiting` get their leader from the cluster after this plan, or are being moved by it now.
    """

    counted: list[LedObject] = field(default_factory=list)
    waiting: int = 0
    offline: set[str] = field(default_factory=set)

    def find_moves(self) -> dict[Address, LeaderMove]:
        """Return the moves; none while a server is down, which gets its leaders back later."""
        return {} if self.offline else balance_leaders(self.counted)


def decide_leaders(inputs: PlanInputs, decisions: Decisions) -> None:
    """Set `leader` of each decision whose leader moves.

    A plan of a part of the workspace does not know all leaders, so it moves none.
    """
    for key in _balanced_domains(inputs):
        for leaders in _count_leaders(inputs, decisions, key):
            for address, move in leaders.find_moves().items():
                decisions[address].leader = move


def _balanced_domains(inputs: PlanInputs) -> Iterator[str]:
    """Yield the domains that the plan balances: in full, and with servers that can do it."""
    options = inputs.options
    partial = options.targets or options.excludes or options.stage
    if partial or options.destroy or options.refresh_only or options.imports:
        return
    for key, facts in sorted(inputs.live.domains.items()):
        domain = inputs.workspace.domains.get(key)
        wanted = domain is not None and domain.balance_leaders
        if wanted and facts.reachable and facts.level >= LEADER_MOVE_LEVEL:
            yield key


def _count_leaders(
    inputs: PlanInputs, decisions: Decisions, domain: str
) -> tuple[_Leaders, _Leaders]:
    """Return the leaders of the streams, and those of the consumers."""
    streams, consumers = _Leaders(), _Leaders()
    for address, decision in decisions.items():
        if address.domain != domain or address.is_content or decision.is_removed:
            continue
        found = consumers if address.kind == "consumer" else streams
        parent = decisions.get(address.parent) if address.parent is not None else None
        if any(each is not None and _waits(inputs, each) for each in (decision, parent)):
            found.waiting += _wanted_replicas(decision, parent) > 1
        elif decision.live is not None and decision.live.peers:
            found.offline.update(decision.live.offline_peers)
            found.counted.append(_describe_leader(decision.live))
    return streams, consumers


def _describe_leader(live: LiveObject) -> LedObject:
    """Describe the leader of an object. Which replicas are current changes with each message."""
    names = (str(peer["name"]) for peer in live.peers)
    return LedObject(live.address, str(live.server["leader"]), frozenset(names))


def _waits(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether the plan, or the cluster meanwhile, gives the object another leader.

    An object that is only taken into state by this plan is not moved by it either.
    """
    live, after, address = decision.live, decision.after, decision.address
    changing = decision.actions not in (["no-op"], ["update"]) or decision.adopts
    restored = decision.restored_with is not None or address in inputs.interrupted.streams
    if live is None or after is None or changing or restored or decision.relocation is not None:
        return True
    if live.is_clustered and ("desired" in live.server or not live.server.get("leader")):
        return True
    if address.kind == "consumer":
        return False
    complete = len(live.peers) + 1 == int(live.raw.get("num_replicas") or 1)
    return is_reorganised(live.compact, after) or (live.is_clustered and not complete)


def _wanted_replicas(decision: ResourceDecision, parent: ResourceDecision | None) -> int:
    """Return the replicas of an object after the plan; a consumer has those of its stream."""
    own = (decision.after or {}).get("num_replicas")
    of_stream = (parent.after or {}).get("num_replicas") if parent is not None else None
    return int(own or of_stream or 1)


def draft_leader_move(decision: ResourceDecision, label: str) -> Iterator[Draft]:
    """Draft the request that moves the leader, after the other steps of the resource."""
    move, address = decision.leader, decision.address
    if move is None:
        return
    consumer = address.kind == "consumer"
    op: Op = "consumer.move_leader" if consumer else "stream.move_leader"
    name = f"{address.stream}.{address.consumer}" if consumer else address.stream
    yield Draft(
        (address, "leader"),
        op,
        f"move the leader of {label} from {move.origin} to {move.target}",
        {
            "api": f"{'CONSUMER' if consumer else 'STREAM'}.LEADER.STEPDOWN.{name}",
            "payload": {"placement": {"preferred": move.target}},
        },
        "",
        params=move.to_json(),
    )


def check_leaders(inputs: PlanInputs, decisions: Decisions) -> Iterable[Diagnostic]:
    """Yield what a plan says about the balance of each domain: moves, waits, too old a server."""
    for key, facts in sorted(inputs.live.domains.items()):
        domain = inputs.workspace.domains.get(key)
        old = facts.reachable and facts.level < LEADER_MOVE_LEVEL
        if domain is not None and domain.balance_leaders and old:
            text = (
                f"the leaders of domain {key} cannot be balanced: {facts.version or 'its server'}"
            )
            yield Diagnostic(
                "error",
                NOT_POSSIBLE,
                f"{text} cannot move a leader to a given server",
                "Remove `balance`, or upgrade to nats-server 2.11.",
                f"{key}/**",
                domain.range,
            )
    for key in _balanced_domains(inputs):
        yield from _describe_balance(inputs, decisions, key)


def _describe_balance(inputs: PlanInputs, decisions: Decisions, key: str) -> Iterator[Diagnostic]:
    found = _count_leaders(inputs, decisions, key)
    moves = sum(1 for d in decisions.values() if d.leader is not None and d.address.domain == key)
    waiting, offline = sum(each.waiting for each in found), set().union(*(e.offline for e in found))
    place = f"{key}/**", inputs.workspace.domains[key].range
    if moves:
        text = f"{count_text(moves, 'leader')} of domain {key} {'moves' if moves == 1 else 'move'}"
        detail = "Publishers and consumers of each wait for an election, mostly below a second."
        yield Diagnostic("info", MOVED, text, detail, *place)
    if offline:
        text = f"the leaders of domain {key} stay: {', '.join(sorted(offline))} is offline"
        yield Diagnostic("info", MOVED, text, "They are balanced when it is back.", *place)
    elif waiting:
        text = f"the cluster of domain {key} chooses {count_text(waiting, 'leader')}"
        yield Diagnostic("info", MOVED, text, "The next plan balances them.", *place)
