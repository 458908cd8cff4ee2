"""Buckets of clients, S3 and what speaks its language: addresses, signed URLs, listings.

Everything goes through ``safe_http``, so an endpoint that a client names is checked where it is
connected to, as every other address is. Requests are signed in their query (AWS Signature Version
4, https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html) and name the
bucket in the path, as servers of one's own and Google Cloud Storage (with HMAC keys) take it too.
"""

from __future__ import annotations

import re
import ssl
import time
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import quote, unquote_plus, urlencode

import httpx

from pipelines.collection import BucketAccess, Page, key_bytes
from pipelines.markup import elements
from pipelines.media_types import Problem
from pipelines.net import addresses, safe_http
from storage.types import Member

SCHEMES = ("s3", "gs")
MAX_PREFIX_BYTES = 1024
"""Of a key too: S3's limit."""
PAGE_KEYS = 1000
"""S3's most in a page."""
MAX_OBJECT_BYTES = 64 << 40
"""More than S3's most, 50 TB."""
MAX_ETAG_LENGTH = 256
"""S3's have up to 38 characters."""
AMAZON = "https://s3.{region}.amazonaws.com"
_FIRST_REGION = "us-east-1"
_SIGNED_SECONDS = 6 * 3600 + 900
"""As long as a fetch may take, attempts included, and a little more."""
_PAGE_BYTES = 6 << 20
"""A thousand keys of 1024 bytes, each byte written as %XX, are 3 MB."""
LIMITS = safe_http.TransportLimits(
    connect_seconds=5, read_seconds=5, write_seconds=5, header_seconds=10, total_seconds=20
)
"""Of a page: whoever reads it reads no other meanwhile."""
LEAST_RATE_BYTES = 16 << 10
"""A second, once _RATE_SECONDS of a body are over; a page that ends before may be slower."""
_RATE_SECONDS = 3.0

_ANY_BYTES = "surrogateescape"

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z0-9]+)://(?P<bucket>[^/]*)(?:/(?P<key>.*))?", re.DOTALL)
_SIZE = re.compile(r"[0-9]{1,15}")
_YEARS = (1970, 2999)
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")


class BucketProblem(Problem):
    """Why a bucket cannot be read."""

    ACCESS_DENIED = "BUCKET_ACCESS_DENIED", "The bucket does not let these credentials in."
    CREDENTIALS_EXPIRED = "BUCKET_CREDENTIALS_EXPIRED", "The bucket's credentials have expired."
    CREDENTIALS_REFUSED = (
        "BUCKET_CREDENTIALS_REFUSED",
        "The bucket's server does not know these credentials.",
    )
    NOT_FOUND = "BUCKET_NOT_FOUND", "There is no such bucket."
    OTHER_REGION = "BUCKET_OTHER_REGION", "The bucket lies in another region."
    OBJECT_NOT_FOUND = "BUCKET_OBJECT_NOT_FOUND", "There is no such object in the bucket."
    OBJECT_COLD = "BUCKET_OBJECT_COLD", "The object lies in cold storage: restore it first."
    NOT_ALLOWED = (
        "BUCKET_NOT_ALLOWED",
        "The bucket's endpoint leads to an address that is not allowed.",
    )
    UNREACHABLE = "BUCKET_UNREACHABLE", "The bucket's server cannot be reached, or is out of order."
    LISTING_INVALID = (
        "BUCKET_LISTING_INVALID",
        "The bucket's server answers with what is no list of objects.",
    )


_PROBLEMS = {
    "AccessDenied": BucketProblem.ACCESS_DENIED,
    "AllAccessDisabled": BucketProblem.ACCESS_DENIED,
    "AccountProblem": BucketProblem.ACCESS_DENIED,
    "ExpiredToken": BucketProblem.CREDENTIALS_EXPIRED,
    "TokenRefreshRequired": BucketProblem.CREDENTIALS_EXPIRED,
    "InvalidAccessKeyId": BucketProblem.CREDENTIALS_REFUSED,
    "InvalidToken": BucketProblem.CREDENTIALS_REFUSED,
    "SignatureDoesNotMatch": BucketProblem.CREDENTIALS_REFUSED,
    "InvalidSecurity": BucketProblem.CREDENTIALS_REFUSED,
    "NoSuchBucket": BucketProblem.NOT_FOUND,
    "NoSuchKey": BucketProblem.OBJECT_NOT_FOUND,
    "InvalidObjectState": BucketProblem.OBJECT_COLD,
    "PermanentRedirect": BucketProblem.OTHER_REGION,
    "AuthorizationHeaderMalformed": BucketProblem.OTHER_REGION,
    "AuthorizationQueryParametersError": BucketProblem.OTHER_REGION,
}
"""S3's own codes, https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html."""
_BY_STATUS = {
    301: BucketProblem.OTHER_REGION,
    401: BucketProblem.CREDENTIALS_REFUSED,
    403: BucketProblem.ACCESS_DENIED,
    404: BucketProblem.NOT_FOUND,
}


