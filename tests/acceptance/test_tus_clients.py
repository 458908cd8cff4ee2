"""tus-js-client in Node and Uppy in Chromium, as npm has them, against the running service."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.service import Service, serving_files
from tests.browser.visits import launched
from tests.serve_app.test_openapi import install

TUS_JS_CLIENT = "tus-js-client@4.3.1"
UPPY = "uppy@6.0.1"

pytestmark = [pytest.mark.service, pytest.mark.long, pytest.mark.timeout(900)]

NODE = """
import { readFileSync } from "node:fs";
import { Readable } from "node:stream";
import { Upload } from "tus-js-client";

const { path, uploadUrl, kind } = JSON.parse(process.argv[2]);
const media = readFileSync(path);
const options = { uploadUrl, chunkSize: 262144, retryDelays: [0, 500, 1000] };

function sent(source, more) {
  return new Promise((done, failed) => {
    const upload = new Upload(source, {
      ...options,
      ...more,
      onError: failed,
      onSuccess: () => done(),
      onChunkComplete: (_, accepted) => {
        if (more.stopAt && accepted >= more.stopAt) upload.abort().then(done);
      },
    });
    upload.start();
  });
}

try {
  if (kind === "deferred") await sent(Readable.from(media), { uploadLengthDeferred: true });
  else if (kind === "broken off") await sent(media, { stopAt: 524288 });
  if (kind !== "deferred") await sent(media, {});
  console.log("sent");
} catch (error) {
  console.log(String(error.message ?? error));
}
"""

PAGE = """<!doctype html><title>Uppy</title><script src="uppy.min.js"></script><script>
async function send(name, uploadUrl) {
  const blob = await (await fetch(name)).blob();
  const uppy = new Uppy.Uppy({ autoProceed: false });
  uppy.use(Uppy.Tus, { uploadUrl, chunkSize: 262144, storeFingerprintForResuming: false });
  uppy.addFile({ name, type: blob.type, data: blob });
  const { successful, failed } = await uppy.upload();
  return [successful.length, ...failed.map((file) => String(file.error))];
}
</script>"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both; skips where npm cannot install them."""
    folder = tmp_path_factory.mktemp("npm")
    install(folder, TUS_JS_CLIENT, UPPY)
    (folder / "send.mjs").write_text(NODE)
    return folder


def created(service: Service, media: Path, *, declared: bool = True) -> dict[str, Any]:
    with service.client() as client:
        return dict(client.create_job(media.name, media.stat().st_size if declared else None))


def analysed(service: Service, job: dict[str, Any], media: Path) -> None:
    """The job completes, on the very bytes of the file."""
    ended = service.ended(job["jobId"])
    assert (ended["state"], ended["warnings"]) == ("completed", [])
    [(size,)] = service.query("SELECT received_bytes FROM uploads WHERE job_id = %s", job["jobId"])
    assert size == media.stat().st_size


def sent_by_node(packages: Path, media: Path, job: dict[str, Any], kind: str) -> str:
    arguments = {"path": str(media), "uploadUrl": job["resumableUploadUrl"], "kind": kind}
    command = ["node", "send.mjs", json.dumps(arguments)]
    done = subprocess.run(
        command, cwd=packages, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("kind", ["at once", "broken off", "deferred"])
def test_tus_js_client_sends_a_file_that_is_analysed(
    service: Service, packages: Path, excerpt: Path, kind: str
) -> None:
    job = created(service, excerpt, declared=kind != "deferred")
    assert sent_by_node(packages, excerpt, job, kind) == "sent"
    analysed(service, job, excerpt)


def test_tus_js_client_is_told_that_a_length_is_missing(
    service: Service, packages: Path, excerpt: Path
) -> None:
    """As the documentation has it: ``fileSizeBytes`` is declared with the job."""
    job = created(service, excerpt, declared=False)
    assert "invalid or missing length" in sent_by_node(packages, excerpt, job, "at once")


def test_uppy_sends_a_file_to_one_job_after_the_other_from_a_page_of_another_origin(
    service: Service, packages: Path, excerpt: Path, tmp_path: Path
) -> None:
    bundle = packages / "node_modules/uppy/dist/uppy.min.js"
    for name, content in (("uppy.min.js", bundle.read_bytes()), ("index.html", PAGE.encode())):
        (tmp_path / name).write_bytes(content)
    (tmp_path / excerpt.name).write_bytes(excerpt.read_bytes())
    jobs = [created(service, excerpt) for _ in range(2)]
    with serving_files(tmp_path) as root, launched() as browser:
        page = browser.new_page()
        page.goto(f"{root}/index.html")
        for job in jobs:
            arguments = json.dumps([excerpt.name, job["resumableUploadUrl"]])
            assert page.evaluate(f"send(...{arguments})") == [1]
    for job in jobs:
        analysed(service, job, excerpt)
