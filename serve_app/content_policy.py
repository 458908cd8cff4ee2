"""The operator's content policy, read from the settings where the service starts."""

from __future__ import annotations

from models.registry import REGISTRY, Task
from pipelines.vision.policy.blocklist import BlocklistError, read_blocklist
from pipelines.vision.policy.contracts import ContentPolicy
from serve_app.settings import Settings


class ContentPolicyError(ValueError):
    """The content policy of the settings cannot be applied; the message says why."""


def load_content_policy(settings: Settings) -> ContentPolicy:
    """What the settings say, complete. Raises ContentPolicyError."""
    if settings.blocked_labels and Task.CLASSIFY not in REGISTRY.get(settings.model_profile, {}):
        message = f"VAS_BLOCKED_LABELS: no classifier in model profile {settings.model_profile}."
        raise ContentPolicyError(message)
    path = settings.blocked_hashes_file
    try:
        hashes = b"" if path is None else read_blocklist(path)
    except BlocklistError as error:
        raise ContentPolicyError(f"VAS_BLOCKED_HASHES_FILE: {error}") from error
    return ContentPolicy(
        blocked_hashes=hashes,
        hash_distance=settings.blocked_hash_distance,
        label_limits=tuple(sorted(settings.blocked_labels.items())),
    )
