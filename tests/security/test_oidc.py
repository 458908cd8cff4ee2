"""Signing in by OpenID Connect, against an issuer on a real socket that can lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from serve_app.settings import InvalidSettingsError, Settings, load_settings
from storage import people
from storage.types import Role
from tests.contract.calling import Caller, ContractApi
from tests.security.test_audit import state_of
from tests.security.test_roles import Person, join
from tests.tables import every

CLIENT = "video-analysis"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})


@dataclass
class Issuer:
    """An issuer of OpenID Connect: honest, unless a test has it say something else."""

    server: ThreadingHTTPServer
    claims: dict[str, Any] = field(default_factory=dict)
    """In place of what is true; None leaves a claim out."""
    metadata: dict[str, Any] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], str] | None = None
    status: dict[str, int] = field(default_factory=dict)
    """By path."""
    subject: str = "subject-1"
    email: str = "anna@example.com"
    redeemed: list[dict[str, str]] = field(default_factory=list)
    challenges: dict[str, dict[str, str]] = field(default_factory=dict)
    """What was requested, by the code that was given for it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        """Once or more."""
        self.server.shutdown()
        self.server.server_close()

    def authorize(self, address: str) -> str:
        """A person signs in at the address where the browser was sent; returns the code."""
        asked = {name: value[0] for name, value in parse_qs(urlsplit(address).query).items()}
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = uuid.uuid4().hex
        self.challenges[code] = asked
        return code

    def published(self, path: str) -> Any:
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
            } | self.metadata
        return {"keys": [KEY.as_dict(private=False)]}

    def token(self, form: dict[str, str]) -> tuple[int, Any]:
        """A code is taken back once, from whoever has its verifier."""
        self.redeemed.append(form)
        asked = self.challenges.pop(form.get("code", ""), None)
        verifier = form.get("code_verifier", "")
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        if asked is None or asked["code_challenge"] != digest.rstrip(b"=").decode():
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        true = {
            "iss": self.url, "sub": self.subject, "aud": CLIENT, "iat": now, "exp": now + 300,
            "nonce": asked["nonce"], "email": self.email, "email_verified": True,
        }  # fmt: skip
        claims = {name: value for name, value in (true | self.claims).items() if value is not None}
        sign = self.sign or signed_by(KEY)
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": sign(claims)}


def signed_by(key: Any, **header: str) -> Callable[[dict[str, Any]], str]:
    given = {"alg": "RS256", "kid": "one"} | header
    return lambda claims: jwt.encode(given, claims, key, algorithms=[given["alg"]])


def unsigned(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(each).encode()) for each in parts]
    return b".".join(each.rstrip(b"=") for each in encoded).decode() + "."


