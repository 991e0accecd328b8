"""The rules for words, docstrings and lines that `make lint` keeps."""

from __future__ import annotations

from tools import lint_words
from tools.lint_words import HEADING, Finding, check_page, check_python, read_words

WORDS = read_words(f"""
{HEADING}

| retired | write |
|---|---|
| lane, lanes | partition |
| goes on | continue |
""")


def texts(findings: list[Finding]) -> list[str]:
    """The line and the first words of each finding."""
    return [f"{one.line}: {one.text.partition(';')[0]}" for one in findings]


def test_retired_words_are_found_everywhere() -> None:
    """Names that are defined here, comments, strings and docstrings are searched; uses of names are not."""
    source = '''"""Copy a lane."""
lane_of = 1
class LaneWriter: ...
def run(lanes): "It goes  on."
print(foreign.lane)  # each lane
'''

    found = texts(list(check_python("jsplan/x.py", source, WORDS)))

    assert sorted(found) == [
        '1: retired word "lane"',
        '2: lane_of: retired word "lane"',
        '3: LaneWriter: retired word "lane"',
        '4: lanes: retired word "lanes"',
        '4: retired word "goes on"',
        '5: retired word "lane"',
    ]


def test_openings_and_lengths_of_docstrings() -> None:
    """A docstring begins with no question word, and its first line is short."""
    source = f'"""Whether it is."""\ndef f():\n    """{"Long " * 20}."""\n'

    assert texts(list(check_python("jsplan/x.py", source, WORDS))) == [
        '1: a docstring does not begin with "Whether"',
        "3: the first line of a docstring has at most 90 characters",
    ]


def test_lines_of_pages() -> None:
    """Tables, links and code may be wide; the table of retired words is no finding itself."""
    long = "word " * 30
    page = f"{long}\n| {long} |\n```\n{long}\n```\na lane\n"

    assert texts(list(check_page("docs/x.md", page, WORDS))) == [
        '6: retired word "lane"',
        "1: a line of a page has at most 100 columns",
    ]
    assert not list(check_page("docs/glossary.md", f"{HEADING}\n| lane | partition |\n", WORDS))


def test_the_glossary_has_the_table() -> None:
    """The page that `make lint` reads names the words."""
    words = read_words((lint_words.ROOT / lint_words.GLOSSARY).read_text(encoding="utf-8"))

    assert "partition" in words.instead["lane"]
