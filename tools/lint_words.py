"""`make lint`: keep the words, docstrings and line lengths that `docs/glossary.md` asks for.

The retired words are the table "Retired words" of that page. They are looked for in everything
that a reader of the project meets: names, comments, strings and docstrings of the package, its
tests and tools, the pages, examples and schemas. Names that other libraries define are not.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent
GLOSSARY: Final = "docs/glossary.md"
HEADING: Final = "## Retired words"
SEARCHED: Final = (
    "jsplan",
    "tests",
    "ci",
    "tools",
    "benchmarks",
    "docs",
    "state",
    "examples",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
TEXTS: Final = (".md", ".json", ".yaml", ".yml", ".toml", ".html", ".css", ".js")
#: Folders of files that a run wrote.
IGNORED: Final = frozenset({"__pycache__", ".jsplan", "node_modules"})
#: How no docstring begins.
OPENINGS: Final = frozenset({"What", "Who", "Whose", "Whether", "How", "Where", "Which", "Why"})
#: Characters of the first line of a docstring, of a line of a page, and of a cell without its links.
SUMMARY, COLUMNS, CELL = 90, 100, 120
_LINK = re.compile(r"\]\([^)]*\)")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Finding(NamedTuple):
    """One place that breaks a rule."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Words:
    """The retired words, each with what to write instead."""

    def __init__(self, table: dict[str, str]) -> None:
        self.instead = table
        phrases = sorted(table, key=len, reverse=True)
        spelled = "|".join(re.escape(p).replace(r"\ ", r"\s+") for p in phrases)
        self._rule = re.compile(rf"(?<![\w-])(?:{spelled})(?![\w-])", re.IGNORECASE)
        named = spelled.replace(r"\s+", r"[\s_]*")
        self._anywhere = re.compile(rf"(?:(?<![a-z])|(?=[A-Z]))(?i:{named})(?![a-z])")

    def may_be_in(self, source: str) -> bool:
        """Check quickly whether a module may have one, in a text or as a part of a name."""
        return self._anywhere.search(source) is not None

    def search(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the offset and a sentence for each retired word."""
        for found in self._rule.finditer(text):
            word = " ".join(found.group().lower().split())
            yield found.start(), f'retired word "{word}"; write {self.instead[word]}'

    def search_name(self, name: str) -> Iterator[str]:
        """Yield a sentence for each retired word that is part of an identifier."""
        spelled = " ".join(part.lower() for part in _PARTS.findall(name))
        for _, text in self.search(spelled):
            yield f"{name}: {text}"


def read_words(page: str) -> Words:
    """Parse the table of the glossary: retired words, separated by commas, and what to write."""
    table: dict[str, str] = {}
    for line in page.partition(HEADING)[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and not set(cells[0]) <= set("-: "):
            table |= {word.strip().lower(): cells[1] for word in cells[0].split(",")}
    table.pop("retired", None)
    return Words(table)


def check_python(path: str, source: str, words: Words) -> Iterator[Finding]:
    """Check names that are defined here, comments, strings and docstrings of one module."""
    tree = ast.parse(source)
    yield from _check_docstrings(path, tree)
    if not words.may_be_in(source):
        return
    for node in ast.walk(tree):
        for name, line in _defined(node):
            yield from (Finding(path, line, text) for text in words.search_name(name))
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield from _in_text(path, token.string, token.start[0], words)


def _defined(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno


def _check_docstrings(path: str, node: ast.AST) -> Iterator[Finding]:
    """Check the docstring of a module, class or function, and those in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _check_docstring(path, node)
    for inner in getattr(node, "body", ()):
        if isinstance(inner, ast.stmt):
            yield from _check_docstrings(path, inner)


def _check_docstring(
    path: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[Finding]:
    text = ast.get_docstring(node)
    if not text:
        return
    line = node.body[0].lineno
    first = text.splitlines()[0]
    if first.split()[0] in OPENINGS:
        yield Finding(path, line, f'a docstring does not begin with "{first.split()[0]}"')
    if len(first) > SUMMARY:
        yield Finding(path, line, f"the first line of a docstring has at most {SUMMARY} characters")


def _in_text(path: str, text: str, line: int, words: Words) -> Iterator[Finding]:
    for offset, message in words.search(text):
        yield Finding(path, line + text.count("\n", 0, offset), message)


def check_page(path: str, source: str, words: Words) -> Iterator[Finding]:
    """Check the words of a page or document, and the length of the lines of a page."""
    if path == GLOSSARY:
        source = source.partition(HEADING)[0]
    yield from _in_text(path, source, 1, words)
    code = False
    for number, line in enumerate(source.splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        wide = path.endswith(".md") and not code and len(line) > COLUMNS
        if wide and not line.lstrip().startswith(("|", "[", "!", "<")):
            yield Finding(path, number, f"a line of a page has at most {COLUMNS} columns")
        if path.endswith(".md") and not path.startswith("tests/") and not code and line[:1] == "|":
            cells = re.split(r"(?<!\\)\|", _LINK.sub("]", line))
            if max(len(cell.strip()) for cell in cells) > CELL:
                yield Finding(path, number, f"a cell of a table has at most {CELL} characters")


def check(root: Path = ROOT) -> list[Finding]:
    """Check every module and page of a checkout."""
    words = read_words((root / GLOSSARY).read_text(encoding="utf-8"))
    found: list[Finding] = []
    for file in sorted(file for name in SEARCHED for file in _files(root / name)):
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        found += (check_python if path.endswith(".py") else check_page)(path, text, words)
    return found


def _files(place: Path) -> Iterator[Path]:
    for file in [place] if place.is_file() else place.rglob("*"):
        if file.suffix in (".py", *TEXTS) and not set(file.parts) & IGNORED:
            yield file


def main() -> int:
    """Print each finding; return 1 where there is one."""
    found = check()
    for one in found:
        print(one)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
