"""Adoption of every known configuration: the plan is empty, and a new apply restores it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.address import Address
from tests.adoption.known_configs import (
    KnownConfig,
    configs_of_cases,
    measured_configs,
    measured_updates,
)
from tests.adoption.round_trip import RoundTrip
from tests.fields.strategies import ORIGINS
from tests.support.raw import Raw
from tests.support.workspaces import hub_leaf_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

pytestmark = pytest.mark.matrix


def test_every_acceptance_case(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Every configuration of the acceptance cases survives adoption, destroy and apply."""
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        trip = RoundTrip(hub_leaf_space(tmp_path, clean_hub_leaf), raw)
        known = configs_of_cases(tmp_path / "cases", trip.level("hub"))
        refused = [one for one in known if not trip.make(one)]
        assert len(trip.configs) > 12 * len(refused)
        assert {one.address.kind for one in trip.configs} == {
            "stream",
            "consumer",
            "kv",
            "object_store",
        }
        trip.adopt_and_recreate()


def test_every_measured_configuration(tmp_path: Path, server: Server) -> None:
    """Both sides of every measured update survive adoption, destroy and apply."""
    with Raw(server.url) as raw:
        trip = _beside_origins(tmp_path, server, raw)
        everything = list(measured_configs())
        refused = [one for one in everything if not trip.make(one)]
        assert len(everything) > 120
        assert len(trip.configs) > 3 * len(refused)
        trip.adopt_and_recreate()


def _beside_origins(folder: Path, server: Server, raw: Raw) -> RoundTrip:
    """Add the streams that the measured mirrors, sources and consumers refer to."""
    for name in ORIGINS:
        raw.create(name, subjects=[f"{name.lower()}.>"], allow_direct=name == "ORGD")
    raw.create("S", subjects=["s.>"])
    return RoundTrip(single_space(folder, server), raw)


def test_every_measured_update(tmp_path: Path, server: Server) -> None:
    """A configuration that only updates can reach is adopted unchanged."""
    with Raw(server.url) as raw:
        trip = _beside_origins(tmp_path, server, raw)
        made = [(old, new) for old, new in measured_updates() if trip.make(old)]
        updated = [(old, new) for old, new in made if trip.update(new)]
        assert len(updated) > 60
        trip.adopt()


def test_sealed_streams_and_stores(tmp_path: Path, server: Server) -> None:
    """Sealed streams and stores are adopted unchanged, although no file can create them."""
    with Raw(server.url) as raw:
        trip = RoundTrip(single_space(tmp_path, server), raw)
        for name, subjects in (("OLD", ["old"]), ("OBJ_OLD", ["$O.OLD.C.>", "$O.OLD.M.>"])):
            made = raw.create(name, subjects=subjects, max_msgs=7)
            raw.api_ok(f"$JS.API.STREAM.UPDATE.{name}", made["config"] | {"sealed": True})
        text = trip.adopt()
    assert "sealed: true" in text


def test_texts_that_look_like_references(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Keys and values with `${`, YAML syntax or invisible characters survive an import."""
    signs = [
        "${",
        "$${",
        "${x",
        "$${y}",
        "${env.HOME}",
        "${domain}",
        "a${b}c",
        "$$${",
        "::",
        "##[x]",
        "x: y",
        "- a",
        "*a",
        "&a",
        "!a",
        "<<",
        "~",
    ]
    signs += [
        "\u200b",
        "\ufeff",
        "\U000e0041",
        "a\nb",
        "a\tb",
        "'",
        '"',
        "\\",
        "#",
        " a ",
        "010",
        "NO",
        "hub",
        "leaf ${domain} hub",
    ]
    metadata = {sign: signs[-number - 1] for number, sign in enumerate(signs)}
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        trip = RoundTrip(hub_leaf_space(tmp_path, clean_hub_leaf), raw)
        for domain in ("hub", "leaf"):
            stream = {
                "name": "S${x}",
                "subjects": [f"{domain}.${{b}}.>"],
                "metadata": metadata,
                "description": "${var.x} $${",
            }
            assert trip.make(KnownConfig(Address(domain, "stream", "S${x}"), stream))
            consumer = {"durable_name": "C${y}", "metadata": metadata, "ack_policy": "explicit"}
            assert trip.make(KnownConfig(Address(domain, "consumer", "S${x}/C${y}"), consumer))
        trip.adopt_and_recreate()
