"""What servers answer: accounts, lists, configurations, messages and errors, to every command that asks."""

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
    """Everything that was recorded."""
    found = recorded_seeds(
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
        one | {"$": form.encode()}
        for one in found
        for form in _FORMS.get(one["$"].decode().split()[0], ())
    ]
    for one in more:
        one.pop("saved/manifest.json", None)
    return [*found, *found, *more]


def run(scene: DocumentRun) -> None:
    """The command of the document."""
    play_servers(scene.document)
    ended = scene.jsplan(*scene.command())
    if scene.command()[0] == "import" and ended.code == 1 and "new.jsplan.yaml:" in ended.err:
        raise Violation("a generated file is wrong", ended.err)


TARGET: Final = Target(
    "answers",
    seeds,
    run,
    changes=lambda name: name.startswith((ANSWER, MANY, GREETING)),
    form=lambda _: "json",
    words=("error", "total", "streams", "config", "state", "subjects", "cluster", "${", "metadata"),
    share=4,
)
