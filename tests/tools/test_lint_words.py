"""The rules for words, docstrings and lines that `make lint` keeps."""

from __future__ import annotations

from tools import lint_words
from tools.lint_words import HEADING, Finding, check_page, check_python, read_words

#: Words of this test alone, since `make lint` reads this file too.
WORDS = read_words(f"""
{HEADING}

| retired | write |
|---|---|
| parcel, parcels | message |
| walks off | end |
""")


def texts(findings: list[Finding]) -> list[str]:
    """Return the line and the first words of each finding."""
    return [f"{one.line}: {one.text.partition(';')[0]}" for one in findings]


def test_retired_words_are_found_everywhere() -> None:
    """Definitions, comments, strings and docstrings are searched; uses of names are not."""
    source = '''"""Copy a parcel."""
parcel_of = 1
class ParcelWriter: ...
def run(parcels): "It walks  off."
print(foreign.parcel)  # each parcel
'''

    found = texts(list(check_python("jsplan/x.py", source, WORDS)))

    assert sorted(found) == [
        '1: retired word "parcel"',
        '2: parcel_of: retired word "parcel"',
        '3: ParcelWriter: retired word "parcel"',
        '4: parcels: retired word "parcels"',
        '4: retired word "walks off"',
        '5: retired word "parcel"',
    ]


def test_openings_and_lengths_of_docstrings() -> None:
    """A docstring begins with no question word, and its first line is short."""
    source = f'"""Whether it is."""\ndef f():\n    """{"Long " * 20}."""\n'

    assert texts(list(check_python("jsplan/x.py", source, WORDS))) == [
        '1: a docstring does not begin with "Whether"',
        "3: the first line of a docstring has at most 90 characters",
    ]


def test_lines_of_pages() -> None:
    """Rows, links and code may be wide; the table of retired words is no finding itself."""
    long, link = "word " * 30, f"[page]({'x' * 130})"
    page = f"{long}\n| {long[:100]} | {long[:100]} | {link} |\n```\n{long}\n```\na parcel\n| {long} |\n"

    assert texts(list(check_page("docs/x.md", page, WORDS))) == [
        '6: retired word "parcel"',
        "1: a line of a page has at most 100 columns",
        "7: a cell of a table has at most 120 characters",
    ]
    assert not list(check_page("docs/glossary.md", f"{HEADING}\n| parcel | message |\n", WORDS))


def test_the_glossary_has_the_table() -> None:
    """The page that `make lint` reads names the words."""
    words = read_words((lint_words.ROOT / lint_words.GLOSSARY).read_text(encoding="utf-8"))

    assert "partition" in words.instead.values()
