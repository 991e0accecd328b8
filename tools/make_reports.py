"""`make reports`: plan a change and write docs/reports/ and the pictures in docs/images/.

The pictures need a Chromium (`tools/chromium.py`). That the pages are of this release is checked by
tests/docs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats

from jsplan.cli.views import plan_view
from jsplan.config.model import LoadOptions
from jsplan.options import PlanOptions
from jsplan.render.progress import PlainProgress
from jsplan.sandbox import Sandbox
from jsplan.workflows.apply import apply
from jsplan.workflows.plan import plan
from tools import chromium

if TYPE_CHECKING:
    from jsplan.sandbox import Server

ROOT = Path(__file__).parent.parent
REPORTS, IMAGES = ROOT / "docs" / "reports", ROOT / "docs" / "images"
ORDERS: dict[str, Any] = {
    "name": "ORDERS", "domain": "leaf", "subjects": ["ORDERS.*"], "max_age": "1y", "max_bytes": "1GiB",
    "consumers": [{"name": "NEW", "filter_subject": "ORDERS.received", "ack_policy": "explicit"}],
}  # fmt: skip
BEFORE: list[dict[str, Any]] = [
    ORDERS,
    {"name": "LEGACY", "domain": "leaf", "subjects": ["legacy.>"], "max_bytes": "1GiB"},
    {
        "name": "STATS",
        "domain": "leaf",
        "subjects": ["stats.>"],
        "max_bytes": "1GiB",
        "lifecycle": {"on_replace": "recreate"},
    },
    {"name": "LOGS", "domain": "hub", "subjects": ["logs.>"], "max_age": "1d", "max_bytes": "1GiB"},
]
AFTER: list[dict[str, Any]] = [
    ORDERS | {
        "max_msgs": 1000, "subjects": ["ORDERS.*", "returns.*"],
        "consumers": [*ORDERS["consumers"], {"name": "DISPATCH", "filter_subject": "ORDERS.processed", "ack_policy": "explicit"}],
    },
    BEFORE[2] | {"storage": "memory"},
    BEFORE[3] | {"max_age": "7d"},
    {"name": "ORDERS_COPY", "domain": "hub", "mirror": {"name": "ORDERS", "domain": "leaf"}, "max_bytes": "10GiB"},
    {"name": "AUDIT", "domain": "hub", "subjects": ["audit.>"], "max_age": "90d", "max_bytes": "5GiB"},
]  # fmt: skip
#: Messages on the leaf before the change.
MESSAGES = (("ORDERS.received", 1203), ("legacy.a", 40), ("stats.a", 7))


def write(folder: Path, url: str, streams: list[dict[str, Any]]) -> None:
    """Return the workspace that is planned, as JSON."""
    connection = {"url": url, "user": "acc", "password": "acc"}
    text = {
        "jsplan": 1,
        "workspace": "shop",
        "environments": {"prod": {}},
        "connections": {"hub": connection},
        "domains": {"hub": {"connection": "hub"}, "leaf": {"connection": "hub"}},
        "streams": streams,
    }
    (folder / "jsplan.yaml").write_text(json.dumps(text, indent=2), encoding="utf-8")


def render_reports(sandbox: Sandbox, folder: Path) -> dict[str, str]:
    """Apply one state of the files, publish, plan another: the markdown and the page, by format."""
    load = LoadOptions(folder, environment="prod")
    write(folder, sandbox["hub"].url, BEFORE)
    apply(load, PlanOptions(), lambda _: None, PlainProgress(sys.stderr))
    asyncio.run(publish(sandbox["leaf"]))
    write(folder, sandbox["hub"].url, AFTER)
    made = plan(load, PlanOptions(), PlainProgress(sys.stderr))
    return {name: plan_view(made, name) for name in ("markdown", "html")}


async def publish(leaf: Server) -> None:
    """Publish the messages that the streams of the leaf hold before the change."""
    connection = await nats.connect(leaf.url, user=leaf.user, password=leaf.password)
    stream = connection.jetstream()
    for subject, number in MESSAGES:
        for _ in range(number):
            await stream.publish(subject, b"a message of 24 bytes...")
    await connection.close()


def take_screenshot(page: Path, picture: Path, scheme: str) -> None:
    """Take a picture of the page, in the light or dark colour scheme."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        dark = (
            ["--blink-settings=preferredColorScheme=0"]
            if scheme == "dark"
            else ["--blink-settings=preferredColorScheme=1"]
        )
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--hide-scrollbars",
            "--window-size=1100,1150",
            *dark,
        ]
        where = [f"--user-data-dir={profile}", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(
            [chromium.ensure_chromium(), *words, *where],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main() -> None:
    """Write the pages and the pictures."""
    REPORTS.mkdir(exist_ok=True)
    with Sandbox.hub_and_leaf() as sandbox, tempfile.TemporaryDirectory() as folder:
        made = render_reports(sandbox, Path(folder))
    (REPORTS / "plan.html").write_text(made["html"], encoding="utf-8")
    (REPORTS / "plan.txt").write_text(made["markdown"], encoding="utf-8")
    for scheme in ("light", "dark"):
        take_screenshot(REPORTS / "plan.html", IMAGES / f"plan-{scheme}.png", scheme)


if __name__ == "__main__":
    main()
