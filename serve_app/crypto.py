"""Signed, expiring URLs, and encryption at rest of secrets that must be readable again."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from cryptography.exceptions import InvalidSignature
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from typing_extensions import TypedDict

_EXPIRES_FORM = re.compile("[1-9][0-9]{0,11}")
"""As ``sign_path`` writes it, so that a signed URL has one spelling."""


class BadSignatureError(Exception):
    """The signature does not fit the URL, or its time is over."""


class ExpiredSignatureError(BadSignatureError):
    """The signature is ours; its time is over."""


@dataclass(frozen=True, slots=True)
class Signer:
    """HMAC-SHA256 over purpose, path and expiry with the service's secret key."""

    secret: bytes

    def sign_path(self, purpose: str, path: str, *, expires_at: int) -> str:
        """``path`` with ``expires`` (Unix seconds) and ``signature`` as its query."""
        signature = self._signature(purpose, path, expires_at)
        return f"{path}?{urlencode({'expires': expires_at, 'signature': signature})}"

    def check_path(self, purpose: str, path: str, *, expires: str, signature: str) -> None:
        """Raises BadSignatureError unless ``sign_path`` made it and it has not expired."""
        if not _EXPIRES_FORM.fullmatch(expires):
            raise BadSignatureError
        expected = self._signature(purpose, path, int(expires))
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise BadSignatureError
        if time.time() > int(expires):
            raise ExpiredSignatureError

    def _signature(self, purpose: str, path: str, expires_at: int) -> str:
        message = f"{purpose}\n{path}\n{expires_at}".encode()
        return hmac.new(self.secret, message, hashlib.sha256).hexdigest()


class DecryptionError(Exception):
    """The text was not encrypted with this service's key."""


@dataclass(frozen=True, slots=True)
class Encrypter:
    """Fernet (AES-128-CBC, HMAC-SHA256) with a key derived from the service's secret."""

    secret: bytes

    def encrypt(self, text: str) -> bytes:
        """``text`` encrypted and authenticated."""
        return self._fernet().encrypt(text.encode())

    def decrypt(self, encrypted: bytes) -> str:
        """Return what ``encrypt`` was given; raises DecryptionError."""
        try:
            return self._fernet().decrypt(encrypted).decode()
        except InvalidToken as error:
            raise DecryptionError from error

    def _fernet(self) -> Fernet:
        # The signer uses the same secret; the label keeps the two keys apart.
        key = hashlib.sha256(b"vas sealing\n" + self.secret).digest()
        return Fernet(base64.urlsafe_b64encode(key))


class PublicKeyJson(TypedDict):
    """An Ed25519 key as a JSON Web Key (RFC 8037)."""

    kty: str
    crv: str
    x: str
    kid: str
    alg: str
    use: str


@dataclass(frozen=True, slots=True)
class ReceiptSigner:
    """Ed25519 (RFC 8032) with a key derived from the service's secret, so that it is kept, backed
    up and shared with other nodes as that is."""

    secret: bytes

    def seal(self, payload_type: str, payload: bytes) -> dict[str, Any]:
        """Return ``payload`` in a DSSE envelope: in base64, with its media type and who signed
        both; always the same one of a payload."""
        signature = self._key().sign(pre_authentication(payload_type, payload))
        return {
            "payloadType": payload_type,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [
                {"keyid": self.public_key()["kid"], "sig": base64.b64encode(signature).decode()}
            ],
        }

    def public_key(self) -> PublicKeyJson:
        """Return what checks the signatures; ``kid`` is its thumbprint (RFC 7638)."""
        x = _text(self._key().public_key().public_bytes_raw())
        required = {"crv": "Ed25519", "kty": "OKP", "x": x}
        kid = _text(hashlib.sha256(canonical(required)).digest())
        return {**required, "kid": kid, "alg": "EdDSA", "use": "sig"}  # type: ignore[typeddict-item]

    def _key(self) -> Ed25519PrivateKey:
        seed = hashlib.sha256(b"vas receipts\n" + self.secret).digest()
        return Ed25519PrivateKey.from_private_bytes(seed)


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that DSSE signs (its PAE).

    Source: https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md.
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def open_envelope(envelope: Mapping[str, Any], keys: Mapping[str, str]) -> bytes:
    """Return the payload that one of ``keys``, ``x`` by ``kid``, signed; raises BadSignatureError
    where none did, and for what is no envelope."""
    try:
        payload = _decoded(envelope["payload"])
        message = pre_authentication(envelope["payloadType"], payload)
        for each in envelope["signatures"]:
            if each["keyid"] in keys:
                x = base64.urlsafe_b64decode(keys[each["keyid"]] + "==")
                Ed25519PublicKey.from_public_bytes(x).verify(_decoded(each["sig"]), message)
                return payload
    except (InvalidSignature, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadSignatureError from error
    raise BadSignatureError


def _decoded(text: str) -> bytes:
    """Return what ``text`` is in base64; raises ValueError also where other text means the same
    bytes."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("bits beyond the last byte")
    return data


def canonical(value: object) -> bytes:
    """Return the one JSON text of a value: sorted names, no blanks, UTF-8, whole numbers without a
    point (RFC 8785 as far as integers and short fractions go)."""
    text = json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def _whole(value: object) -> object:
    match value:
        case dict():
            return {name: _whole(each) for name, each in value.items()}
        case list() | tuple():
            return [_whole(each) for each in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
