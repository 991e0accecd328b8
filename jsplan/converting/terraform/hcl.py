"""HCL text as blocks and attributes with their places, on python-hcl2's parse tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from jsplan.config.node import Place, Source
from jsplan.converting.model import NoteWriter
from jsplan.errors import NotAvailableError
from jsplan.extras import install_command

if TYPE_CHECKING:
    from lark import Token, Tree, UnexpectedInput

    Expression = Tree[Token]


class Attribute(Struct, frozen=True):
    """`name = expression`."""

    expression: Expression
    place: Place


class Block(Struct):
    """`type "label" "label" { … }`; the file itself is a block without a type."""

    type: str
    labels: tuple[str, ...]
    place: Place
    attributes: dict[str, Attribute] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def blocks_of(self, kind: str) -> list[Block]:
        """Return the blocks of one type."""
        return [block for block in self.blocks if block.type == kind]


def parse(source: Source, text: str, notes: NoteWriter) -> Block | None:
    """Parse the file to a block; None after a finding.

    Raises NotAvailableError if python-hcl2 is not installed.
    """
    try:
        import hcl2  # noqa: PLC0415 - an extra; building its parser takes a second
        from lark import UnexpectedInput  # noqa: PLC0415 - see above
    except ImportError:
        raise NotAvailableError(
            "HCL is read with python-hcl2, which is not installed",
            hint="Give the output of `terraform show -json`, which needs nothing else,"
            f" or install it: {install_command('convert')}",
        ) from None
    try:
        tree: Any = hcl2.parses_to_tree(text)
    except UnexpectedInput as error:
        notes.unreadable(
            (source, *_error_position(error, text)), "broken HCL", "`terraform validate` says more."
        )
        return None
    return _build_block("", (), (source, 0, 0), tree.children[0], source)


def _error_position(error: UnexpectedInput, text: str) -> tuple[int, int]:
    """Return line and column, from 0; the end of the file if something is missing there."""
    if str(error.line).isdigit() and error.line > 0:
        return error.line - 1, max(error.column, 1) - 1
    return text.rstrip().count("\n"), 0


def _build_block(
    kind: str, labels: tuple[str, ...], place: Place, body: Expression, source: Source
) -> Block:
    block = Block(kind, labels, place)
    for child in child_trees(body):
        where = (source, child.meta.line - 1, child.meta.column - 1)
        parts = list(child_trees(child))
        if child.data == "attribute":
            block.attributes[identifier_text(parts[0])] = Attribute(parts[1], where)
        elif child.data == "block":
            names = tuple(identifier_text(part) for part in parts[:-1])
            block.blocks.append(_build_block(names[0], names[1:], where, parts[-1], source))
    return block


def child_trees(node: Expression) -> Iterator[Expression]:
    """Yield the parts of an expression without punctuation, line ends and comments."""
    for child in node.children:
        if not isinstance(child, str) and child.data != "new_line_or_comment":
            yield child


def identifier_text(node: Expression) -> str:
    """Return an identifier or a label, which may be in quotes."""
    return "".join(str(token) for token in node.scan_values(lambda part: str(part) != '"'))
