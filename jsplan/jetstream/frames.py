"""Follows the framing of an S2 stream as it passes, without unpacking it: whether it is whole, how much it holds, what it is.

Snapshots are S2 streams (https://github.com/google/snappy/blob/main/framing_format.txt): frames of one byte type, three bytes
length and a body. Whether the bodies are right is left to the checksums in them, which the restoring server verifies.
"""

from __future__ import annotations

from typing import Final

_COMPRESSED, _PLAIN, _BEGIN = 0x00, 0x01, 0xFF
_HEAD = 4
#: The first bytes of what a 2.15 archive holds; earlier ones are tar files.
_MAGIC: Final = b"NATSARC1"
#: A frame's checksum, a block's length of at most five bytes, the tag of its first literal of at most three, and the magic.
_PEEK = 4 + 5 + 3 + len(_MAGIC)


class Frames:
    """What went by so far: `bytes` counts it, `unpacked` what it holds; `archive` is `natsarc1`, `tar`, or empty before the first frame."""

    def __init__(self) -> None:
        self.bytes = 0
        self.unpacked = 0
        self.archive = ""
        self._head = b""  # what has come of a frame's head and of the beginning of its body
        self._skip = 0  # bytes of the body that are still to come
        self._started = False
        self._bad = False

    @property
    def whole(self) -> bool:
        """Something has come, it is an S2 stream, and no frame is cut off."""
        return self.bytes > 0 and not (self._bad or self._head or self._skip)

    def feed(self, data: bytes) -> None:
        """Take the next piece, of any size."""
        self.bytes += len(data)
        at = 0
        while at < len(data) and not self._bad:
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            wanted = self._wanted()
            piece = data[at : at + wanted - len(self._head)]
            self._head += piece
            at += len(piece)
            if len(self._head) == self._wanted():
                self._begin()

    def _wanted(self) -> int:
        """How much of the frame has to be looked at: its head, then as much of its body as `_PEEK`."""
        if len(self._head) < _HEAD:
            return _HEAD
        return _HEAD + min(_PEEK, int.from_bytes(self._head[1:_HEAD], "little"))

    def _begin(self) -> None:
        kind, length, body = self._head[0], int.from_bytes(self._head[1:_HEAD], "little"), self._head[_HEAD:]
        self._head = b""
        self._skip = length - len(body)
        if not self._started:
            self._started, self._bad = True, kind != _BEGIN
        if kind == _COMPRESSED:
            self.unpacked += _uvarint(body[4:])
        elif kind == _PLAIN:
            self.unpacked += length - 4
        if kind in (_COMPRESSED, _PLAIN) and not self.archive:
            self.archive = "natsarc1" if _MAGIC in body else "tar"


def _uvarint(data: bytes) -> int:
    number = 0
    for place, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    return number
