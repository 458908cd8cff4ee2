"""What each role may do: two tables, which every route of a session reads.

Keys have no scopes: whoever has one may call all that takes a key. Roles are those of people in the
dashboard. A route that stands in no table fails as it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from serve_app.errors import ApiError, ErrorCode
from storage.types import Role


class Permission(StrEnum):
    """What operations and pages need of a role."""

    READ = "read"
    """Jobs and their results."""
    WRITE = "write"
    """Create, correct, erase; read what a redaction hides."""
    BILLING = "billing"
    """Credits, usage and receipts."""
    MANAGE = "manage"
    """Keys, webhooks and their secrets."""
    PEOPLE = "people"
    """Users, invitations, sessions and the audit log."""


ROLES: Mapping[Role, frozenset[Permission]] = {
    Role.OWNER: frozenset(Permission),
    Role.EDITOR: frozenset({Permission.READ, Permission.WRITE}),
    Role.VIEWER: frozenset({Permission.READ}),
    Role.BILLER: frozenset({Permission.BILLING}),
}

_OPERATIONS: Mapping[Permission, str] = {
    Permission.READ: """
        listJobs getJob getScenes getTranscript listAudioTracks list_audio_tracks_alias
        getAudioTrack get_audio_track getChapters getSummary getPeople getClip exportJob search
        listTranscriptRevisions listTranslations getTranslation lintCaptions streamJobEvents
        listVoices listWebhookDeliveries getReceipt compareJobs listArchives getArchive
        listArchiveObjects getReview listDuplicates listArchiveDuplicates getComparison
    """,
    Permission.WRITE: """
        createJob createJobFromUrl createBatch cancelJob cancelJobDeprecated eraseJob rerunJob
        redactJob editTranscript revertTranscript createTranslation nameSpeaker resetSpeaker
        nameVoice deleteVoice deletePeople createArchive changeArchive pauseArchive resumeArchive
        deleteArchive
    """,
    Permission.BILLING: "getQuota getKeysPortal",
    Permission.MANAGE: """
        listKeys rotateKey getWebhookSecret rotateWebhookSecret sendTestWebhook
        listWebhookEndpoints createWebhookEndpoint getWebhookEndpoint changeWebhookEndpoint
        deleteWebhookEndpoint rotateWebhookEndpoint
    """,
    Permission.PEOPLE: "listAuditLog",
}
_PAGES: Mapping[Permission | None, str] = {
    None: "sign_out get_nothing",
    Permission.READ: """
        get_jobs get_jobs_with_slash get_job get_captions get_changes get_part get_whole get_search
        get_archives get_compare
    """,
    Permission.WRITE: "create_from_urls erase_job cancel_job change_archive",
    Permission.BILLING: "get_account",
    Permission.MANAGE: """
        get_keys create_key rotate_key revoke_key rotate_webhook_secret add_endpoint
        delete_endpoint rotate_endpoint
    """,
    Permission.PEOPLE: """
        get_people invite withdraw_invitation change_role remove_user make_link end_session
        get_audit export_audit
    """,
}

OPERATIONS: Mapping[str, Permission] = {
    name: permission for permission, names in _OPERATIONS.items() for name in names.split()
}
"""By operation, or by function where a route is none of the interface document."""
PAGES: Mapping[str, Permission | None] = {
    name: permission for permission, names in _PAGES.items() for name in names.split()
}
"""By function; None: for everybody who is signed in."""


def may(role: Role, permission: Permission | None) -> bool:
    """Whether a person of this role may do what needs this permission."""
    return permission is None or permission in ROLES[role]


def require(role: Role, permission: Permission | None) -> None:
    """Raises ROLE_NOT_ALLOWED."""
    if not may(role, permission):
        message = f"Your role, {role}, does not include this."
        raise ApiError(ErrorCode.ROLE_NOT_ALLOWED, message, extra={"role": str(role)})
