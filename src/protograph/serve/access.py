"""Who may ask what: hosts, tokens, origins, and the headers that tell a browser what a page may do."""

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from protograph._internal.errors import InputError
from protograph.serve.refusals import Refusal

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]*\]|[^:\[\]]*)(?::\d*)?")  # a name or an address, and a port
SHORTEST_TOKEN = 16  # characters
SAFE = ("GET", "HEAD")
ASKS = frozenset(("/api/predict", "/api/explain"))  # they change nothing, though they are posted
OPEN_TO_ALL = ("/page/",)  # the page itself, which holds no data; it is in every copy of the package
LINK_AGAIN = "open the link again that `protograph serve` printed"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


@dataclass(frozen=True)
class Access:
    """What is asked of every request before anything is done for it.

    Attributes:
        token: The token of the printed link.
        loopback: Whether the server listens on this machine's loopback alone.
        names: Further names of this server that a request may be addressed to.

    """

    token: str
    loopback: bool = True
    names: Sequence[str] = ()

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes], address: str | None) -> None:
        """Raise a `Refusal` unless the request may go on.

        Args:
            method: GET, POST, ...
            path: The path of the address.
            headers: The headers, with names in lower case.
            address: The address of this machine at which the request came in.

        """
        self._check_host(headers.get(b"host"), address)
        self._check_origin(method, headers)
        if self._needs_token(method, path) and not self._has_token(headers):
            raise Refusal(401, f"the token is missing or no longer valid: {LINK_AGAIN}", {"www-authenticate": "Bearer"})

    def _check_host(self, header: bytes | None, address: str | None) -> None:
        """Refuse requests that are addressed to a name of someone else's, as after DNS rebinding."""
        name = host_name(header or b"")
        if name in LOOPBACK_NAMES or name in self.names:
            return
        if not self.loopback and address is not None and name == as_host(address):  # no name, so no DNS, leads here
            return
        shown = name if name.isprintable() and len(name) <= 100 else "this name"
        raise Refusal(421, f"this server does not answer for {shown or 'a request without a host'}: {LINK_AGAIN}")

    def _check_origin(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what the page of another site sends, except a visit to the page by a link."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        visit = method in SAFE and headers.get(b"sec-fetch-mode") == b"navigate"
        foreign = site in (b"cross-site", b"same-site") and not visit
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc.encode("latin-1") != headers.get(b"host"):
            foreign = True
        if foreign:
            raise Refusal(403, "this request comes from the page of another site: it is refused")

    def _needs_token(self, method: str, path: str) -> bool:
        if method in SAFE and (path in ("/", "/healthz") or path.startswith(OPEN_TO_ALL)):
            return False
        return not (self.loopback and (method in SAFE or path in ASKS))

    def _has_token(self, headers: Mapping[bytes, bytes]) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(given.strip(), self.token.encode())


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)


def check_token(token: str) -> None:
    """Raise an `InputError` if a chosen token is easily guessed, or cannot be part of a link."""
    if len(token) < SHORTEST_TOKEN:
        raise InputError(f"a token needs at least {SHORTEST_TOKEN} characters: leave it out to have one made")
    if not all(letter.isascii() and (letter.isalnum() or letter in "-_.~") for letter in token):
        raise InputError("a token has letters, digits and -_.~ alone: leave it out to have one made")


def host_name(header: bytes) -> str:
    """Return the name in a Host header, in lower case and without its port."""
    text = header.decode("latin-1").lower()
    match = HOST.fullmatch(text)
    return match[1] if match else text


def as_host(address: str) -> str:
    """Return an address as it stands in a link."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address.lower()
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"[{parsed}]" if parsed.version == 6 else str(parsed)


def is_loopback(address: str) -> bool:
    """Return whether an address reaches this machine alone."""
    if address == "localhost":
        return True
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
