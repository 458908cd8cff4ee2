"""Secrets that must be readable again (download tokens, signing secrets), encrypted at rest."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from cryptography.fernet import Fernet, InvalidToken


class SealBrokenError(Exception):
    """The text was not sealed with this service's key."""


@dataclass(frozen=True, slots=True)
class Sealer:
    """Fernet (AES-128-CBC, HMAC-SHA256) with a key derived from the service's secret."""

    secret: bytes

    def seal(self, text: str) -> bytes:
        """``text`` encrypted and authenticated."""
        return self._fernet().encrypt(text.encode())

    def open(self, sealed: bytes) -> str:
        """What ``seal`` was given; raises SealBrokenError."""
        try:
            return self._fernet().decrypt(sealed).decode()
        except InvalidToken as error:
            raise SealBrokenError from error

    def _fernet(self) -> Fernet:
        # The signer uses the same secret; the label keeps the two keys apart.
        key = hashlib.sha256(b"vas sealing\n" + self.secret).digest()
        return Fernet(base64.urlsafe_b64encode(key))
