"""The command lines of README and of the users' documents, and the list of tests that paste them.

tests/documented.tsv is the list: page ("*" for any), words of the line, test, and the reason why the line cannot be pasted. The
first row of a page whose words are in the line counts. Without a reason, the test pastes the line. A test is a file and words
in it, such as the name of its function. Lines of indented blocks that begin with `lasthop` or `ip` need no row:
crates/lasthop/tests/operator/documented.rs pastes them.
"""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIST = ROOT / "tests/documented.tsv"
# Fenced blocks of other languages have no commands; of a `console` only the lines behind a prompt are.
SHELL = ("", "sh")
# In a shell's block: a key of a file, a section of one, an option that goes on, a comment, an item.
NO_COMMAND = re.compile(r"\[|[-+~#]|[\w-]+ = |[A-Z]\w*[a-z]\w*=")


class Line(NamedTuple):
    """A command without its comment, its continuation lines joined."""

    page: str
    number: int
    text: str
    is_indented: bool

    def is_pasted_by_the_crate(self):
        return self.is_indented and self.text.startswith(("lasthop ", "ip "))


class Row(NamedTuple):
    page: str
    words: str
    test: str
    reason: str

    def concerns(self, line):
        return self.page in ("*", line.page) and self.words in line.text

    def is_pasted(self):
        return not self.reason


def users_pages():
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/user/*.md"))]


def block_lines(text):
    """(number, text, is it indented, language) of all lines in blocks."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        elif fence is not None:
            yield number, line, False, fence
        elif line.startswith("    "):
            yield number, line, True, ""


def lines(page):
    """The commands of a page, in its order."""
    begun = ""
    for number, text, is_indented, language in block_lines((ROOT / page).read_text()):
        text = text.split(" #")[0].strip()
        if language == "console" and text.startswith("$ "):
            text = text[2:]
        elif not begun and (language not in SHELL or not text or NO_COMMAND.match(text)):
            continue
        begun += text
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        yield Line(page, number, begun, is_indented)
        begun = ""


def rows():
    listed = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [Row(*(field.strip() for field in line.split("\t"))) for line in listed]


def row_of(line, table):
    return next((row for row in table if row.concerns(line)), None)


def pasted_by(test):
    """The lines that a test has to paste, in the order of their pages."""
    table = rows()
    found = [(line, row_of(line, table)) for page in users_pages() for line in lines(page)]
    return [line for line, row in found if row and row.test == test and row.is_pasted()]
