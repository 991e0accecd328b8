"""A relay that records what a NATS client publishes and subscribes to."""

from __future__ import annotations

from tests.support.relay import Relay


class Recorder(Relay):
    """A relay of one connection; `published` and `subscribed` are its subjects, in their order."""

    def __init__(self, target: int) -> None:
        self.published: list[str] = []
        self.subscribed: list[str] = []
        self._left = b""
        super().__init__()
        self.target = target

    def _up(self, data: bytes) -> bytes:
        self._left += data
        while b"\r\n" in self._left:
            line, _, rest = self._left.partition(b"\r\n")
            verb, *words = line.decode().split(" ")
            size = int(words[-1]) + 2 if verb in ("PUB", "HPUB") else 0
            if len(rest) < size:
                break
            if size:
                self.published.append(words[0])
            elif verb == "SUB":
                self.subscribed.append(" ".join(words[:-1]))
            self._left = rest[size:]
        return data
