"""What clients published for this API send and read, beside the specification (decisions.md §2)."""

from __future__ import annotations

import pytest

from storage import ledger
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import expect_error
from tests.tables import every


def test_the_audio_tracks_alias_answers_the_bare_list(api: RunningApi, customer: Customer) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0), track(1)], [])
    tracks, alias = (
        api.client.get(f"/jobs/{job_id}/{name}", headers=customer.headers).json()["data"]
        for name in ("audioTracks", "audio-tracks")
    )
    assert alias == tracks["tracks"]
    one = api.client.get(f"/jobs/{job_id}/audio-tracks/1", headers=customer.headers)
    assert one.json()["data"] == alias[1]


def test_a_job_of_several_tracks_says_so_from_its_creation(
    api: RunningApi, customer: Customer
) -> None:
    tracks = [
        {"fileName": "host.wav", "label": "Host"},
        {"fileName": "b.wav", "perChannelTranscription": True, "channels": [0, 2]},
    ]
    body = {"fileName": "a.mp4", "audioTracks": tracks}
    made = api.client.post("/jobs", json=body, headers=customer.headers).json()["data"]
    path, names = f"/jobs/{made['jobId']}", ["Host", "b.wav ch0", "b.wav ch2"]
    job = api.client.get(path, headers=customer.headers).json()["data"]
    shown = job["audioTrackCount"], job["audioTracksCompleted"], job["audioTrackNames"]
    assert shown == (3, 0, names)
    listed = api.client.get(f"{path}/audio-tracks", headers=customer.headers).json()["data"]
    found = [(it["trackName"], it["status"], it["language"]) for it in listed]
    assert found == [(name, "pending", "und") for name in names]
    # As it is once they are there: a file is of one track.
    for query in ("/transcript?format=srt", "/captions/lint?rules=bbc", "/transcript/revisions"):
        answer = api.client.get(f"{path}{query}", headers=customer.headers)
        expect_error(answer, 400, "INVALID_REQUEST", "track")
    waiting = api.client.get(f"{path}/transcript?format=srt&track=1", headers=customer.headers)
    expect_error(waiting, 409, "RESULTS_NOT_READY")
    with signed_in(api, customer) as browser:
        assert browser.get(f"/dashboard{path}").status_code == 200
    whole = api.client.get(f"{path}/transcript", headers=customer.headers)
    expect_error(whole, 409, "RESULTS_NOT_READY")
    api.client.post(f"{path}/cancel", headers=customer.headers)


@pytest.mark.parametrize("path", ["audio-tracks", "audio-tracks/0"])
def test_the_alias_needs_a_key_and_shows_nothing_of_another_account(
    api: RunningApi, customer: Customer, path: str
) -> None:
    job_id = created(api, customer)
    address = f"/jobs/{job_id}/{path}"
    assert api.client.get(address).status_code == 401
    expect_error(api.client.get(address, headers=api.customer().headers), 404, "NOT_FOUND")
    api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)


def test_quota_has_the_older_fields_at_the_top(api: RunningApi) -> None:
    customer = api.customer(credits_cents=320)

    def older() -> dict[str, object]:
        data = api.client.get("/quota", headers=customer.headers).json()["data"]
        return {name: value for name, value in data.items() if name != "api"}

    assert older() == {
        "currentPlan": "free",
        "includedHours": 0,
        "creditsBalanceHours": 2.0,
        "resetDate": None,
    }
    api.transact(
        lambda c: ledger.record_purchase(
            c, customer.account_id, 160, provider=ledger.OPERATOR, reference="INV-older"
        )
    )
    assert older()["currentPlan"] == "pro"
    assert older()["creditsBalanceHours"] == 3.0


def test_a_cancelled_job_has_a_status_that_ends_the_polling_of_older_clients(
    api: RunningApi, customer: Customer
) -> None:
    job_id = created(api, customer)
    cancelled = api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers).json()["data"]
    assert cancelled["status"] == "FAILED_CANCELLED"
    for word in ("CANCELLED", "FAILED_CANCELLED"):
        found = api.client.get("/jobs", params={"status": word}, headers=customer.headers).json()
        assert [job["jobId"] for job in found["data"]] == [job_id]


@pytest.mark.parametrize("word", ["PENDING_UPLOAD", "UPLOADING", "AWAITING_UPLOAD"])
def test_older_words_filter_jobs_that_await_their_upload(
    api: RunningApi, customer: Customer, word: str
) -> None:
    made = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers).json()
    found = api.client.get("/jobs", params={"status": word}, headers=customer.headers).json()
    assert [job["jobId"] for job in found["data"]] == [made["data"]["jobId"]]


@every(
    ("channels", "status"),
    [(1, 201), (1.0, 201), ([0, 1], 201), (32, 400), (True, 400), ("1", 400), ([], 400)],
    ids=str,
)
def test_channels_are_a_list_or_one_number(
    api: RunningApi, customer: Customer, channels: object, status: int
) -> None:
    tracks = [{"fileName": "a.wav", "perChannelTranscription": True, "channels": channels}]
    body = {"fileName": "a.mp4", "audioTracks": tracks}
    answer = api.client.post("/jobs", json=body, headers=customer.headers)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["param"].startswith("audioTracks[0].channels")


def test_a_track_of_an_uploaded_video_may_be_fetched(api: RunningApi, customer: Customer) -> None:
    tracks = [{"url": "https://media.example.com/boom.wav"}, {"fileName": "lavalier.wav"}]
    body = {"fileName": "a.mp4", "audioTracks": tracks}
    job = api.client.post("/jobs", json=body, headers=customer.headers).json()["data"]
    assert [upload["trackIndex"] for upload in job["audioTrackUploadUrls"]] == [1]
    fetched = api.client.post(
        "/jobs", json=body | {"audioTracks": tracks[:1]}, headers=customer.headers
    ).json()["data"]
    assert "audioTrackUploadUrls" not in fetched


@every(
    ("track", "code", "field"),
    [
        ({}, "INVALID_REQUEST", "fileName"),
        ({"fileName": None, "url": None}, "INVALID_REQUEST", "fileName"),
        ({"fileName": "a.wav", "url": "https://x.example/a.wav"}, "INVALID_REQUEST", "url"),
        ({"url": "a.wav"}, "INVALID_URL", "url"),
        ({"url": "http://127.0.0.1/a.wav"}, "URL_NOT_ALLOWED", "url"),
        ({"url": "https://x.example/a.exe"}, "UNSUPPORTED_FORMAT", "url"),
    ],
    ids=str,
)
def test_a_track_has_one_source(
    api: RunningApi, customer: Customer, track: dict[str, object], code: str, field: str
) -> None:
    body = {"fileName": "a.mp4", "audioTracks": [track]}
    answer = api.client.post("/jobs", json=body, headers=customer.headers)
    status = 415 if code == "UNSUPPORTED_FORMAT" else 400
    expect_error(answer, status, code, f"audioTracks[0].{field}")


def test_the_root_leads_clients_to_the_reference_and_browsers_to_the_dashboard(
    api: RunningApi,
) -> None:
    for accepted, there in (("*/*", "/docs"), ("text/html,*/*;q=0.8", "/dashboard")):
        answer = api.client.get(
            f"{api.root}/", follow_redirects=False, headers={"Accept": accepted}
        )
        assert (answer.status_code, answer.headers["location"]) == (307, there)
