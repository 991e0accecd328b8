"""Two servers that do not know each other; a stream moves from one to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.relocate.scene import Scene
from tests.support.workspaces import new_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.support.raw import Raw


class TwoSystems(Scene):
    """Two servers that do not know each other; the stream A moves from one to the other."""

    domains = ("old", "new")
    stays_begun = True

    def __init__(self, folder: Path, old: Server, new: Server, name: str = "B") -> None:
        self.servers = {"old": old, "new": new}
        self.before, self.after, self.name = "old", "new", name
        #: Fields of the stream, also before it moves.
        self.fields: dict[str, Any] = {}
        self.space = new_space(
            folder,
            connections={key: {"url": s.url} for key, s in self.servers.items()},
            domains={key: {"connection": key, "js_domain": None} for key in self.servers},
        )

    def server(self, domain: str) -> Server:
        """Return the server of a domain."""
        return self.servers[domain]

    def reset(self, **fields: Any) -> None:
        """Empty both servers, make the stream with messages and consumers, and write the files."""
        self.fields = fields
        super().reset(**fields)

    def fill(self, raw: Raw) -> None:
        """Publish messages, and delete one unless they count."""
        counter = {"Nats-Incr": "+1"} if self.fields.get("allow_msg_counter") else None
        for number in range(self.count):
            body = b"" if counter else b"%d" % number
            assert b'"seq"' in raw.request(f"A.{number % 3}", body, counter)[1]
        raw.delete("A", 30) if not counter else None

    def declare_before(self) -> None:
        """Write the files with the stream on the old server."""
        self.space.write(streams=[self.body | {"domain": "old"} | self.fields])
