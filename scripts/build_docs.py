"""Build the documentation into site/: `make docs`, or `python scripts/build_docs.py`.

Write the command-line page, let Zensical build all pages, which fails on dead links, and set equations as MathML, which
browsers show without a script.
"""

import html
import re
import subprocess
import sys
from pathlib import Path

from command_line import PAGE, page
from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def with_mathml(text: str) -> str:
    """Return a page with its equations as MathML."""

    def mathml(match: re.Match[str]) -> str:
        tag, latex = match.groups()
        return convert(html.unescape(latex), display="inline" if tag == "span" else "block")

    return EQUATION.sub(mathml, text)


def main() -> None:
    """Build the site."""
    PAGE.write_text(page(), encoding="utf-8")
    subprocess.run([Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"], cwd=ROOT, check=True)
    for path in (ROOT / "site").rglob("*.html"):
        path.write_text(with_mathml(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
