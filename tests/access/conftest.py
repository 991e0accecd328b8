"""Workspaces with applications, generated ones too, and servers with their permissions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from jsplan.config import load
from jsplan.config.model import Client
from jsplan.sandbox import Sandbox
from jsplan.sandbox.sites import Account, Site
from jsplan.topology import build_topology
from jsplan.topology.app_permissions import AppPermissions, derive_permissions
from tests.support.workspaces import Space
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from jsplan.rehearsal.access_sites import ProofUser

PASSWORD = "s3cr3t"
BASE: dict[str, Any] = read_yaml(Path(__file__).with_name("base.yaml").read_text("utf-8"))
#: Each use, by the list of an application in which it stands.
USES: list[tuple[str, dict[str, Any]]] = [
    ("publishes", {"stream": "hub/stream/ORDERS", "subjects": ["orders.eu.*"]}),
    ("publishes", {"stream": "hub/stream/ORDERS"}),
    ("publishes", {"stream": "leaf/stream/JOBS", "subjects": ["jobs.a", "jobs.b.>"]}),
    ("consumes", {"consumer": "hub/consumer/ORDERS/PULL"}),
    ("consumes", {"consumer": "hub/consumer/ORDERS/SILENT"}),
    ("consumes", {"consumer": "hub/consumer/ORDERS/PUSH"}),
    ("consumes", {"consumer": "hub/consumer/ORDERS/ALONE"}),
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
#: The requests of the Java client by the names of what it does.
RECORDED_JAVA: dict[str, dict[str, Any]] = read_yaml(
    Path(__file__).with_name("recorded_java.yaml").read_text()
)


def generate_apps(seed: int, count: int) -> list[dict[str, Any]]:
    """Return applications with random clients, places and uses."""
    chance, apps = random.Random(seed), []
    for number in range(count):
        domain, client = chance.choice(["hub", "hub", "leaf"]), chance.choice(get_args(Client))
        app: dict[str, Any] = {"name": f"app-{number}", "domain": domain, "client": client}
        for key, use in chance.sample(list_uses(domain, client, USES), chance.randint(1, 5)):
            app.setdefault(key, []).append(use)
        apps.append(app)
    return apps


def list_uses(
    domain: str, client: str, uses: list[tuple[str, dict[str, Any]]]
) -> list[tuple[str, dict[str, Any]]]:
    """Return those that the client can do.

    nats-py writes no key of another domain, and nats.java answers no flow control in a group.
    """
    return [(key, use) for key, use in uses if not _is_limit(domain, client, key, use)]


def _is_limit(domain: str, client: str, key: str, use: dict[str, Any]) -> bool:
    if client == "java":
        return use.get("consumer") == "hub/consumer/ORDERS/PUSH"
    elsewhere = not use.get("bucket", domain).startswith(domain)
    return client == "py" and key == "writes" and "/kv/" in use["bucket"] and elsewhere


def space_with(folder: Path, *apps: dict[str, Any], **sections: Any) -> Space:
    """A workspace with these applications."""
    return Space(folder, BASE).write(**sections, apps=list(apps))


def derive(space: Space) -> list[AppPermissions]:
    """Return the permissions of each application."""
    workspace = load(space.load)
    found, findings = derive_permissions(workspace, build_topology(workspace), {"hub": "SHOP"})
    assert findings == []
    return found


def servers_with(*users: ProofUser, extra: str = "") -> Sandbox:
    """A hub and a leaf, whose account has these users; `extra` is more of their configuration."""
    rendered = {
        domain: tuple(user.render(PASSWORD) for user in users if user.found.app.domain == domain)
        for domain in ("hub", "leaf")
    }
    sites = [
        Site("hub", (Account("SHOP", users=rendered["hub"]),), "hub", extra=extra),
        Site("leaf", (Account("SHOP", users=rendered["leaf"]),), "leaf", hub="hub", extra=extra),
    ]
    return Sandbox.of_sites(sites, PASSWORD)
