"""The watermarks that drift remembers from one check to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from jsplan.address import Address
from jsplan.config.model import Workspace
from jsplan.disk import display_path, write_private
from jsplan.documents.base import dumps
from jsplan.documents.reading import read_file
from jsplan.documents.state_parts import Watermark, Watermarks
from jsplan.errors import JsplanError
from jsplan.facts.lost_messages import MarkedMessage
from jsplan.planning.losses import find_only_origin, has_lost_since
from jsplan.planning.model import PlanInputs
from jsplan.units import format_timestamp

#: Bytes of a file of watermarks: about 150 for a stream.
MAX_BYTES: Final = 64 << 20
_HINT: Final = "Delete it to begin again: what was lost before is then not seen."


def list_marked(inputs: PlanInputs) -> dict[Address, MarkedMessage]:
    """Return the message at the watermark of each stream that may have gone back.

    That is a stream which has received messages since.
    """
    found: dict[Address, MarkedMessage] = {}
    for address, mark in inputs.watermarks.items():
        live = inputs.live.get(address)
        if live is None or live.created != mark.created or not mark.last_time:
            continue
        state = live.state
        first, last = (int(state.get(name) or 0) for name in ("first_seq", "last_seq"))
        if first <= mark.last_seq <= last and state.get("last_ts") != mark.last_time:
            origin = find_only_origin(inputs, live)
            deleted = int(origin.state.get("first_seq") or 0) - 1 if origin is not None else 0
            found[address] = MarkedMessage(mark.last_seq, mark.last_time, deleted)
    return found


class WatermarkFile:
    """The watermarks of a workspace: in the file of `drift.watermarks`, or only in memory."""

    def __init__(self, workspace: Workspace) -> None:
        path = workspace.drift.watermarks
        self._path = workspace.root / path if path is not None else None
        self._marks = Watermarks(workspace=workspace.name, environment=workspace.environment)

    def read(self) -> WatermarkFile:
        """Read the file, if there is one. Raises DocumentError and JsplanError."""
        path = self._path
        if path is None:
            return self
        found = read_file(Watermarks, path, MAX_BYTES, _HINT)
        if found is None:
            return self
        own = (self._marks.workspace, self._marks.environment)
        if (found.workspace, found.environment) != own:
            raise JsplanError(
                f"{display_path(path)} has the watermarks of workspace {found.workspace}",
                hint="Name another file for each workspace and environment.",
            )
        self._marks = found
        return self

    def known(self, serial: int) -> Mapping[Address, Watermark]:
        """Return the watermarks that no apply has accepted another state of the stream since."""
        found = self._marks.streams.items()
        return {Address.parse(key): mark for key, mark in found if mark.serial == serial}

    def update(self, inputs: PlanInputs, checked: Collection[Address]) -> None:
        """Take the state of each stream that was read. One with a loss keeps its watermark."""
        now, serial = format_timestamp(), inputs.state.serial
        for address in checked:
            live = inputs.live.get(address)
            if live is None or not address.is_stream or live.raw.get("storage") == "memory":
                continue
            if address in inputs.watermarks and has_lost_since(inputs, live):
                continue
            last, first, deleted = (
                int(live.state.get(name) or 0) for name in ("last_seq", "first_seq", "num_deleted")
            )
            time = str(live.state.get("last_ts") or "") if last else ""
            self._marks.streams[str(address)] = Watermark(
                live.created, now, serial, last, time, first, deleted
            )

    def save(self) -> None:
        """Write the file, if there is one. Raises JsplanError."""
        if self._path is None:
            return
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            write_private(part, dumps(self._marks.to_json()))
            part.replace(self._path)
        except OSError as error:
            raise JsplanError(
                f"cannot write {display_path(self._path)}: {error.strerror}",
                hint="It is `watermarks` in `drift:` of the workspace.",
            ) from None
