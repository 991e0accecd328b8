"""Workspaces with applications, generated ones too, and servers with their permissions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from jsplan.config import load
from jsplan.sandbox import Sandbox
from jsplan.sandbox.sites import Account, Site
from jsplan.topology import build_topology
from jsplan.topology.app_permissions import AppPermissions, derive_permissions
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.rehearsal.access_sites import ProofUser

PASSWORD = "s3cr3t"
BASE: dict[str, Any] = {
    "jsplan": 1,
    "workspace": "shop",
    "connections": {"hub": {"url": "nats://127.0.0.1:1", "account": "SHOP"}},
    "domains": {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
    "streams": [
        {
            "name": "ORDERS",
            "domain": "hub",
            "subjects": ["orders.>"],
            "duplicate_window": "2m",
            "consumers": [
                {"name": "PULL", "ack_policy": "explicit", "filter_subject": "orders.eu.>"},
                {"name": "SILENT", "ack_policy": "none"},
                {
                    "name": "PUSH",
                    "ack_policy": "explicit",
                    "deliver_subject": "deliver.push",
                    "deliver_group": "workers",
                    "flow_control": True,
                    "idle_heartbeat": "5s",
                },
            ],
        },
        {"name": "COPY", "domain": "hub", "mirror": {"name": "ORDERS"}},
        {
            "name": "JOBS",
            "domain": "leaf",
            "subjects": ["jobs.>"],
            "retention": "workqueue",
            "consumers": [{"name": "WORKER", "ack_policy": "explicit"}],
        },
    ],
    "kv": [
        {"bucket": "CONFIG", "domain": "hub"},
        {"bucket": "OLD", "domain": "hub", "allow_direct": False},
        {"bucket": "LOCAL", "domain": "leaf"},
    ],
    "object_stores": [{"bucket": "FILES", "domain": "hub"}],
}
#: Each use, by the list of an application in which it stands.
USES: list[tuple[str, dict[str, Any]]] = [
    ("publishes", {"stream": "hub/stream/ORDERS", "subjects": ["orders.eu.*"]}),
    ("publishes", {"stream": "hub/stream/ORDERS"}),
    ("publishes", {"stream": "leaf/stream/JOBS", "subjects": ["jobs.a", "jobs.b.>"]}),
    ("consumes", {"consumer": "hub/consumer/ORDERS/PULL"}),
    ("consumes", {"consumer": "hub/consumer/ORDERS/SILENT"}),
    ("consumes", {"consumer": "hub/consumer/ORDERS/PUSH"}),
    ("consumes", {"consumer": "leaf/consumer/JOBS/WORKER"}),
    ("reads", {"bucket": "hub/kv/CONFIG", "keys": ["eu.>", "all"]}),
    ("reads", {"bucket": "hub/kv/CONFIG", "watch": True}),
    ("reads", {"bucket": "hub/kv/OLD", "watch": True, "keys": ["eu.*"]}),
    ("reads", {"bucket": "leaf/kv/LOCAL"}),
    ("reads", {"bucket": "hub/object_store/FILES"}),
    ("writes", {"bucket": "hub/kv/CONFIG", "keys": ["eu.>"]}),
    ("writes", {"bucket": "leaf/kv/LOCAL"}),
    ("writes", {"bucket": "hub/object_store/FILES"}),
]


def generate_apps(seed: int, count: int) -> list[dict[str, Any]]:
    """Return applications with random clients, places and uses."""
    chance, apps = random.Random(seed), []
    for number in range(count):
        domain, client = chance.choice(["hub", "hub", "leaf"]), chance.choice(["go", "js", "py"])
        app: dict[str, Any] = {"name": f"app-{number}", "domain": domain, "client": client}
        for key, use in list_uses(domain, client, chance.sample(USES, chance.randint(1, 5))):
            app.setdefault(key, []).append(use)
        apps.append(app)
    return apps


def list_uses(
    domain: str, client: str, uses: list[tuple[str, dict[str, Any]]]
) -> list[tuple[str, dict[str, Any]]]:
    """Return those that the client can do: nats-py writes no key of another domain."""
    return [
        (key, use)
        for key, use in uses
        if client != "py"
        or key != "writes"
        or "/kv/" not in use["bucket"]
        or use["bucket"].startswith(domain)
    ]


def space_with(folder: Path, *apps: dict[str, Any], **sections: Any) -> Space:
    """A workspace with these applications."""
    return Space(folder, BASE).write(**sections, apps=list(apps))


def derive(space: Space) -> list[AppPermissions]:
    """Return the permissions of each application."""
    workspace = load(space.load)
    found, findings = derive_permissions(workspace, build_topology(workspace), {"hub": "SHOP"})
    assert findings == []
    return found


def servers_with(*users: ProofUser) -> Sandbox:
    """A hub and a leaf, whose account has these users."""
    rendered = {
        domain: tuple(user.render(PASSWORD) for user in users if user.found.app.domain == domain)
        for domain in ("hub", "leaf")
    }
    sites = [
        Site("hub", (Account("SHOP", users=rendered["hub"]),), "hub"),
        Site("leaf", (Account("SHOP", users=rendered["leaf"]),), "leaf", hub="hub"),
    ]
    return Sandbox.of_sites(sites, PASSWORD)
