from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import jq
import orjson

from jsplan.workflows import plan as planning
from tests.docs.pages import ROOT, blocks
from tests.support.raw import Raw, encode
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

PAGE = ROOT / "docs" / "how-to" / "review-in-ci.md"
QUESTIONS = {block.title: shlex.split(block.text)[2] for block in blocks(PAGE) if block.title}
WANTED = {
    "what will be deleted": ["hub/stream/OLD", "leaf/stream/STORE"],
    "which streams change": [
        "hub/stream/OLD delete",
        "leaf/stream/NEW create",
        "leaf/stream/STORE delete+create",
        "leaf/stream/test update",
    ],
    "hazards": [
        "DELETES_STREAM hub/stream/OLD allowed: deletes the stream with 1 message (34 bytes)",
        "DELETES_STREAM leaf/stream/STORE BLOCKS: deletes the stream with 1 message (36 bytes)",
        "DELETES_MESSAGES leaf/stream/test BLOCKS: the server deletes 200 of 1,200 messages (7,000 bytes, stored TIME) at once",
    ],
}


def test_the_questions_of_the_page_are_answered(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Each jq one-liner of the page gives the right answer about a real plan."""
    # Save a plan with one of everything, made on real servers.
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    kept, leaf = {"name": "KEPT", "domain": "hub"}, clean_hub_leaf["leaf"]
    store = {"name": "STORE", "domain": "leaf", "lifecycle": {"on_replace": "recreate"}}
    test = {"name": "test", "domain": "leaf"}
    space.write(streams=[kept, store, test, {"name": "OLD", "domain": "hub"}]).apply()
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        raw.publish_all([encode("test", b"x")] * 1200)
        raw.flush()
        raw.request("STORE", b"x")
    with Raw(clean_hub_leaf["hub"].url, "acc", "acc") as raw:
        raw.request("OLD", b"x")
    space.write(
        streams=[
            kept,
            store | {"storage": "memory"},
            test | {"max_msgs": 1000},
            {"name": "NEW", "domain": "leaf"},
        ]
    )
    planning.save_plan(space.plan(allow_hazards=("DELETES_STREAM:hub/**",)), tmp_path / "shop.plan")
    saved = (tmp_path / "shop.plan").read_bytes()
    plan = orjson.loads(re.sub(rb"stored 20[\dTZ:.-]+(?: to 20[\dTZ:.-]+)?", b"stored TIME", saved))

    assert set(QUESTIONS) == set(WANTED)
    assert {
        title: jq.compile(program).input_value(plan).all() for title, program in QUESTIONS.items()
    } == WANTED
