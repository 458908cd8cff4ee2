"""Address policy for outgoing connections: rules on URLs, host names and IP addresses. No I/O.

The text of a URL is checked here before any request; the addresses that its host name resolves to
are checked by the same policy when a connection is opened (``pipelines.net.safe_http``). The first
check gives clients a clear answer at once, the second is the one that protects.

Hosts are parsed as browsers parse them (WHATWG URL Standard, "host parsing"): percent-decoded,
mapped by UTS #46, and as an IPv4 address in any of inet_aton's forms where the last label is a
number. The tables come from the IANA special-purpose registries for IPv4 and IPv6 (RFC 6890 and the
RFCs named beside each entry) and from the metadata services of cloud providers.

Share links of Google Drive and Dropbox show a page; they are turned into links to the bytes. The
forms are those that the providers' own "copy link" and "download" buttons make.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import (
    parse_qsl,
    quote,
    unquote_to_bytes,
    urlencode,
    urljoin,
    urlsplit,
    urlunsplit,
)

import idna

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

REFUSED_IPV4 = tuple(
    IPv4Network(network)
    for network, _why in (
        ("0.0.0.0/8", "this network, unspecified (RFC 791, 1122)"),
        ("10.0.0.0/8", "private (RFC 1918)"),
        ("100.64.0.0/10", "carrier-grade NAT (RFC 6598); Alibaba Cloud's metadata too"),
        ("127.0.0.0/8", "loopback (RFC 1122)"),
        ("168.63.129.16/32", "Azure's platform address, public only by its number"),
        ("169.254.0.0/16", "link-local (RFC 3927); cloud metadata"),
        ("172.16.0.0/12", "private (RFC 1918)"),
        ("192.0.0.0/24", "protocol assignments (RFC 6890); Oracle's metadata too"),
        ("192.0.2.0/24", "documentation (RFC 5737)"),
        ("192.31.196.0/24", "AS112 (RFC 7535)"),
        ("192.52.193.0/24", "automatic multicast tunnels (RFC 7450)"),
        ("192.88.99.0/24", "6to4 relays, withdrawn (RFC 7526)"),
        ("192.168.0.0/16", "private (RFC 1918)"),
        ("192.175.48.0/24", "AS112 (RFC 7534)"),
        ("198.18.0.0/15", "benchmarks (RFC 2544)"),
        ("198.51.100.0/24", "documentation (RFC 5737)"),
        ("203.0.113.0/24", "documentation (RFC 5737)"),
        ("224.0.0.0/4", "multicast (RFC 5771)"),
        ("240.0.0.0/4", "reserved (RFC 1112), broadcast (RFC 919)"),
    )
)

GLOBAL_IPV6 = IPv6Network("2000::/3")
"""The only space IANA assigns as global unicast. Everything beside it is refused: loopback,
mapped, compatible, translated, NAT64 (64:ff9b), discard, unique local, link- and site-local,
multicast, segment routing."""

REFUSED_IPV6 = tuple(
    IPv6Network(network)
    for network, _why in (
        ("2001::/23", "protocol assignments: Teredo, benchmarks, ORCHID, drones (RFC 2928)"),
        ("2001:db8::/32", "documentation (RFC 3849)"),
        ("2002::/16", "6to4: any IPv4 address inside (RFC 3056)"),
        ("2620:4f:8000::/48", "AS112 (RFC 7534)"),
        ("3ffe::/16", "6bone, given back (RFC 3701)"),
        ("3fff::/20", "documentation (RFC 9637)"),
    )
)

ISATAP_MARKS = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""Upper half of an interface identifier that carries an IPv4 address (RFC 5214)."""

METADATA_ADDRESSES: frozenset[IPAddress] = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, DigitalOcean, OpenStack, …
        "169.254.170.2",  # AWS container credentials
        "169.254.170.23",  # AWS EKS pod identity
        "169.254.0.23",  # Tencent Cloud
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure's platform address
        "192.0.0.192",  # Oracle Cloud
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS EKS pod identity
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
    )
)
"""Refused even where the operator allows a network around them: they hand out credentials."""

METADATA_NAMES = frozenset(
    {
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
        "metadata.packet.net",
        "instance-data.ec2.internal",
    }
)

INTERNAL_SUFFIXES = frozenset(
    {"localhost", "localdomain", "local", "internal", "intranet", "private", "lan", "home", "corp"}
    | {"home.arpa", "svc"}
)
"""Names below these are private by RFC 6761, 6762, 8375, by ICANN's reservation or by custom."""

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_LENGTH = 8192
"""Characters. Signed storage links with session tokens reach about 2,500."""
MAX_CALLBACK_URL_LENGTH = 2048

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>[^#]*)")
"""RFC 3986, appendix B, for URLs with an authority; the fragment is left out."""

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\xa0\\\s\ufeff\ufffe\uffff]")
"""Control characters, white space and backslashes, which parsers disagree on."""

