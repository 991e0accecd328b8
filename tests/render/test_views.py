from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.plan import FieldChange, Hazard
from jsplan.render import (
    apply_text,
    diagnostics_text,
    drift_text,
    plan_text,
    resource_text,
    state_text,
    summary,
)
from jsplan.units import SECOND
from tests.render import samples
from tests.render.texts import text_of

if TYPE_CHECKING:
    from tests.render.texts import Compare


def test_a_plan_with_everything(golden: Compare) -> None:
    """A plan with every action, effect, hazard, drift, deferral and finding has its golden text."""
    text = golden(
        "plan_everything", lambda console: plan_text.render(samples.everything(), console)
    )

    assert "max_age: 1y -> 1d" in text
    assert "SAME was changed" not in text, "drift of what this plan does not touch is noise"


def test_consumers_are_below_their_stream() -> None:
    """A consumer follows its stream, which stands where the most severe change of both belongs."""
    found = plan_text.changed_resources(
        samples.plan(
            samples.resource("hub/consumer/A/NEW", ["create"], after={"name": "NEW"}),
            samples.resource("hub/consumer/A/OLD", ["delete"], before={"name": "OLD"}),
            samples.resource("hub/consumer/KV_CONFIG/READER", ["create"], after={"name": "R"}),
            samples.resource("hub/kv/CONFIG", ["create"], after=samples.STREAM),
            samples.resource("hub/stream/A", ["update"], after=samples.STREAM),
            samples.resource("hub/stream/B", ["update"], after=samples.STREAM),
        )
    )

    assert [resource.address for resource in found] == [
        "hub/kv/CONFIG",
        "hub/consumer/KV_CONFIG/READER",
        "hub/stream/B",
        "hub/stream/A",
        "hub/consumer/A/NEW",
        "hub/consumer/A/OLD",
    ]


def test_what_is_alike_in_few_domains_stays_at_its_place() -> None:
    """Two streams that are alike do not move between each other's consumers."""
    addresses = [f"{domain}/{name}" for domain in "ab" for name in ("stream/S", "consumer/S/C")]
    found = samples.plan(*(samples.resource(a, ["create"], after={"name": "x"}) for a in addresses))
    groups = plan_text.group_changes(plan_text.changed_resources(found))

    assert [group.resource.address for group in groups] == addresses


@pytest.mark.parametrize("kind", ["stream", "kv", "object_store"])
def test_a_create_shows_storage_and_replicas(kind: str) -> None:
    """Storage and replicas are shown also where the files leave them to the server."""
    name = {"stream": "X", "kv": "KV_X", "object_store": "OBJ_X"}[kind]
    made = samples.resource(f"hub/{kind}/X", ["create"], after={"name": name})

    shown = resource_text.render(made).plain()

    assert "+ storage: file" in shown
    assert "+ num_replicas: 1" in shown


def test_an_import_speaks_of_importing() -> None:
    """An import names no option that the user did not write, and no plan."""
    kept = samples.resource("hub/stream/A", ["no-op"], importing=True)
    found = samples.plan(kept, targets=["**"], options={"import": ["**"]})

    text = text_of(lambda console: plan_text.render(found, console))

    assert text.startswith("jsplan will import the following (workspace shop):")
    assert text.endswith("\nImport: 1 resource.\n")
    assert "--target" not in text
    assert "lan" not in text.replace("jsplan", "")


def test_a_plan_without_changes_is_one_line() -> None:
    """Ten thousand unchanged resources are not mentioned."""
    unchanged = samples.plan(
        *[samples.resource(f"hub/stream/S{n}", ["no-op"]) for n in range(10_000)]
    )

    assert (
        text_of(lambda console: plan_text.render(unchanged, console))
        == "No changes. Your streams match the configuration.\n"
    )
    assert summary.is_quiet(unchanged)


def test_nothing_to_destroy_is_said_as_such() -> None:
    """A destroy of a workspace that manages nothing says that there is nothing to destroy."""
    nothing = samples.plan(mode="destroy")

    assert (
        text_of(lambda console: plan_text.render(nothing, console))
        == "No changes. There is nothing that this workspace manages.\n"
    )


