"""The table of metrics, the dashboard that reads them, and what requests and jobs record."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.observability.metrics import (
    CATALOGUE,
    DISK_FREE,
    HTTP_REQUESTS,
    JOBS_ENDED,
    MEDIA,
    STAGES,
    Kind,
    Metric,
    record_disks,
    record_job_end,
    record_media,
    record_request,
    record_stage,
)
from storage.types import JobState, StageName, StageStatus
from tests.places import PROJECT
from tests.serve_app.observability.metrics import RecordedMetrics
from tests.tables import every

DASHBOARD: dict[str, Any] = json.loads((PROJECT / "docs" / "grafana-dashboard.json").read_text())
EXPORTED = {name for metric in CATALOGUE for name in metric.series}
LABELS = {name: {*metric.labels, "le"} for metric in CATALOGUE for name in metric.series}


def by_name(metric: Metric) -> str:
    return metric.name


@every("metric", CATALOGUE, ids=by_name)
def test_names_say_whose_they_are_and_prometheus_takes_them(metric: Metric) -> None:
    assert re.fullmatch(r"vas_[a-z][a-z_]*[a-z]", metric.name)
    assert not metric.name.endswith(("_total", "_bucket", "_sum", "_count"))
    assert metric.description.endswith(".")


@every("metric", CATALOGUE, ids=by_name)
def test_histograms_and_only_they_have_buckets(metric: Metric) -> None:
    assert bool(metric.boundaries) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.boundaries) == sorted(set(metric.boundaries))
    assert all(bound > 0 for bound in metric.boundaries)


def test_no_metric_is_there_twice() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert {"title", "uid", "time", "templating", "panels"} <= set(DASHBOARD)
    # Imported anywhere: the data source is asked for, never a name of ours.
    [source] = [it for it in DASHBOARD["templating"]["list"] if it["type"] == "datasource"]
    assert source["query"] == "prometheus"
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(identifiers) == len(set(identifiers))
    for panel in panels():
        assert panel["title"]
        assert panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${" + source["name"] + "}"}
        assert {"h", "w", "x", "y"} == set(panel["gridPos"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@every("query", queries())
def test_the_dashboard_asks_for_nothing_that_is_not_exported(query: str) -> None:
    asked = set(re.findall(r"\b(?:ray_)?vas_\w+", query))
    assert asked
    assert asked <= EXPORTED


@every("query", queries())
def test_the_dashboard_groups_by_labels_that_the_metric_has(query: str) -> None:
    [allowed] = {frozenset(LABELS[name]) for name in re.findall(r"ray_vas_\w+", query)}
    for group in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",")} <= allowed
    for label in re.findall(r"[{,]\s*(\w+)\s*=~?", query):
        assert label in allowed


def test_every_metric_is_shown_somewhere() -> None:
    shown = {name for query in queries() for name in re.findall(r"ray_vas_\w+", query)}
    assert [metric.name for metric in CATALOGUE if not shown & set(metric.series)] == []


class Route:
    """What a request's scope holds of the route that took it."""

    def __init__(self, name: str, operation_id: str | None = None) -> None:
        self.name = name
        self.operation_id = operation_id


@every(
    ("scope", "status", "labels"),
    [
        pytest.param(
            {"route": Route("get_job", "getJob")},
            200,
            {"operation": "getJob", "status": "2xx"},
            id="an operation",
        ),
        pytest.param(
            {"route": Route("healthz")},
            503,
            {"operation": "healthz", "status": "5xx"},
            id="a page without an operation id",
        ),
        pytest.param(
            {"path": "/wp-login.php"},
            404,
            {"operation": "none", "status": "4xx"},
            id="no such address: never its path, of which there is no end",
        ),
        pytest.param(
            {"route": Route("put", "upload")},
            0,
            {"operation": "upload", "status": "none"},
            id="broken off before an answer began",
        ),
    ],
)
def test_a_request_is_recorded_by_operation_and_class(
    scope: dict[str, Any], status: int, labels: dict[str, str]
) -> None:
    metrics = RecordedMetrics()
    record_request(metrics, scope, status, 0.25)
    assert metrics.of(HTTP_REQUESTS, **labels) == [0.25]


def test_jobs_stages_and_media_seconds_are_recorded_once_they_are_true() -> None:
    metrics = RecordedMetrics()
    record_job_end(metrics, None)
    record_job_end(metrics, JobState.FAILED)
    record_stage(metrics, StageName.VISION, StageStatus.COMPLETED, 3.5)
    record_media(metrics, StageName.VISION, 12.0)
    record_media(metrics, StageName.TRANSCRIPT, 0.0)
    assert metrics.of(JOBS_ENDED, state="failed") == [1]
    assert metrics.of(STAGES, stage="vision", outcome="completed") == [3.5]
    assert metrics.of(MEDIA, stage="vision") == [12.0]
    assert len(metrics.values) == 3


def test_free_space_is_recorded_of_folders_that_are_there(tmp_path: Path) -> None:
    metrics = RecordedMetrics()
    record_disks(metrics, tmp_path)
    record_disks(metrics, tmp_path / "absent")
    [free] = metrics.of(DISK_FREE, folder="data")
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert len(metrics.of(DISK_FREE, folder="temporary")) == 2
