"""`jsplan access --prove` on embedded servers: right permissions pass, wrong ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from jsplan.config.model import LoadOptions
from jsplan.rehearsal import access_sites
from jsplan.render.access_text import render
from jsplan.topology import app_permissions
from jsplan.topology.app_permissions import Permission
from jsplan.workflows.access import access
from tests.access.conftest import generate_apps, space_with
from tests.render.texts import text_of
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from jsplan.documents.access import Access
    from tests.support.workspaces import Space

ROOT = Path(__file__).parent.parent.parent


def prove(space: Space) -> Access:
    """Run the command."""
    return access(space.load, RecordingObserver(), prove=True)


def require_proven(found: Access) -> None:
    """Check that each use works, each permission is needed, and all else is refused."""
    for app in found.apps:
        assert app.proof is not None
        assert [use for use in app.proof.uses if use.problem] == [], app.app
        assert (app.proof.unneeded, app.proof.permitted) == ([], []), app.app
        assert app.proof.refused >= 40


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, 2])
def test_generated_applications(seed: int, tmp_path: Path) -> None:
    """Applications with random uses, clients and places have what they need, and no more."""
    require_proven(prove(space_with(tmp_path, *generate_apps(seed, 6))))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_generated_applications(tmp_path: Path) -> None:
    """The same for two hundred, as many as one pair of servers takes at a time."""
    for seed in range(10, 20):
        require_proven(prove(space_with(tmp_path, *generate_apps(seed, 20))))


APP: dict[str, Any] = {
    "name": "a",
    "domain": "hub",
    "client": "py",
    "consumes": [{"consumer": "hub/consumer/ORDERS/PULL"}],
    "reads": [{"bucket": "hub/kv/CONFIG", "keys": ["eu.>"]}],
}


def change_permissions(monkeypatch: pytest.MonkeyPatch, lacks: str, *more: str) -> None:
    """Let the derivation forget a subject, and add others."""
    merge = app_permissions.merge_permissions

    def merge_wrongly(found: Any) -> list[Permission]:
        kept = [each for each in merge(found) if each.subject != lacks]
        return [*kept, *(Permission("publish", subject, ("nothing",)) for subject in more)]

    monkeypatch.setattr(app_permissions, "merge_permissions", merge_wrongly)


@pytest.mark.matrix
def test_a_permission_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The use that does not work is named, with what the server denies."""
    change_permissions(monkeypatch, "$JS.ACK.ORDERS.PULL.>")

    proof = prove(space_with(tmp_path, APP)).apps[0].proof

    assert proof is not None
    assert not proof.is_complete
    problems = [use for use in proof.uses if use.problem]
    assert [use.use for use in problems] == ["consumes hub/consumer/ORDERS/PULL"]
    assert "does not permit this user to publish to $JS.ACK.ORDERS.PULL." in problems[0].problem


@pytest.mark.matrix
def test_permissions_that_no_use_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A subject that nothing needs is named, and so is each request that it permits."""
    change_permissions(monkeypatch, "", "$JS.API.STREAM.PURGE.ORDERS")

    proof = prove(space_with(tmp_path, APP)).apps[0].proof

    assert proof is not None
    assert (proof.unneeded, proof.permitted) == (["$JS.API.STREAM.PURGE.ORDERS"], [])


@pytest.mark.matrix
def test_a_server_that_permits_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The forbidden requests find whatever a server permits beyond the permissions."""
    render = access_sites.ProofUser.render

    def render_more(user: access_sites.ProofUser, password: str) -> str:
        more = Permission("publish", "$JS.API.STREAM.DELETE.*", ("nothing",))
        permissions = [*user.found.permissions, more]
        return render(
            access_sites.ProofUser(replace(user.found, permissions=permissions), user.without),
            password,
        )

    monkeypatch.setattr(access_sites.ProofUser, "render", render_more)
    proof = prove(space_with(tmp_path, APP)).apps[0].proof

    assert proof is not None
    assert proof.permitted[0] == "publish $JS.API.STREAM.DELETE.KV_CONFIG"
    assert len(proof.permitted) == 3


@pytest.mark.matrix
@pytest.mark.parametrize("client", ["java", "js"])
@pytest.mark.parametrize("js_domain", ["hub", "web"], ids=["one server", "linked servers"])
def test_across_accounts(js_domain: str, client: str, tmp_path: Path) -> None:
    """An application of another account consumes and reads over the exports and imports."""
    connections = {
        "hub": {"url": "nats://127.0.0.1:1", "account": "SHOP"},
        "web": {"url": "nats://127.0.0.1:2", "account": "WEB"},
    }
    domains = {
        "hub": {"connection": "hub"},
        "leaf": {"connection": "hub"},
        "web": {"connection": "web", "js_domain": js_domain},
    }
    rows = [{"from": "hub", "into": "web", "api": "JS.shop@hub.API", "deliver": "deliver.web"}]
    app = APP | {"domain": "web", "client": client}
    space = space_with(tmp_path, app, connections=connections, domains=domains, imports=rows)

    found = prove(space)

    require_proven(found)
    read = {"java": "DIRECT.GET.KV_CONFIG.$KV.CONFIG.eu.>", "js": "STREAM.MSG.GET.KV_CONFIG"}
    assert {need.subject for need in found.needs} >= {
        "$JS.hub.API.CONSUMER.INFO.ORDERS.PULL",
        "$JS.hub.API.CONSUMER.MSG.NEXT.ORDERS.PULL",
        f"$JS.hub.API.{read[client]}",
    }


@pytest.mark.matrix
def test_the_example() -> None:
    """The how-to prints what the example gives, and the example is proven."""
    page = (ROOT / "docs/how-to/applications.md").read_text()
    example = LoadOptions(ROOT / "examples/applications")

    found = access(example, RecordingObserver(), prove=True)

    require_proven(found)
    billing = next(app for app in found.apps if app.app == "billing")
    assert billing.configuration in page
    shown = text_of(lambda console: render(found, console))
    assert [line for line in shown.splitlines() if "refused" not in line and line not in page] == []
