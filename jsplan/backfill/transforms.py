"""The transforms of an entry, which are validated before any server is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.entry import has_distinct_origins, has_transforms
from jsplan.backfill.tasks.partitioning import TransformFunction, TransformSpec
from jsplan.backfill.tasks.subject_transform import SubjectTransform as Subjects
from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.config.model import Backfill


def build_transform_spec(root: Path, entry: Backfill) -> TransformSpec:
    """Build the transforms of an entry. Raises UsageError if they are not valid."""
    if has_transforms(entry):
        _require_possible(entry)
    mapping = Subjects(*entry.subject_transform) if entry.subject_transform is not None else None
    try:
        if mapping is not None:
            mapping.compile()
    except ValueError as error:
        raise UsageError(f"backfill {entry.name}: subject_transform: {error}") from None
    return TransformSpec(entry.order, entry.where, _load_function(root, entry), mapping)


def _require_possible(entry: Backfill) -> None:
    if entry.mode == "exact" or entry.strategy not in ("auto", "spark"):
        raise UsageError(
            f"backfill {entry.name}: servers copy messages unchanged; only Spark applies order, "
            "where, transform and subject_transform",
            hint="Leave out `mode: exact` and `strategy`.",
        )
    if not has_distinct_origins(entry.origins):
        raise UsageError(
            f"backfill {entry.name} names a stream twice, and its ranges might overlap",
            hint="Make an entry of each range of it.",
        )


def _load_function(root: Path, entry: Backfill) -> TransformFunction | None:
    if entry.transform is None:
        return None
    path, colon, name = entry.transform.rpartition(":")
    if not (colon and path.endswith(".py") and name.isidentifier()):
        raise UsageError(
            f"backfill {entry.name}: transform {entry.transform!r} is not FILE.py:FUNCTION"
        )
    try:
        text = read_regular(root / path, MEGABYTE, root=root).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UsageError(f"backfill {entry.name}: {root / path} cannot be read: {reason}") from None
    return TransformFunction(path, name, text)
