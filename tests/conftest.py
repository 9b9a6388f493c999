"""What every test may use, and the rule that nothing skips where everything must be there."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

REQUIRE_ALL = os.environ.get("UNI_AGENT_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under UNI_AGENT_REQUIRE_ALL=1 a skip is a failure: a check that silently does not run is none."""
    del item, call
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but nothing may skip here: {report.longrepr}"
    return report
