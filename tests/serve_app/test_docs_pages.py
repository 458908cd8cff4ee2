"""The pages beside the document: complete, self-contained, and safe."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest

from pipelines.types import StageCode, WarningCode
from serve_app.api.envelope import prose
from serve_app.api.schemas import OPTIONAL_FIELDS, REQUIRED_FIELDS, RESULT_REASONS
from serve_app.discovery.pages import JOB_ERRORS, REASONS, curl_sample
from serve_app.errors import CATALOGUE, ErrorCode
from tests.serve_app.interface_contract import DOCUMENT, OPERATIONS, Operation
from tests.serve_app.running_api import RunningApi
from tests.tables import every

PROTOCOLS = ("openai", "deepgram", "assemblyai", "google")
PAGES = ("/docs", "/docs/errors", *(f"/docs/protocols/{name}" for name in PROTOCOLS))
ASSETS = ("/docs/assets/docs.css", "/docs/assets/docs.js")


class Reading(HTMLParser):
    """What a browser would find on a page: ids, links, what it loads, what is left open."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.inline: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if name not in self.VOID:
            self.open.append(name)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if name == "a":
            self.links.append(str(found["href"]))
        for attribute in ("src", "href"):
            if name != "a" and found.get(attribute):
                self.loads.append(str(found[attribute]))
        self.inline += [key for key in found if key == "style" or key.startswith("on")]

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in {"script", "style"} and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def read(api: RunningApi) -> dict[str, Reading]:
    return {page: Reading(api.client.get(api.root + page).text) for page in PAGES}


@every("page", PAGES)
def test_a_page_is_html_that_anybody_may_read_and_keep_a_while(api: RunningApi, page: str) -> None:
    answer = api.client.get(api.root + page)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert answer.text.startswith("<!doctype html>")
    again = api.client.get(api.root + page, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@every("path", PAGES + ASSETS)
def test_the_policy_allows_our_own_assets_and_nothing_else(api: RunningApi, path: str) -> None:
    headers = api.client.get(api.root + path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"


@every("page", PAGES)
def test_a_page_loads_only_what_we_serve_and_has_nothing_inline(
    api: RunningApi, read: dict[str, Reading], page: str
) -> None:
    reading = read[page]
    assert reading.open == []
    assert reading.inline == []
    for address in reading.loads:
        assert address == "data:," or api.client.get(api.root + address).status_code == 200
    assert set(ASSETS) <= set(reading.loads)


@every("page", PAGES)
def test_every_link_leads_to_a_place_that_exists(
    api: RunningApi, read: dict[str, Reading], page: str
) -> None:
    assert len(set(read[page].ids)) == len(read[page].ids)
    for link in set(read[page].links):
        address, fragment = urldefrag(urljoin(page, link))
        assert not urlsplit(address).netloc
        if fragment:
            assert fragment in read[address].ids, link
        else:
            assert api.client.get(api.root + address).status_code == 200


@pytest.mark.parametrize("asset", ASSETS)
def test_assets_fetch_nothing_from_elsewhere(api: RunningApi, asset: str) -> None:
    text = api.client.get(api.root + asset).text
    assert not re.search(r"https?://(?!your-service/)|@import|url\(|fetch\(|import\(", text)


@every("name", ["../pages.py", "docs.map", "%2e%2e%2fpages.py", ""])
def test_no_other_file_is_served(api: RunningApi, name: str) -> None:
    assert api.client.get(f"{api.root}/docs/assets/{name}").status_code == 404


def test_the_pages_are_no_operations(api: RunningApi) -> None:
    document = api.client.get("/openapi.json").json()
    assert not [path for path in document["paths"] if path.startswith("/docs")]


def test_every_operation_has_its_entry(read: dict[str, Reading]) -> None:
    for operation in OPERATIONS:
        assert f"op-{operation.operation_id}" in read["/docs"].ids
        assert operation.documented["summary"] in read["/docs"].text
        for parameter in operation.parameters:
            assert parameter["name"] in read["/docs"].text, operation.operation_id


def test_every_schema_has_its_entry(read: dict[str, Reading]) -> None:
    assert {f"schema-{name}" for name in DOCUMENT["components"]["schemas"]} <= {*read["/docs"].ids}


@every("operation", OPERATIONS, ids=lambda operation: operation.operation_id)
def test_samples_are_commands_that_a_shell_can_read(operation: Operation) -> None:
    sample = curl_sample(operation.path, operation.method, operation.documented)
    shell = shutil.which("sh")
    assert shell is not None
    subprocess.run([shell, "-n", "-c", sample], check=True, timeout=120)
    printed = subprocess.run(
        [shell, "-c", f'curl() {{ printf "%s\\n" "$@"; }}; {sample}'],
        env={"BASE_URL": "https://x.example/v1/api", "VAS_KEY": "k", "jobId": "1"},
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    ).stdout
    assert "https://x.example/v1/api/" in printed


@every("code", ErrorCode)
def test_every_code_has_the_entry_that_doc_url_leads_to(
    read: dict[str, Reading], code: ErrorCode
) -> None:
    assert code in read["/docs/errors"].ids
    plain = CATALOGUE[code].remedy.replace("`", "")
    assert plain in read["/docs/errors"].text
    for field in REQUIRED_FIELDS.get(code, {}) | OPTIONAL_FIELDS.get(code, {}):
        assert field in read["/docs/errors"].text


def test_the_doc_url_of_a_real_error_leads_to_its_entry(
    api: RunningApi, read: dict[str, Reading]
) -> None:
    address, fragment = urldefrag(api.client.get("/jobs").json()["docUrl"])
    assert address == f"{api.root}/docs/errors"
    assert fragment == "UNAUTHORIZED"
    assert fragment in read["/docs/errors"].ids


def test_reasons_and_job_errors_are_all_explained(read: dict[str, Reading]) -> None:
    assert set(RESULT_REASONS) <= set(REASONS)
    assert set(JOB_ERRORS) == set(StageCode)
    assert {f"job-{code}" for code in StageCode} <= set(read["/docs/errors"].ids)
    assert all(reason in read["/docs/errors"].text for reason in REASONS)
    assert {f"warning-{code}" for code in WarningCode} <= set(read["/docs/errors"].ids)


@every(
    ("text", "expected"),
    [
        ("a `<b>` & c", "a <code>&lt;b&gt;</code> &amp; c"),
        ("<script>", "&lt;script&gt;"),
        ('`">`', "<code>&#34;&gt;</code>"),
    ],
    ids=["prose", "text", "quotes"],
)
def test_what_is_not_markup_is_escaped(text: str, expected: str) -> None:
    assert str(prose(text)) == expected
