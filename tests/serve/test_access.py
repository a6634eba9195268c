import pytest

from protograph._internal.errors import InputError
from protograph.serve.access import HEADERS, POLICY, Access, as_host, check_token, host_name, is_loopback, new_token
from protograph.serve.refusals import Refusal

TOKEN = "0123456789abcdef"
LOCAL, OPEN = Access(TOKEN), Access(TOKEN, loopback=False, names=("lab.local",))


def status(access: Access, method: str, path: str, address: str = "192.168.1.5", **headers: str) -> int:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    try:
        access.check(method, path, {b"host": b"127.0.0.1:8000", **given}, address)
    except Refusal as refusal:
        return refusal.status_code
    return 200


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST:80"])
def test_this_machine_has_its_usual_names(host: str) -> None:
    assert status(LOCAL, "GET", "/api/model", host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example:8000",
        "127.0.0.1.evil.example",
        "evil.example:127.0.0.1",
        "192.168.1.5",
        "lab.local",
        "",
        "[::1].evil.example",
        "127.0.0.1@evil.example",
        "2130706433",
    ],
)
def test_any_other_host_is_refused(host: str) -> None:
    assert status(LOCAL, "GET", "/", host=host) == 421
    assert status(LOCAL, "POST", "/api/predict", host=host, authorization=f"Bearer {TOKEN}") == 421


@pytest.mark.parametrize(
    ("host", "wanted"), [("192.168.1.5:8000", 200), ("lab.local", 200), ("192.168.1.6", 421), ("a.b", 421)]
)
def test_off_loopback_the_own_address_and_named_hosts_are_known(host: str, wanted: int) -> None:
    assert status(OPEN, "GET", "/healthz", host=host) == wanted


def test_a_request_without_host_is_refused() -> None:
    with pytest.raises(Refusal):
        LOCAL.check("GET", "/", {}, "127.0.0.1")


@pytest.mark.parametrize(
    ("method", "path", "local", "elsewhere"),
    [
        ("GET", "/", 200, 200),
        ("GET", "/page/main.js", 200, 200),
        ("GET", "/healthz", 200, 200),
        ("GET", "/api", 200, 401),
        ("GET", "/metrics", 200, 401),
        ("GET", "/api/classes", 200, 401),
        ("GET", "/api/events", 200, 401),
        ("POST", "/api/predict", 200, 401),
        ("POST", "/api/explain", 200, 401),
        ("POST", "/api/classes", 401, 401),
        ("POST", "/api/history/undo", 401, 401),
        ("POST", "/page/main.js", 401, 401),
        ("DELETE", "/api/classes", 401, 401),
        ("OPTIONS", "/api/classes", 401, 401),
    ],
)
def test_what_needs_the_token(method: str, path: str, local: int, elsewhere: int) -> None:
    for access, wanted in ((LOCAL, local), (OPEN, elsewhere)):
        assert status(access, method, path) == wanted
        assert status(access, method, path, authorization="Bearer wrong") == wanted
        assert status(access, method, path, authorization=TOKEN) == wanted
        assert status(access, method, path, authorization=f"Bearer {TOKEN}") == 200
        assert status(access, method, path, authorization=f"bearer {TOKEN}") == 200


def test_the_page_of_another_site_is_refused_whatever_it_knows() -> None:
    for path in ("/api/predict", "/api/classes"):
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1:9000"},
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"},
        ):
            assert status(LOCAL, "POST", path, authorization=f"Bearer {TOKEN}", **headers) == 403
    assert status(LOCAL, "GET", "/api/classes", sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert status(LOCAL, "GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200
    allowed = {"origin": "http://127.0.0.1:8000", "sec_fetch_site": "same-origin"}
    assert status(LOCAL, "POST", "/api/classes", authorization=f"Bearer {TOKEN}", **allowed) == 200


def test_tokens_are_long_and_chosen_ones_are_checked() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert len(token) >= 32
        check_token(token)
    for bad in ("short", "0123456789abcde", "a token with blanks in it", "<script>0123456789", "äöü0123456789abcdef"):
        with pytest.raises(InputError, match="a token"):
            check_token(bad)


def test_names_and_addresses_are_read_as_they_are_written() -> None:
    assert host_name(b"Example.ORG:8000") == "example.org"
    assert host_name(b"example.org") == "example.org"
    assert host_name(b"[::1]:80") == "[::1]"
    assert as_host("::1") == "[::1]"
    assert as_host("fe80::1%eth0") == "[fe80::1]"
    assert as_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "[::1]")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.1.5", "lab.local")] == [False] * 4


def test_the_policy_allows_no_inline_script_and_no_frame() -> None:
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY
    assert "frame-ancestors 'none'" in POLICY
    headers = dict(HEADERS)
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"referrer-policy"] == b"no-referrer"
    assert not any(name.startswith(b"access-control") for name in headers)
