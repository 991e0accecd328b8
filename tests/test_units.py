from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsplan import units

INT64 = 2**63 - 1


@given(st.integers(min_value=-INT64, max_value=INT64))
def test_durations_read_back(ns: int) -> None:
    """A printed duration is read as the same number, and integers are nanoseconds."""
    assert units.parse_duration(units.format_duration(ns)) == ns
    assert units.parse_duration(ns) == ns


def test_durations_as_people_write_them() -> None:
    """A duration has any unit of the nats CLI, sums and fractions."""
    for text, ns in [
        ("1y", 365 * 86400 * 10**9),
        ("1M", 30 * 86400 * 10**9),
        ("1w", 7 * 86400 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("1.5s", 1_500_000_000),
        ("10us", 10_000),
        ("10µs", 10_000),
        ("7ns", 7),
        ("0", 0),
        ("-1s", -(10**9)),
        (" 2m ", 120 * 10**9),
        ("0.000000001s", 1),
    ]:
        assert units.parse_duration(text) == ns, text


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "5 s", "1h-5m", "1x", "0.5ns", "300y", "1e3s", True, 1.5, None, [1], 2**63],
)
def test_no_durations(text: object) -> None:
    """A text that is no duration is an error that quotes it; none is rounded or overflows."""
    with pytest.raises(ValueError, match=r"duration|finer|longer"):
        units.parse_duration(text)


@given(st.integers(min_value=0, max_value=6), st.integers(min_value=-7, max_value=7))
def test_sizes_read_back(power: int, count: int) -> None:
    """A printed size is read as the same number; both spellings are 1024-based."""
    size = count * 1024**power

    assert units.parse_size(units.format_size(size)) == size
    assert units.parse_size(f"{count}{' KMGTPE'[power].strip()}B") == size


def test_sizes_as_people_write_them() -> None:
    """A size has a unit in any case, a blank, or a fraction that is a whole number of bytes."""
    for text, size in [
        ("10GiB", 10 << 30),
        ("512MB", 512 << 20),
        ("1.5KiB", 1536),
        ("-1.5k", -1536),
        ("-1", -1),
        ("4096", 4096),
        ("1 mib", 1 << 20),
    ]:
        assert units.parse_size(text) == size, text


@pytest.mark.parametrize("text", ["", "GiB", "1XB", "1.1B", "8EiB", "1e3", True, 2.0, None, 2**63])
def test_no_sizes(text: object) -> None:
    """A text that is no size is an error; 8 EiB is one more than the server can count."""
    with pytest.raises(ValueError, match=r"size|finer|larger"):
        units.parse_size(text)


@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)),  # noqa: DTZ001 - the zone is added
    st.integers(min_value=-14 * 60, max_value=14 * 60),
    st.integers(min_value=0, max_value=10**9 - 1),
)
def test_instants_are_equal_in_every_zone(moment: datetime, minutes: int, ns: int) -> None:
    """An instant has the same text whatever zone it was written in, with all its nanoseconds."""
    utc = moment.replace(microsecond=0, tzinfo=UTC)
    local = utc.astimezone(timezone(timedelta(minutes=minutes)))
    text = f"{local.replace(tzinfo=None).isoformat()}.{ns:09}{local.isoformat()[19:]}"
    shown = units.normalize_time(text)

    assert shown == units.normalize_time(shown)
    assert units.parse_instant(shown) == units.instant_of(utc) + ns
    assert units.parse_moment(shown) == utc + timedelta(microseconds=ns // 1000)
    assert shown.startswith(utc.isoformat()[:19])
    assert shown.endswith("Z")
    assert int((shown[20:-1] or "0").ljust(9, "0")) == ns


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01",
        "2026-13-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "0001-01-01T00:00:00+14:00",
        "soon",
        5,
        None,
    ],
)
def test_no_instants(text: object) -> None:
    """A date without a time, a time without a zone, and an impossible date are errors."""
    with pytest.raises(ValueError, match="not a time"):
        units.parse_instant(text)


@given(st.integers(min_value=-62_000_000_000 * 10**9, max_value=250_000_000_000 * 10**9))
def test_instants_read_back(instant: int) -> None:
    """A printed instant is read as the same number of nanoseconds, also before 1970."""
    assert units.parse_instant(units.format_instant(instant)) == instant


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (units.parse_instant("2026-12-31T23:59:59.999999999Z") + 1, "2027-01-01T00:00:00Z"),
        (1_500_000_000, "1970-01-01T00:00:01.5Z"),
        (units.parse_instant("0001-01-01T00:00:00Z"), "0001-01-01T00:00:00Z"),
    ],
)
def test_instants_as_servers_write_them(instant: int, text: str) -> None:
    """An instant is printed without trailing zeros, with four digits for the year."""
    assert units.format_instant(instant) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (1000, "1,000 messages")]
)
def test_counts(number: int, text: str) -> None:
    """Exactly one is singular, and large numbers have separators."""
    assert units.count_text(number, "message") == text


def test_irregular_counts() -> None:
    """A plural that does not end with s is given."""
    assert units.count_text(1, "entry", "entries") == "1 entry"
    assert units.count_text(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (1, 1, "1 message"),
        (0, 1, "up to 1 message"),
        (3, 1000, "between 3 and 1,000 messages"),
        (0, 2, "up to 2 messages"),
    ],
)
def test_bounds(least: int, most: int, text: str) -> None:
    """A number between bounds shows the lower one where there is one."""
    assert units.bounds_text(least, most, "message") == text
    assert units.bounds_text(least, most) == text.rpartition(" ")[0]