def test_a_fleet_is_one_paragraph(golden: Compare) -> None:
    """The same change in two hundred domains is written once; one with a hazard is written out."""
    golden("plan_fleet", lambda console: plan_text.render(samples.fleet(200), console))


def test_opening_many_stores_is_a_page(golden: Compare) -> None:
    """New streams, sources, deferrals and findings of many stores are each one line."""
    text = golden(
        "plan_opening", lambda console: plan_text.render(samples.store_opening(500), console)
    )

    assert len(text.splitlines()) < 60
    assert 'sources["SALES@$JS.${domain}.API"] in 500 domains: store-{001..500}' in text


def test_verbose_leaves_nothing_out() -> None:
    """With -v each store, each source and each finding has its own line."""
    text = text_of(
        lambda console: plan_text.render(samples.store_opening(30), console, verbose=True)
    )

    assert (
        text.count('sources["SALES@$JS.store-'),
        text.count("is odd"),
        text.count("messages a day"),
    ) == (30, 30, 30)
    assert text.count("Deferred: domain") == 15


def test_verbose_writes_out_the_fleet() -> None:
    """With -v every resource has its own paragraph."""
    text = text_of(lambda console: plan_text.render(samples.fleet(20), console, verbose=True))

    assert text.count("will be updated in place") == 20


def test_a_destroy_plan(golden: Compare) -> None:
    """A destroy says so in its first line."""
    gone = samples.resource("hub/stream/A", ["delete"], before=samples.STREAM)
    guard = Diagnostic(
        "error",
        "JS301",
        "is guarded by prevent_destroy",
        "Lift it.",
        "hub/stream/A",
        SourceRange("jsplan.yaml", 3, 5),
    )
    made = samples.plan(gone, mode="destroy", targets=["hub/stream/A"], diagnostics=[guard])
    golden("plan_destroy", lambda console: plan_text.render(made, console))


def test_an_errored_plan_never_says_no_changes() -> None:
    """A plan with errors ends with the errors and never says that there are no changes."""
    broken = samples.plan(
        errored=True, diagnostics=[Diagnostic("error", "JS410", "wrong environment")]
    )
    text = text_of(lambda console: plan_text.render(broken, console))

    assert "No changes" not in text
    assert "The plan has errors; nothing can be applied." in text


def test_refresh_only_shows_all_drift() -> None:
    """With --refresh-only all drift is shown, and that nothing is sent."""
    found = samples.everything()
    step = replace(found.steps[0], op="state.update")
    plan = samples.plan(mode="refresh-only", resource_drift=found.resource_drift, steps=[step])
    text = text_of(lambda console: plan_text.render(plan, console))

    assert "hub/stream/SAME was changed (cosmetic)" in text
    assert "Nothing is sent to a server" in text


def test_an_apply_that_went_well() -> None:
    """A successful apply is the one line that scripts look for."""
    text = text_of(lambda console: apply_text.render(samples.complete_apply(), console))

    assert text == "Apply complete! Resources: 2 added, 1 changed, 1 replaced, 0 destroyed.\n"


def test_an_apply_in_part(golden: Compare) -> None:
    """An apply in part shows failed, unanswered and skipped steps apart."""
    golden("apply_partial", lambda console: apply_text.render(samples.partial_apply(), console))


def test_failures_in_many_domains_are_one() -> None:
    """The same refusal in forty stores is one line with the stores; another one stays apart."""
    steps = [
        StepResult(
            f"s{n}",
            f"store-{n:03}/stream/A",
            "stream.create",
            "failed",
            f"domain store-{n:03} refused it: no space",
        )
        for n in range(40)
    ]
    steps.append(StepResult("s40", "hub/stream/B", "stream.update", "failed", "no suitable peers"))
    text = text_of(lambda console: apply_text.render(ApplyResult("p", steps, {}, {}, 6), console))

    assert (
        "Error: ${domain}/stream/A stream.create failed, in 40 domains: store-{000..039}\n  each domain refused it: no space"
        in text
    )
    assert "Error: hub/stream/B stream.update failed\n  no suitable peers" in text
    assert text.count("Error:") == 2


