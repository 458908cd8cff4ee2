"""Names that clients choose: none becomes a path, a header, a page's markup or a query."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from pipelines.net.fetch import file_name_hint
from storage.objects import InvalidKeyError
from storage.objects.folder import FolderStore
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import TWO_TRACKS, RunnerSide
from tests.security.furnished_accounts import FurnishedAccount
from tests.tables import every

HOSTILE = {
    "up": "../../../etc/passwd",
    "up, backslashes": "..\\..\\..\\windows\\win.ini",
    "absolute": "/etc/passwd",
    "drive": "C:\\boot.ini",
    "encoded": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "overlong dots": "....//....//etc",
    "only dots and a name": "..;/x.mp4",
    "quote": 'a"; filename="evil.mp4',
    "encoded line end": "a%0d%0aSet-Cookie:x=1.mp4",
    "markup": "<img src=x onerror=alert(1)>.mp4",
    "script": "</script><script>alert(1)</script>.mp4",
    "template": "{{7*7}}${7*7}#{7*7}%{7*7}.mp4",
    "format": "{0.__class__}%s%n.mp4",
    "query": "'; DROP TABLE jobs; --.mp4",
    "shell": "$(touch /tmp/x)`id`|id;id&&id.mp4",
    "glob": "*?[a-z]{a,b}~.mp4",
    "option": "-i.mp4",
    "right to left": "a\u202egpj.mp4",
    "emoji and accents": "é\u0301👩‍👩‍👧.mp4",
    "device": "CON.mp4",
    "temporary of the store": ".tmp-x.mp4",
    "partial of the store": ".partial-media",
    "long": "a" * 251 + ".mp4",
    "full width": "\uff0e\uff0e\uff0fx.mp4",
}
REFUSED = {
    "NUL": "a\0.mp4",
    "line end": "a\r\nX-Evil: 1.mp4",
    "escape": "a\x1b[31m.mp4",
    "half a pair": "a\ud800.mp4",
    "dots": "..",
    "slash": "a/",
    "empty": "",
    "too long": "a" * 256,
}


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    """An account of this test's own, with its own creations a minute."""
    return api.caller()


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@every("kind", HOSTILE)
def test_a_name_is_only_ever_text(api: ContractApi, kind: str) -> None:
    """Files lie under names of our own below the job's folder, and nowhere else."""
    caller = api.caller()  # with creations a minute of its own
    store, name = api.context.objects, HOSTILE[kind]
    assert isinstance(store, FolderStore)
    before = files_below(store.root.parent)
    track = {"fileName": name, "label": name[:100]}
    jobs = [
        caller.create(fileName=name, audioTracks=[track]),
        caller.create(fileName=name, audioFileName=name),
    ]
    urls = [*(job["uploadUrl"] for job in jobs), jobs[1]["audioUploadUrl"]]
    urls.append(jobs[0]["audioTrackUploadUrls"][0]["url"])
    for url in urls:
        path = httpx.URL(url).path
        assert re.fullmatch(r"/v1/api/uploads/[0-9a-f-]{36}/(media|audio|track-0)", path)
        assert httpx.put(url, content=b"x", trust_env=False).status_code == 200
    made = files_below(store.root.parent) - before
    ids = "|".join(job["jobId"] for job in jobs)
    form = re.compile(rf"objects/jobs/({ids})/source/(media|audio|track-0)-[0-9a-f]{{32}}")
    assert len(made) == len(urls)
    assert all(form.fullmatch(each) for each in made), made


@every("kind", REFUSED)
def test_a_name_that_no_file_can_have_is_refused(caller: Caller, kind: str) -> None:
    name = REFUSED[kind]
    for field, body in {
        "fileName": {"fileName": name},
        "audioFileName": {"fileName": "a.mp4", "audioFileName": name},
        "audioTracks[0].fileName": {"fileName": "a.mp4", "audioTracks": [{"fileName": name}]},
    }.items():
        answer = send_json(caller, "/jobs", body)
        assert (answer.status_code, answer.json()["param"]) == (400, field)


def send_json(caller: Caller, path: str, body: Any) -> httpx.Response:
    """As ``json.dumps`` writes it, so that halves of surrogate pairs arrive."""
    headers = {"Content-Type": "application/json"}
    return caller.ask("POST", path, content=json.dumps(body).encode(), headers=headers)


@pytest.fixture
def finished(caller: Caller, runner: RunnerSide) -> Callable[[str], str]:
    def finish(name: str) -> str:
        return runner.complete(caller, TWO_TRACKS, fileName=name, metadata={"name": name[:500]})

    return finish


