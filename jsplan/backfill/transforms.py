"""What an entry makes of messages on their way: read from its text, and refused where it cannot be, before any server is asked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jsplan.backfill.tasks.partitioning import TransformFunction
from jsplan.backfill.tasks.subject_transform import SubjectTransform as Subjects
from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.config.model import Backfill, BackfillSide

#: The files that a running job carries, by the names that its entry gives them. They are never written: such a name may lead anywhere.
_JOB_FILES: Final[dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """What becomes of messages on their way."""

    order: str = "stream"
    where: str | None = None
    transform: TransformFunction | None = None
    subject_transform: Subjects | None = None

    @property
    def needs_rows(self) -> bool:
        """Whether Spark has to see each message: SQL and functions are its work."""
        return self.where is not None or self.transform is not None

    @property
    def fingerprint(self) -> str:
        """Tells what was staged by a function from what its file makes of it now."""
        return (
            hashlib.sha256(self.transform.text.encode()).hexdigest()[:16]
            if self.transform is not None
            else ""
        )


def has_transforms(entry: Backfill) -> bool:
    """Whether messages do not come as they are, one after the other."""
    return entry.order != "stream" or any((entry.where, entry.transform, entry.subject_transform))


def build_transform_spec(root: Path, entry: Backfill) -> TransformSpec:
    """What becomes of the messages of an entry. Raises UsageError for what cannot be, before any server is asked."""
    if has_transforms(entry):
        _require_possible(entry)
    mapping = Subjects(*entry.subject_transform) if entry.subject_transform is not None else None
    try:
        if mapping is not None:
            mapping.compile()
    except ValueError as error:
        raise UsageError(f"backfill {entry.name}: subject_transform: {error}") from None
    return TransformSpec(entry.order, entry.where, _load_function(root, entry), mapping)


@contextmanager
def use_job_files(files: Mapping[str, str]) -> Iterator[None]:
    """Take files that entries name from a job instead of the workspace, as long as the context lasts."""
    _JOB_FILES.update(files)
    try:
        yield
    finally:
        _JOB_FILES.clear()


def has_distinct_origins(sides: Iterable[BackfillSide]) -> bool:
    """Whether no stream is named twice."""
    names = [str(side) for side in sides]
    return len(set(names)) == len(names)


def _require_possible(entry: Backfill) -> None:
    if entry.mode == "exact" or entry.strategy not in ("auto", "spark"):
        raise UsageError(
            f"backfill {entry.name}: servers copy messages as they are; only Spark applies order, where, transform and subject_transform",
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
        text = (
            _JOB_FILES[path] if path in _JOB_FILES else read_regular(root / path, MEGABYTE).decode()
        )
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UsageError(f"backfill {entry.name}: {root / path} cannot be read: {reason}") from None
    return TransformFunction(path, name, text)
