"""Documents: the same blocks as Markdown and as a page, whatever signs names have in them."""

import base64
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from markdown_it import MarkdownIt

from protograph.report.document import (
    Block,
    Bullets,
    Figure,
    Heading,
    Paragraph,
    Table,
    as_html,
    as_markdown,
    plain_text,
)

STYLE = files("protograph.report").joinpath("templates", "style.css").read_text(encoding="utf-8")
NASTY = [
    "<script>alert(1)</script>",
    "a & b",
    "**not bold**",
    "`no code`",
    "x | y",
    "back\\slash",
    "a\nb",
    "\"quoted\" 'too'",
    "*",
    "[text](javascript:alert(1))",
    "![image](https://nowhere)",
    "[text][1]",
    "&lt;",
    "https://nowhere and www.nowhere.org",
]


class Page(HTMLParser):
    """Tags and texts of a page; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("text", NASTY)
def test_what_comes_from_elsewhere_means_itself(text: str) -> None:
    blocks: list[Block] = [
        Heading(2, plain_text(text)),
        Paragraph(plain_text(text)),
        Bullets((plain_text(text),)),
        Table.of((plain_text(text),), [[plain_text(text)]]),
        Figure(b"", "png", plain_text(text)),
    ]  # fmt: skip
    page = Page(as_html(text, blocks))
    shown = " ".join(text.split())
    assert [part for part in page.texts if part.strip() and part.strip() != STYLE.strip()] == [text] + [shown] * 6
    assert not page.of("script")
    assert not page.of("strong")
    assert not page.of("code")
    assert page.of("img")[0]["alt"] == shown
    rows = [line for line in as_markdown(blocks).splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 2 for line in rows)  # no sign of a name's ends a cell


def test_bold_and_code_become_tags() -> None:
    page = Page(as_html("t", [Paragraph("a **b** `c<d`")]))
    assert (len(page.of("strong")), len(page.of("code"))) == (1, 1)
    assert "c<d" in page.texts


def test_a_page_needs_nothing_beside_it_and_fits_a_phone() -> None:
    content = b"\x89PNG..."
    text = as_html("t", [Figure(content, "png", "an image"), Table.of(("a", "b"), [("1", "2")])])
    page = Page(text)
    assert page.of("img")[0]["src"] == f"data:image/png;base64,{base64.b64encode(content).decode()}"
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"https?:|src=\"(?!data:)|@import|url\(", text)
    assert [part["class"] for part in page.of("div")] == ["figures", "scroll"]
    assert [cell.get("scope") for cell in page.of("th")] == ["col", None, "row"]
    assert [cell["class"] for cell in page.of("td")] == ["right"]
    assert "position: sticky" in STYLE


def test_what_names_a_row_stands_in_its_first_cell() -> None:
    rows = [("GcGPN", "published", "1", ""), ("", "here", "2", "why")]
    text = as_html("t", [Table(("", "", "H-Mean", ""), tuple(rows), (False, False, True, False))])
    assert len(Page(text).of("th")) == 5  # names have one column between them; the last one stands behind a number
    assert re.findall(r'scope="row" class="name">(.*?)</th>', text) == [
        "<span>GcGPN</span> <span>published</span>", "<span></span> <span>here</span>",
    ]  # fmt: skip
    assert Page(as_html("t", [Table.of(("a", "b", "c"), [("d", "e", "1")], 2)])).of("span") == []


def test_numbers_are_broken_before_their_interval_alone_and_their_headings_at_commas() -> None:
    page = Page(as_html("t", [Table.of(("a, b", "c d, e"), [("f, g", "**1.5 ± 0.5** ✓"), ("h", "5 %")])]))
    assert [text for text in page.texts if text.strip() and text.strip() != STYLE.strip()] == [
        "t", "a, b", "c d,", "e", "f, g", "1.5 ±\u00a00.5", "\u00a0✓", "h", "5\u00a0%",
    ]  # fmt: skip


def test_columns_of_sentences_have_room() -> None:
    page = Page(as_html("t", [Table(("a", "b", "c"), (("d", "e", "f" * 41), ("g", "h" * 40, "")), (False,) * 3)]))
    assert [cell["class"] for cell in page.of("td")] == ["name", "text"] * 2


def test_a_page_of_many_sections_begins_with_links_to_them() -> None:
    blocks: list[Block] = [
        Heading(1, "all"),
        Paragraph("opening"),
        *(Heading(2, f"a & {name}") for name in "aabc"),
        Heading(3, "x"),
    ]
    text = as_html("t", blocks)
    page = Page(text)
    links = [link["href"] for link in page.of("a")]
    assert links == [f"#{section['id']}" for section in page.of("section")]
    assert len(set(links)) == 4  # also of those that are called the same
    assert [part for part in page.texts if part.strip()][2:8] == ["all", "a & a", "a & a", "a & b", "a & c", "opening"]
    assert not Page(as_html("t", blocks[:5])).of("a")


def test_images_in_a_row_stand_side_by_side() -> None:
    image = Figure(b"", "png", "")
    page = Page(as_html("t", [image, image, Paragraph("between"), image]))
    assert [tag for tag, _ in page.tags if tag in ("div", "figure", "p")] == ["div", "figure", "figure", "p", "div", "figure"]
    assert all(group["class"] == "figures" for group in page.of("div"))


def test_markdown_reads_as_it_is_written() -> None:
    blocks: list[Block] = [
        Heading(1, "A"),
        Paragraph("b"),
        Bullets(("c", "d")),
        Table.of(("e", "f"), [("g", "1")]),
        Figure(b"", "png", "h"),
    ]
    assert as_markdown(blocks) == "# A\n\nb\n\n- c\n- d\n\n| e | f |\n|---|---:|\n| g | 1 |\n"


def test_readers_of_markdown_make_no_link_of_what_comes_from_elsewhere() -> None:
    reader = MarkdownIt("commonmark")
    for text in NASTY:
        assert "<a " not in reader.render(plain_text(text)), text
        assert "<img" not in reader.render(plain_text(text)), text
        assert not re.search(r"(?<!\\)(://|@)|www\.", plain_text(text)), "others make links of these by themselves"
