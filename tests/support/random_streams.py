"""Draws streams and changes of their fields, for cases and flows that are random."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Body = dict[str, Any]


class RandomStreams:
    """A generator of fields; `token` begins the names of all that is drawn."""

    def __init__(self, seed: str | int, token: str = "") -> None:
        self.rng = random.Random(seed)
        self.token = token

    def chance(self, share: float) -> bool:
        """Draw true so often."""
        return self.rng.random() < share

    def draw_fields(self, choices: Sequence[Body]) -> Body:
        """Draw one of the choices, and a value where it has a tuple or a range of them.

        `T.` in a text stands for the token and a dot.
        """
        fields = {
            name: self.rng.choice(value) if isinstance(value, tuple | range) else value
            for name, value in self.rng.choice(choices).items()
        }
        named: Body = json.loads(json.dumps(fields).replace("T.", f"{self.token}."))
        return named


def origins(body: Body) -> list[Body]:
    """Return the mirror and the sources of a stream."""
    return [*([body["mirror"]] if body.get("mirror") else []), *(body.get("sources") or ())]
