"""The target and the result of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from jsplan.address import Address
from jsplan.config.files import MAIN_FILE
from jsplan.config.model import LoadOptions
from jsplan.diagnostics import Diagnostic
from jsplan.disk import is_file

Tool = Literal["nats", "nack", "terraform"]
TOOL_NAMES: Mapping[str, str] = {"nats": "the nats CLI", "nack": "NACK", "terraform": "Terraform"}


class ConvertTarget(Struct, frozen=True):
    """The workspace that receives the result: an existing one, or a new one called `name`.

    `domain` is used for resources that name none.
    """

    load: LoadOptions
    name: str
    domain: str | None = None

    @property
    def exists(self) -> bool:
        """True if there is a workspace; an empty file, as `> jsplan.yaml` makes it, is none."""
        path = self.load.directory / MAIN_FILE
        return is_file(path) and path.stat().st_size > 0


class ConvertResult(Struct, frozen=True):
    """The text of the file, the addresses that it declares, and diagnostics."""

    tool: Tool
    text: str
    new_workspace: bool
    addresses: tuple[Address, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
