"""Every setting of the service, once: type, default, bounds, description.

Settings are read from the environment (prefix ``VAS_``) where the service starts and passed on as
a value; no other module reads the environment.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from models.registry import REMOTE_TASKS
from models.tasks import Task, get_task
from models.weights import RemoteModel
from pipelines.ingest.headers import RAW_FAMILIES, command_words
from pipelines.types import CutsBy
from storage.objects import ObjectStore
from storage.objects.folder import FolderStore
from storage.objects.node_cache import NodeCache
from storage.types import Priority, Retention, Tier

GIB = 1024**3
SECRET_KEY_LENGTH = 32
"""Characters of the shortest ``VAS_SECRET_KEY``."""
SECRET_KEY_VARIETY = 8
"""Different characters of it at least: of 28 million keys of 32 random hexadecimal digits one has
fewer. The published key of receipts lets anybody try guesses offline."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _as_address(url: str) -> str:
    """Without a slash at its end, as paths are put behind it. Raises ValueError."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in url or set("?#\\ ") & set(url) or not url.isprintable():
        raise ValueError("Input should be like https://video.example.com")
    return url.rstrip("/")


Address = Annotated[str, AfterValidator(_as_address)]


def strong_secret(secret: SecretStr) -> SecretStr:
    """Return a secret key that is not guessed by trying; raises ValueError. None at all passes."""
    text = secret.get_secret_value()
    if text and (len(text) < SECRET_KEY_LENGTH or len(set(text)) < SECRET_KEY_VARIETY):
        raise ValueError(
            f"Input should have at least {SECRET_KEY_LENGTH} random characters, as those of "
            "`openssl rand -hex 32`"
        )
    return secret


Networks = Annotated[tuple[IPvAnyNetwork, ...], NoDecode]
"""In the environment with commas between them, or as a list in JSON."""

TaskName = Annotated[str, AfterValidator(lambda name: get_task(name).name)]
"""Of a model task."""

PRIORITY_WEIGHTS = {Priority.LOW: 0.25, Priority.NORMAL: 1.0, Priority.HIGH: 4.0}
PriorityWeights = Annotated[
    dict[Priority, Annotated[float, Field(ge=0.01, le=100)]],
    AfterValidator(lambda given: PRIORITY_WEIGHTS | given),
]


class InvalidSettingsError(ValueError):
    """Settings that cannot be used; the message has a sentence for each, without its value."""


class ProviderNotInstalledError(Exception):
    """The library of the provider in the settings is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"VAS_PAYMENT_PROVIDER={name} needs the library of {name}: "
            "`make setup-dev` installs the extra 'payments'."
        )