class BucketError(Exception):
    """A bucket cannot be read."""

    def __init__(self, problem: BucketProblem) -> None:
        super().__init__(problem.sentence)
        self.problem = problem

    @property
    def may_pass(self) -> bool:
        """Whether it may be different in a while, with nothing changed by anybody."""
        return self.problem is BucketProblem.UNREACHABLE


PUBLIC_ACCESS = BucketAccess()


@dataclass(frozen=True, slots=True)
class ClientBucket:
    """A bucket with the means to read it."""

    scheme: str
    name: str
    access: BucketAccess = PUBLIC_ACCESS

    @property
    def endpoint(self) -> str:
        """Where requests go: https:// and the server, as a rule."""
        if self.access.endpoint is not None:
            return self.access.endpoint.rstrip("/")
        if self.scheme == "gs":
            return "https://storage.googleapis.com"
        return AMAZON.format(region=self.access.region or _FIRST_REGION)

    def url(self, key: str = "", query: dict[str, str] | None = None) -> str:
        """Return the signed URL of a GET of an object, or with ``query`` of the bucket itself."""
        path = f"/{self.name}" + (f"/{quote(key, safe='/~')}" if key else "")
        # Spaces as %20: a plus sign would be signed as one.
        text = urlencode(query or {}, quote_via=quote, errors=_ANY_BYTES)
        url = f"{self.endpoint}{path}" + (f"?{text}" if text else "")
        access = self.access
        if access.access_key_id is None:
            return url
        # Takes a while to load, and only this needs it.
        from botocore.auth import S3SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        secrets = access.access_key_id, access.secret_access_key, access.session_token
        region = access.region or ("auto" if self.scheme == "gs" else _FIRST_REGION)
        request = AWSRequest("GET", url)
        S3SigV4QueryAuth(Credentials(*secrets), "s3", region, _SIGNED_SECONDS).add_auth(request)
        return str(request.url)


def is_bucket_address(url: str) -> bool:
    """Return whether ``url`` names something in a bucket rather than on a web server."""
    return url.partition("://")[0].lower() in SCHEMES and "://" in url