def by_secret(secret: bytes, claims: dict[str, Any]) -> str:
    """Whatever the secret is: libraries refuse to sign by a public key."""
    parts = ({"alg": "HS256", "kid": "one"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts]
    signature = hmac.new(secret, b".".join(encoded), hashlib.sha256).digest()
    return b".".join([*encoded, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.fixture
def issuer(api: ContractApi) -> Iterator[Issuer]:
    """A running issuer, which the service's settings name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(lying.status.get(self.path, 200), lying.published(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: value[0] for name, value in parse_qs(body).items()}
            self.reply(*lying.token(form))

        def reply(self, status: int, content: Any) -> None:
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    lying = Issuer(server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    named = {"oidc_issuer": lying.url, "oidc_client_id": CLIENT}
    for name, value in named.items():
        object.__setattr__(api.context.settings, name, value)
    yield lying
    for name in named:
        object.__setattr__(api.context.settings, name, None)
    lying.stop()
    thread.join(10)


@pytest.fixture(autouse=True)
def fresh_rates(api: ContractApi) -> Iterator[None]:
    yield
    api.sql("DELETE FROM rate_limits")


@pytest.fixture
def anna(api: ContractApi, issuer: Issuer) -> Person:
    """An owner whose address the issuer knows; she is not connected with it yet."""
    person = join(api.caller(), Role.OWNER)
    issuer.subject, issuer.email = uuid.uuid4().hex, f"{uuid.uuid4().hex}@example.com"
    api.sql("UPDATE users SET email = :e WHERE id = :id", e=issuer.email, id=person.user_id)
    return person


@pytest.fixture
def browser(api: ContractApi) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{api.root}/dashboard", trust_env=False, timeout=60) as client:
        yield client


def sent(browser: httpx.Client, person: Person | None = None, query: str = "") -> str:
    """Where a browser is sent that begins to sign in; ``person`` has a session in it."""
    headers = {} if person is None else person.cookie
    answer = browser.get(f"/sign-in/oidc{query}", headers=headers)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def state_in(address: str) -> str:
    return parse_qs(urlsplit(address).query)["state"][0]


def come_back(
    browser: httpx.Client, issuer: Issuer, person: Person | None = None, query: str = ""
) -> httpx.Response:
    """What the service answers once the issuer has named somebody."""
    address = sent(browser, person, query)
    returned = {"state": state_in(address), "code": issuer.authorize(address)}
    return browser.get("/sign-in/oidc/return", params=returned)


def choices(answer: httpx.Response) -> dict[str, str]:
    """The states that a question offers, by what its buttons show."""
    form = r'name="state" value="([^"]+)">\s*<button class="primary">([^<]+)<'
    return {label: state for state, label in re.findall(form, answer.text)}


def sign_in(
    browser: httpx.Client, issuer: Issuer, person: Person | None = None, query: str = ""
) -> httpx.Response:
    """Sign in, and consent where the browser is asked about one account."""
    answer = come_back(browser, issuer, person, query)
    for state in choices(answer).values():
        return browser.post("/sign-in/oidc/confirm", data={"state": state})
    return answer


def is_signed_in(browser: httpx.Client) -> bool:
    return browser.get("/people").status_code == 200


def test_a_user_signs_in_and_is_known_by_subject_from_then_on(
    api: ContractApi, browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    answer = sign_in(browser, issuer, anna)
    assert answer.status_code == 200, answer.text
    assert 'http-equiv="refresh"' in answer.text
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert is_signed_in(browser)
    [form] = issuer.redeemed
    assert (form["grant_type"], form["client_id"]) == ("authorization_code", CLIENT)
    issuer.email = "renamed@example.com"
    with httpx.Client(base_url=browser.base_url, trust_env=False, timeout=60) as elsewhere:
        assert sign_in(elsewhere, issuer).status_code == 200
        assert is_signed_in(elsewhere)
    [(count,)] = api.sql(
        "SELECT count(*) FROM audit_log WHERE action = 'createSession' AND actor_id = :id",
        id=anna.user_id,
    )
    assert count == 3  # the first one as she accepted her invitation


def test_the_page_offers_it_where_there_is_an_issuer(browser: httpx.Client, issuer: Issuer) -> None:
    assert "Sign in with 127.0.0.1" in browser.get("/sign-in").text


def test_without_an_issuer_there_is_no_such_page(browser: httpx.Client) -> None:
    assert browser.get("/sign-in/oidc").status_code == 404
    assert "sign-in/oidc" not in browser.get("/sign-in").text


LIES: dict[str, tuple[str, Callable[[Issuer], object]]] = {
    "another nonce": ("nonce", lambda i: i.claims.update(nonce="another")),
    "no nonce": ("nonce", lambda i: i.claims.update(nonce=None)),
    "another audience": ("audience", lambda i: i.claims.update(aud="another")),
    "other audiences too": ("audience", lambda i: i.claims.update(aud=[CLIENT, "another"])),
    "no audience": ("audience", lambda i: i.claims.update(aud=None)),
    "another issuer": ("issuer", lambda i: i.claims.update(iss="https://issuer.example.com")),
    "no issuer": ("issuer", lambda i: i.claims.update(iss=None)),
    "another name": ("issuer", lambda i: i.metadata.update(issuer="https://issuer.example.com")),
    "expired": ("expired", lambda i: i.claims.update(exp=int(time.time()) - 120)),
    "without end": ("claims", lambda i: i.claims.update(exp=None)),
    "of the future": ("clock", lambda i: i.claims.update(iat=int(time.time()) + 3600)),
    "not yet valid": ("clock", lambda i: i.claims.update(nbf=int(time.time()) + 3600)),
    "a clock in words": ("claims", lambda i: i.claims.update(exp="tomorrow")),
    "nobody": ("claims", lambda i: i.claims.update(sub=None)),
    "a subject that is none": ("claims", lambda i: i.claims.update(sub=["a"])),
    "algorithm none": ("algorithm", lambda i: setattr(i, "sign", unsigned)),
    "a shared secret": (
        "algorithm",
        lambda i: setattr(i, "sign", signed_by(OctKey.import_key("s" * 32), alg="HS256")),
    ),
    "the public key as a secret": (
        "algorithm",
        lambda i: setattr(i, "sign", lambda claims: by_secret(KEY.as_pem(private=False), claims)),
    ),
    "another key": ("signature", lambda i: setattr(i, "sign", signed_by(OTHER_KEY))),
    "an unknown key": ("signature", lambda i: setattr(i, "sign", signed_by(KEY, kid="two"))),
    "a changed token": (
        "signature",
        lambda i: setattr(i, "sign", lambda claims: signed_by(KEY)(claims)[:-8] + "AAAAAAAA"),
    ),
    "no token": ("signature", lambda i: setattr(i, "sign", lambda claims: "token")),
    "an address that nobody verified": ("user", lambda i: i.claims.update(email_verified=False)),
    "verified in words": ("user", lambda i: i.claims.update(email_verified="true")),
    "a stranger": ("user", lambda i: i.claims.update(email="stranger@example.com")),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_signs_nobody_in(
    api: ContractApi, browser: httpx.Client, issuer: Issuer, anna: Person, lie: str
) -> None:
    reason, make = LIES[lie]
    address = sent(browser, anna) if lie != "another name" else ""
    make(issuer)
    before = state_of(api, frozenset({"rate_limits", "oidc_flows"}))
    if not address:
        answer = browser.get("/sign-in/oidc")
    else:
        returned = {"state": state_in(address), "code": issuer.authorize(address)}
        answer = browser.get("/sign-in/oidc/return", params=returned)
    assert answer.status_code == 401, answer.text
    assert f"({reason})" in answer.text
    assert "vas_session" not in answer.headers.get("set-cookie", "")
    assert not is_signed_in(browser)
    assert state_of(api, frozenset({"rate_limits", "oidc_flows"})) == before


def returned(browser: httpx.Client, **answer: str) -> httpx.Response:
    return browser.get("/sign-in/oidc/return", params=answer)


def test_a_state_is_answered_once(browser: httpx.Client, issuer: Issuer, anna: Person) -> None:
    address = sent(browser, anna)
    cookie = dict(browser.cookies)
    state = state_in(address)
    assert returned(browser, state=state, code=issuer.authorize(address)).status_code == 200
    again = httpx.get(
        str(browser.base_url).rstrip("/") + "/sign-in/oidc/return",
        params={"state": state, "code": issuer.authorize(address)},
        cookies=cookie,
        trust_env=False,
        timeout=60,
    )
    assert again.status_code == 401
    assert "(state)" in again.text


def test_a_state_of_another_browser_signs_nobody_in(
    browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    """Else somebody could sign a victim in as themselves."""
    address = sent(browser)
    answer = {"state": state_in(address), "code": issuer.authorize(address)}
    with httpx.Client(base_url=browser.base_url, trust_env=False, timeout=60) as victim:
        sent(victim)
        assert "(state)" in returned(victim, **answer).text
    assert "(state)" in returned(browser, state="made up", code="x").text


def test_a_sign_in_that_took_too_long_is_over(
    api: ContractApi, browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    address = sent(browser)
    api.sql("UPDATE oidc_flows SET expires_at = now()")
    answer = returned(browser, state=state_in(address), code=issuer.authorize(address))
    assert "(state)" in answer.text


def test_a_code_without_its_verifier_is_not_redeemed(
    api: ContractApi, browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    """The issuer holds the service to PKCE, and the service takes its refusal."""
    address = sent(browser)
    api.sql("UPDATE oidc_flows SET code_verifier = ''")
    answer = returned(browser, state=state_in(address), code=issuer.authorize(address))
    assert (answer.status_code, "(code)" in answer.text) == (401, True)
    assert not is_signed_in(browser)


def test_a_code_of_nobodys_is_refused(browser: httpx.Client, issuer: Issuer, anna: Person) -> None:
    answer = returned(browser, state=state_in(sent(browser)), code="made-up")
    assert (answer.status_code, "(code)" in answer.text) == (401, True)


def test_who_refuses_at_the_issuer_is_not_signed_in(
    browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    answer = returned(browser, state=state_in(sent(browser)), error="access_denied")
    assert (answer.status_code, "(refused)" in answer.text) == (401, True)
    assert issuer.redeemed == []


def test_an_answer_in_the_name_of_another_issuer_is_refused(
    browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    address = sent(browser)
    answer = returned(
        browser, state=state_in(address), code=issuer.authorize(address), iss="https://evil.example"
    )
    assert (answer.status_code, "(issuer)" in answer.text) == (401, True)
    assert issuer.redeemed == []


DOWN: dict[str, Callable[[Issuer], object]] = {
    "not there": lambda i: i.stop(),
    "metadata missing": lambda i: i.status.update({"/.well-known/openid-configuration": 404}),
    "broken": lambda i: i.status.update({"/.well-known/openid-configuration": 500}),
    "keys broken": lambda i: i.status.update({"/jwks": 503}),
    "no endpoints": lambda i: i.metadata.update(token_endpoint=None),
    "an address without TLS": lambda i: i.metadata.update(token_endpoint="http://192.0.2.1/t"),
    "no PKCE": lambda i: i.metadata.update(code_challenge_methods_supported=["plain"]),
    "another place": lambda i: i.status.update({"/.well-known/openid-configuration": 302}),
}


@pytest.mark.parametrize("how", DOWN)
def test_an_issuer_that_cannot_be_used_is_named(
    browser: httpx.Client, issuer: Issuer, anna: Person, how: str
) -> None:
    address = sent(browser)
    code = issuer.authorize(address)
    DOWN[how](issuer)
    answer = returned(browser, state=state_in(address), code=code)
    assert answer.status_code == 503
    assert "The issuer 127.0.0.1 " in answer.text
    assert not is_signed_in(browser)


def test_somebody_in_two_accounts_chooses(
    api: ContractApi, browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    assert sign_in(browser, issuer, anna).status_code == 200
    second: Caller = api.caller()
    there = join(second, Role.VIEWER)
    connected = "UPDATE users SET issuer = :i, subject = :s WHERE id = :id"
    api.sql(connected, i=issuer.url, s=issuer.subject, id=there.user_id)
    choice = come_back(browser, issuer)
    assert "Which account?" in choice.text
    assert len(choices(choice)) == 2
    account_id = second.customer.account_id
    [state] = [
        state
        for state in choices(choice).values()
        if api.sql(
            "SELECT 1 FROM oidc_flows WHERE account_id = :a AND state_sha256 = :s",
            a=account_id,
            s=hashlib.sha256(state.encode()).digest(),
        )
    ]
    assert browser.post("/sign-in/oidc/confirm", data={"state": state}).status_code == 200
    sessions = api.transact(lambda c: people.list_sessions(c, account_id))
    assert there.user_id in {each.user_id for each in sessions if each.address}


def invitation_for(api: ContractApi, inviter: Caller, address: str) -> str:
    account_id = inviter.customer.account_id
    return api.transact(lambda c: people.invite(c, account_id, address, Role.EDITOR))


def test_an_invitation_that_somebody_else_accepted_signs_its_address_in_nowhere(
    api: ContractApi, browser: httpx.Client, issuer: Issuer
) -> None:
    """An owner invites the address of a stranger, and accepts the invitation himself."""
    issuer.subject, issuer.email = uuid.uuid4().hex, f"{uuid.uuid4().hex}@example.com"
    token = invitation_for(api, api.caller(), issuer.email)
    assert api.transact(lambda c: people.accept_invitation(c, token)) is not None
    assert "(user)" in come_back(browser, issuer).text
    assert not is_signed_in(browser)


def test_an_invitation_is_accepted_by_the_verified_address_once_its_person_consents(
    api: ContractApi, browser: httpx.Client, issuer: Issuer
) -> None:
    issuer.subject, issuer.email = uuid.uuid4().hex, f"{uuid.uuid4().hex}@example.com"
    inviter = api.caller()
    query = f"?invitation={invitation_for(api, inviter, issuer.email)}"
    invited, issuer.email = issuer.email, "somebody-else@example.com"
    assert "(user)" in come_back(browser, issuer, query=query).text
    issuer.email = invited.upper()
    asked = come_back(browser, issuer, query=query)
    assert "Sign in to this account?" in asked.text
    assert not is_signed_in(browser)
    [state] = choices(asked).values()
    with httpx.Client(base_url=browser.base_url, trust_env=False, timeout=60) as elsewhere:
        answer = elsewhere.post("/sign-in/oidc/confirm", data={"state": state})
        assert "(state)" in answer.text
    answer = browser.post("/sign-in/oidc/confirm", data={"state": state})
    assert answer.status_code == 200
    account_id = inviter.customer.account_id
    user = api.transact(lambda c: people.find_user(c, account_id, invited))
    assert user is not None
    assert user.subject == issuer.subject
    assert browser.get("/sign-in/oidc" + query).status_code == 404
    # From now on this browser knows the account, and another one is asked.
    assert choices(come_back(browser, issuer)) == {}
    with httpx.Client(base_url=browser.base_url, trust_env=False, timeout=60) as elsewhere:
        assert len(choices(come_back(elsewhere, issuer))) == 1


def test_a_link_of_a_stranger_asks_before_it_signs_in(
    api: ContractApi, browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    """A browser that works in one account is led to begin a sign-in to another one."""
    assert sign_in(browser, issuer, anna).status_code == 200
    query = f"?invitation={invitation_for(api, api.caller(), issuer.email)}"
    asked = come_back(browser, issuer, query=query)
    assert {label.split()[0] for label in choices(asked)} == {"Sign", "Join"}
    [state] = [state for label, state in choices(asked).items() if label.startswith("Join")]
    forged = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
    answer = browser.post("/sign-in/oidc/confirm", data={"state": state}, headers=forged)
    assert answer.status_code == 403


def test_a_state_that_waits_for_consent_is_no_answer_of_the_issuer(
    browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    [state] = choices(come_back(browser, issuer, anna)).values()
    assert "(state)" in returned(browser, state=state, code="x").text
    state = state_in(sent(browser, anna))
    answer = browser.post("/sign-in/oidc/confirm", data={"state": state})
    assert "(state)" in answer.text
    assert not is_signed_in(browser)


def test_an_address_that_another_subject_has_taken_signs_nobody_in(
    browser: httpx.Client, issuer: Issuer, anna: Person
) -> None:
    """The issuer gives the address of somebody who left to somebody new."""
    assert sign_in(browser, issuer, anna).status_code == 200
    issuer.subject = "somebody new"
    with httpx.Client(base_url=browser.base_url, trust_env=False, timeout=60) as elsewhere:
        assert "(user)" in sign_in(elsewhere, issuer).text


@pytest.mark.parametrize("ends", ["removed", "suspended"])
def test_who_is_not_there_any_more_is_not_signed_in(
    api: ContractApi, browser: httpx.Client, issuer: Issuer, anna: Person, ends: str
) -> None:
    assert sign_in(browser, issuer, anna).status_code == 200
    api.sql(
        "UPDATE users SET removed_at = now() WHERE id = :id"
        if ends == "removed"
        else "UPDATE accounts SET suspended_at = now()"
        " WHERE id = (SELECT account_id FROM users WHERE id = :id)",
        id=anna.user_id,
    )
    assert "(user)" in sign_in(browser, issuer).text


WRONG_SETTINGS = {
    "no client": {"oidc_issuer": "https://issuer.example.com"},
    "no issuer": {"oidc_client_id": CLIENT},
    "no TLS": {"oidc_issuer": "http://issuer.example.com", "oidc_client_id": CLIENT},
}


@every("wrong", WRONG_SETTINGS)
def test_settings_that_name_half_an_issuer_are_refused(wrong: str) -> None:
    with pytest.raises(InvalidSettingsError, match="VAS_OIDC"):
        load_settings(**WRONG_SETTINGS[wrong])
    assert Settings(oidc_issuer="https://issuer.example.com", oidc_client_id=CLIENT).oidc_issuer
