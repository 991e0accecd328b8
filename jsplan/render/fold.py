"""Folding of sources that differ only in the name of a domain into one line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.text import Text

from jsplan.group_domains import ANY_DOMAIN, MIN_GROUP, format_domains
from jsplan.render.lines import Lines

#: An element of `sources` whose origin is in another domain.
_ELEMENT = re.compile(r'(\s*)[-+~] sources\["[^"]*@\$JS\.([^."]+)\.API')


def fold_sources(lines: Lines) -> Lines:
    """Return the lines with each run of alike sources as one."""
    out = Lines()
    for blocks in _group_runs(_blocks(lines.rows)):
        if len(blocks) < MIN_GROUP:
            for _, rows in blocks:
                out.add_rows(rows)
        else:
            name, rows = blocks[0]
            first, *rest = (_replace_domain(row, name) for row in rows)
            first.append(f" {format_domains([name for name, _ in blocks])}")
            out.add_rows([first, *rest])
    return out


Block = tuple[str, list[Text]]


def _blocks(rows: list[Text]) -> Iterator[Block]:
    """Yield each source with its lines and its origin's domain; all other lines one by one."""
    index = 0
    while index < len(rows):
        end, found = index + 1, _ELEMENT.match(rows[index].plain)
        while found and end < len(rows) and _indent(rows[end]) > len(found[1]):
            end += 1
        yield (found[2] if found else "", rows[index:end])
        index = end


def _group_runs(blocks: Iterator[Block]) -> Iterator[list[Block]]:
    run: list[Block] = []
    for block in blocks:
        if run and not (
            block[0] and run[-1][0] and _comparable_text(block) == _comparable_text(run[-1])
        ):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _comparable_text(block: Block) -> str:
    name, rows = block
    return "\n".join(row.plain for row in rows).replace(f"$JS.{name}.", f"$JS.{ANY_DOMAIN}.")


def _indent(row: Text) -> int:
    return len(row.plain) - len(row.plain.lstrip())


def _replace_domain(row: Text, name: str) -> Text:
    """Return the line with the domain's name in an API prefix as `${domain}`, with its styles."""
    out, at = Text(), 0
    for found in re.finditer(rf"(?<=\$JS\.){re.escape(name)}(?=\.)", row.plain):
        out.append_text(row[at : found.start()]).append(ANY_DOMAIN)
        at = found.end()
    return out.append_text(row[at:])
