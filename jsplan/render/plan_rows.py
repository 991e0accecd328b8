"""The changes of a plan as rows for Markdown and HTML, what deletes first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from jsplan.render import plan_text, resource_text
from jsplan.render.lines import Lines
from jsplan.render.plan_text import fold_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

    from jsplan.documents.plan import Hazard, Plan, ResourceChange
    from jsplan.group_domains import Group

#: The action of a resource in one word; those that delete come first.
_ACTION_NAMES = {
    ("delete",): "destroy", ("delete", "create"): "replace", ("create", "delete"): "replace",
    ("update",): "update", ("create",): "create", ("forget",): "forget", ("no-op",): "move",
}  # fmt: skip
ACTIONS = ("destroy", "replace", "update", "create", "import", "forget", "move", "other")
_TITLES = {
    "destroy": "Destroyed", "replace": "Replaced", "update": "Updated in place",
    "create": "Created", "import": "Imported", "move": "Moved",
    "forget": "Forgotten, they stay on the server",
    "other": "Changed in a way this release does not know",
}  # fmt: skip
#: Characters that a comment of HTML must not hold.
_UNSAFE = re.compile(r"[^\w.-]")


class Row(Struct, frozen=True):
    """One change, or many alike ones, in the lines of the terminal: head and fields."""

    number: int
    group: Group
    head: Text
    fields: list[Text]

    @property
    def action(self) -> str:
        """Return one of `ACTIONS`."""
        return action_of(self.group.resource)

    @property
    def members(self) -> Sequence[ResourceChange]:
        """The changes that it represents."""
        return self.group.members

    @property
    def outcome(self) -> str:
        """The action, in words."""
        return resource_text.headline(self.group.resource)[2]


def action_title(action: str) -> str:
    """Return the heading of an action."""
    return _TITLES[action]


def action_of(resource: ResourceChange) -> str:
    """Return the action of a change, as one of `ACTIONS`."""
    if resource.change.importing:
        return "import"
    return _ACTION_NAMES.get(resource_text.action_key(resource), "other")


def rows(plan: Plan, *, verbose: bool = False) -> list[Row]:
    """Return all changes: destroyed, replaced, then the rest; those with hazards first in each."""
    found = sorted(
        plan_text.group_changes(plan_text.changed_resources(plan), plan, verbose=verbose),
        key=_sort_key,
    )
    return [_row(number, group, verbose=verbose) for number, group in enumerate(found, 1)]


def _row(number: int, group: Group, *, verbose: bool) -> Row:
    head, fields = Lines(), Lines()
    resource_text.add_head(head, group.resource, group.where)
    resource_text.add_body(fields, group.resource)
    return Row(number, group, head.rows[0], (fields if verbose else fold_sources(fields)).rows)


def plain_lines(lines: Iterable[Text]) -> list[str]:
    """Return the lines as text, without their common indentation."""
    return [line.plain.removeprefix(" " * resource_text.BODY_INDENT) for line in lines]


def _sort_key(group: Group) -> tuple[int, bool, int, str, str]:
    resource = group.resource
    worst = min((_rank(hazard) for hazard in resource.hazards), default=3)
    return (
        ACTIONS.index(action_of(resource)),
        resource.change.actions == ["create", "delete"],
        worst,
        *plan_text.below_stream(group.members[0]),
    )


def _rank(hazard: Hazard) -> int:
    return 2 if hazard.allowed else 0 if hazard.blocking else 1


def hazards(found: Iterable[Row]) -> list[tuple[Row, Hazard]]:
    """Return every hazard with its row: blocking ones, then warnings, then allowed ones."""
    every = [(row, hazard) for row in found for hazard in row.group.resource.hazards]
    return sorted(every, key=lambda pair: (_rank(pair[1]), pair[0].number))


def plan_name(plan: Plan) -> str:
    """Return `shop, prod`."""
    return f"{plan.workspace}, {plan.environment}" if plan.environment else plan.workspace


def marker(plan: Plan, sha256: str) -> str:
    """Return `<!-- jsplan:shop.prod:SHA -->`, which identifies the comment and the plan."""
    where = f"{plan.workspace}.{plan.environment}" if plan.environment else plan.workspace
    return f"<!-- jsplan:{_UNSAFE.sub('_', where)}:{sha256} -->"
