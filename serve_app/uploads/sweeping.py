"""Resumable uploads whose process died while it wrote them: let others go on, or finish them."""

from __future__ import annotations

import logging
from datetime import timedelta

from serve_app.context import AppContext
from serve_app.errors import ApiError
from serve_app.uploads.access import open_slot
from serve_app.uploads.partials import settle
from storage import uploads
from storage.objects import ObjectStoreUnavailableError, PartialBusyError
from storage.uploads import Upload

log = logging.getLogger("vas.uploads")

_AT_ONCE = 20


async def settle_lost_writers(context: AppContext) -> None:
    """Take the place of writers that were silent for longer than a living one is allowed.

    An upload of which every byte had arrived is finished: its client may have
    seen all of it accepted and never ask again.
    """
    silent = timedelta(seconds=context.settings.upload_idle_seconds + 5)
    async with context.database.statement() as connection:
        lost = await uploads.list_lost_writers(connection, silent=silent, limit=_AT_ONCE)
    for upload in lost:
        async with context.database.statement() as connection:
            if not await uploads.forget_writer(
                connection, upload.job_id, upload.slot, silent=silent
            ):
                continue
        await _settle(context, upload)


async def _settle(context: AppContext, upload: Upload) -> None:
    try:
        if await settle(context, await open_slot(context, str(upload.job_id), upload.slot)):
            log.warning("job %s: %s was finished for a lost writer", upload.job_id, upload.slot)
    except (ApiError, PartialBusyError, ObjectStoreUnavailableError) as error:
        # Its client has come back, its job has ended, or the next request settles it.
        log.info("job %s: %s is left as it is: %s", upload.job_id, upload.slot, error)
