"""Signing in by OpenID Connect: the authorization code flow with PKCE, against one issuer.

Sources: OpenID Connect Core 1.0, RFC 7636 (PKCE), RFC 9207 (``iss`` in the answer). What the issuer
publishes is fetched at each sign-in: so keys that it has changed are known, and those that it has
taken back are not.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import httpx
from authlib.common.urls import add_params_to_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import KeySet
from pydantic import BaseModel, ConfigDict, ValidationError

from serve_app.errors import ApiError, ErrorCode
from serve_app.settings import Settings, is_private_http
from storage.people import Flow

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Of signatures by a key that only the issuer has: not ``none``, and none by a shared secret."""
CLOCK_SKEW_SECONDS = 60
"""So far may the clocks of issuer and service be apart."""
ISSUER_SECONDS = 10.0
MOST_ANSWER_BYTES = 1024 * 1024


class OidcReason(StrEnum):
    """Why a sign-in failed: ``reason`` of OIDC_SIGN_IN_FAILED."""

    STATE = "state"
    """The answer belongs to no sign-in that this browser began, or to one that was answered."""
    REFUSED = "refused"
    """The issuer refused, or its user did."""
    CODE = "code"
    """The issuer gave no token for its own code."""
    ISSUER = "issuer"
    SIGNATURE = "signature"
    ALGORITHM = "algorithm"
    AUDIENCE = "audience"
    NONCE = "nonce"
    EXPIRED = "expired"
    CLOCK = "clock"
    """Of the future."""
    CLAIMS = "claims"
    """Malformed, or one is missing."""
    USER = "user"
    """Nobody in any account is this person."""


def failed(reason: OidcReason, message: str) -> ApiError:
    """``OIDC_SIGN_IN_FAILED``."""
    return ApiError(ErrorCode.OIDC_SIGN_IN_FAILED, message, extra={"reason": str(reason)})


@dataclass(frozen=True, slots=True)
class IssuedIdentity:
    """Whom the issuer has signed in."""

    subject: str
    email: str | None
    """Verified."""


class _Metadata(BaseModel):
    """What the issuer publishes of itself; OpenID Connect Discovery 1.0, section 3."""

    model_config = ConfigDict(extra="ignore")
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    code_challenge_methods_supported: list[str] = ["S256"]


class _Token(BaseModel):
    model_config = ConfigDict(extra="ignore")
    id_token: str
    access_token: str | None = None


