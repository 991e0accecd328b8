"""JS250: push consumers with the same deliver_subject."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.address import Address
from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers of joined domains with one `deliver_subject`; the second of two is reported."""
    first: dict[tuple[str, str], Address] = {}
    wanted = {item.address for item in view.consumers()}
    for address, item in sorted(view.all_consumers.items()):
        subject = item.config.get("deliver_subject")
        if not subject:
            continue
        other = first.setdefault(
            (view.connected_domains.group_of(address.domain), subject), address
        )
        if other != address and (address in wanted or other in wanted):
            one, two = (address, other) if address in wanted else (other, address)
            yield Hit(
                one,
                f'delivers to "{subject}", as {two} does: subscribers get both',
                "deliver_subject",
                also=(two,),
            )


RULE = Rule(
    "JS250",
    "warning",
    check,
    why=(
        "A subscriber of a deliver_subject receives what every consumer sends there. The messages"
        " of two consumers mix, messages of one stream come twice, and acknowledgements reach"
        " either consumer."
    ),
    fix=(
        "Give each consumer a deliver_subject of its own; workers that share one consumer use"
        " deliver_group."
    ),
)