_HOST_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")


class UrlError(ValueError):
    """A URL is refused; the message is a clause without the URL's own text."""


class InvalidUrlError(UrlError):
    """Not an absolute http or https URL."""


class UrlNotAllowedError(UrlError):
    """It points, or leads, to an address or a host that the service must not talk to."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """What the operator allows beyond the public internet, and refuses of it. Picklable.

    ``allowed_networks`` opens private networks: their literal addresses, and host names (internal
    ones too) all of whose addresses lie in them. ``refused_networks`` closes networks with public
    numbers that are the operator's own (a NAT64 prefix, for instance), and takes precedence.
    """

    allowed_networks: tuple[IPNetwork, ...] = ()
    refused_networks: tuple[IPNetwork, ...] = ()
    allow_http_callbacks: bool = False

    def allows_explicitly(self, address: IPAddress) -> bool:
        """Return whether ``address`` lies in an allowed network and nothing else forbids it."""
        if address in METADATA_ADDRESSES or _within(address, self.refused_networks):
            return False
        return _within(address, self.allowed_networks)

    def permits(self, address: IPAddress) -> bool:
        """Return whether the service may connect to ``address``."""
        if _has_zone(address) or _within(address, self.refused_networks):
            return False
        return self.allows_explicitly(address) or is_public_address(address)


PUBLIC_ONLY = AddressPolicy()


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """A URL that passed: canonical ASCII, no user-info, no fragment, the port explicit."""

    scheme: str
    host: str
    """A lower-case ASCII name, dotted IPv4, or IPv6 without brackets."""
    port: int
    target: str
    """Path and query as the request line carries them."""
    address: IPAddress | None = None
    """The host, where it is a literal address."""

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: what credentials belong to."""
        return self.scheme, self.host, self.port

    @property
    def url(self) -> str:
        """The canonical text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.target}"


def is_public_address(address: IPAddress | str) -> bool:
    """Return whether ``address`` is a global unicast address with no private meaning.

    Text that is no IP address, or names a zone, is not public.
    """
    if isinstance(address, str):
        try:
            address = ipaddress.ip_address(address)
        except ValueError:
            return False
    if isinstance(address, IPv4Address):
        return not _within(address, REFUSED_IPV4)
    if _has_zone(address) or address not in GLOBAL_IPV6 or _within(address, REFUSED_IPV6):
        return False
    return (int(address) >> 32) & 0xFFFF_FFFF not in ISATAP_MARKS


def check_url_text(
    url: str, *, schemes: Iterable[str] = ("http", "https"), policy: AddressPolicy = PUBLIC_ONLY
) -> ParsedUrl:
    """Parse ``url`` and check its text by the policy; nothing is resolved. Raises InvalidUrlError
    where it is not an absolute URL of one of ``schemes``, UrlNotAllowedError where it names a
    private address or an internal host, or carries user-info."""
    found = _URL.fullmatch(_plain_text(url).partition("#")[0])
    if found is None or found["scheme"].lower() not in schemes:
        raise InvalidUrlError(f"it is not an absolute {' or '.join(schemes)} URL")
    scheme = found["scheme"].lower()
    if "@" in found["authority"]:
        raise UrlNotAllowedError("it carries a user name or password")
    host_text, port = _split_authority(found["authority"], DEFAULT_PORTS[scheme])
    host, address = read_host(host_text)
    check_host(host, address, policy)
    # What is not ASCII is percent-encoded, what is encoded stays as it is.
    target = quote(found["rest"], safe="/?%:@!$&'()*+,;=-._~[]|")
    target = target if target.startswith("/") else f"/{target}"
    return ParsedUrl(scheme, host, port, target, address)


def check_redirect(
    base: ParsedUrl, location: str, *, policy: AddressPolicy = PUBLIC_ONLY
) -> ParsedUrl:
    """Return the URL of a ``Location`` header relative to ``base``, checked like any other.

    Spaces are accepted (common in unencoded file names). Raises as ``check_url_text``.
    """
    reference = _plain_text(location.strip(" ").replace(" ", "%20"))
    try:
        joined = urljoin(base.url, reference)
    except ValueError:
        raise InvalidUrlError("it is not an absolute http or https URL") from None
    return check_url_text(joined, policy=policy)


def check_callback_url(
    url: str, *, policy: AddressPolicy = PUBLIC_ONLY, standard_port_only: bool = False
) -> ParsedUrl:
    """Return the rule for callbacks: https to a public host; port 443 where ``standard_port_only``.

    An address in a network that the operator allows may have any port: ``vas webhooks listen``
    cannot take 443. ``allow_http_callbacks`` lifts the rules on scheme and port. Raises as
    ``check_url_text``.
    """
    if len(url) > MAX_CALLBACK_URL_LENGTH:
        raise InvalidUrlError(f"it has more than {MAX_CALLBACK_URL_LENGTH} characters")
    schemes = ("http", "https") if policy.allow_http_callbacks else ("https",)
    parsed = check_url_text(url, schemes=schemes, policy=policy)
    any_port = policy.allow_http_callbacks or (
        parsed.address is not None and policy.allows_explicitly(parsed.address)
    )
    if standard_port_only and not any_port and parsed.port != 443:
        raise UrlNotAllowedError("its port is not 443")
    return parsed


def read_host(text: str) -> tuple[str, IPAddress | None]:
    """Return the canonical host of a URL, and the address where it is one.

    ``text`` keeps the brackets of an IPv6 address, which may have no zone. Raises UrlError.
    """
    if text.startswith("["):
        address: IPAddress = _read_ipv6(text)
        return str(address), address
    try:
        decoded = unquote_to_bytes(text).decode("utf-8") if "%" in text else text
    except UnicodeDecodeError:
        raise InvalidUrlError("its host is not a valid name") from None
    if _FORBIDDEN.search(decoded):
        raise InvalidUrlError("its host is not a valid name")
    name = _ascii_name(decoded).removesuffix(".")
    if not _HOST_NAME.fullmatch(name):
        raise InvalidUrlError("its host is not a valid name")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        address = _read_ipv4(name)
        return str(address), address
    return name, None


def check_host(host: str, address: IPAddress | None, policy: AddressPolicy) -> None:
    """Check a canonical host by itself; raise UrlNotAllowedError."""
    if address is not None:
        if not policy.permits(address):
            raise UrlNotAllowedError("it points to a private or reserved address")
    elif host in METADATA_NAMES or (is_internal_name(host) and not policy.allowed_networks):
        raise UrlNotAllowedError("it points to an internal host name")


def check_answers(
    host: str, answers: Iterable[str], policy: AddressPolicy
) -> tuple[IPAddress, ...]:
    """Return the addresses that ``host`` resolved to, in order, if every one of them may be used.

    An internal name must lie wholly in the operator's networks, even if public DNS has an answer
    for it. Raises UrlNotAllowedError.
    """
    allowed = policy.allows_explicitly if is_internal_name(host) else policy.permits
    try:
        addresses = tuple(dict.fromkeys(map(ipaddress.ip_address, answers)))
    except ValueError:
        raise UrlNotAllowedError("its host has an address that cannot be read") from None
    if not addresses or not all(allowed(address) for address in addresses):
        raise UrlNotAllowedError("its host does not lie on the public internet")
    return addresses


def is_internal_name(host: str) -> bool:
    """Return whether a canonical host name has meaning only inside somebody's network."""
    labels = host.split(".")
    if len(labels) == 1 or host in METADATA_NAMES:
        return True
    return any(".".join(labels[start:]) in INTERNAL_SUFFIXES for start in range(len(labels)))