def test_skipped_steps_of_offline_domains() -> None:
    """Steps of offline domains are no failures, and many such domains are one line."""
    steps = [
        StepResult(
            f"s{n}",
            f"s-{n // 2}/stream/A",
            "stream.create",
            "skipped",
            f"domain s-{n // 2} is offline",
        )
        for n in range(10)
    ]
    text = text_of(lambda console: apply_text.render(ApplyResult("p", steps, {}, {}, 6), console))

    assert "Not done: each domain is offline, in 5 domains: s-{0..4} (10 steps)" in text
    assert "depends on what failed" not in text


def test_offline_domains_are_listed_together() -> None:
    """Drift groups excused offline domains by reason and lists each of the others."""
    week = 7 * 86400 * SECOND
    offline = [
        {
            "domain": f"s-{n:02}",
            "reason": f"no responders on $JS.s-{n:02}.API",
            "may_be_offline": week,
            "excused": True,
        }
        for n in range(30)
    ]
    offline.append(
        {
            "domain": "x",
            "reason": "no answer",
            "may_be_offline": week,
            "excused": False,
            "last_seen": "2026-01-01T00:00:00Z",
        }
    )
    text = text_of(
        lambda console: drift_text.render(replace(samples.drift(), offline=offline), console)
    )

    assert (
        "Offline: in 30 domains: s-{00..29}: no responders on $JS.${domain}.API (within its may_be_offline)"
        in text
    )
    assert (
        "Not read: x: no answer (longer than its may_be_offline of 1w; last seen 2026-01-01T00:00:00Z)"
        in text
    )


def test_drift(golden: Compare) -> None:
    """Each kind of finding has its section, and the summary line is there."""
    text = golden(
        "drift", lambda console: drift_text.render(samples.drift(), console, verbose=True)
    )

    assert "Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged." in text


def test_no_drift() -> None:
    """Drift without findings is said in words and in the summary line."""
    quiet = replace(
        samples.drift(),
        resource_drift=[],
        replication=[],
        unmanaged=[],
        offline=[],
        mutes=[],
        deferred=[],
        pending=0,
    )

    assert text_of(lambda console: drift_text.render(quiet, console)) == (
        "No drift.\nDrift: 0 changed, 0 missing, 0 unhealthy, 0 unmanaged.\n"
    )


def test_state(golden: Compare) -> None:
    """The state shows each resource with units, its guard, and steps that never ended."""
    golden("state", lambda console: state_text.render(samples.state(), console))


def test_an_entry_of_the_state_has_no_time() -> None:
    """The state knows the time of a bucket and not that of an entry, so it shows none."""
    entry = {"origin": "created", "created": "2026-01-01T00:00:00Z"}

    shown = text_of(lambda console: state_text.resource("hub/kv_entry/B/k", entry, console))
    assert shown == "hub/kv_entry/B/k (created)\n\n"


def test_findings(golden: Compare) -> None:
    """A finding has severity, address, summary, code, place and detail."""
    findings = [
        Diagnostic(
            "error",
            "JS101",
            'unknown key "max_agee". Did you mean "max_age"?',
            "",
            "hub/stream/A",
            SourceRange("a.yaml", 3, 5),
        ),
        Diagnostic("warning", "JS102", "odd", "Two\nlines."),
        Diagnostic("info", "JS103", "note"),
    ]
    golden("findings", lambda console: diagnostics_text.render(findings, console))