def is_private_http(url: str) -> bool:
    """Return whether an address without TLS leads to this machine, where nobody listens in
    between."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}


class Settings(BaseSettings):
    """The service's settings; immutable, picklable."""

    model_config = SettingsConfigDict(env_prefix="VAS_", frozen=True, extra="ignore")

    data_dir: Path = Field(Path("data"), description="Folder for everything the service keeps.")
    database_url: str | None = Field(
        None,
        description="postgresql://… of the server itself, not of PgBouncer; without it an embedded "
        "server runs in the data folder.",
    )
    accept_newer_schema: bool = Field(
        False, description="Start on data that a newer version has migrated: one version back."
    )
    public_url: Address | None = Field(
        None, description="Address clients use, e.g. https://video.example.com; else the request's."
    )
    secret_key: Annotated[SecretStr, AfterValidator(strong_secret)] = Field(
        SecretStr(""),
        description="Signs URLs, cursors and receipts, and encrypts secrets; at least 32 random "
        "characters; made in the data folder if unset.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=1, le=65_535, description="Port to listen on.")

    oidc_issuer: str | None = Field(
        None, description="Issuer of OpenID Connect for the dashboard, as it calls itself."
    )
    oidc_client_id: str | None = Field(None, description="What the issuer calls this service.")
    oidc_client_secret: SecretStr = Field(
        SecretStr(""), description="The client's secret; without it PKCE alone."
    )
    oidc_scopes: str = Field("openid email", description="What is requested of the issuer.")
    oidc_email_claim: str = Field("email", description="Claim with a person's e-mail address.")
    oidc_verified_claim: str = Field(
        "email_verified",
        description="Claim that must be true for the address to count; empty: it always counts.",
    )

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="The least that is logged."
    )
    log_format: Literal["json", "text"] = Field(
        "json", description="One JSON object a record, or a line for people."
    )
    log_dir: Path | None = Field(
        None,
        description="Folder of service.log; else `logs` in the data folder under `vas serve`, "
        "and the standard error of Ray's workers on a cluster.",
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65_535, description="Port of the metrics under `vas serve`; else any."
    )

    ray_dashboard_url: Address | None = Field(
        None, description="Address of Ray's dashboard, which pages of the operator link to."
    )
    grafana_url: Address | None = Field(
        None, description="Address of Grafana, which pages of the operator link to."
    )
    traces_url: Address | None = Field(
        None,
        description="Where OpenTelemetry traces are sent (OTLP over HTTP), e.g. "
        "http://collector:4318/v1/traces; needs the extra `tracing`. Off without it.",
    )
    traces_ratio: float = Field(1.0, ge=0, le=1, description="Share of the traces that is sent.")

    trusted_proxies: Networks = Field(
        (ip_network("127.0.0.0/8"), ip_network("::1/128")),
        description="Networks of proxies whose X-Forwarded-For is believed.",
    )
    api_replicas: int = Field(1, ge=1, le=256, description="Replicas of the HTTP API.")
    database_pool_size: int = Field(
        8, ge=2, le=100, description="Most connections of each of a process's two pools."
    )
    proxy_timeout_seconds: int = Field(
        120, ge=1, le=3600, description="Silence after which the proxy answers 503, or hangs up."
    )
    max_body_bytes: int = Field(1024**2, ge=1024, le=16 * 1024**2, description="JSON body limit.")

    upload_concurrency: Annotated[int, Field(ge=1, le=1024)] = Field(
        16,
        description="Uploads that a replica receives at once, half of them of one account; more "
        "get 503.",
    )
    standard_max_bytes: int = Field(20 * GIB, ge=1, description="Upload limit, standard tier.")
    raw_max_bytes: int = Field(100 * GIB, ge=1, description="Upload limit, camera RAW tier.")
    upload_lifetime_seconds: int = Field(3600, ge=1, le=86_400, description="Of upload URLs.")
    upload_idle_seconds: Seconds = Field(
        60, description="An upload of which nothing arrives for so long is ended."
    )
    # Clients of tus give up after 9 seconds by default.
    upload_lease_seconds: float = Field(
        6, ge=2, le=60, description="After so long without data another may continue an upload."
    )

    database_timeout_seconds: Seconds = Field(
        10, description="A statement that takes longer, waits for locks included, is cancelled."
    )
    price_file: Path | None = Field(
        None, description="Price table (TOML, as serve_app/prices.toml) in place of ours."
    )
    caption_rules_file: Path | None = Field(
        None,
        description="More houses whose rules captions may follow (TOML, as"
        " pipelines/speech/caption_rules.toml), beside or in place of ours.",
    )
    payment_provider: Literal["stripe"] | None = Field(
        None, description="Whose notifications of purchases are taken; needs the extra `payments`."
    )
    stripe_webhook_secret: SecretStr | None = Field(
        None, description="whsec_…; else the one stored with `vas payments set-secret`."
    )

    max_active_jobs: int = Field(50, ge=1, le=100_000, description="Unfinished jobs an account.")
    max_archive_objects: int = Field(
        10_000_000, ge=1, le=1_000_000_000, description="Objects in the archives of an account."
    )
    max_running_jobs: int | None = Field(
        None, ge=1, le=100_000, description="Jobs of an account that run at once; all without it."
    )
    highest_priority: Priority = Field(
        Priority.HIGH, description="The most urgent priority that jobs may have at creation."
    )
    priority_weights: PriorityWeights = Field(
        PRIORITY_WEIGHTS, description="Jobs of each priority that start while one of weight 1 does."
    )
    runners: int = Field(1, ge=1, le=256, description="Replicas of the runner that drives jobs.")
    service_resource: str | None = Field(
        None,
        pattern="^[A-Za-z][A-Za-z0-9_.-]*$",
        description="Ray resource of nodes that run API, runners and senders; without it any may.",
    )
    runner_concurrency: int = Field(2, ge=1, le=64, description="Jobs a runner drives at once.")
    lease_seconds: Seconds = Field(
        15, description="A job whose runner sends no heartbeat for so long is requeued."
    )
    heartbeat_seconds: Seconds = Field(1, description="How often a runner renews its leases.")
    poll_seconds: Seconds = Field(
        15, description="How often an idle runner looks for a job that no notification came for."
    )
    stage_timeout_seconds: Seconds = Field(
        43_200, description="A stage that takes longer than this fails."
    )

    raw_decoders: dict[str, str] = Field(
        {},
        description="Camera RAW family (r3d, braw, arri) to a command with {input} and {output}.",
    )
    raw_decoder_seconds: Seconds = Field(
        21_600, description="A RAW decoder that takes longer is ended, and the job fails."
    )
    raw_decoder_memory_bytes: int = Field(
        16 * GIB, ge=64 * 1024**2, description="Most that a RAW decoder and its children may take."
    )
    raw_decoded_max_bytes: int = Field(
        200 * GIB, ge=1024**2, description="Most that a RAW decoder may write to disk."
    )
    allowed_networks: Networks = Field(
        (),
        description="Private networks that media URLs and callbacks may point to, e.g. "
        "`10.1.0.0/16,127.0.0.1`.",
    )

    webhook_senders: int = Field(1, ge=1, le=64, description="Replicas of the webhook sender.")
    webhook_concurrency: int = Field(
        256, ge=4, le=4096, description="Deliveries that a sender has under way at once."
    )
    webhook_endpoint_concurrency: int = Field(
        16, ge=1, le=1024, description="Of these for one endpoint (an account's host), all senders."
    )
    webhook_account_concurrency: int = Field(
        64, ge=1, le=4096, description="Of these for one account, all senders together."
    )
    webhook_lease_seconds: float = Field(
        30, ge=15, le=600, description="After so long a delivery of a lost sender is due again."
    )
    webhook_ca_file: Path | None = Field(
        None, description="PEM of private authorities that callbacks' certificates may be from."
    )

    segment_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        60,
        description="Length of a video segment; of videos shorter than eight of them an eighth, "
        "10 s at least. 0 analyses in one piece.",
    )
    decoder_gpus: Annotated[float, Field(ge=0, le=1)] = Field(
        0,
        description="Share of a GPU that a task takes which reads pictures or finds cuts: NVDEC "
        "decodes what it can, the processor the rest, and doubtful cuts are judged there in "
        "profile `gpu`. 0: processors do all of it.",
    )
    transcript_shard_seconds: float = Field(
        20, ge=1, le=86_400, description="Length of the speech that one task transcribes."
    )
    people: bool = Field(
        False, description="Let jobs put faces of the same person together (`people`)."
    )
    voices: bool = Field(
        False, description="Let accounts name voices and have them recognised (`voices`)."
    )
    tags_file: Path | None = Field(
        None, description="Bank of tags (TOML, as pipelines/vision/tags.toml) in place of ours."
    )
    cuts: CutsBy = Field(
        CutsBy.JUDGED,
        description="Who finds the cuts: `judged`, measures, and TransNetV2 where they are in "
        "doubt; `thorough`, both in every frame, which takes about 15 s more of a core for a "
        "minute of video; `measured`, the measures alone.",
    )
    whisper_weights: Path | None = Field(
        None,
        description="Folder of a Whisper of your own, in place of the profile's: in CTranslate2's "
        "format for `packaged` and `cpu`, else in that of transformers. "
        "`notebooks/04_fine_tune_whisper.ipynb` makes one.",
    )
    blocked_hashes_file: Path | None = Field(
        None,
        description="Perceptual hashes of pictures that are not permitted (`vas policy hash`).",
    )
    blocked_hash_distance: int = Field(
        8, ge=0, le=24, description="Bits of 64 that a still may differ by and still be blocked."
    )
    blocked_labels: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        {},
        description="Labels of the content classifier, and the score from which each blocks. All "
        'profiles have `nsfw` and `normal`; {"nsfw": 0.8} blocks what is very probably nudity.',
    )
    model_profile: Literal["auto", "packaged", "cpu", "cpu-transformers", "gpu"] = Field(
        "auto",
        description="Which models serve; auto: the best whose weights are in VAS_MODELS_DIR. "
        "`cpu-transformers` is `cpu` with Whisper through transformers in place of CTranslate2.",
    )
    remote_models: dict[TaskName, RemoteModel] = Field(
        {},
        description="Model tasks that other servers do, asked as OpenAI's are (vLLM, llama.cpp, "
        'Ollama): {"describe_scenes": {"url": "http://gpu:8000/v1", "model": "qwen3-vl", '
        '"key_variable": "GPU_KEY"}}; further keys are `concurrency`, `timeout_seconds`, '
        "`most_media_seconds` and `body`. Only these servers ever get media; without it none "
        "does. For transcribe, describe_scenes, summarize, translate_text, embed_text and answer.",
    )
    model_plugins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Installed plug-ins whose models do their tasks in place of the profile's own, "
        "e.g. `pysilero,sphinx`; `vas models list` lists them.",
    )
    model_replicas: dict[TaskName, Annotated[int, Field(ge=1, le=256)]] = Field(
        {},
        description='Most replicas of each model task: {"transcribe": 4, "describe_scenes": 2}; '
        "else two of `transcribe`, one of the others. `vas doctor` lists the tasks.",
    )
    model_min_replicas: int = Field(
        1, ge=0, le=256, description="Replicas of each model that stay when idle; 0 frees its GPU."
    )
    model_cpus: Annotated[float, Field(ge=0, le=256)] = Field(
        0,
        description="CPUs that a replica without a GPU takes: what Ray starts nodes for. "
        "0: replicas share what there is, right on one machine.",
    )
    model_upscale_seconds: Seconds = Field(
        5, description="How long a model's queue must be long before it gets another replica."
    )
    model_downscale_seconds: Seconds = Field(
        120, description="How long a model must be idle before it loses a replica."
    )
    models_dir: Path | None = Field(
        None, description="Folder of weights (`vas models pull`); set, nothing is ever fetched."
    )
    ray_cpus: int | None = Field(
        None, ge=1, le=1024, description="Logical CPUs of a local Ray; else what the machine has."
    )

    s3_bucket: str | None = Field(
        None, min_length=3, max_length=63, description="For media and stills; else the data folder."
    )
    s3_prefix: str = Field(
        "", max_length=512, description="Folder of the bucket that is ours, e.g. video/prod."
    )
    s3_endpoint_url: Address | None = Field(None, description="Server like S3; else Amazon's.")
    s3_public_endpoint_url: Address | None = Field(
        None,
        description="Where clients reach that server, for upload URLs, if not at the same address.",
    )
    s3_region: str = Field("us-east-1", description="The bucket's region.")
    s3_access_key_id: str | None = Field(
        None, description="Key for the bucket; else boto3 looks where it always does."
    )
    s3_secret_access_key: SecretStr = Field(
        SecretStr(""), description="The key's secret; both or neither."
    )
    node_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        16 * GIB,
        description="Most that a node keeps on its disk of what its tasks read from the bucket or "
        "write there; 0: nothing.",
    )
    previews: bool = Field(
        True, description="Make a small MP4 for the dashboard of media that browsers cannot play."
    )
    preview_max_bytes: int = Field(
        GIB, ge=1024**2, description="Most that a preview takes up; long media get fewer bits."
    )
    source_retention_seconds: Annotated[int | None, Field(ge=0, le=365 * 86_400)] = Field(
        None,
        description="How long media, segments and unused stills stay after a job has ended; "
        "empty: as long as its results.",
    )
    source_retention_max_seconds: Annotated[int | None, Field(ge=0, le=365 * 86_400)] = Field(
        None, description="Most that accounts and jobs may choose instead; empty: no longer."
    )
    result_retention_days: Annotated[int | None, Field(ge=0, le=36_500)] = Field(
        None, description="Ended jobs are erased after so many days; empty: results stay."
    )
    result_retention_max_days: Annotated[int | None, Field(ge=0, le=36_500)] = Field(
        None, description="Most that accounts and jobs may choose instead; empty: no longer."
    )

    @property
    def retention(self) -> Retention:
        """How long ended jobs keep their media and their content."""
        most = (self.source_retention_max_seconds, self.result_retention_max_days)
        return Retention(
            self.source_retention_seconds,
            self.source_retention_seconds if most[0] is None else most[0],
            self.result_retention_days,
            self.result_retention_days if most[1] is None else most[1],
        )

    @field_validator("trusted_proxies", "allowed_networks", "model_plugins", mode="before")
    @classmethod
    def _several_of_a_text(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        if given.lstrip().startswith("["):
            return json.loads(given)
        return [each.strip() for each in given.split(",") if each.strip()]

    @field_validator("blocked_hashes_file", "log_dir", "tags_file", "whisper_weights")
    @classmethod
    def _name_from_anywhere(cls, path: Path | str | None) -> Path | str | None:
        """Replicas work in folders of their own."""
        return path.expanduser().resolve() if isinstance(path, Path) else path

    @field_validator("remote_models")
    @classmethod
    def _can_be_asked(cls, models: dict[str, RemoteModel]) -> dict[str, RemoteModel]:
        possible = [task.name for task in REMOTE_TASKS]
        for name in models:
            if name not in possible:
                raise ValueError(f"{name!r} is none of {', '.join(possible)}")
        return {name: replace(it, url=_as_address(it.url)) for name, it in models.items()}

    @field_validator("raw_decoders")
    @classmethod
    def _decoders_can_be_run(cls, decoders: dict[str, str]) -> dict[str, str]:
        for family, command in decoders.items():
            if family not in RAW_FAMILIES:
                raise ValueError(f"{family!r} is none of {', '.join(RAW_FAMILIES)}")
            command_words(command)
        return decoders

    @model_validator(mode="after")
    def _require_whole_s3_key(self) -> Settings:
        if (self.s3_access_key_id is None) != (not self.s3_secret_access_key.get_secret_value()):
            raise ValueError("VAS_S3_ACCESS_KEY_ID and VAS_S3_SECRET_ACCESS_KEY belong together.")
        return self

    @model_validator(mode="after")
    def _require_whole_oidc_client(self) -> Settings:
        if (self.oidc_issuer is None) != (self.oidc_client_id is None):
            raise ValueError("VAS_OIDC_ISSUER and VAS_OIDC_CLIENT_ID belong together.")
        issuer = self.oidc_issuer or "https:"
        if urlsplit(issuer).scheme != "https" and not is_private_http(issuer):
            raise ValueError("VAS_OIDC_ISSUER must begin with https://.")
        return self

    @property
    def jobs_at_once(self) -> int:
        """How many jobs all runners drive at once."""
        return self.runners * self.runner_concurrency

    def max_upload_bytes(self, tier: Tier) -> int:
        """Return the tier's upload limit."""
        return self.raw_max_bytes if tier is Tier.RAW else self.standard_max_bytes

    def most_replicas(self, task: Task[Any]) -> int:
        """Replicas that a model task may have at most."""
        most = self.model_replicas.get(task.name, task.most_replicas)
        return max(1, self.model_min_replicas, most)

    @property
    def object_store(self) -> ObjectStore:
        """Where media and shards lie: a bucket if one is named, else a folder."""
        if self.s3_bucket is None:
            return FolderStore(self.data_dir / "objects")
        # boto3 takes a while to load, and only S3 needs it.
        from storage.objects.s3 import S3Place, S3Store

        prefix = self.s3_prefix.strip("/")
        place = S3Place(
            bucket=self.s3_bucket,
            prefix=f"{prefix}/" if prefix else "",
            endpoint_url=self.s3_endpoint_url,
            public_endpoint_url=self.s3_public_endpoint_url,
            region=self.s3_region,
            access_key_id=self.s3_access_key_id,
            secret_access_key=self.s3_secret_access_key.get_secret_value() or None,
        )
        return S3Store(place)

    def with_node_cache(self, store: ObjectStore) -> ObjectStore:
        """Return ``store`` for work on media; a folder's objects are files of the node already."""
        if isinstance(store, FolderStore) or not self.node_cache_bytes:
            return store
        from storage.objects.s3 import S3Store

        cache = NodeCache(self.node_cache_bytes)
        return replace(store, cache=cache) if isinstance(store, S3Store) else store


def load_settings(**changes: Any) -> Settings:
    """Return the environment's settings with ``changes``. Raises InvalidSettingsError."""
    try:
        return Settings(**changes)
    except ValidationError as error:
        # Without the values: some are secrets.
        sentences = [
            f"{_variable(each['loc'])}{each['msg'].removeprefix('Value error, ').rstrip('.')}."
            for each in error.errors()
        ]
        raise InvalidSettingsError(" ".join(sentences)) from None
    except SettingsError as error:
        name = str(error).split('"')[1]
        raise InvalidSettingsError(f"VAS_{name.upper()}: Input should be valid JSON.") from None


def _variable(location: tuple[int | str, ...]) -> str:
    """Return the setting that an error of pydantic is about; nothing where it is about several."""
    parts = [str(part) for part in location if part != "[key]"]
    return f"VAS_{parts[0].upper()}{''.join(f'[{part}]' for part in parts[1:])}: " if parts else ""


def require_provider(settings: Settings) -> None:
    """Raise ProviderNotInstalledError if payments are on and the library is missing."""
    if settings.payment_provider is None:
        return
    try:
        found = find_spec(settings.payment_provider)
    except ValueError:
        found = None
    if found is None:
        raise ProviderNotInstalledError(settings.payment_provider)
