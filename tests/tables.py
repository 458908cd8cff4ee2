"""Tables of cases in one test: what holds for every row is one rule, and one item of the run.

``pytest.mark.parametrize`` makes an item of each row, with its set-up and its line in the report.
Where rows need no fixture of their own, ``every`` runs them one after the other, and the failure
lists each row that broke the rule. What a row writes below ``tmp_path`` is in a folder of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

Test = Callable[..., Any]
_FAILURES = (Exception, pytest.fail.Exception, pytest.skip.Exception)
"""A row that skips would leave out the rows behind it without a word: it fails."""


def every(
    names: str | Sequence[str],
    rows: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], object] | None = None,
) -> Callable[[Test], Test]:
    """Run a test for each row, as ``pytest.mark.parametrize`` does, in one item."""
    wanted = [each.strip() for each in names.split(",")] if isinstance(names, str) else [*names]
    cases = [*_cases(wanted, [*rows], ids)]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        async def run_all_later(**fixtures: Any) -> None:
            failures = []
            for name, row in cases:
                try:
                    await test(**_apart(fixtures, row))
                except _FAILURES as failure:
                    failures.append(_named(failure, name))
            _report(failures, len(cases))

        def run_all(**fixtures: Any) -> None:
            failures = []
            for name, row in cases:
                try:
                    test(**_apart(fixtures, row))
                except _FAILURES as failure:
                    failures.append(_named(failure, name))
            _report(failures, len(cases))

        wrapped: Any = run_all_later if inspect.iscoroutinefunction(test) else run_all
        wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
        wrapped.__module__, wrapped.__qualname__ = test.__module__, test.__qualname__
        wrapped.pytestmark = getattr(test, "pytestmark", [])
        if not cases:  # the media that it needs are absent, for one
            wrapped = pytest.mark.skip(reason="there is no row")(wrapped)
        left = [it for it in signature.parameters.values() if it.name not in wanted]
        wrapped.__signature__ = signature.replace(parameters=left)
        return wrapped  # type: ignore[no-any-return]

    return decorate


def _apart(fixtures: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """What a row is called with: files of the row before are not in its folder."""
    given = fixtures | row
    if isinstance(folder := fixtures.get("tmp_path"), Path):
        given["tmp_path"] = Path(mkdtemp(dir=folder))
    return given


def _cases(
    names: Sequence[str],
    rows: Sequence[Any],
    ids: Iterable[str] | Callable[[Any], object] | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    given = [*ids] if ids is not None and not callable(ids) else [None] * len(rows)
    for row, own in zip(rows, given, strict=True):
        is_param = isinstance(row, type(pytest.param()))
        values = row.values if is_param else row if len(names) > 1 else (row,)
        name = own or (row.id if is_param else None)
        if name is None:
            name = "-".join(str(ids(each) if callable(ids) else each) for each in values)
        yield str(name), dict(zip(names, values, strict=True))


def _named(failure: BaseException, name: str) -> Exception:
    if not isinstance(failure, Exception):  # pytest's own are BaseExceptions
        failure = AssertionError(str(failure))
    failure.add_note(f"Row: {name}")
    return failure


def _report(failures: list[Exception], rows: int) -> None:
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {rows} rows", failures)
