"""Results as a document: headings, paragraphs, lists, tables and pictures, written as Markdown or as one page of HTML.

Texts may have **bold** and `code` in them; what comes from elsewhere (class names, notes) goes through `plain` first.
"""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MARKS = {"above": "▲", "within": "●", "below": "▼"}

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --faint: #5c5f66; --line: #d8dae0; --shade: #f3f4f7;
  --above: #00694c; --within: #33507a; --below: #a83c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ec; --paper: #17181c; --faint: #a5a8b0; --line: #3a3c44;
  --shade: #22242a; --above: #4fd3a4; --within: #9dbdf0; --below: #ff9a5c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .4rem; } p { margin: .6rem 0; } li { margin: .35rem 0; } ul { padding-left: 1.2rem; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .9em; background: var(--shade); padding: 0 .2em; }
.scroll { overflow-x: auto; margin: .6rem 0; border: 1px solid var(--line); border-radius: .3rem; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .55rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; } th { background: var(--shade); font-weight: 600; white-space: nowrap; }
td.right, th.right { text-align: right; white-space: nowrap; } td.name { min-width: 4.5rem; }
td.name:first-child { min-width: 7.5rem; } td.name:last-child:not(:first-child) { min-width: 11rem; }
figure { margin: 1rem 0; } figcaption { color: var(--faint); font-size: .88rem; margin-top: .3rem; }
figure img { display: block; width: min(100%, 36rem); height: auto; background: #fff; border-radius: .3rem; padding: .2rem; }
.above { color: var(--above); } .within { color: var(--within); } .below { color: var(--below); }
details { border: 1px solid var(--line); border-radius: .3rem; padding: .1rem .7rem; margin: .5rem 0; }
summary { cursor: pointer; padding: .35rem 0; }
"""


@dataclass(frozen=True)
class Heading:
    """A heading of level 1, 2 or 3."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """A table: its head, its rows, and for every column whether it stands to the right, as numbers do."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]

    @classmethod
    def of(cls, head: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> "Grid":
        """A table whose first `names` columns hold words and all others numbers."""
        return cls(tuple(head), tuple(tuple(row) for row in rows), tuple(place >= names for place in range(len(head))))

    def columns(self, places: Iterable[int]) -> "Grid":
        """Of all columns only these."""
        places = list(places)
        head, right = (tuple(line[place] for place in places) for line in (self.head, self.right))
        return Grid(head, tuple(tuple(row[place] for place in places) for row in self.rows), right)


@dataclass(frozen=True)
class Details:
    """What is only looked at by who asks for it: a line, and what unfolds below it."""

    text: str
    blocks: "tuple[Block, ...]"


@dataclass(frozen=True)
class Picture:
    """A picture inside the page; Markdown goes without.

    content: a whole file of `kind` png or svg+xml
    """

    content: bytes
    kind: str
    caption: str


Block = Heading | Paragraph | Bullets | Grid | Details | Picture


def plain(text: str) -> str:
    """A text that means itself, whatever signs are in it."""
    return re.sub(r"([\\`*|<])", r"\\\1", " ".join(text.split()))


def as_markdown(blocks: Iterable[Block]) -> str:
    """The document as Markdown, headings and tables with empty lines around them."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Bullets(items):
                parts.append("\n".join(f"- {item}" for item in items))
            case Grid(head, rows, right):
                lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
                parts.append("\n".join([lines[0], "|" + "".join("---:|" if side else "---|" for side in right), *lines[1:]]))
            case Details(text, inner):
                parts += [f"<details>\n<summary>{_inline(text)}</summary>", as_markdown(inner).rstrip("\n"), "</details>"]
            case Picture():
                pass
    return "\n\n".join(parts) + "\n"


def as_html(title: str, blocks: Iterable[Block]) -> str:
    """The document as one page that needs nothing beside it: no network, no script, no other file."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{_body(blocks)}\n</body>\n</html>\n"
    )


def _body(blocks: Iterable[Block]) -> str:
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"<h{level}>{_inline(text)}</h{level}>")
            case Paragraph(text):
                parts.append(f"<p>{_inline(text)}</p>")
            case Bullets(items):
                parts.append("<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>")
            case Grid():
                parts.append(_table(block))
            case Details(text, inner):
                parts.append(f"<details><summary>{_inline(text)}</summary>{_body(inner)}</details>")
            case Picture(content, kind, caption):
                data = base64.b64encode(content).decode()
                alt = html.escape(_bare(caption))
                image = f'<img alt="{alt}" src="data:image/{kind};base64,{data}">'
                parts.append(f"<figure>{image}<figcaption>{_inline(caption)}</figcaption></figure>")
    return "\n".join(parts)


def _table(grid: Grid) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        kinds = ['class="right"' if side else 'class="name"' for side in grid.right]
        return (
            "<tr>"
            + "".join(f"<{tag} {kind}>{_inline(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
            + "</tr>"
        )

    body = "\n".join(row("td", cells) for cells in grid.rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead>{row("th", grid.head)}</thead><tbody>\n{body}\n</tbody></table></div>'
    )


_TOKENS = re.compile(r"\\([\\`*|<])|\*\*(.+?)\*\*|`(.+?)`|([▲●▼])")


def _inline(text: str) -> str:
    """**bold**, `code`, marks and escaped signs as HTML; everything else is escaped."""
    names = {sign: name for name, sign in MARKS.items()}
    parts, place = [], 0
    for found in _TOKENS.finditer(text):
        parts.append(html.escape(text[place : found.start()]))
        sign, bold, code, mark = found.groups()
        if sign:
            parts.append(html.escape(sign))
        elif bold:
            parts.append(f"<b>{_inline(bold)}</b>")
        elif code:
            parts.append(f"<code>{html.escape(code)}</code>")
        else:
            parts.append(f'<span class="{names[mark]}" title="{names[mark]} the paper\'s interval">{mark}</span>')
        place = found.end()
    return "".join([*parts, html.escape(text[place:])])


def _bare(text: str) -> str:
    """A text without its marks of bold and code."""
    return _TOKENS.sub(lambda found: next(part for part in found.groups() if part), text)
