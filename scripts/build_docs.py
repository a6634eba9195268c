"""Build the documentation into site/: `make docs`.

Zensical builds all pages and fails on dead links between them. Links of the finished pages are checked once more, with those to
files, headings and parts of the reference. Equations become MathML, which browsers show without a script.
"""

import html
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def with_mathml(text: str) -> str:
    """Return a page with its equations as MathML."""
    from latex2mathml.converter import convert

    def mathml(match: re.Match[str]) -> str:
        tag, latex = match.groups()
        return convert(html.unescape(latex), display="inline" if tag == "span" else "block")

    return EQUATION.sub(mathml, text)


def dead_links(site: Path) -> list[str]:
    """Return the links of the pages of a site, as PAGE -> LINK, that lead to no file or to no part of a page."""
    pages = {path.resolve(): path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    parts = {path: {html.unescape(name) for name in re.findall(r'\bid="([^"]+)"', text)} for path, text in pages.items()}
    dead = []
    for path, text in pages.items():
        for link in map(html.unescape, re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            url = urlsplit(link)
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if url.scheme or url.netloc:
                continue
            if not target.exists() or (url.fragment and unquote(url.fragment) not in {"__top", *parts.get(target, ())}):
                dead.append(f"{path.relative_to(site.resolve())} -> {link}")
    return dead


def main() -> None:
    """Build the site."""
    subprocess.run([Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"], cwd=ROOT, check=True)
    for path in (ROOT / "site").rglob("*.html"):
        path.write_text(with_mathml(path.read_text(encoding="utf-8")), encoding="utf-8")
    if dead := dead_links(ROOT / "site"):
        raise SystemExit("dead links:\n" + "\n".join(dead))


if __name__ == "__main__":
    main()
