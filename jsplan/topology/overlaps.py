"""Streams of one domain that would store the same subject, which the server refuses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from jsplan.address import Address
from jsplan.config.model import DeclaredResource, Workspace
from jsplan.diagnostics import NO_LOCATION, Diagnostic
from jsplan.resources import STREAM
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.subjects import SubjectTree
from jsplan.topology.resolve import Topology

SUBJECT_TAKEN = "JS438"


def check_declared_subjects(workspace: Workspace, topology: Topology) -> list[Diagnostic]:
    """Return the errors of declared streams of one domain that overlap.

    What a stream with `ignore_changes: [subjects]` stores is not in the files: it is left out.
    """
    subjects = {
        address: _declared_subjects(address, topology)
        for address, resource in workspace.resources.items()
        if address.is_stream and "subjects" not in resource.lifecycle.ignore_changes
    }
    return find_overlaps(subjects, subjects, subjects.__getitem__, topology, workspace.resources)


def _declared_subjects(address: Address, topology: Topology) -> Sequence[str]:
    """Return the subjects of a new stream: its name, if the files and its kind give it none."""
    body = {name: value for name, value in topology.bodies[address].items() if value is not None}
    config = STREAM.compact({"name": address.stream} | body)
    STREAM.fill_derived(config, NEWEST_LEVEL)
    subjects: Sequence[str] = config.get("subjects", ())
    return subjects


def find_overlaps(
    takers: Mapping[Address, Sequence[str]],
    streams: Iterable[Address],
    subjects_of: Callable[[Address], Sequence[str]],
    topology: Topology,
    declared: Mapping[Address, DeclaredResource],
) -> list[Diagnostic]:
    """Return an error for each subject of a taker that another stream of its domain stores, too.

    Of two takers the later address is reported. `declared` has the places in the files.
    """
    trees: dict[str, SubjectTree[Address]] = {
        topology.canonicalize(taker).domain: SubjectTree() for taker in takers
    }
    for address in streams:
        real = topology.canonicalize(address)
        if (tree := trees.get(real.domain)) is not None:
            for subject in subjects_of(address):
                tree.add(subject, real)
    errors: list[Diagnostic] = []
    reported: set[frozenset[Address]] = set()
    for taker in sorted(takers, reverse=True):
        own = topology.canonicalize(taker)
        for subject in reversed(takers[taker]):
            found = trees[own.domain].find_overlapping(subject)
            others = (other for other in found if other != own)
            other = next((o for o in others if frozenset((o, own)) not in reported), None)
            if other is not None:
                reported.add(frozenset((other, own)))
                known_as = topology.find_declared(other)
                errors.append(_describe_overlap(subject, taker, known_as, declared))
    return errors[::-1]


def _describe_overlap(
    subject: str, taker: Address, other: Address, declared: Mapping[Address, DeclaredResource]
) -> Diagnostic:
    at, elsewhere = (
        (found.ranges.get("subjects") or found.range) if found is not None else None
        for found in (declared.get(taker), declared.get(other))
    )
    return Diagnostic(
        "error",
        SUBJECT_TAKEN,
        f'subjects: "{subject}" overlaps with {other} (10065)',
        "A subject has one stream in a domain. Narrow one of them, or use a source."
        + (f" {other} is at {elsewhere}." if elsewhere not in (None, NO_LOCATION) else ""),
        str(taker),
        at,
    )