def split_bucket_address(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and key (or prefix, which may be empty) of an s3:// or gs:// address.

    The key is taken as it stands: nothing in it is percent-encoded. Raises InvalidUrlError.
    """
    found = _ADDRESS.fullmatch(url)
    if found is None or found["scheme"].lower() not in SCHEMES:
        raise addresses.InvalidUrlError("it is not an s3:// or gs:// address")
    if not _BUCKET.fullmatch(found["bucket"]):
        raise addresses.InvalidUrlError("it names no bucket")
    key = found["key"] or ""
    if "\0" in key or any("\ud800" <= each <= "\udfff" for each in key):
        raise addresses.InvalidUrlError("it holds a character that no key may hold")
    if len(key.encode()) > MAX_PREFIX_BYTES:
        raise addresses.InvalidUrlError(f"its key is longer than {MAX_PREFIX_BYTES} bytes")
    return found["scheme"].lower(), found["bucket"], key


def check_bucket(bucket: ClientBucket, policy: addresses.AddressPolicy) -> None:
    """Raises UrlError where its endpoint is none, or not allowed; nothing is resolved."""
    if bucket.access.region is not None and not _REGION.fullmatch(bucket.access.region):
        raise addresses.InvalidUrlError("its region is none")
    endpoint = addresses.check_url_text(bucket.endpoint, policy=policy)
    if "?" in endpoint.target:
        raise addresses.InvalidUrlError("its endpoint has a query")


@dataclass(frozen=True, slots=True)
class BucketReader:
    """Reads clients' buckets over connections that the policy allows."""

    policy: addresses.AddressPolicy
    limits: safe_http.TransportLimits = LIMITS
    resolver: safe_http.Resolver = safe_http.system_addresses
    ssl_context: ssl.SSLContext | None = None
    watch: safe_http.Watch = lambda: None

    def located(self, bucket: ClientBucket) -> ClientBucket:
        """Return the bucket with its region, which Amazon answers to everybody. Raises
        BucketError."""
        access = bucket.access
        if bucket.scheme != "s3" or access.endpoint is not None or access.region is not None:
            return bucket
        _, _, headers = self._answer(f"{bucket.endpoint}/{bucket.name}", "HEAD")
        region = headers.get("x-amz-bucket-region", "")
        if not _REGION.fullmatch(region):
            return bucket
        return replace(bucket, access=replace(access, region=region))

    def page(self, bucket: ClientBucket, prefix: str, after: str, most: int = PAGE_KEYS) -> Page:
        """Return the objects below ``prefix`` whose keys come after ``after`` (ListObjectsV2).
        Raises BucketError. Memory is bounded by the page."""
        query = {"list-type": "2", "encoding-type": "url", "max-keys": str(most)}
        query |= {name: text for name, text in (("prefix", prefix), ("start-after", after)) if text}
        status, body, _ = self._answer(bucket.url(query=query), "GET")
        if status != 200:
            raise BucketError(problem_of(status, body))
        return _read_page(body, after)

    def _answer(self, url: str, method: str) -> tuple[int, bytes, httpx.Headers]:
        """Status, body and headers."""
        try:
            parsed: addresses.ParsedUrl = addresses.check_url_text(url, policy=self.policy)
        except addresses.UrlError as error:
            raise BucketError(BucketProblem.NOT_ALLOWED) from error
        headers = {"Connection": "close", "User-Agent": "video-analysis-service"}
        request = httpx.Request(
            method, parsed.url, headers=headers, extensions={"target": parsed.target.encode()}
        )
        try:
            with (
                safe_http.SafeTransport(
                    policy=self.policy,
                    limits=self.limits,
                    resolver=self.resolver,
                    ssl_context=self.ssl_context,
                    watch=self.watch,
                ) as transport,
                closing(transport.handle_request(request)) as response,
            ):
                body, began = bytearray(), time.monotonic()
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > _PAGE_BYTES:
                        raise BucketError(BucketProblem.LISTING_INVALID)
                    seconds = time.monotonic() - began
                    if seconds > _RATE_SECONDS and len(body) < seconds * LEAST_RATE_BYTES:
                        raise BucketError(BucketProblem.UNREACHABLE)
                return response.status_code, bytes(body), response.headers
        except safe_http.BlockedAddressError as error:
            raise BucketError(BucketProblem.NOT_ALLOWED) from error
        except httpx.TransportError as error:
            raise BucketError(BucketProblem.UNREACHABLE) from error


def problem_of(status: int, body: bytes) -> BucketProblem:
    """Return what an answer that is no success means: by S3's code in it, else by its status."""
    if (found := _CODE.search(body)) and (known := _PROBLEMS.get(found[1].decode())):
        return known
    return _BY_STATUS.get(status, BucketProblem.UNREACHABLE)


def _read_page(body: bytes, after: str) -> Page:
    page: dict[str, str] = {}
    found: list[dict[str, str]] = []
    item: dict[str, str] = {}
    try:
        for (root, *path), text in elements(body):
            if root != "ListBucketResult" or len(found) > PAGE_KEYS:
                raise BucketError(BucketProblem.LISTING_INVALID)
            if path == ["Contents"]:
                found.append(item)
                item = {}
            elif path[:-1] == ["Contents"]:
                item[path[-1]] = text
            elif len(path) == 1:
                page[path[0]] = text
        listed = [_object(each, page.get("EncodingType") == "url") for each in found]
    except (LookupError, ValueError) as error:
        raise BucketError(BucketProblem.LISTING_INVALID) from error
    if page.get("IsTruncated") != "true":
        return Page(tuple(listed), None)
    # A server that does not go on would be listed without end.
    if not listed or key_bytes(listed[-1]) <= after.encode(errors=_ANY_BYTES):
        raise BucketError(BucketProblem.LISTING_INVALID)
    return Page(tuple(listed), listed[-1].key)


def _object(fields: dict[str, str], is_encoded: bool) -> Member:
    """Raises LookupError and ValueError for what no server of buckets answers."""
    key = unquote_plus(fields["Key"], errors=_ANY_BYTES) if is_encoded else fields["Key"]
    size, etag = fields["Size"], fields.get("ETag", "").strip('"')
    if not 1 <= len(key.encode(errors=_ANY_BYTES)) <= MAX_PREFIX_BYTES:
        raise ValueError("the length of a key")
    if not _SIZE.fullmatch(size) or int(size) > MAX_OBJECT_BYTES:
        raise ValueError("the size of an object")
    if len(etag) > MAX_ETAG_LENGTH:
        raise ValueError("the length of an entity tag")
    text = fields.get("LastModified")
    moment = datetime.fromisoformat(text) if text else None
    if moment is not None and not _YEARS[0] <= moment.year <= _YEARS[1]:
        moment = None  # No object is of such a year: some servers write the year 1 for no time.
    if moment is not None:
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Member(key=key, size_bytes=int(size), etag=etag or None, modified_at=moment)
