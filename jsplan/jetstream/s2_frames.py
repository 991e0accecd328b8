"""Follows the frames of an S2 stream without decompressing: completeness, size and format.

Snapshots are S2 streams (https://github.com/google/snappy/blob/main/framing_format.txt): frames of
one byte type, three bytes length and a body. The restoring server verifies the checksums of the
bodies.
"""

from __future__ import annotations

from typing import Final

_COMPRESSED, _UNCOMPRESSED, _STREAM_START = 0x00, 0x01, 0xFF
_HEADER_BYTES = 4
#: The first bytes of a 2.15 archive; earlier ones are tar files.
_MAGIC: Final = b"NATSARC1"
#: Checksum, block length (at most 5 bytes), tag of the first literal (at most 3), and the magic.
_PEEK_BYTES = 4 + 5 + 3 + len(_MAGIC)


class S2Frames:
    """Counts of the bytes so far.

    `bytes` is the compressed size and `uncompressed_bytes` the size of the content.
    `archive_format` is `natsarc1`, `tar`, or empty before the first frame.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.uncompressed_bytes = 0
        self.archive_format = ""
        self._head = b""  # the frame's header and the beginning of its body
        self._body_left = 0  # bytes of the body that are still missing
        self._started = False
        self._invalid = False

    @property
    def is_complete(self) -> bool:
        """True if data arrived, it is an S2 stream, and no frame is incomplete."""
        return self.bytes > 0 and not (self._invalid or self._head or self._body_left)

    def feed(self, data: bytes) -> None:
        """Process the next data, of any size."""
        self.bytes += len(data)
        at = 0
        while at < len(data) and not self._invalid:
            if self._body_left:
                step = min(self._body_left, len(data) - at)
                self._body_left -= step
                at += step
                continue
            wanted = self._header_bytes_wanted()
            piece = data[at : at + wanted - len(self._head)]
            self._head += piece
            at += len(piece)
            if len(self._head) == self._header_bytes_wanted():
                self._begin_frame()

    def _header_bytes_wanted(self) -> int:
        """Return the number of bytes of the frame to inspect: header and up to `_PEEK_BYTES`."""
        if len(self._head) < _HEADER_BYTES:
            return _HEADER_BYTES
        return _HEADER_BYTES + min(
            _PEEK_BYTES, int.from_bytes(self._head[1:_HEADER_BYTES], "little")
        )

    def _begin_frame(self) -> None:
        kind, length, body = (
            self._head[0],
            int.from_bytes(self._head[1:_HEADER_BYTES], "little"),
            self._head[_HEADER_BYTES:],
        )
        self._head = b""
        self._body_left = length - len(body)
        if not self._started:
            self._started, self._invalid = True, kind != _STREAM_START
        if kind == _COMPRESSED:
            self.uncompressed_bytes += _decode_uvarint(body[4:])
        elif kind == _UNCOMPRESSED:
            self.uncompressed_bytes += length - 4
        if kind in (_COMPRESSED, _UNCOMPRESSED) and not self.archive_format:
            self.archive_format = "natsarc1" if _MAGIC in body else "tar"


def _decode_uvarint(data: bytes) -> int:
    number = 0
    for place, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    return number
