"""People of an account while its work goes on: invited, given roles, taken out; keys with caps.

An owner does all of it by the dashboard's forms, one thing after the other. Whose answer is lost
does it once more, as people do.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import unescape
from typing import Any

import httpx

from storage.types import Role
from tests.acceptance.chaos.caller import Caller, UncoveredError
from tests.acceptance.chaos.journal import Accepted
from tests.acceptance.chaos.load import AFTER_FAILURE_SECONDS, Client

PAUSE_SECONDS = (1.0, 5.0)
MOST_LINKS = 10
CAPPED_CENTS = 500
CAPPED_JOBS = 1
MEMBERS = (Role.EDITOR, Role.VIEWER, Role.BILLER)
PAGES: Mapping[str, frozenset[Role]] = {
    "/search": frozenset({Role.OWNER, Role.EDITOR, Role.VIEWER}),
    "/archives": frozenset({Role.OWNER, Role.EDITOR, Role.VIEWER}),
    "/account": frozenset({Role.OWNER, Role.BILLER}),
    "/keys": frozenset({Role.OWNER}),
    "/people": frozenset({Role.OWNER}),
    "/audit": frozenset({Role.OWNER}),
}
"""Pages to the roles that see them."""
WRITERS = frozenset({Role.OWNER, Role.EDITOR})


@dataclass(slots=True)
class Browser:
    """Somebody who is signed in to the dashboard."""

    client: Client
    session: str
    caller: Caller = field(init=False)

    def __post_init__(self) -> None:
        client, headers = self.client, {"Cookie": f"vas_session={self.session}"}
        base = f"{client.stage.service.root}/dashboard"
        self.caller = Caller(base, headers, client.journal, client.chance)

    def page(self, path: str, *expected: int) -> httpx.Response:
        return self.caller.final("GET", f"{self.caller.base_url}{path}", *expected)

    def token(self) -> str:
        """Of a form; any page has one, and this one is everybody's."""
        shown = self.page("/no-such-page", 404, 303)
        found = re.search(r'<meta name="csrf" content="([^"]+)">', shown.text)
        return unescape(found[1]) if found else ""

    def send(self, path: str, *expected: int, **form: object) -> httpx.Response:
        """A form."""
        values = {"csrf": self.token()} | {name: str(value) for name, value in form.items()}
        return self.caller.final("POST", f"{self.caller.base_url}{path}", *expected, data=values)

    def create(self, body: dict[str, Any]) -> httpx.Response:
        """A job, as a script of a page creates it; 403 where the role does not include it."""
        headers = {"X-CSRF-Token": self.token(), "Idempotency-Key": str(uuid.uuid4())}
        url = f"{self.caller.base_url}/api/jobs/from-url"
        return self.caller.final("POST", url, 401, 403, json=body, headers=headers)


