"""The document of `jsplan history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from jsplan.documents.apply import StepStatus
from jsplan.documents.base import Document
from jsplan.documents.plan import FieldChange
from jsplan.documents.plan_parts import Actions
from jsplan.documents.state_parts import SessionShape
from jsplan.documents.types import AnyAddress, kept


class ShownChange(TypedDict):
    """The result of one resource. `costs` cannot be undone."""

    address: AnyAddress
    actions: Actions
    status: Literal["started"] | StepStatus
    fields: list[FieldChange]
    costs: list[dict[str, Any]]
    error: str | None
    importing: NotRequired[bool]
    moved_from: NotRequired[AnyAddress]


class ShownSessionShape(SessionShape):
    """A session. `changes` are null where state has only counts."""

    changes: NotRequired[list[ShownChange] | None]


if TYPE_CHECKING:
    ShownSession = dict[str, Any]
else:
    ShownSession = kept(ShownSessionShape)


class History(Document, tag="history"):
    """Sessions that changed something, the newest first, or one of them with its changes."""

    workspace: str
    environment: str | None
    entries: list[ShownSession]
