"""JS201: one publish that two streams store, because their domains share messages."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.address import Address
from jsplan.lint.rule import Hit, Rule
from jsplan.lint.subject_reachability import DisjointSets
from jsplan.lint.view import LintItem, View
from jsplan.subjects import SubjectTree

#: The keys of KV buckets stay in their domain (measured); those of object stores do not.
_LOCAL_KINDS = ("kv",)


def check(view: View) -> Iterator[Hit]:
    """One finding for all streams that share subjects, at the first of them."""
    wanted = {item.address for item in view.streams()}
    for streams, subjects in _overlapping_streams(view):
        known = sorted(item.address for item in streams)
        first = next((a for a in known if a in wanted), None)
        if first is not None:
            others = [a for a in known if a != first]
            shown = ", ".join(map(str, others[:3])) + (
                f" and {len(others) - 3} more" if len(others) > 3 else ""
            )
            which = ", ".join(f'"{subject}"' for subject in subjects[:3])
            text = (
                f"{which}: also stored by {shown};"
                " leafnodes forward the messages, so each is stored twice"
            )
            yield Hit(first, text, "subjects", also=tuple(others))


def _overlapping_streams(view: View) -> Iterator[tuple[list[LintItem], list[str]]]:
    """Yield streams of several domains whose subjects overlap, and these subjects."""
    by_subject: dict[tuple[str, str], list[LintItem]] = {}
    for item in _multi_domain_streams(view):
        group = view.connected_domains.group_of(item.address.domain)
        for subject in item.config.get("subjects", ()):
            by_subject.setdefault((group, subject), []).append(item)
    trees: dict[str, SubjectTree[str]] = {}
    for group, subject in by_subject:
        trees.setdefault(group, SubjectTree()).add(subject, subject)
    together: DisjointSets[tuple[str, str]] = DisjointSets()
    meeting: dict[tuple[str, str], None] = {}
    for (group, subject), here in by_subject.items():
        for other in trees[group].find_overlapping(subject):
            if len(_domains(view, [*here, *by_subject[group, other]])) > 1:
                together.union((group, subject), (group, other))
                meeting |= {(group, subject): None, (group, other): None}
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key in meeting:
        found.setdefault(together.find(key), []).append(key)
    for keys in found.values():
        streams = {item.address: item for key in keys for item in by_subject[key]}
        yield list(streams.values()), [subject for _, subject in keys]


def _multi_domain_streams(view: View) -> list[LintItem]:
    """Return the streams in groups of more than one domain: only those need a comparison."""
    groups: dict[str, set[str]] = {}
    for domain in {item.address.domain for item in view.all_streams.values()}:
        groups.setdefault(view.connected_domains.group_of(domain), set()).add(
            view.topology.routes.canonicalize(domain)
        )
    joined = {
        key
        for key in view.workspace.domains
        if len(groups.get(view.connected_domains.group_of(key), ())) > 1
    }
    return [
        item
        for item in view.all_streams.values()
        if item.address.domain in joined and item.address.kind not in _LOCAL_KINDS
    ]


def _domains(view: View, items: list[LintItem]) -> set[str]:
    def real(address: Address) -> str:
        return view.topology.canonicalize(address).domain

    return {real(item.address) for item in items}


RULE = Rule(
    "JS201",
    "warning",
    check,
    why=(
        "Domains of one account that are joined by leafnodes share its subjects. If streams of"
        " two domains store the same subject, each of them stores every publish while the link is"
        " up. That doubles the messages, and the publisher sees only the first of two"
        " acknowledgements. Keys of KV buckets stay in their domain; the chunks of object stores"
        " do not."
    ),
    fix=(
        "Give each domain subjects of its own, such as sales.${domain}.>, or store the subject in"
        " one domain and mirror it in the other. If the leafnode denies the subject, ignore this"
        " with that reason."
    ),
)