@every("kind", HOSTILE)
def test_a_download_is_called_like_the_media_and_nothing_else_comes_of_it(
    caller: Caller, finished: Callable[[str], str], kind: str
) -> None:
    job_id = finished(HOSTILE[kind])
    answer = caller.get(f"/jobs/{job_id}/transcript", format="srt", track="0")
    assert answer.status_code == 200
    written = re.fullmatch(
        r"""attachment; filename="([ -~]+)"(?:; filename\*=UTF-8''([A-Za-z0-9%_.~-]+))?""",
        answer.headers["content-disposition"],
    )
    assert written is not None, answer.headers["content-disposition"]
    plain, exact = written[1], written[2]
    stem = PurePosixPath(re.split(r"[/\\]", HOSTILE[kind])[-1]).stem
    assert unquote(exact or plain) == f"{stem}.srt"
    assert not {"%", '"', "\\", "/"} & set(plain)
    assert not [name for name in answer.headers if name in {"set-cookie", "x-evil"}]


def test_names_come_back_as_they_were_sent_and_in_json_only(
    caller: Caller, finished: Callable[[str], str]
) -> None:
    for name in (HOSTILE["markup"], HOSTILE["template"], HOSTILE["query"]):
        job = caller.job(finished(name))
        assert job["originalFilename"] == re.split(r"[/\\]", name)[-1]
        assert job["metadata"] == {"name": name}


@every("key", ["../x", "a/b", "a b", "__proto__/x", "a\0", "", "a" * 41, "$where", "<b>"])
def test_metadata_has_plain_keys_only(caller: Caller, key: str) -> None:
    answer = caller.post("/jobs", {"fileName": "a.mp4", "metadata": {key: "x"}})
    assert answer.status_code == 400
    assert answer.json()["code"] == "INVALID_REQUEST"


@every(
    ("field", "value"),
    [
        ("processingMode", "../vision"),
        ("processingMode", "all\0"),
        ("idempotencyKey", "a\r\nX: 1"),
        ("idempotencyKey", "é"),
        ("keyterms", ["a\0b"]),
        ("callbackUrl", "https://x.example.com/\r\nX: 1"),
        ("callbackUrl", "javascript:alert(1)"),
        ("callbackUrl", "https://x.example.com@127.0.0.1/"),
    ],
)
def test_other_fields_take_no_tricks_either(caller: Caller, field: str, value: Any) -> None:
    answer = caller.post("/jobs", {"fileName": "a.mp4", field: value})
    assert answer.status_code == 400
    assert answer.json()["param"].partition("[")[0] == field


@every("track", ["../0x", "0%2f1", "0x0", "%00", "1e0", "-1", "٠", "0;x", "9" * 400])
def test_a_track_is_a_number(own: FurnishedAccount, track: str) -> None:
    job_id = own.finished["jobId"]
    for path in (f"/jobs/{job_id}/audioTracks/{track}",
                 f"/jobs/{job_id}/transcript?format=srt&track={track}"):  # fmt: skip
        answer = own.caller.ask("GET", path)
        assert answer.status_code in {400, 404}, path


def test_an_account_name_is_text_on_the_billing_page(api: ContractApi) -> None:
    from storage import keys, ledger

    name = "</title><script>alert(1)</script>&amp;\"'"
    account = api.transact(lambda c: keys.create_account(c, name))
    api.transact(
        lambda c: ledger.record_purchase(
            c, account.id, 5, provider=ledger.OPERATOR, reference="<b>\"'&x"
        )
    )
    link = api.transact(lambda c: keys.create_sign_in_link(c, account.id))
    session = shown(api.client.post("/sessions", json={"token": link}))["session"]
    url = shown(api.client.get("/keys/portal", headers={"Authorization": f"Bearer {session}"}))
    page = httpx.get(url["url"], trust_env=False).text
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page


@every("key", [
    "../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "", "a\0b", "..", "a/..",
    ".tmp-x", "a/.partial-x",
])  # fmt: skip
def test_the_store_has_no_key_outside_of_its_folder(tmp_path: Path, key: str) -> None:
    store = FolderStore(tmp_path / "objects")
    for use in (store.read_bytes, store.exists, store.delete, store.size_bytes,
                store.partial_size_bytes, store.delete_prefix):  # fmt: skip
        with pytest.raises(InvalidKeyError):
            use(key)
    with pytest.raises(InvalidKeyError):
        store.write_bytes(key, b"x")
    with pytest.raises(InvalidKeyError), store.append_partial(key, 0):
        pass
    assert files_below(tmp_path) == set()


@every("kind", HOSTILE)
def test_a_server_names_a_file_and_no_path(kind: str) -> None:
    """What the host of a URL says in Content-Disposition, or the path itself."""
    name = HOSTILE[kind]
    quoted = name.replace("\\", "\\\\").replace('"', '\\"').encode()
    for header in (
        b'attachment; filename="' + quoted + b'"',
        b"attachment; filename=" + quoted,
        b"",
    ):
        headers = httpx.Headers([(b"content-disposition", header)])
        hint = file_name_hint(headers, f"/{name}")
        if hint is not None:
            assert hint not in {"", ".", ".."}
            assert not re.search(r"[/\\\0-\x1f\x7f]", hint)
            assert len(hint) <= 255
