"""A client that openapi-python-client makes of the interface document, against the service."""

from __future__ import annotations

import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from openapi_python_client import generate
from openapi_python_client.config import Config, ConfigFile, MetaType

from serve_app.api.schemas import schema_name
from tests.acceptance.service import JOB_SECONDS, Service
from tests.places import PROJECT
from tests.serve_app.interface_contract import DOCUMENT, OPERATIONS

PACKAGE = "generated_video_client"
SPOKEN = PROJECT / "tests" / "media" / "speech" / "one_voice.flac"
FOREIGN_JOB = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated package, which the generator had nothing to remark on."""
    folder = tmp_path_factory.mktemp("generated")
    source = folder / "openapi.json"
    source.write_text(json.dumps(DOCUMENT))
    config = Config.from_sources(
        ConfigFile(post_hooks=[]),
        MetaType.NONE,
        document_source=source,
        file_encoding="utf-8",
        overwrite=False,
        output_path=folder / PACKAGE,
    )
    assert list(generate(config=config)) == []
    return folder


@pytest.fixture
def modules(generated: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The generated module of each operation, by the operation's id."""
    monkeypatch.syspath_prepend(str(generated))
    found = {}
    for path in (generated / PACKAGE / "api").glob("*/*.py"):
        if path.stem != "__init__":
            name = f"{PACKAGE}.api.{path.parent.name}.{path.stem}"
            found[path.stem.replace("_", "")] = import_module(name)
    return {
        operation.operation_id: found[operation.operation_id.lower()] for operation in OPERATIONS
    }


def test_each_operation_has_all_its_errors_as_types(modules: dict[str, Any]) -> None:
    for operation in OPERATIONS:
        answers = get_args(get_type_hints(modules[operation.operation_id].sync)["return"])
        missing = {schema_name(code) for code in operation.errors} - {a.__name__ for a in answers}
        assert not missing, operation.operation_id


def test_a_clip_is_a_file_to_it(modules: dict[str, Any]) -> None:
    file = import_module(f"{PACKAGE}.types").File
    assert file in get_args(get_type_hints(modules["getClip"].sync)["return"])


@pytest.mark.service
@pytest.mark.timeout(900)
def test_the_generated_client_goes_from_a_new_job_to_its_transcript(
    modules: dict[str, Any], service: Service
) -> None:
    models = import_module(f"{PACKAGE}.models")
    client = import_module(PACKAGE).AuthenticatedClient(
        base_url=service.base_url, token=service.api_key
    )
    body = models.CreateJobBody(file_name=SPOKEN.name, file_size_bytes=SPOKEN.stat().st_size)
    created = modules["createJob"].sync(client=client, body=body).data
    httpx.put(
        created.upload_url,
        content=SPOKEN.read_bytes(),
        headers=created.upload_headers.to_dict(),
        trust_env=False,
    ).raise_for_status()
    deadline = time.monotonic() + JOB_SECONDS
    while (
        job := modules["getJob"].sync(created.job_id, client=client, include="none").data
    ).state not in {"completed", "failed"}:
        assert time.monotonic() < deadline, job
        time.sleep(1)
    transcript = modules["getTranscript"].sync(created.job_id, client=client).data
    seen = service.client().get_transcript(str(created.job_id))
    assert [segment.text for segment in transcript.segments] == [
        s["text"] for s in seen["segments"]
    ]
    assert transcript.segments
    unknown = modules["getJob"].sync(FOREIGN_JOB, client=client)
    assert type(unknown).__name__ == "NotFoundError"
