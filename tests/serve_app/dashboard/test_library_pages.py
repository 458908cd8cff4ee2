"""Pages of the library: waveforms, days of the reader's zone, tags, the switch of an account."""

from __future__ import annotations

import json
import re

import httpx
import numpy as np

from pipelines.media.audio import print_of
from serve_app.dashboard.pages import days
from serve_app.work.comparing import KeptSounds
from storage import keys
from tests.serve_app.dashboard.test_dashboard_pages import browser, csrf, signed_in
from tests.serve_app.published_jobs import complete, created, fail, track
from tests.serve_app.running_api import Customer, RunningApi

__all__ = ["browser"]


def bars(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/svg+xml"
    return [int(each) for each in re.findall(r"v(\d+)", answer.text)]


def test_a_waveform_shows_how_loud_it_is_and_nothing_that_is_muted(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    noise = np.random.default_rng(1).normal(size=95 * 16_000).astype(np.float32)
    noise *= np.repeat([0.001, 0.1, 0.01, 0.0, 0.1], 19 * 16_000).astype(np.float32)
    data = {0: print_of([noise]).to_bytes()}
    muted = ((76_000, 95_000),)
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [], sounds=KeptSounds(data, []), muted=muted)
    found = bars(browser.get(f"/dashboard/jobs/{job_id}/segments/wave"))
    part = len(found) // 5
    heights = [found[part * number + part // 2] for number in range(5)]
    assert heights[1] >= 95, "the loudest that is not muted"
    assert 5 <= heights[2] <= 15, "a tenth of it"
    assert heights[0] <= 2
    assert heights[3:] == [0, 0]
    other = api.customer()
    with signed_in(api, other) as stranger:
        assert stranger.get(f"/dashboard/jobs/{job_id}/segments/wave").status_code == 404
    assert browser.get(f"/dashboard/jobs/{job_id}/segments/wave?track=7").status_code == 404


def test_days_begin_at_midnight_where_the_reader_is() -> None:
    since, until = days("2026-03-29", "2026-03-29", "Europe/Berlin")
    assert since is not None
    assert until is not None
    assert since.isoformat() == "2026-03-29T00:00:00+01:00"
    assert (until.timestamp() - since.timestamp()) / 3600 == 23, "clocks go forward on that day"
    for odd in ("", "Nowhere/Else", "../../etc/passwd", "a" * 5000, "\0"):
        since, _ = days("2026-03-29", "", odd)
        assert since is not None
        assert since.isoformat() == "2026-03-29T00:00:00+00:00"


def test_jobs_are_listed_by_tag(api: RunningApi, customer: Customer, browser: httpx.Client) -> None:
    tagged = created(api, customer, tags=["Council & more"])
    fail(api, tagged)
    other = created(api, customer)
    fail(api, other)
    page = browser.get("/dashboard").text
    [link] = re.findall(r'href="(/dashboard\?tag=[^"]+)"', page)
    listed = browser.get(link).text
    assert f"job-{tagged}" in listed
    assert f"job-{other}" not in listed


def test_an_owner_switches_recognition_on_and_off(api: RunningApi, customer: Customer) -> None:
    settings = api.settings.model_copy(update={"voices": True})
    with RunningApi(settings) as running, signed_in(running, customer) as client:
        for state, recognises in (("off", True), ("on", False)):
            page = client.get("/dashboard/account")
            assert f"It is <strong>{state}</strong>" in page.text
            given = dict(re.findall(r'name="(recognises)" value="(1)"', page.text))
            form = {"csrf": csrf(page), **given}
            assert client.post("/dashboard/recognition", data=form).status_code == 303
            account = api.transact(lambda c: keys.get_account(c, str(customer.account_id)))
            assert account.recognises is recognises


def test_media_is_kept_longer_where_the_operator_permits_it(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    api.context.objects.write_bytes(f"jobs/{job_id}/source/clip-000", b"footage")
    path, keep = f"/dashboard/jobs/{job_id}", ">Keep</button>"
    assert keep not in browser.get(path).text
    settings = api.settings.model_copy(update={"source_retention_max_seconds": 864_000})
    with RunningApi(settings) as running, signed_in(running, customer) as client:
        page = client.get(path)
        assert keep in page.text
        [body] = re.findall(r"data-body='([^']+)'", page.text)
        headers = {"X-CSRF-Token": csrf(page)}
        answer = client.patch(
            f"/dashboard/api/jobs/{job_id}", json=json.loads(body), headers=headers
        )
        assert answer.status_code == 200, answer.text
        assert keep not in client.get(path).text


def test_a_key_is_named_on_its_page(customer: Customer, browser: httpx.Client) -> None:
    form = {"csrf": csrf(browser.get("/dashboard/keys")), "name": " <b>Newsroom</b> "}
    browser.post("/dashboard/keys", data=form)
    assert "&lt;b&gt;Newsroom&lt;/b&gt;<br>" in browser.get("/dashboard/keys").text
    answer = browser.post("/dashboard/keys", data=form | {"name": "x" * 101})
    assert answer.status_code == 400
    assert "at most 100 characters" in answer.text


def test_jobs_are_sorted_and_found_by_who_speaks(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    made = []
    for name in ("b.mp4", "C.mp4", "a.mp4"):
        made.append(created(api, customer, fileName=name))
        complete(api, made[-1], [track(0)], [])
    label = f"/jobs/{made[1]}/speakers/speaker_0"
    api.client.put(label, json={"label": "Anna"}, headers=customer.headers)

    def listed(**asked: str) -> list[str]:
        return re.findall('id="job-([^"]+)"', browser.get("/dashboard", params=asked).text)

    assert listed() == made[::-1]
    assert listed(sort="oldest") == made
    assert listed(sort="name") == [made[2], made[0], made[1]]
    api.sql("UPDATE jobs SET duration_ms = 5000 WHERE id = :id", id=made[0])
    api.sql("UPDATE jobs SET duration_ms = 9000000 WHERE id = :id", id=made[1])
    assert listed(sort="longest") == [made[1], made[2], made[0]]
    assert listed(speaker="anna") == [made[1]]
    assert browser.get("/dashboard", params={"sort": "dreams"}).status_code == 400


def test_the_audit_log_names_files_and_is_filtered_by_job_and_by_key(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    first, second = (created(api, customer, fileName=f"{name}.mp4") for name in ("one", "two"))
    page = browser.get("/dashboard/audit").text
    assert {"one.mp4", "two.mp4"} <= {*re.findall(">([a-z]+.mp4)<", page)}
    [only] = {*re.findall(rf'"(/dashboard/audit\?job={first})"', page)}
    assert {*re.findall(">([a-z]+.mp4)<", browser.get(only).text)} == {"one.mp4"}
    [of_key] = {*re.findall(r'"(/dashboard/audit\?actor=[^"]+)"', page)}
    shown = browser.get(of_key).text
    assert shown.count(">Create job<") == 2
    assert "Create session" not in shown
    for job_id in (first, second):
        api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)


def test_an_earlier_version_of_a_transcript_is_restored(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    path = f"/dashboard/api/jobs/{job_id}/transcript"
    headers = {"X-CSRF-Token": csrf(browser.get("/dashboard"))}
    for revision, said in enumerate(("Good evening.", "Good night.")):
        body = {"revision": revision, "segments": [{"index": 0, "text": said}]}
        answer = browser.patch(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
    page = browser.get(f"/dashboard/jobs/{job_id}/changes").text
    found = [json.loads(each) for each in re.findall(r"data-body='([^']+)'", page)]
    assert found == [
        {"trackIndex": 0, "revision": 2, "to": 1},
        {"trackIndex": 0, "revision": 2, "to": 0},
    ]
    answer = browser.post(f"{path}/revert", json=found[0], headers=headers)
    assert answer.status_code == 200, answer.text
    text = browser.get(path, params={"format": "txt"}).text
    assert "Good evening." in text
    assert "version 1 restored" in browser.get(f"/dashboard/jobs/{job_id}/changes").text
