"""Serve deployments of the model tasks: how many replicas, how they grow, what they take."""

from __future__ import annotations

from ray import serve
from ray.serve import Application

from models.provider import DEPLOYMENT_NAMES
from models.registry import REGISTRY, Task
from models.replica import ModelReplica
from serve_app.observability.ray_metrics import ModelObserver
from serve_app.settings import Settings
from serve_app.worker.model_capacity import concurrent_inputs, most_replicas

_QUEUED_BATCHES = 1024
"""Inputs that may wait in each caller; beyond it callers are told at once."""


def model_application(settings: Settings, task: Task) -> Application:
    """One task as a deployment that grows with its queue and shrinks when idle."""
    entry = REGISTRY[settings.model_profile][task]
    concurrency = concurrent_inputs(settings, task)
    options = {"num_cpus": 0.0, "num_gpus": entry.gpus}
    if not entry.gpus:
        options = {"num_cpus": settings.model_cpus}
    return serve.deployment(
        ModelReplica,
        name=DEPLOYMENT_NAMES[task],
        max_ongoing_requests=concurrency,
        max_queued_requests=_QUEUED_BATCHES,
        autoscaling_config={
            "min_replicas": settings.model_min_replicas,
            "initial_replicas": max(1, settings.model_min_replicas),
            "max_replicas": most_replicas(settings, task),
            "target_ongoing_requests": max(1, concurrency // 2),
            "upscale_delay_s": settings.model_upscale_seconds,
            "downscale_delay_s": settings.model_downscale_seconds,
        },
        health_check_period_s=10,
        health_check_timeout_s=120,
        graceful_shutdown_timeout_s=20,
        ray_actor_options=options,
    ).bind(settings.model_profile, task, settings.models_dir, ModelObserver(settings, task))
