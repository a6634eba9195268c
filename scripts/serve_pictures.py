"""Make the pictures of the page that `protograph serve` shows: part of `make pictures`, where there is a chromium.

docs/images/serve-ask.png      an image is asked about: probabilities, where the network looked
docs/images/serve-teach.png    a class is taught from images, and what it is like
docs/images/serve-check.png    whether it was taught enough
docs/images/serve-map.png      the map of the classes
docs/images/serve-phone.png    the page on a phone, dark

Text is in the font that the system uses for `system-ui`; it was Inter when the pictures were made.
"""

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from browser import CHROMIUM, PHONE, Server, ask, choose, chromium, goto  # noqa: E402
from drawings import FRUITS, write_drawings  # noqa: E402

WIDE = {"viewport": {"width": 1080, "height": 700}, "device_scale_factor": 1.25}
TAUGHT = {"apple": 6, "pear": 6, "banana": 5, "grapes": 6, "orange": 6, "cherries": 4}
ALIKE = {"pear": {"apple": 0.7}, "orange": {"apple": 0.5}, "cherries": {"grapes": 0.6, "apple": 0.4}}


def main() -> None:
    """Make all pictures."""
    if not CHROMIUM.exists():
        sys.stdout.write(f"the pictures of the page stay as they are: there is no {CHROMIUM}\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        fruits = {name: write_drawings(Path(folder, name), name, range(9), 320) for name in FRUITS}
        server = Server(Path(folder, "fruit.pg"), size=224)
        server.start()
        try:
            for name, count in TAUGHT.items():
                server.teach(name, fruits[name][:count], ALIKE.get(name))
            with chromium() as browser:
                draw_pages(browser, server, fruits)
        finally:
            server.stop()
    sys.stdout.write(f"wrote {IMAGES.relative_to(ROOT)}\n")


def draw_pages(browser: Any, server: Server, fruits: dict[str, list[Path]]) -> None:
    """Open the page, and keep a picture of each view."""
    page = browser.new_page(**WIDE)
    page.goto(server.link)
    ask(page, fruits["pear"][7])
    keep(page, "ask", 850)
    goto(page, "#/teach")
    page.get_by_label("Name of the class").fill("nectarine")
    choose(page, *[fruits["orange"][6], fruits["apple"][7], fruits["orange"][8]])
    page.get_by_text("What is it like?").click()
    page.get_by_label("Also like").fill("orange")
    page.get_by_label("Also like").press("Enter")
    page.get_by_label("Also like").blur()
    keep(page, "teach", 860)
    goto(page, "#/check")
    page.locator("table").wait_for()
    keep(page, "check", 760)
    goto(page, "#/map")
    page.locator(".map-node", has_text="pear").click()
    keep(page, "map", 780)
    phone = browser.new_page(**PHONE, device_scale_factor=1.25, color_scheme="dark")
    phone.goto(server.link)
    ask(phone, fruits["cherries"][7])
    keep(phone, "phone", 844)


def keep(page: Any, name: str, height: int) -> None:
    """Write a picture of the upper part of a page."""
    page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(700)  # until small pictures are there and bars have grown
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(IMAGES / f"serve-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
