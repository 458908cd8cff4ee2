"""Headers of every kind of answer: what browsers and caches may do with it, and who sent it."""

from __future__ import annotations

import re
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from serve_app.dashboard.pages import static_version
from serve_app.deployment.local import free_port
from serve_app.deployment.proxy import write_front
from tests.contract.calling import ContractApi
from tests.pipelines.net.fetch_servers import Asked, ScriptedServer
from tests.pipelines.net.fetch_servers import answer as respond
from tests.security.furnished_accounts import FurnishedAccount
from tests.serve_app.uploads.uploading import TUS
from tests.tables import every

Answer = Callable[[FurnishedAccount], httpx.Response]
PUBLIC = "public, max-age=300"
FOR_GOOD = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of answer: how to get one, its type, and how long who may keep it."""

    get: Answer
    status: int
    media_type: str | None
    cache: str = "no-store"
    any_origin: bool = False


def _keyed(path: str, **options: str) -> Answer:
    def get(account: FurnishedAccount) -> httpx.Response:
        return account.caller.get(path.format(job=account.finished["jobId"]), **options)

    return get


def _outside(path: str, method: str = "GET", **headers: str) -> Answer:
    def get(account: FurnishedAccount) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = path if path.startswith("http") else account.caller.api.root + path
        return httpx.request(method, url, headers=named, trust_env=False)

    return get


def _broken(account: FurnishedAccount) -> httpx.Response:
    """An internal error: a job whose row was damaged."""
    made = account.caller.create()
    # Its upload never expires: other tests sweep the database, which has all jobs of this process.
    account.caller.api.sql(
        "UPDATE jobs SET source = '[]', upload_expires_at = now() + interval '9 years' "
        "WHERE id = :id",
        id=uuid.UUID(made["jobId"]),
    )
    return account.caller.get(f"/jobs/{made['jobId']}")


def _page(path: str) -> Answer:
    def get(account: FurnishedAccount) -> httpx.Response:
        session = account.session["Authorization"].removeprefix("Bearer ")
        url = account.caller.api.root + path.format(job=account.finished["jobId"])
        return httpx.get(url, headers={"Cookie": f"vas_session={session}"}, trust_env=False)

    return get


def _operator_page(path: str) -> Answer:
    def get(account: FurnishedAccount) -> httpx.Response:
        api = account.caller.api
        headers = {"Cookie": f"vas_operator={api.operator_session()}"}
        return httpx.get(f"{api.root}/dashboard/operator{path}", headers=headers, trust_env=False)

    return get


def _broken_page(account: FurnishedAccount) -> httpx.Response:
    _broken(account)
    return _page("/dashboard?state=awaiting_upload")(account)


STATIC = f"/dashboard/static/{static_version()}"
JSON = "application/json"
KINDS: Mapping[str, Kind] = {
    "job": Kind(_keyed("/jobs/{job}"), 200, JSON),
    "list": Kind(_keyed("/jobs"), 200, JSON),
    "quota": Kind(_keyed("/quota"), 200, JSON),
    "scenes": Kind(_keyed("/jobs/{job}/scenes"), 200, JSON),
    "transcript": Kind(_keyed("/jobs/{job}/transcript"), 200, JSON),
    "srt": Kind(_keyed("/jobs/{job}/transcript", format="srt", track="0"), 200,
                "application/x-subrip"),
    "vtt": Kind(_keyed("/jobs/{job}/transcript", format="vtt", track="0"), 200, "text/vtt"),
    "txt": Kind(_keyed("/jobs/{job}/transcript", format="txt", track="0"), 200, "text/plain"),
    "md": Kind(_keyed("/jobs/{job}/transcript", format="md", track="0"), 200, "text/markdown"),
    "ttml": Kind(_keyed("/jobs/{job}/transcript", format="ttml", track="0"), 200,
                 "application/ttml+xml"),
    "chapters": Kind(_keyed("/jobs/{job}/chapters"), 200, JSON),
    "summary": Kind(_keyed("/jobs/{job}/summary"), 200, JSON),
    "edl": Kind(_keyed("/jobs/{job}/export", format="edl"), 200, "text/plain"),
    "fcpxml": Kind(_keyed("/jobs/{job}/export", format="fcpxml"), 200, "application/xml"),
    "csv": Kind(_keyed("/jobs/{job}/export", format="csv"), 200, "text/csv"),
    "otio": Kind(_keyed("/jobs/{job}/export", format="otio"), 200,
                 "application/vnd.pixar.opentimelineio+json"),
    "clip refused": Kind(_keyed("/jobs/{job}/clip", start="0", end="1"), 404, JSON),
    "search": Kind(_keyed("/search", q="person"), 200, JSON),
    "search refused": Kind(
        _keyed("/search", q=" OR ".join(f"word{n}" for n in range(9))), 400, JSON
    ),
    "deliveries": Kind(_keyed("/webhooks/deliveries"), 200, JSON),
    "creation": Kind(lambda h: h.caller.post("/jobs", {"fileName": "a.mp4"}), 201, JSON),
    "keys": Kind(lambda h: h.caller.api.client.get("/keys", headers=h.session), 200, JSON),
    "signing secret": Kind(
        lambda h: h.caller.api.client.get("/webhooks/secret", headers=h.session), 200, JSON
    ),
    "new key": Kind(
        lambda h: h.caller.api.client.post(f"/keys/{h.key_id}/rotate", headers=h.session), 200, JSON
    ),
    "400": Kind(lambda h: h.caller.post("/jobs", {}), 400, JSON),
    "401": Kind(_outside("/v1/api/jobs"), 401, JSON),
    "404 of the API": Kind(_keyed("/jobs/nothing"), 404, JSON),
    "404": Kind(_outside("/nothing/<script>"), 404, JSON),
    "405": Kind(_outside("/v1/api/jobs", "PATCH"), 405, JSON),
    "500": Kind(_broken, 500, JSON),
    "sign-in refused": Kind(_outside("/v1/api/sessions", "POST"), 400, JSON),
    "interface document": Kind(
        _outside("/v1/api/openapi.json"), 200, JSON, PUBLIC, any_origin=True
    ),
    "interface document, unchanged": Kind(
        _outside("/v1/api/openapi.json", If_None_Match="*"), 304, None, PUBLIC, any_origin=True
    ),
    "prices": Kind(_outside("/v1/api/pricing"), 200, JSON, PUBLIC, any_origin=True),
    "estimate": Kind(
        _outside("/v1/api/pricing/estimate?durationSeconds=60"), 200, JSON, PUBLIC, any_origin=True
    ),
    "estimate refused": Kind(_outside("/v1/api/pricing/estimate"), 400, JSON, any_origin=True),
    "formats": Kind(_outside("/v1/api/formats"), 200, JSON, PUBLIC, any_origin=True),
    "health": Kind(_outside("/healthz"), 200, JSON),
    "old health": Kind(_outside("/health"), 200, JSON),
    "readiness": Kind(_outside("/readyz"), 200, JSON),
    "docs": Kind(_outside("/docs"), 200, "text/html", PUBLIC),
    "error reference": Kind(_outside("/docs/errors"), 200, "text/html", PUBLIC),
    "script": Kind(_outside("/docs/assets/docs.js"), 200, "text/javascript", PUBLIC),
    "sign-in page": Kind(_outside("/dashboard/sign-in?token=x"), 200, "text/html"),
    "not signed in": Kind(_outside("/dashboard/keys"), 303, None),
    "jobs page": Kind(_page("/dashboard?state=completed"), 200, "text/html"),
    "job page": Kind(_page("/dashboard/jobs/{job}"), 200, "text/html"),
    "part of a job": Kind(_page("/dashboard/jobs/{job}/scenes"), 200, "text/html"),
    "outline of a job": Kind(_page("/dashboard/jobs/{job}/segments/outline"), 200, JSON),
    "search page": Kind(_page("/dashboard/search?q=person"), 200, "text/html"),
    "account page": Kind(_page("/dashboard/account"), 200, "text/html"),
    "keys page": Kind(_page("/dashboard/keys"), 200, "text/html"),
    "operator's queue": Kind(_operator_page(""), 200, "text/html"),
    "operator's accounts": Kind(_operator_page("/accounts"), 200, "text/html"),
    "operator's throughput": Kind(_operator_page("/throughput"), 200, "text/html"),
    "operator's failures": Kind(_operator_page("/failures"), 200, "text/html"),
    "operator's system": Kind(_operator_page("/system"), 200, "text/html"),
    "operator's missing page": Kind(_operator_page("/<script>"), 404, "text/html"),
    "page refused": Kind(_page("/dashboard/search?q=a%00b"), 400, "text/html"),
    "forged origin": Kind(
        _outside("/dashboard/sign-in", "POST", Origin="http://["), 403, "text/html"
    ),
    "missing page": Kind(_page("/dashboard/<script>"), 404, "text/html"),
    "forged form": Kind(_outside("/dashboard/sign-out", "POST"), 303, None),
    "broken page": Kind(_broken_page, 500, "text/html"),
    "for scripts": Kind(_page("/dashboard/api/jobs?state=completed"), 200, JSON),
    "dashboard script": Kind(_outside(f"{STATIC}/job.js"), 200, "text/javascript", FOR_GOOD),
    "dashboard picture": Kind(_outside(f"{STATIC}/icon.svg"), 200, "image/svg+xml", FOR_GOOD),
    "media refused": Kind(_outside("/v1/api/jobs/x/media"), 404, JSON),
    "billing": Kind(lambda h: httpx.get(h.portal_url, trust_env=False), 200, "text/html"),
    "billing refused": Kind(_outside("/portal/x?expires=1&signature=x"), 403, "text/html"),
    "still refused": Kind(_outside("/v1/api/jobs/x/thumbnails/0.jpg"), 404, JSON),
    "upload refused": Kind(
        _outside("/v1/api/uploads/x/media", "PUT"), 401, JSON, any_origin=True
    ),
    "upload preflight": Kind(
        _outside("/v1/api/uploads/x/media", "OPTIONS"), 204, None, any_origin=True
    ),
    "tus": Kind(
        lambda h: httpx.head(h.uploading["resumableUploadUrl"], headers=TUS, trust_env=False),
        200, None, any_origin=True,
    ),
}  # fmt: skip
"""Every kind of answer that the service gives."""


@every("name", KINDS)
def test_every_answer_says_what_may_be_done_with_it(own: FurnishedAccount, name: str) -> None:
    kind = KINDS[name]
    answer = kind.get(own)
    headers = answer.headers
    assert answer.status_code == kind.status, answer.text
    assert headers.get("content-type", "").split(";")[0] == (kind.media_type or "")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == kind.cache
    assert headers["x-frame-options"] == "DENY"
    policy = headers["content-security-policy"]
    # A form from a page without a referrer has no origin by which it could be known.
    has_forms = "form-action 'self'" in policy
    assert headers["referrer-policy"] == ("strict-origin" if has_forms else "no-referrer")
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe|\*|https?:", policy)
    assert all(len(headers.get_list(each)) == 1 for each in SAID_ONCE)


SAID_ONCE = ("x-content-type-options", "cache-control", "content-security-policy", "x-request-id",
             "x-frame-options", "referrer-policy")  # fmt: skip


@every("name", KINDS)
def test_other_web_pages_may_read_only_uploads_and_discovery_and_no_answer_is_for_cookies(
    own: FurnishedAccount, name: str
) -> None:
    headers = KINDS[name].get(own).headers
    expected = "*" if KINDS[name].any_origin else None
    assert headers.get("access-control-allow-origin") == expected
    assert "access-control-allow-credentials" not in headers
    assert "set-cookie" not in headers


@pytest.mark.parametrize("path", ["/v1/api/jobs", "/v1/api/keys", "/v1/api/sessions", "/portal/x"])
def test_a_browser_that_asks_first_is_not_let_in(own: FurnishedAccount, path: str) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(own.caller.api.root + path, headers=asked, trust_env=False)
    assert answer.status_code in {404, 405}
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_still_is_a_picture_that_only_its_viewer_keeps(own: FurnishedAccount) -> None:
    api, url = own.caller.api, own.still_urls[0]
    key = f"jobs/{own.finished['jobId']}/work/vision/0.jpg"
    api.context.objects.write_bytes(key, b"\xff\xd8\xff<script>alert(1)</script>")
    answer = httpx.get(url, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["cache-control"].startswith("private")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


@every("name", KINDS)
def test_nothing_names_the_software_behind(own: FurnishedAccount, name: str) -> None:
    """uvicorn's own name is taken out by the proxy in front: see the next test."""
    answer = KINDS[name].get(own)
    told = {n: v for n, v in answer.headers.items() if n != "server"}
    assert not {"x-powered-by", "via", "x-runtime", "x-aspnet-version"} & set(told)
    assert not re.search(r"python|uvicorn|starlette|fastapi|ray/|postgres", repr(told), re.I)