class OidcClient:
    """One issuer, as the settings name it."""

    def __init__(self, settings: Settings) -> None:
        """Raises NOT_FOUND where they name none."""
        if settings.oidc_issuer is None or settings.oidc_client_id is None:
            raise ApiError(ErrorCode.NOT_FOUND, "Signing in by OpenID Connect is not set up.")
        self.issuer, self._client_id = settings.oidc_issuer, settings.oidc_client_id
        self._settings = settings

    async def begin(self, flow: Flow, redirect_uri: str) -> str:
        """Return where the browser is sent."""
        metadata = await self._metadata()
        address: str = add_params_to_uri(
            metadata.authorization_endpoint,
            {
                "response_type": "code",
                "client_id": self._client_id,
                "redirect_uri": redirect_uri,
                "scope": self._settings.oidc_scopes,
                "state": flow.state,
                "nonce": flow.nonce,
                "code_challenge": create_s256_code_challenge(flow.code_verifier),
                "code_challenge_method": "S256",
            }.items(),
        )
        return address

    async def finish(
        self, flow: Flow, redirect_uri: str, answer: Mapping[str, str]
    ) -> IssuedIdentity:
        """Return who was signed in, by the answer that the browser carries; raises
        OIDC_SIGN_IN_FAILED, and SERVICE_UNAVAILABLE where the issuer does not answer."""
        if answer.get("iss", self.issuer) != self.issuer:
            raise failed(OidcReason.ISSUER, "The answer is of another issuer.")
        if "code" not in answer:
            raise failed(OidcReason.REFUSED, "The issuer did not sign you in.")
        metadata = await self._metadata()
        token = await self._redeem(metadata, flow, redirect_uri, answer["code"])
        claims = await self._verified_claims(metadata, token, flow.nonce)
        email, verified = (
            claims.get(name)
            for name in (self._settings.oidc_email_claim, self._settings.oidc_verified_claim)
        )
        is_verified = verified is True or not self._settings.oidc_verified_claim
        return IssuedIdentity(
            claims["sub"], email if is_verified and isinstance(email, str) else None
        )

    async def _metadata(self) -> _Metadata:
        url = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
        try:
            metadata = _Metadata.model_validate_json(await self._fetch("GET", url))
        except ValidationError:
            raise self._unavailable("publishes no metadata that can be read") from None
        if metadata.issuer != self.issuer:
            raise failed(OidcReason.ISSUER, "The issuer calls itself by another name.")
        if "S256" not in metadata.code_challenge_methods_supported:
            raise self._unavailable("knows no PKCE by S256")
        for address in (
            metadata.authorization_endpoint, metadata.token_endpoint, metadata.jwks_uri
        ):  # fmt: skip
            if urlsplit(address).scheme != "https" and not is_private_http(address):
                raise self._unavailable("has an address without TLS")
        return metadata

    async def _redeem(
        self, metadata: _Metadata, flow: Flow, redirect_uri: str, code: str
    ) -> _Token:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": flow.code_verifier,
        }
        secret = self._settings.oidc_client_secret.get_secret_value()
        if secret:
            form["client_secret"] = secret
        try:
            return _Token.model_validate_json(
                await self._fetch("POST", metadata.token_endpoint, form)
            )
        except ValidationError:
            raise failed(OidcReason.CODE, "The issuer gave no token.") from None

    async def _verified_claims(
        self, metadata: _Metadata, token: _Token, nonce: str
    ) -> Mapping[str, Any]:
        published = await self._fetch("GET", metadata.jwks_uri)
        try:
            found = json.loads(published)["keys"]
            signing = [each for each in found if each.get("use", "sig") == "sig"]
            keys = KeySet.import_key_set({"keys": signing})
        except (JoseError, ValueError, TypeError, KeyError):
            raise self._unavailable("publishes no keys that can be read") from None
        try:
            decoded = jwt.decode(token.id_token, keys, algorithms=ALGORITHMS)
        except JoseError as error:
            is_algorithm = error.error == "unsupported_algorithm"
            reason = OidcReason.ALGORITHM if is_algorithm else OidcReason.SIGNATURE
            raise failed(reason, "The issuer's token is not signed by a key of its own.") from None
        except (ValueError, TypeError, KeyError):
            raise failed(OidcReason.SIGNATURE, "The issuer's token cannot be read.") from None
        claims: CodeIDToken = CodeIDToken(
            decoded.claims,
            decoded.header,
            options={
                "iss": {"essential": True, "value": self.issuer},
                "aud": {"essential": True, "value": self._client_id},
                "sub": {"essential": True},
            },
            params={
                "nonce": nonce,
                "client_id": self._client_id,
                "access_token": token.access_token,
            },
        )
        try:
            claims.validate(leeway=CLOCK_SKEW_SECONDS)
        except ExpiredTokenError:
            raise failed(OidcReason.EXPIRED, "The issuer's token is too old.") from None
        except (InvalidClaimError, MissingClaimError) as error:
            known = OidcReason.CLAIMS, "The issuer's token is malformed."
            raise failed(*_CLAIMS.get(error.claim, known)) from None
        except (JoseError, ValueError, TypeError):
            raise failed(OidcReason.CLAIMS, "The issuer's token is malformed.") from None
        return dict(claims)

    async def _fetch(self, method: str, url: str, form: Mapping[str, str] | None = None) -> bytes:
        """Return an answer of the issuer; raises SERVICE_UNAVAILABLE, or OIDC_SIGN_IN_FAILED where
        a form is refused."""
        try:
            async with (
                httpx.AsyncClient(
                    timeout=ISSUER_SECONDS, trust_env=not is_private_http(url)
                ) as client,
                client.stream(method, url, data=form) as answer,
            ):
                if form is not None and 400 <= answer.status_code < 500:
                    raise failed(OidcReason.CODE, "The issuer does not take its own code back.")
                if answer.status_code != 200:
                    raise self._unavailable(f"answers {answer.status_code}")
                content = b""
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > MOST_ANSWER_BYTES:
                        raise self._unavailable("answers without end")
                return content
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            raise self._unavailable("does not answer") from None

    def _unavailable(self, what: str) -> ApiError:
        message = f"The issuer {urlsplit(self.issuer).hostname} {what}. Try again later."
        return ApiError(ErrorCode.SERVICE_UNAVAILABLE, message)


_CLAIMS = {
    "nonce": (OidcReason.NONCE, "The issuer's token is not for this sign-in."),
    "aud": (OidcReason.AUDIENCE, "The issuer's token is for another client."),
    "azp": (OidcReason.AUDIENCE, "The issuer's token is for another client."),
    "iss": (OidcReason.ISSUER, "The token is of another issuer."),
    "iat": (OidcReason.CLOCK, "The issuer's token is of the future."),
    "nbf": (OidcReason.CLOCK, "The issuer's token is of the future."),
}


def new_flow() -> Flow:
    """Return a sign-in that begins: secrets of 32 random bytes."""
    state, browser, nonce = (secrets.token_urlsafe(32) for _ in range(3))
    return Flow(state, browser, nonce, secrets.token_urlsafe(48))
