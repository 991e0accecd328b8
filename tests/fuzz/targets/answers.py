"""Answers of servers to every command: accounts, lists, configurations, messages, errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.fuzz.document_run import Violation
from tests.fuzz.documents import Document
from tests.fuzz.harness import Target
from tests.fuzz.played_server import ANSWER, GREETING, MANY, play_servers
from tests.fuzz.targets.common import recorded_seeds

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

#: The same answers for other forms of the same command.
_FORMS: Final = {
    "drift": (
        "drift --format junit",
        "drift --format html",
        "drift --format markdown",
        "drift --format json",
        "drift --format github",
    ),
    "status": ("status --format json", "status --target hub/**"),
    "plan": ("plan --format json", "plan --format html", "plan --format markdown"),
}


def seeds() -> list[Document]:
    """Return everything that was recorded, in several output formats."""
    recorded = recorded_seeds(
        "create",
        "apply",
        "unchanged",
        "status",
        "change",
        "drift",
        "import",
        "discover",
        "access",
        "restore",
        "destroy",
    )
    more = [
        seed | {"$": form.encode()}
        for seed in recorded
        for form in _FORMS.get(seed["$"].decode().split()[0], ())
    ]
    for seed in more:
        seed.pop("saved/manifest.json", None)
    return [*recorded, *recorded, *more]


def run(scene: DocumentRun) -> None:
    """Run the command of the document."""
    play_servers(scene.document)
    result = scene.jsplan(*scene.command())
    # A second answer without a field of the first makes the field unknown: JS413.
    found = "new.jsplan.yaml:" in result.err and "[JS413]" not in result.err
    if scene.command()[0] == "import" and result.code == 1 and found:
        raise Violation("a generated file is wrong", result.err)


TARGET: Final = Target(
    "answers",
    seeds,
    run,
    changes=lambda name: name.startswith((ANSWER, MANY, GREETING)),
    form=lambda _: "json",
    words=("error", "total", "streams", "config", "state", "subjects", "cluster", "${", "metadata"),
    share=4,
)