HAPROXY = """global
    maxconn 10
defaults
    mode http
    timeout connect 1s
    timeout client 1s
    timeout server 1s
frontend http_frontend
    bind *:{port}
    default_backend none
backend none
    http-request return status 404 content-type text/plain lf-string "Path \'%[path]\' not found. \
Ping http://.../-/routes for available routes."
"""
"""As Serve writes it while it knows of no application."""


def test_the_proxy_takes_the_servers_name_out_and_listens_on_loopback(tmp_path: Path) -> None:
    """HAProxy itself reads the configuration that the start script leaves behind."""
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(HAPROXY.replace("{port}", "18080"))
    script = write_front(tmp_path, docs_url="https://video.example.com/docs/errors")
    done = subprocess.run(
        [str(script), "-c", "-f", str(configuration)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    amended = configuration.read_text()
    assert "http-response del-header Server" in amended
    assert "bind 127.0.0.1:18080" in amended
    assert b"X-Content-Type-Options: nosniff" in (tmp_path / "unavailable.http").read_bytes()


def test_the_proxy_sends_no_line_of_a_request_to_a_log(tmp_path: Path) -> None:
    """Ray names UDP port 514, at which whoever is there reads sign-in tokens and signatures."""
    from ray.serve._private import haproxy_templates

    (line,) = re.findall(r"^    log .*local0.*$", haproxy_templates.HAPROXY_CONFIG_TEMPLATE, re.M)
    configuration, port = tmp_path / "haproxy.cfg", free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(1)
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        text = HAPROXY.replace("{port}", str(port))
        text = text.replace("    mode http", "    mode http\n    log global\n    option httplog", 1)
        logging_line = line.replace("{{ config.log_target }}", target)
        configuration.write_text(f"global\n{logging_line}\n{text}")
        script = write_front(tmp_path, docs_url="https://video.example.com/docs/errors")
        assert answer_of(script, configuration, port).status_code == 503
        with pytest.raises(TimeoutError):
            listener.recv(65_536)


def test_the_proxy_asks_for_patience_while_it_knows_of_no_application(tmp_path: Path) -> None:
    """After the loss of its controller Serve's proxy has no routes for a while, and says 404."""
    configuration, port = tmp_path / "haproxy.cfg", free_port()
    configuration.write_text(HAPROXY.replace("{port}", str(port)))
    script = write_front(tmp_path, docs_url="https://video.example.com/docs/errors")
    answer = answer_of(script, configuration, port)
    assert answer.status_code == 503
    assert answer.json()["code"] == "SERVICE_UNAVAILABLE"
    assert int(answer.headers["retry-after"]) > 0


@every("status", [500, 503])
@every(
    ("kind", "body", "ours"),
    [
        pytest.param("application/json", b'{"code": "OURS"}', True, id="in the envelope"),
        pytest.param("text/html; charset=utf-8", b"<h1>OURS</h1>", True, id="a page"),
        pytest.param("text/plain", b"Internal", False, id="a line of text"),
    ],
)
def test_only_a_line_of_text_from_serve_is_replaced_by_the_envelope(
    tmp_path: Path, status: int, kind: str, body: bytes, ours: bool
) -> None:
    """The application's own errors, JSON or a page of the dashboard, pass as they are."""

    def serve(_: Asked, connection: socket.socket) -> None:
        respond(connection, status, body, content_type=kind, connection="close")

    configuration, port = tmp_path / "haproxy.cfg", free_port()
    script = write_front(tmp_path, docs_url="https://video.example.com/docs/errors")
    with ScriptedServer(serve).running() as server:
        address = urlsplit(server.url("/")).netloc
        backend = f"backend api\n    server one {address}\n"
        known = HAPROXY.replace("{port}", str(port)) + backend
        configuration.write_text(known.replace("    default_backend none", "    use_backend api"))
        got = answer_of(script, configuration, port)
    if ours:
        assert (got.status_code, got.content) == (status, body)
    else:
        assert (got.status_code, got.json()["code"]) == (503, "SERVICE_UNAVAILABLE")
        assert int(got.headers["retry-after"]) > 0


def test_the_proxy_keeps_the_way_to_replicas_while_their_controller_is_lost(
    tmp_path: Path,
) -> None:
    configuration = tmp_path / "haproxy.cfg"
    script = write_front(tmp_path, docs_url="https://video.example.com/docs/errors")
    without = HAPROXY.replace("{port}", "18080")
    backend = "backend api\n    server one 127.0.0.1:18081 check\n"
    known = without.replace("    default_backend", "    use_backend api\n    default_backend")
    reached = []
    for text in (without, known + backend, without):
        configuration.write_text(text)
        command = [str(script), "-c", "-f", str(configuration)]
        subprocess.run(command, capture_output=True, timeout=120, check=True)
        reached.append("server one" in configuration.read_text())
    assert reached == [False, True, True]


def answer_of(script: Path, configuration: Path, port: int) -> httpx.Response:
    """What a client gets from the proxy while it runs on ``configuration``."""
    process = subprocess.Popen([str(script), "-db", "-f", str(configuration)])
    try:
        return when_up(f"http://127.0.0.1:{port}/v1/api/jobs/1")
    finally:
        process.terminate()
        process.wait(120)


def when_up(url: str) -> httpx.Response:
    for _ in range(600):
        try:
            return httpx.get(url, trust_env=False)
        except httpx.ConnectError:
            time.sleep(0.1)
    raise AssertionError("the proxy does not listen")


def test_serve_still_writes_what_the_front_amends() -> None:
    from ray.serve._private import haproxy_templates

    text = Path(haproxy_templates.__file__).read_text()
    assert "    http-request return status 404 content-type text/plain" in text


@every(
    "host",
    ["evil.example", "evil.example:1", "a@evil.example", 'x"><script>', "[::1]", "x%0d%0aEvil: 1"],
)
def test_a_forged_host_reaches_no_cacheable_answer(api: ContractApi, host: str) -> None:
    for path in ("/v1/api/openapi.json", "/v1/api/formats", "/docs", "/docs/errors"):
        answer = httpx.get(api.root + path, headers={"Host": host}, trust_env=False)
        assert "public" in answer.headers["cache-control"]
        assert host not in answer.text
        assert host not in repr(answer.headers)