def test_foreign_text_cannot_move_the_cursor() -> None:
    """Control characters, direction overrides and rich markup of a server are shown as text."""
    evil = "\x1b[2J[red]\u202eabc\nyes\ud800\x9b"
    change = samples.resource(
        "hub/stream/[bold]X",
        ["update"],
        fields=(FieldChange("description", "old", evil, "in_place"),),
    )
    change.hazards = [Hazard("MOVES_DATA", evil, blocking=False, causes=[evil + "!"])]
    found = Diagnostic("warning", "JS1", evil, evil, evil, SourceRange(evil, 1, 1))
    text = text_of(
        lambda console: plan_text.render(samples.plan(change, diagnostics=[found]), console)
    )

    assert not set(text) & {"\x1b", "\u202e", "\ud800", "\x9b"}
    assert "[bold]X" in text
    assert "[red]" in text


def test_a_field_line() -> None:
    """A field is `path: before -> after` in the units of its row, with what the change means."""
    for field, line in [
        (FieldChange("max_age", SECOND, 0, "in_place"), "~ max_age: 1s -> unlimited"),
        (FieldChange("max_msgs", 5, -1, "in_place"), "~ max_msgs: 5 -> unlimited"),
        (
            FieldChange("max_bytes", 2**30, 2**30 + 1, "in_place"),
            "~ max_bytes: 1GiB -> 1.00GiB (1073741825)",
        ),
        (
            FieldChange("deny_delete", False, True, "one_way"),
            "~ deny_delete: false -> true  # cannot be undone",
        ),
        (
            FieldChange("storage", "file", "memory", "replace"),
            "~ storage: file -> memory  # forces replacement",
        ),
        (
            FieldChange("mirror_direct", False, True, "ignored"),
            "~ mirror_direct: false -> true  # the server ignores this",
        ),
        (
            FieldChange("consumer_limits.inactive_threshold", SECOND, 2 * SECOND, "in_place"),
            "~ consumer_limits.inactive_threshold: 1s -> 2s",
        ),
        (FieldChange("description", "", "x", "in_place"), '+ description: "x"'),
        (FieldChange("unknown_field", 1, {"a": 2}, "in_place"), '~ unknown_field: 1 -> {"a": 2}'),
        (FieldChange('metadata["a.b"]', "x", None, "in_place"), '- metadata["a.b"]: "x"'),
        (
            FieldChange('sources["A"].opt_start_seq', None, None, "in_place"),
            '~ sources["A"].opt_start_seq: (known after apply)',
        ),
    ]:
        change = samples.resource("hub/stream/A", ["update"], fields=(field,))

        assert line in [row.strip() for row in resource_text.render(change).plain().splitlines()], (
            field
        )


@pytest.mark.parametrize(
    ("hazard", "amount"),
    [
        (Hazard("DELETES_MESSAGES", "x", messages=1, exact=True), "1 message"),
        (
            Hazard("DELETES_MESSAGES", "x", messages=20, exact=False, at_least=5, at_most=20),
            "5 to 20 messages",
        ),
        (Hazard("DELETES_MESSAGES", "x", exact=False, at_least=5), "at least 5 messages"),
        (Hazard("DELETES_MESSAGES", "x", exact=False, at_least=0), ""),
        (Hazard("DELETES_MESSAGES", "x", messages=7, exact=False), "at most 7 messages"),
        (
            Hazard(
                "DELETES_STREAM",
                "with 4,000 messages (88 bytes) and 2 consumers",
                messages=4000,
                bytes=88,
                consumers=2,
                exact=True,
            ),
            "",
        ),
        (
            Hazard("DELETES_STREAM", "all 14,000 of them", messages=4000, bytes=2048, consumers=1),
            "4,000 messages, 2.0 KiB, 1 consumer",
        ),
    ],
)
def test_the_amount_of_a_hazard(hazard: Hazard, amount: str) -> None:
    """A hazard shows its numbers once, as bounds where they are not exact."""
    assert resource_text.format_amount(hazard) == amount


def test_a_big_plan_is_written_out() -> None:
    """A thousand changes that all differ are all written out."""
    changes = [
        samples.resource(
            f"hub/stream/S{n}",
            ["update"],
            fields=(FieldChange("max_msgs", n + 1, n + 2, "in_place"),),
        )
        for n in range(1000)
    ]
    text = text_of(lambda console: plan_text.render(samples.plan(*changes), console))

    assert text.count("max_msgs") == 1000