@dataclass(slots=True)
class Team:
    """The owner of an account, who changes what people and keys there are."""

    client: Client
    owner: Browser = field(init=False)

    def __post_init__(self) -> None:
        self.owner = Browser(self.client, self.client.customer.owner)

    def run(self) -> None:
        """Until stopped; jobs that were begun are brought to an end."""
        stopping, chance = self.client.stopping, self.client.chance
        due = list[Callable[[list[Accepted]], None]]()
        while not stopping.wait(chance.uniform(*PAUSE_SECONDS)):
            due = due or chance.sample([self.member, self.key, self.export], 3)
            jobs = list[Accepted]()
            try:
                due.pop()(jobs)
                for job in jobs:
                    self.client.follow(job)
            except UncoveredError:  # written in the journal, where the checker finds it
                stopping.wait(AFTER_FAILURE_SECONDS)
            except Exception as error:
                self.violated(f"{type(error).__name__}: {error}")

    def violated(self, sentence: str) -> None:
        self.client.journal.violated(f"team: {sentence}")

    def member(self, jobs: list[Accepted]) -> None:
        """Somebody comes, has one role after the other, and goes."""
        chance = self.client.chance
        address = f"member-{uuid.UUID(int=chance.getrandbits(128)).hex}@example.com"
        role = chance.choice(MEMBERS)
        member = self.invited(address, role)
        user_id = self.user_id(address)
        if user_id is None:
            self.violated(f"{address} accepted the invitation and is nobody")
            return
        member = member or self.signed_in(user_id)
        self.try_role(member, role, jobs)
        for _ in range(2):
            role = chance.choice(MEMBERS)
            self.owner.send(f"/people/{user_id}/role", 303, role=role)
            self.client.journal.did("role changed")
            self.try_role(member, role, jobs)
        self.race(member, user_id, jobs)
        refused = self.owner.send(f"/people/{self.user_id(self.owner_address)}/remove", 409)
        if refused.status_code != 409:
            self.violated(f"the last owner was removed: {refused.status_code}")
        self.owner.send(f"/people/{user_id}/remove", 303, 404)
        self.client.journal.did("removed")
        ended = member.page("/search", 303)
        if not ended.headers.get("location", "").startswith("/dashboard/sign-in"):
            self.violated(f"{address} was removed and sees {ended.status_code}")

    @property
    def owner_address(self) -> str:
        return f"owner@{self.client.customer.account}.example.com"

    def invited(self, address: str, role: Role) -> Browser | None:
        """None where they became a user, and the answer with their session was lost."""
        shown = self.owner.send("/invitations", 400, email=address, role=role)
        token = _linked(shown, "invitation")
        self.client.journal.did("invited")
        stranger = Browser(self.client, "")
        url = f"{stranger.caller.base_url}/invitation"
        accepted = stranger.caller.final("POST", url, 303, 404, data={"invitation": token})
        session = accepted.cookies.get("vas_session")
        return Browser(self.client, session) if session else None

    def signed_in(self, user_id: str) -> Browser:
        """By a link of the owner, and another one where its answer is lost."""
        stranger = Browser(self.client, "")
        for _ in range(MOST_LINKS):
            token = _linked(self.owner.send(f"/people/{user_id}/link"), "token")
            url = f"{stranger.caller.base_url}/sign-in"
            answer = stranger.caller.final("POST", url, 303, 401, data={"token": token})
            if session := answer.cookies.get("vas_session"):
                return Browser(self.client, session)
        self.violated(f"no link signs {user_id} in")
        raise UncoveredError(user_id)

    def user_id(self, address: str) -> str | None:
        rows = self.owner.page("/people").text.split("<tr>")
        own = (row for row in rows if f"<td>{address}</td>" in row and "/role" in row)
        found = [re.search(r"/dashboard/people/([0-9a-f-]{36})/role", row) for row in own]
        return found[0][1] if found and found[0] else None

    def try_role(self, member: Browser, role: Role, jobs: list[Accepted]) -> None:
        """It holds at once, for what it includes and for nothing else."""
        for path in self.client.chance.sample(list(PAGES), 3):
            status = member.page(path, 403).status_code
            if (status == 200) is not (role in PAGES[path]):
                self.violated(f"a {role} is answered {status} for {path}")
        if self.client.chance.random() < 0.5:
            self.create(member, jobs, role in WRITERS)

    def create(self, member: Browser, jobs: list[Accepted], allowed: bool | None) -> None:
        """A job; None: whether the role includes it changes just now."""
        clip, body = self.client.fetched()
        answer = member.create(body)
        if answer.is_success:
            mode = body["processingMode"]
            job = self.client.accept(answer.json()["data"], "member", clip.name, mode)
            jobs.append(job)
        elif allowed is None:
            account, mode = self.client.customer.account, body["processingMode"]
            self.client.journal.perhaps.append((account, body["url"], mode, clip.name))
        if allowed is not None and answer.is_success is not allowed:
            self.violated(f"a job of a member: {answer.status_code} where {allowed=}")
        self.client.journal.did("member wrote" if answer.is_success else "member was refused")

    def race(self, member: Browser, user_id: str, jobs: list[Accepted]) -> None:
        """A role is taken away while its owner makes use of it: whichever comes first."""
        self.owner.send(f"/people/{user_id}/role", 303, role=Role.EDITOR)
        with ThreadPoolExecutor(2) as both:
            taken = both.submit(self.owner.send, f"/people/{user_id}/role", 303, role=Role.VIEWER)
            made = both.submit(self.create, member, jobs, None)
            taken.result()
            made.result()
        self.create(member, jobs, allowed=False)

    def key(self, jobs: list[Accepted]) -> None:
        """One with caps is made, used by two at once, perhaps rotated, and revoked while its job
        is worked on."""
        caps = {"days": 1, "dollars": CAPPED_CENTS // 100, "active_jobs": CAPPED_JOBS}
        key = _issued(self.owner.send("/keys", **caps))
        self.client.journal.did("key made")
        keyed = [self.keyed(key), self.keyed(key)]
        with ThreadPoolExecutor(2) as both:
            for each in [both.submit(self.create_capped, caller, jobs) for caller in keyed]:
                each.result()
        if self.client.chance.random() < 0.5:
            shown = self.owner.send(f"/keys/{self.key_id(key)}/rotate", 404)
            self.client.journal.did("key rotated")
            self.expect_over(key)
            if shown.status_code == 404:  # It was, and the answer with its successor is lost.
                return
            key = _issued(shown)
            self.keyed(key).data("GET", "/quota")
        self.owner.send(f"/keys/{self.key_id(key)}/revoke", 303, 404)
        self.client.journal.did("key ended")
        self.expect_over(key)

    def keyed(self, key: str) -> Caller:
        client, headers = self.client, {"Authorization": f"Bearer {key}"}
        return Caller(client.stage.service.base_url, headers, client.journal, client.chance)

    def create_capped(self, caller: Caller, jobs: list[Accepted]) -> None:
        clip, body = self.client.fetched()
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        answer = caller.data(
            "POST", "/jobs/from-url", "TOO_MANY_ACTIVE_JOBS", json=body, headers=headers
        )
        if "jobId" in answer:
            jobs.append(self.client.accept(answer, "capped", clip.name, body["processingMode"]))
        self.client.journal.did("capped key wrote" if "jobId" in answer else "cap refused")

    def expect_over(self, key: str) -> None:
        answer = self.keyed(key).data("GET", "/quota", 401)
        if answer.get("code") != "UNAUTHORIZED":
            self.violated(f"a key that is over opens: {answer}")

    def key_id(self, key: str) -> str:
        """By its last characters, as the page shows it."""
        rows = self.owner.page("/keys").text.split("<tr>")
        [own] = [row for row in rows if f"…{key[-4:]}" in row and "/revoke" in row]
        found = re.search(r"/dashboard/keys/([0-9a-f-]{36})/revoke", own)
        assert found is not None
        return found[1]

    def export(self, _jobs: list[Accepted]) -> None:
        """The audit log so far, which the log at the end must go on from."""
        shown = self.owner.page("/audit/export").text
        self.client.journal.exports[self.client.customer.account] = shown
        self.client.journal.did("log exported")


def _linked(shown: httpx.Response, name: str) -> str:
    """The token of the link that a page shows once."""
    found = re.search(rf'<code id="new-link">[^<]+\?{name}=([^<]+)</code>', shown.text)
    if found is None:
        raise RuntimeError(f"no link on the page: {shown.status_code}")
    return unescape(found[1])


def _issued(shown: httpx.Response) -> str:
    """The key that a page shows once."""
    found = re.search(r'<code id="new-key">([^<]+)</code>', shown.text)
    if found is None:
        raise RuntimeError(f"no key on the page: {shown.status_code}")
    return found[1]