def _within(address: IPAddress, networks: Iterable[IPNetwork]) -> bool:
    return any(address in network for network in networks)


def _has_zone(address: IPAddress) -> bool:
    return isinstance(address, IPv6Address) and address.scope_id is not None


def _plain_text(url: str) -> str:
    if len(url) > MAX_URL_LENGTH:
        raise InvalidUrlError(f"it is longer than {MAX_URL_LENGTH} characters")
    if _FORBIDDEN.search(url) or any("\ud800" <= character <= "\udfff" for character in url):
        raise InvalidUrlError("it holds a character that no URL may hold")
    return url


def _split_authority(authority: str, default_port: int) -> tuple[str, int]:
    """Host (with brackets) and port."""
    host, colon, port = authority.rpartition(":")
    if not colon or "]" in port:
        host, port = authority, ""
    if not host:
        raise InvalidUrlError("it has no host")
    if not port:
        return host, default_port
    if not _PORT.fullmatch(port) or not 0 < int(port) <= 65_535:
        raise InvalidUrlError("its port is not a number from 1 to 65535")
    return host, int(port)


def _ascii_name(text: str) -> str:
    """``text`` by UTS #46, non-transitional: full-width, circled, ideographic forms end here."""
    if text.isascii():
        return text.lower()
    try:
        mapped = idna.uts46_remap(text, std3_rules=False, transitional=False)
        return mapped if mapped.isascii() else idna.encode(mapped).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise InvalidUrlError("its host is not a valid international name") from None


def _read_ipv6(text: str) -> IPv6Address:
    if not text.endswith("]"):
        raise InvalidUrlError("its host is not a valid IPv6 address")
    bare, percent, _zone = text[1:-1].partition("%")
    try:
        address = IPv6Address(bare)
    except ValueError:
        raise InvalidUrlError("its host is not a valid IPv6 address") from None
    if percent:
        raise UrlNotAllowedError("it points to an address on one link of this machine")
    return address


