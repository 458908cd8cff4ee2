"""Signed, expiring URLs, and encryption at rest of secrets that must be readable again."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from urllib.parse import urlencode

from cryptography.fernet import Fernet, InvalidToken

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
        """What ``encrypt`` was given; raises DecryptionError."""
        try:
            return self._fernet().decrypt(encrypted).decode()
        except InvalidToken as error:
            raise DecryptionError from error

    def _fernet(self) -> Fernet:
        # The signer uses the same secret; the label keeps the two keys apart.
        key = hashlib.sha256(b"vas sealing\n" + self.secret).digest()
        return Fernet(base64.urlsafe_b64encode(key))
