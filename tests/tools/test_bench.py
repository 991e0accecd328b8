from __future__ import annotations

from tools import bench

RECORDED = {"apply_scale 1000 create": 1.2, "apply_scale 1000 adopt": 0.2}


def test_a_greater_ratio_is_a_regression() -> None:
    """A ratio clearly above the recorded one is reported; one a little above, or below, is not."""
    most = {"apply_scale 1000 create": 1.68, "apply_scale 1000 adopt": 0.3}
    assert list(bench.find_regressions(RECORDED, most)) == []
    assert list(bench.find_regressions(RECORDED, dict.fromkeys(RECORDED, 0.01))) == []

    assert list(bench.find_regressions(RECORDED, {name: most[name] + 0.01 for name in most})) == [
        "apply_scale 1000 create: 1.69, more than 1.68 (recorded: 1.2)",
        "apply_scale 1000 adopt: 0.31, more than 0.3 (recorded: 0.2)",
    ]


def test_a_ratio_that_is_not_measured_is_a_regression() -> None:
    """A ratio that a benchmark no longer prints does not pass; a new one does."""
    measured = {"apply_scale 1000 create": 1.2, "apply_scale 1000 destroy": 9.0}
    assert list(bench.find_regressions(RECORDED, measured)) == [
        "apply_scale 1000 adopt: not measured any more; record it again with: make bench-record"
    ]


def test_the_ratios_of_a_document_have_names() -> None:
    """A ratio is named by its benchmark, its size and what was measured."""
    apply = {
        "benchmark": "apply_scale",
        "rows": [{"streams": 1000, "ratios": {"create": {"wall": 3.0, "cpu": 1.2}}}],
    }
    fleet = {"benchmark": "fleet", "rows": [{"domains": 10, "streams": 101, "timeouts": 1.0}]}
    assert dict(bench.list_ratios(apply)) == {"apply_scale 1000 create": 1.2}
    assert dict(bench.list_ratios(fleet)) == {"fleet 10 timeouts": 1.0}


def test_the_recorded_ratios_are_those_of_a_check() -> None:
    """The committed file has ratios of each benchmark that a check runs."""
    recorded = bench.read_results()["ratios"]
    assert {name.split()[0] for name in recorded} == {each.name for each in bench.BENCHMARKS}
