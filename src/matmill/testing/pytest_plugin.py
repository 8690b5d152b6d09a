"""The plugin for pytest: a fixture ``emulate`` that fails a test with hazards and shows the report.

Every run of pytest loads it if matmill is installed, so it imports nothing large before a test uses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from matmill.testing.orders import Emulate
    from matmill.testing.report import LaunchReport

_BOOLEANS = {
    "matmill_races": ("look for data races (default true)", True),
    "matmill_initcheck": ("report reads of arrays that are all NaN before a store (default false)", False),
    "matmill_late_copies": ("run each launch again with asynchronous copies as late as allowed (default true)", True),
    "matmill_strict": ("let warnings and notes fail too (default false)", False),
}
#: SARIF logs of the tests so far, and whether a test's call failed.
_LOGS, _FAILED = pytest.StashKey[list[dict[str, Any]]](), pytest.StashKey[bool]()
_MARKER = (
    "emulate(races, initcheck, late_copies, schedules, strict, suppressions, include, options, target): "
    "how the fixture emulate runs the kernels of this test"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options on the command line and in the ini file."""
    group = parser.getgroup("matmill", "CUDA kernels without a GPU")
    group.addoption(
        "--matmill-html", metavar="DIR", type=Path, help="write a page of each emulated launch into this folder"
    )
    group.addoption(
        "--matmill-sarif",
        metavar="FILE",
        type=Path,
        help="write the hazards of all tests for code review tools into FILE",
    )
    group.addoption(
        "--matmill-schedules", metavar="N", help="how many other orders of warps, whatever the ini file says"
    )
    group.addoption(
        "--matmill-redirect", choices=("numba", "triton"), help="emulate what tests launch in this language"
    )
    for name, (text, default) in _BOOLEANS.items():
        parser.addini(name, text, type="bool", default=default)
    parser.addini("matmill_schedules", "how many other orders of warps each launch is run in (default 1)", default="1")
    parser.addini("matmill_suppressions", "a file of accepted hazards: kind, source line, reason", default="")
    parser.addini("matmill_include", "folders of headers", type="paths", default=[])
    parser.addini("matmill_options", "options for NVRTC, such as -DN=4", type="args", default=[])
    parser.addini("matmill_target", "the GPU to compile for (default sm_90a)", default="sm_90a")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)
    if language := config.getoption("--matmill-redirect"):
        from matmill.testing.redirect import redirected  # noqa: PLC0415 - as below

        stack, settings = ExitStack(), _defaults(config)
        settings["suppressions"] = settings["suppressions"] or ()
        del settings["schedules"]
        stack.enter_context(redirected(language, **settings | {"late_copies": False}))
        config.add_cleanup(stack.close)


def _defaults(config: pytest.Config) -> dict[str, Any]:
    """Return the ini file's settings as the marker's keywords."""
    settings: dict[str, Any] = {name.removeprefix("matmill_"): config.getini(name) for name in _BOOLEANS}
    suppressions = str(config.getini("matmill_suppressions"))
    schedules = str(config.getoption("--matmill-schedules") or config.getini("matmill_schedules"))
    if not schedules.isdigit():
        raise pytest.UsageError(f"matmill_schedules: got {schedules!r}; wanted a whole number. Write 0 for one order.")
    return settings | {
        "schedules": int(schedules),
        "suppressions": config.rootpath / suppressions if suppressions else None,
        "include": tuple(config.getini("matmill_include")),
        "options": tuple(config.getini("matmill_options")),
        "target": config.getini("matmill_target"),
    }


@pytest.fixture
def emulate(request: pytest.FixtureRequest) -> Iterator[Emulate]:
    """Run a kernel as :func:`matmill.emulate` does, in several orders of its warps, and fail the test at hazards.

    Paths are relative to the test's file. ``check=False`` returns the report instead of failing; other keywords are
    those of :func:`matmill.emulate` and override what the marker ``emulate`` and the ini file say.
    """
    from matmill.testing.orders import Emulate  # noqa: PLC0415 — loaded with a test that asks for it

    settings = _defaults(request.config)
    for marker in reversed(list(request.node.iter_markers("emulate"))):
        unknown = marker.kwargs.keys() - settings.keys()
        if unknown or marker.args:
            wrong = ", ".join([*map(repr, marker.args), *sorted(unknown)])
            raise pytest.UsageError(
                f"marker emulate: got {wrong}; wanted keywords of {', '.join(settings)}. Name them."
            )
        settings |= marker.kwargs
    call = Emulate(Path(request.node.path).parent, settings)
    yield call
    if call.reports:
        _keep(request, call.reports)


def _keep(request: pytest.FixtureRequest, reports: list[LaunchReport]) -> None:
    """Write the pages of a test's launches, and keep its hazards for the session's log."""
    config = request.config
    if (folder := config.getoption("--matmill-html")) is not None:
        from matmill.page.launch import write_pages  # noqa: PLC0415 — loaded with a test that asks for it

        write_pages(folder, request.node.nodeid, reports, failed=request.node.stash.get(_FAILED, False))
    if config.getoption("--matmill-sarif") is not None:
        from matmill.testing.sarif import sarif  # noqa: PLC0415 — the same

        config.stash.setdefault(_LOGS, []).append(sarif(reports, config.rootpath))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the log of all hazards, or send this worker's to the process that writes it."""
    config = session.config
    path: Path | None = config.getoption("--matmill-sarif")
    if path is None:
        return
    logs = config.stash.get(_LOGS, [])
    if hasattr(config, "workeroutput"):
        config.workeroutput["matmill_sarif"] = logs
        return
    from matmill.testing.sarif import merged  # noqa: PLC0415 — the same

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(merged(logs), indent=1) + "\n", encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the log of a worker of pytest-xdist."""
    node.config.stash.setdefault(_LOGS, []).extend(getattr(node, "workeroutput", {}).get("matmill_sarif", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note whether a test failed, and show its launches' reports unless its failure is one.

    Of a test that passes, ``pytest -rP`` shows the verdicts.
    """
    if call.when == "call":
        item.stash[_FAILED] = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
    reports = getattr(getattr(item, "funcargs", {}).get("emulate"), "reports", [])
    shown = call.excinfo is not None and hasattr(call.excinfo.value, "report")  # whether the exception has shown them
    if call.when == "call" and not shown:
        failed = call.excinfo is not None
        texts = [str(report) if failed else report.advice() for report in reports if failed or report.verdict]
        if texts:
            item.add_report_section("call", "matmill", "\n\n".join(texts))
    return (yield)
