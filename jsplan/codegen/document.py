"""Generates the text of a file: bodies, references, entries, defaults, lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.codegen import entries, layout
from jsplan.codegen.entries import FileEntry, RenderedResource, build_entries
from jsplan.codegen.minimal_config import MinimalConfig, minimize_config
from jsplan.codegen.model import CodegenContext, GeneratedFile, ResourceToWrite
from jsplan.codegen.references import name_origin_domains, shortest_selector
from jsplan.config.files import NAME_KEYS, SECTIONS
from jsplan.resources import TABLES
from jsplan.resources.buckets import is_bucket


def generate_document(
    resources: Iterable[ResourceToWrite], context: CodegenContext, title: Iterable[str] = ()
) -> GeneratedFile:
    """Generate the text of a file that declares all resources, with `title` as comments above.

    A plan against exactly the given configurations is empty, and an apply to an empty server
    creates exactly them. A note names what the files cannot express. It reads nothing but its
    arguments.
    """
    everything = sorted(resources, key=lambda one: one.address)
    known_streams = {
        **context.other_streams,
        **{one.address: one.config for one in everything if one.address.kind != "consumer"},
    }
    notes: list[str] = []
    file_entries = build_entries(
        [_render_resource(one, context, known_streams, notes) for one in everything]
    )
    lines = [*layout.format_comments(title)]
    defaults = entries.extract_defaults(file_entries, context)
    domain = entries.choose_default_domain(file_entries, context)
    if domain is not None:
        defaults = {"domain": domain} | defaults
    if defaults:
        lines += ["", *layout.format_block("defaults", defaults)]
    usual = domain or context.default_domain or _single_domain(context)
    for kind, section in SECTIONS.items():
        some = [
            (entry.comment, _render_entry(entry, usual, context))
            for entry in file_entries
            if entry.kind == kind
        ]
        if some:
            lines += ["", *layout.format_section(section, some)]
    return GeneratedFile("\n".join(lines).lstrip("\n") + "\n", len(everything), tuple(notes))


def _single_domain(context: CodegenContext) -> str | None:
    own = [key for key, domain in context.domains.items() if domain.is_own]
    return own[0] if len(own) == 1 else None


def _render_resource(
    resource: ResourceToWrite,
    context: CodegenContext,
    known_streams: Mapping[Address, Mapping[str, Any]],
    notes: list[str],
) -> RenderedResource:
    address = resource.address
    body = minimize_config(resource, context, known_streams)
    notes += [f"{address}: {note}" for note in (*body.notes, *_inexpressible_notes(address, body))]
    fields = layout.format_fields(
        TABLES[address.kind], name_origin_domains(address, body.fields, context)
    )
    if "subject_transforms" in str(fields):
        fields = _complete_transforms(fields)
    if body.raw:
        fields["x_raw"] = layout.escape_references(body.raw)
    settings = dict(resource.settings)
    if body.inexpressible:
        lifecycle = dict(settings.get("lifecycle") or {})
        settings["lifecycle"] = lifecycle | {
            "ignore_changes": sorted({*lifecycle.get("ignore_changes", ()), *body.inexpressible})
        }
    stream = address.stream if address.kind == "consumer" else None
    name = address.consumer if address.kind == "consumer" else address.name
    return RenderedResource(
        address,
        layout.escape_references(name),
        fields | settings,
        layout.escape_references(stream),
        resource.comment,
    )


def _inexpressible_notes(address: Address, body: MinimalConfig) -> Iterator[str]:
    copied = (
        [name for name in body.inexpressible if name in ("mirror", "sources")]
        if is_bucket(address.kind)
        else []
    )
    rest = [name for name in body.inexpressible if name not in copied]
    if copied:
        text = (
            f"its {copied[0]} {'reads' if copied == ['mirror'] else 'read'}"
            " a stream that is not a bucket, which the files cannot say"
        )
        yield (
            f"{text}: left unchanged by ignore_changes; a new one would read a bucket of that name"
        )
    if rest:
        yield (
            f"the files cannot say its {', '.join(rest)}: left unchanged by ignore_changes;"
            " a new one would have the server's default"
        )


def _complete_transforms(fields: dict[str, Any]) -> dict[str, Any]:
    """Return transforms with both sides, as people write them and older servers require them.

    One of several stays empty: servers take it so, and refuse `>` beside another (10147).
    """

    def whole(origin: Mapping[str, Any]) -> dict[str, Any]:
        transforms = origin.get("subject_transforms")
        if not transforms:
            return dict(origin)
        src = ">" if len(transforms) == 1 else ""
        return {**origin, "subject_transforms": [{"src": src} | one for one in transforms]}

    out = dict(fields)
    if out.get("mirror"):
        out["mirror"] = whole(out["mirror"])
    if out.get("sources"):
        out["sources"] = [whole(origin) for origin in out["sources"]]
    return out


def _render_entry(entry: FileEntry, usual: str | None, context: CodegenContext) -> dict[str, Any]:
    """Return one element of a section with its keys in the usual order."""
    out: dict[str, Any] = {NAME_KEYS[entry.kind]: entry.name}
    if entry.kind == "consumer":
        out = {"stream": entry.stream} | out
    if entry.domains != [usual]:
        out["domain"] = shortest_selector(entry.domains, context.domains)
    out |= _ordered_fields(entry)
    if entry.consumers:
        out["consumers"] = [
            {"name": consumer.name} | _ordered_fields(consumer) for consumer in entry.consumers
        ]
    return out


def _ordered_fields(entry: FileEntry) -> dict[str, Any]:
    """Return fields in the order of the table; extracting defaults may have appended some."""
    rows = TABLES[entry.kind].by_name
    fields = {name: entry.fields[name] for name in rows if name in entry.fields}
    return fields | {name: value for name, value in entry.fields.items() if name not in rows}
