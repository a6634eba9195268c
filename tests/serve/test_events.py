import asyncio
import json

import pytest

from protograph.serve import events
from protograph.serve.events import Announcer
from protograph.serve.refusals import Refusal


def parsed(event: bytes) -> object:
    name, data, _ = event.decode().split("\n", 2)
    assert name == "event: version"
    return json.loads(data.removeprefix("data: "))


def test_every_page_hears_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT", 0.01)

    async def scenario() -> None:
        announcer = Announcer(2)
        pages = [announcer.listen(lambda: "v1") for _ in range(2)]
        with pytest.raises(Refusal, match="2 pages listen already"):
            announcer.listen(lambda: "v1")
        for page in pages:
            assert parsed(await anext(page)) == {"version": "v1", "what": None}
        announcer.announce("v2", "added '\n\nevent: x'")
        for page in pages:
            assert parsed(await anext(page)) == {"version": "v2", "what": "added '\n\nevent: x'"}
            assert await anext(page) == b": alive\n\n"
        for number in range(100):  # of a page that takes none, the latest is left
            announcer.announce(f"v{number}", None)
        announcer.close()
        last = [event async for event in pages[0]][-1]
        assert parsed(last) == {"version": "v99", "what": None}
        assert [event async for event in pages[1]]
        assert not len(announcer)
        with pytest.raises(Refusal):
            announcer.listen(lambda: "v1")

    asyncio.run(scenario())
