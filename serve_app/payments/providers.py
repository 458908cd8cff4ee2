"""Which provider is on, and the secret that its notifications are verified with."""

from __future__ import annotations

from serve_app.crypto import Encrypter
from serve_app.payments.service import PaymentProvider
from serve_app.settings import Settings
from storage import purchases
from storage.database import Database


class ProviderNotInstalledError(Exception):
    """The library of the provider in the settings is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"VAS_PAYMENT_PROVIDER={name} needs the library of {name}: "
            "pip install 'video-analysis-service[payments]'."
        )


def find_provider(settings: Settings) -> PaymentProvider | None:
    """The provider of the settings, None if payments are off; ProviderNotInstalledError."""
    if settings.payment_provider is None:
        return None
    try:
        from serve_app.payments.stripe_provider import StripeProvider
    except ModuleNotFoundError as error:
        if error.name != "stripe":
            raise
        raise ProviderNotInstalledError(settings.payment_provider) from error
    return StripeProvider()


async def find_secret(settings: Settings, database: Database, encrypter: Encrypter) -> str | None:
    """The webhook secret of the settings, else the one that the operator stored, decrypted."""
    if settings.stripe_webhook_secret is not None:
        return settings.stripe_webhook_secret.get_secret_value()
    async with database.statement() as connection:
        encrypted = await purchases.find_credential(connection, settings.payment_provider or "")
    return None if encrypted is None else encrypter.decrypt(encrypted)
