"""Every knob of the service, once: type, default, bounds, description.

Settings are read from the environment (prefix ``VAS_``) where the service
starts, and handed on as a value; no other module reads the environment.
"""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, IPvAnyNetwork, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from storage.objects import FolderStore

GIB = 1024**3

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Settings(BaseSettings):
    """The service's settings; immutable, picklable."""

    model_config = SettingsConfigDict(env_prefix="VAS_", frozen=True, extra="ignore")

    data_dir: Path = Field(Path("data"), description="Folder for everything the service keeps.")
    database_url: str | None = Field(
        None, description="postgresql://…; without it an embedded server runs in the data folder."
    )
    public_url: str | None = Field(
        None, description="Address clients use, e.g. https://video.example.com; else the request's."
    )
    secret_key: SecretStr = Field(
        SecretStr(""),
        description="Signs upload URLs and cursors; made in the data folder if unset.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=1, le=65_535, description="Port to listen on.")

    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        (ip_network("127.0.0.0/8"), ip_network("::1/128")),
        description="Networks of proxies whose X-Forwarded-For is believed.",
    )
    api_replicas: int = Field(1, ge=1, le=256, description="Replicas of the HTTP API.")
    database_pool_size: int = Field(8, ge=2, le=100, description="Connections a process.")
    answer_timeout_seconds: int = Field(
        120, ge=1, le=3600, description="The proxy's patience: silent peers get 503 or are cut off."
    )
    max_body_bytes: int = Field(1024**2, ge=1024, le=16 * 1024**2, description="JSON body limit.")

    max_concurrent_uploads: int = Field(
        16, ge=1, le=1024, description="Uploads a replica takes at once; more get 503."
    )
    standard_max_bytes: int = Field(20 * GIB, ge=1, description="Upload limit, standard tier.")
    raw_max_bytes: int = Field(100 * GIB, ge=1, description="Upload limit, camera RAW tier.")
    upload_lifetime_seconds: int = Field(3600, ge=1, le=86_400, description="Of upload URLs.")

    max_active_jobs: int = Field(50, ge=1, le=100_000, description="Unfinished jobs an account.")
    runner_concurrency: int = Field(2, ge=1, le=64, description="Jobs a runner drives at once.")
    lease_seconds: Seconds = Field(15, description="How long a runner may be silent.")
    heartbeat_seconds: Seconds = Field(1, description="How often a runner renews its leases.")
    poll_seconds: Seconds = Field(2, description="How often an idle runner looks for work.")
    stage_timeout_seconds: Seconds = Field(
        43_200, description="A stage that takes longer than this fails."
    )

    raw_decoders: dict[str, str] = Field(
        {},
        description="Camera RAW family (r3d, braw, arri) to a command with {input} and {output}.",
    )
    allowed_networks: tuple[IPvAnyNetwork, ...] = Field(
        (), description="Private networks that media URLs and callbacks may point to."
    )

    segment_seconds: float = Field(
        60, ge=0, le=3600, description="Length of a video segment; 0 analyses in one piece."
    )
    transcript_shard_seconds: float = Field(
        20, ge=1, le=86_400, description="Length of a stretch of speech that one task transcribes."
    )
    model_profile: Literal["embedded"] = Field("embedded", description="Which models serve.")
    transcriber_replicas: int = Field(2, ge=1, le=256, description="Most transcriber replicas.")
    ray_cpus: int | None = Field(
        None, ge=1, le=1024, description="Logical CPUs of a local Ray; else what the machine has."
    )

    @property
    def object_store(self) -> FolderStore:
        """Where media and shards lie."""
        return FolderStore(self.data_dir / "objects")
