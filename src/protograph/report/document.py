"""Results as a document: headings, paragraphs, lists, tables and images, written as Markdown or as one page of HTML.

Texts may have **bold** and `code` in them. A text from elsewhere (a class name, a note) goes through `plain_text` first.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

from jinja2 import Environment, PackageLoader
from markdown_it import MarkdownIt
from markupsafe import Markup

SENTENCE = 40  # characters; a column with a longer text holds sentences, and needs some width


@dataclass(frozen=True)
class Heading:
    """A heading.

    Attributes:
        level: 1, 2 or 3.
        text: The heading.

    """

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A bulleted list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        head: The heading of each column.
        rows: The cells of each row.
        right: For each column, whether it is aligned to the right, as numbers are.

    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]

    @classmethod
    def of(cls, head: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> "Table":
        """Return a table whose first `names` columns hold words and whose other columns hold numbers."""
        return cls(tuple(head), tuple(tuple(row) for row in rows), tuple(column >= names for column in range(len(head))))

    @property
    def name_columns(self) -> int:
        """How many columns at the left name the row: the first, and the columns of words without a heading next to it.

        A page shows them as one column, which stays in sight when the table scrolls.
        """
        ends = (index for index, text in enumerate(self.head) if index and (text or self.right[index]))
        return next(ends, len(self.head))

    @property
    def column_classes(self) -> list[str]:
        """The style of each column on a page: right, text or name."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.head)
        return [
            "right" if right else "text" if max(map(len, column), default=0) > SENTENCE else "name"
            for right, column in zip(self.right, columns, strict=True)
        ]


@dataclass(frozen=True)
class Figure:
    """An image inside the page; Markdown leaves it out.

    Attributes:
        content: The contents of an image file.
        kind: The type of that file: png or svg+xml.
        caption: The text below the image.

    """

    content: bytes
    kind: str
    caption: str

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return f"data:image/{self.kind};base64,{b64encode(self.content).decode()}"


Block = Heading | Paragraph | Bullets | Table | Figure


def plain_text(text: str) -> str:
    """Escape a text so that it stands for itself, whatever characters it contains."""
    escaped = re.sub(r"([\\`*|<\[\]&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?i)(:(?=//)|(?<=www)\.|@)", r"\\\1", escaped)  # what some readers of Markdown make links of by themselves


def as_markdown(blocks: Iterable[Block]) -> str:
    """Write a document as Markdown, with empty lines between its blocks."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Bullets(items):
                parts.append("\n".join(f"- {item}" for item in items))
            case Table(head, rows, right):
                lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
                parts.append("\n".join([lines[0], "|" + "".join("---:|" if side else "---|" for side in right), *lines[1:]]))
            case Figure():
                pass
    return "\n\n".join(parts) + "\n"


def as_html(title: str, blocks: Iterable[Block]) -> str:
    """Write a document as one page of HTML that needs no network, no script and no other file.

    A section begins at each heading of level 2. A page of more than three sections lists them below its title.
    """
    introduction, *sections = _sections(blocks)
    titles = 1 if introduction and isinstance(introduction[0], Heading) else 0
    page = _TEMPLATES.get_template("page.html")
    return page.render(title=title, opening=introduction[:titles], introduction=introduction[titles:], sections=sections)


def _sections(blocks: Iterable[Block]) -> list[list[Block]]:
    """Split the blocks at each heading of level 2, which begins a section; the first part has none."""
    sections: list[list[Block]] = [[]]
    for block in blocks:
        if isinstance(block, Heading) and block.level == 2:
            sections.append([])
        sections[-1].append(block)
    return sections


def _inline(text: str) -> Markup:
    """Render **bold**, `code` and escaped characters as HTML; everything else is escaped."""
    return Markup(_MARKDOWN.renderInline(text))


def _number(text: str) -> Markup:
    """Render a number that breaks, if at all, before its ±."""
    return _inline(" ±".join(part.replace(" ", "\u00a0") for part in text.split(" ±")))


def _numbers_head(text: str) -> Markup:
    """Render the heading of a column of numbers, broken at its commas."""
    return _inline(text).replace(", ", Markup(",<br>"))


def _is_a(kind: type, block: object) -> bool:
    """Test the type of a block, for templates."""
    return isinstance(block, kind)


_MARKDOWN = MarkdownIt("zero").enable(["escape", "backticks", "emphasis", "text_join"])
_TEMPLATES = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
_TEMPLATES.filters |= {"inline": _inline, "number": _number, "numbers_head": _numbers_head}
_TEMPLATES.tests |= {kind.__name__.lower(): partial(_is_a, kind) for kind in get_args(Block)}
