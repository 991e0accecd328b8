"""Parts that several documents have."""

from __future__ import annotations

from msgspec import Struct

from jsplan.documents.types import AnyAddress, Seconds


class Deferred(Struct):
    """A resource or origin that is deferred to a later run, because its domain is offline."""

    address: AnyAddress
    reason: str


class Estimate(Struct, frozen=True):
    """An estimated time; `basis` says how it was computed."""

    seconds: Seconds
    basis: str
