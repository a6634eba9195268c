"""Results as a document: headings, paragraphs, lists, tables and images, written as Markdown or as one page of HTML.

Texts may have **bold** and `code` in them; what comes from elsewhere (class names, notes) goes through `plain` first.
"""

import base64
import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

SENTENCE = 40  # a column with a text longer than that has sentences, and so needs some width
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
nav { margin: .8rem 0; padding: .5rem .8rem; border: 1px solid var(--line); border-radius: .3rem; }
nav ul { columns: 16rem; list-style: none; margin: 0; padding: 0; font-size: .86rem; line-height: 1.35; }
nav li { break-inside: avoid; margin: 0; padding: .1rem 0 .1rem .8em; text-indent: -.8em; }
nav a { color: var(--within); text-decoration: none; } nav a:hover { text-decoration: underline; }
.scroll { overflow-x: auto; margin: .6rem 0; border: 1px solid var(--line); border-radius: .3rem;
  background: linear-gradient(90deg, transparent, var(--paper) 60%) right / 2rem 100% no-repeat local,
    linear-gradient(90deg, transparent, var(--line)) right / .9rem 100% no-repeat; } /* a shade where more is hidden */
table { border-collapse: separate; border-spacing: 0; font-size: .86rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; } tbody th { background: var(--paper); font-weight: normal; }
thead th { background: var(--shade); font-weight: 600; vertical-align: bottom; }
.right { text-align: right; } td.right { white-space: nowrap; } .text { min-width: 11rem; }
th:first-child { position: sticky; left: 0; min-width: 7.5rem; border-right: 1px solid var(--line); }
th:first-child > span:not(:last-child) { display: inline-block; min-width: 8rem; margin-right: .5rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 0 1.2rem; }
figure { margin: 1rem 0; } figcaption { color: var(--faint); font-size: .88rem; margin-top: .3rem; }
figure img { display: block; width: min(100%, 36rem); height: auto; background: #fff; border-radius: .3rem; padding: .2rem; }
@media (max-width: 40rem) { body { padding: .6rem .6rem 3rem; } nav ul { columns: 2; column-gap: 1rem; }
  table { font-size: .78rem; } th, td { padding: .25rem .3rem; } td.right { white-space: normal; }
  th:first-child { min-width: 6.2rem; } th:first-child > span { text-wrap: balance; }
  th:first-child > span:not(:empty) { display: block; min-width: 0; } th:first-child > span:empty { display: none; } }
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
        head, *rows = (tuple(row[place] for place in places) for row in (self.head, *self.rows))
        return Grid(head, tuple(rows), tuple(self.right[place] for place in places))


@dataclass(frozen=True)
class Details:
    """What is only looked at by who asks for it: a line, and what unfolds below it."""

    text: str
    blocks: "tuple[Block, ...]"


@dataclass(frozen=True)
class Figure:
    """An image inside the page; Markdown goes without.

    content: a whole file of `kind` png or svg+xml
    """

    content: bytes
    kind: str
    caption: str


Block = Heading | Paragraph | Bullets | Grid | Details | Figure


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
            case Figure():
                pass
    return "\n\n".join(parts) + "\n"


def as_html(title: str, blocks: Iterable[Block]) -> str:
    """The document as one page that needs nothing beside it: no network, no script, no other file.

    A page of several sections, which begin at headings of level 2, lists them below its title.
    """
    (_, opening), *sections = _sections(blocks)
    links = [f'<li><a href="#section-{place}">{_inline(text)}</a></li>' for place, (text, _) in enumerate(sections, 1)]
    contents = f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>' if len(links) > 3 else ""
    below = 1 if opening and isinstance(opening[0], Heading) else 0
    parts = [_body(opening[:below]), contents, _body(opening[below:])]
    parts += [f'<section id="section-{place}">\n{_body(own)}\n</section>' for place, (_, own) in enumerate(sections, 1)]
    body = "\n".join(filter(None, parts))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _sections(blocks: Iterable[Block]) -> list[tuple[str, list[Block]]]:
    """What comes before the first heading of level 2, without a title, and then what each of these begins."""
    sections: list[tuple[str, list[Block]]] = [("", [])]
    for block in blocks:
        if isinstance(block, Heading) and block.level == 2:
            sections.append((block.text, []))
        sections[-1][1].append(block)
    return sections


def _body(blocks: Iterable[Block]) -> str:
    parts: list[str] = []
    for images, group in groupby(blocks, lambda block: isinstance(block, Figure)):
        shown = "\n".join(map(_element, group))
        parts.append(f'<div class="figures">\n{shown}\n</div>' if images else shown)
    return "\n".join(parts)


def _element(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case Grid():
            return _table(block)
        case Details(text, inner):
            return f"<details><summary>{_inline(text)}</summary>{_body(inner)}</details>"
        case Figure(content, kind, caption):
            data = base64.b64encode(content).decode()
            image = f'<img alt="{html.escape(_bare(caption))}" src="data:image/{kind};base64,{data}">'
            return f"<figure>{image}<figcaption>{_inline(caption)}</figcaption></figure>"


def _table(grid: Grid) -> str:
    """A table that scrolls below its first column.

    Columns of words that have no heading of their own stand there too, so that all that names a row stays in sight.
    """
    headed = (place for place, text in enumerate(grid.head) if place and (text or grid.right[place]))
    first = next(headed, len(grid.head))
    columns = zip(*grid.rows, strict=True) if grid.rows else [()] * len(grid.head)
    kinds = [
        "right" if right else "text" if max(map(len, column), default=0) > SENTENCE else "name"
        for right, column in zip(grid.right, columns, strict=True)
    ]

    def row(tag: str, scope: str, texts: Sequence[str]) -> str:
        name = " ".join(f"<span>{text}</span>" for text in texts[:first]) if first > 1 else texts[0]
        others = zip(kinds[first:], texts[first:], strict=True)
        cells = "".join(f'<{tag} class="{kind}">{text}</{tag}>' for kind, text in others)
        return f'<tr><th scope="{scope}" class="{kinds[0]}">{name}</th>{cells}</tr>'

    def texts(cells: Sequence[str], of_number: Callable[[str], str]) -> list[str]:
        return [of_number(cell) if right else _inline(cell) for cell, right in zip(cells, grid.right, strict=True)]

    head = row("th", "col", texts(grid.head, lambda text: _inline(text).replace(", ", ",<br>")))
    body = "\n".join(row("td", "row", texts(cells, lambda text: _inline(_unbroken(text)))) for cells in grid.rows)
    return f'<div class="scroll" tabindex="0"><table><thead>{head}</thead><tbody>\n{body}\n</tbody></table></div>'


def _unbroken(number: str) -> str:
    """A number that is broken, if at all, before its ±."""
    return " ±".join(part.replace(" ", "\u00a0") for part in number.split(" ±"))


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