def _read_ipv4(name: str) -> IPv4Address:
    """Return the WHATWG "IPv4 parser", which accepts what inet_aton does: 127.1, 0x7f.1,
    2130706433."""
    parts = name.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise InvalidUrlError("its host is not a valid IPv4 address")
    *heads, last = [_read_number(part) for part in parts]
    if any(head > 255 for head in heads) or last >= 256 ** (5 - len(parts)):
        raise InvalidUrlError("its host is not a valid IPv4 address")
    high = sum(head << (24 - 8 * position) for position, head in enumerate(heads))
    return IPv4Address(high + last)


def _read_number(part: str) -> int:
    try:
        if part.startswith("0x"):
            return int(part[2:] or "0", 16)
        return int(part, 8 if len(part) > 1 and part.startswith("0") else 10)
    except ValueError:
        raise InvalidUrlError("its host is not a valid IPv4 address") from None


class Provider(StrEnum):
    """Whose share link a URL is."""

    GDRIVE = "gdrive"
    DROPBOX = "dropbox"


_GOOGLE_HOSTS = frozenset({"drive.google.com", "docs.google.com", "drive.usercontent.google.com"})
_GOOGLE_API_HOSTS = frozenset({"www.googleapis.com", "content.googleapis.com"})
_GOOGLE_ID = r"(?P<id>[A-Za-z0-9_-]{10,128})"
_GOOGLE_FILE_PATH = re.compile(rf"(?:/a/[^/]+)?/file(?:/u/\d+)?/d/{_GOOGLE_ID}(?:/.*)?")
_GOOGLE_QUERY_PATH = re.compile(r"(?:/a/[^/]+)?(?:/u/\d+)?/(?:open|uc|download)/?")
_GOOGLE_API_PATH = re.compile(rf"/drive/v[23]/files/{_GOOGLE_ID}")

_DROPBOX_HOSTS = frozenset({"dropbox.com", "www.dropbox.com", "m.dropbox.com"})
_DROPBOX_CONTENT_HOST = re.compile(r"dl\.dropbox\.com|(?:[a-z0-9-]+\.)?dl\.dropboxusercontent\.com")
_DROPBOX_FILE_PATH = re.compile(r"/(?:s|scl/fi)/[A-Za-z0-9_-]+/.+|/s/[A-Za-z0-9_-]+")


def direct_download_url(url: str, provider: Provider, *, has_token: bool = False) -> str:
    """Return the address of the bytes behind a share link of ``provider``.

    ``url`` is a text that ``addresses.check_url_text`` accepts. With a token the address is one
    of Google Drive's API, which accepts tokens. Raises InvalidUrlError where it is no link to one
    file of that provider (folders and documents made in the browser are not).
    """
    if provider is Provider.GDRIVE:
        file_id, resource_key = _google_file(url)
        if has_token:
            # Without supportsAllDrives a file on a shared drive is answered as missing.
            query = urlencode({"alt": "media", "supportsAllDrives": "true"})
            return f"https://www.googleapis.com/drive/v3/files/{file_id}?{query}"
        # "confirm" answers the page of confirmation before a file too large for the virus scan.
        fields = {"id": file_id, "export": "download", "confirm": "t"}
        if resource_key:
            fields["resourcekey"] = resource_key
        return f"https://drive.usercontent.google.com/download?{urlencode(fields)}"
    return _dropbox(url)


def _google_file(url: str) -> tuple[str, str | None]:
    """File id and resource key (links from before 2021 have one) of a Google Drive link."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host = (parts.hostname or "").removesuffix(".")
    pattern = _GOOGLE_API_PATH if host in _GOOGLE_API_HOSTS else _GOOGLE_FILE_PATH
    if host not in _GOOGLE_HOSTS | _GOOGLE_API_HOSTS:
        raise InvalidUrlError("it is not a Google Drive link")
    found = pattern.fullmatch(parts.path)
    if found is None and host in _GOOGLE_HOSTS and _GOOGLE_QUERY_PATH.fullmatch(parts.path):
        found = re.fullmatch(_GOOGLE_ID, query.get("id", ""))
    if found is None:
        raise InvalidUrlError("it is not a Google Drive link to a file")
    return found["id"], query.get("resourcekey")


def _dropbox(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").removesuffix(".")
    if _DROPBOX_CONTENT_HOST.fullmatch(host):
        return url
    if host not in _DROPBOX_HOSTS:
        raise InvalidUrlError("it is not a Dropbox link")
    if not _DROPBOX_FILE_PATH.fullmatch(parts.path):
        raise InvalidUrlError("it is not a Dropbox link to a file")
    kept = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name not in {"dl", "raw"}
    ]
    query = urlencode([*kept, ("dl", "1")])
    return urlunsplit(("https", "www.dropbox.com", parts.path, query, ""))
