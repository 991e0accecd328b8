"""All readers of documents by name. A new one is a module with a `TARGET`, named here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.fuzz.targets import (
    advisories,
    answers,
    archive,
    bucket,
    config,
    config_file,
    connection,
    lock,
    manifest,
    plan,
    state,
    wire,
)

if TYPE_CHECKING:
    from tests.fuzz.harness import Target

_MODULES = (
    config,
    config_file,
    connection,
    plan,
    state,
    bucket,
    lock,
    manifest,
    archive,
    wire,
    answers,
    advisories,
)
TARGETS: Final[dict[str, Target]] = {module.TARGET.name: module.TARGET for module in _MODULES}
