from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from jsplan.address import Address
from jsplan.cli.approval import Approval
from jsplan.cli.main import main
from jsplan.cli.output import Output, TolerantStream
from jsplan.cli.settings import Settings
from jsplan.config.model import LoadOptions
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import NotApprovedError, RefusedError
from jsplan.options import Approve, DriftOptions, Observer, PlanOptions
from jsplan.units import SECOND
from tests.render import samples

Capture = pytest.CaptureFixture[str]


class RecordedCalls:
    """A replacement of the workflows that records the calls of the command line."""

    def __init__(self, plan: Plan) -> None:
        self.answer = plan
        self.result = samples.complete_apply()
        self.load: LoadOptions | None = None
        self.options: PlanOptions | DriftOptions | None = None
        self.rest: tuple[Any, ...] = ()

    def plan(self, load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
        self.load, self.options = load, options
        observer.phase("Reading 2 domains")
        return self.answer

    def apply(
        self, load: LoadOptions, options: PlanOptions, approve: Approve, observer: Observer
    ) -> tuple[Plan, ApplyResult]:
        self.load, self.options = load, options
        observer.phase("Reading 2 domains")
        if self.answer.has_changes:
            approve(self.answer)
        return self.answer, self.result

    def apply_saved(
        self, load: LoadOptions, path: Path, options: PlanOptions, observer: Observer
    ) -> tuple[Plan, ApplyResult]:
        self.load, self.options, self.rest = load, options, (path,)
        observer.warn("waiting for the lock")
        return self.answer, self.result

    def import_(
        self,
        load: LoadOptions,
        addresses: tuple[str, ...],
        options: PlanOptions,
        approve: Approve,
        observer: Observer,
    ) -> Any:
        self.rest = addresses
        return self.apply(load, options, approve, observer)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> RecordedCalls:
    """Replace the workflows: only the command line is tested here."""
    made = RecordedCalls(samples.fleet(3))
    monkeypatch.setattr("jsplan.workflows.plan.plan", made.plan)
    monkeypatch.setattr("jsplan.workflows.apply.apply", made.apply)
    monkeypatch.setattr("jsplan.workflows.apply.apply_saved", made.apply_saved)
    monkeypatch.setattr("jsplan.workflows.import_.import_", made.import_)
    return made


@pytest.fixture
def no_changes(calls: RecordedCalls) -> RecordedCalls:
    """Replace the workflows by ones that find nothing to do."""
    calls.answer = samples.plan(samples.resource("hub/stream/A", ["no-op"]))
    calls.result = ApplyResult("p1")
    return calls


def test_plan_options_arrive(calls: RecordedCalls) -> None:
    """Every planning option reaches the workflow in its unit."""
    line = (
        "plan --target hub/stream/A --target hub/** --exclude leaf/** --replace hub/stream/A --parallelism 3 --lock-timeout 1m30s "
        "--allow-hazard DELETES_STREAM:hub/stream/A --allow-hazard MOVES_DATA --safe-below 5 --offline fail --adopt --no-backfill"
    )

    assert main(line.split()) == 0
    assert calls.options == PlanOptions(
        targets=("hub/stream/A", "hub/**"),
        excludes=("leaf/**",),
        replace=("hub/stream/A",),
        parallelism=3,
        lock_timeout=90 * SECOND,
        allow_hazards=("DELETES_STREAM:hub/stream/A", "MOVES_DATA"),
        safe_below=5,
        offline="fail",
        adopt=True,
        backfill=False,
    )


def test_options_about_moves_arrive(calls: RecordedCalls) -> None:
    """`--moves` and `--no-wait` of an apply reach the workflow."""
    main(["apply", "-y", "--moves", "5", "--no-wait"])

    assert calls.options == PlanOptions(moves=5, follow=False)


def test_defaults_are_those_of_the_workflows(calls: RecordedCalls) -> None:
    """Without options the workflow gets its own defaults, so that both interfaces agree."""
    assert main(["plan"]) == 0
    assert calls.options == PlanOptions()
    main(["destroy", "-y"])
    assert calls.options == PlanOptions(destroy=True)


def test_global_options_arrive_from_both_sides(
    calls: RecordedCalls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options before and after the command add up, or the nearer one wins.

    Files are those of the shell's folder.
    """
    monkeypatch.chdir(tmp_path)
    main(
        [
            "-C",
            "one",
            "-e",
            "staging",
            "--var",
            "a=1",
            "plan",
            "-C",
            "two",
            "--var",
            "b=x=y",
            "--var-file",
            "v.yaml",
        ]
    )
    assert calls.load is not None

    assert calls.load.directory == Path("two")
    assert calls.load.environment == "staging"
    assert calls.load.variables == ("a=1", "b=x=y")
    assert calls.load.var_files == (tmp_path / "v.yaml",)


def test_options_from_the_environment(
    calls: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line wins over JSPLAN_<COMMAND>_<OPTION> and JSPLAN_ENV."""
    monkeypatch.setenv("JSPLAN_ENV", "prod")
    monkeypatch.setenv("JSPLAN_PLAN_TARGET", "hub/stream/A hub/stream/B")
    monkeypatch.setenv("JSPLAN_PLAN_ADOPT", "1")
    monkeypatch.setenv("JSPLAN_PLAN_CHDIR", "elsewhere")
    monkeypatch.setenv("JSPLAN_PLAN_VAR", "a=1 2\nb=3")
    main(["-C", "here", "plan"])
    assert calls.load is not None
    assert isinstance(calls.options, PlanOptions)

    assert (calls.load.environment, calls.load.environ["JSPLAN_ENV"]) == (None, "prod")
    assert calls.load.directory == Path("here")
    assert calls.load.variables == ("a=1 2", "b=3")
    assert calls.options.targets == ("hub/stream/A", "hub/stream/B")
    assert calls.options.adopt


def test_a_variable_of_the_workspace_is_no_option(
    calls: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSPLAN_VAR_file sets the variable `file` and is never read as --var-file."""
    monkeypatch.setenv("JSPLAN_VAR_FILE", "30d")
    monkeypatch.setenv("JSPLAN_VAR", "30d")

    assert main(["plan"]) == 0
    assert calls.load is not None
    assert calls.load.var_files == ()
    assert calls.load.environ["JSPLAN_VAR_FILE"] == "30d"


def test_a_plan_with_changes(calls: RecordedCalls, capsys: Capture) -> None:
    """The plan goes to stdout and progress to stderr; 2 is for --detailed-exitcode only."""
    assert main(["plan"]) == 0
    captured = capsys.readouterr()

    assert captured.out.endswith("Plan: 0 to add, 3 to change, 0 to destroy.\n")
    assert captured.err == "Reading 2 domains ...\n"
    assert main(["plan", "--detailed-exitcode"]) == 2


def test_a_plan_without_changes(no_changes: RecordedCalls, capsys: Capture) -> None:
    """A plan without changes prints one line and exits with 0."""
    assert main(["plan", "--detailed-exitcode"]) == 0
    assert capsys.readouterr().out == "No changes. Your streams match the configuration.\n"


def test_a_plan_with_errors(calls: RecordedCalls, capsys: Capture, tmp_path: Path) -> None:
    """A plan with errors is shown, not saved, and exits with 1."""
    calls.answer.errored = True

    assert main(["plan", "--detailed-exitcode", "-o", str(tmp_path / "p.json")]) == 1
    assert "nothing can be applied" in capsys.readouterr().out
    assert not (tmp_path / "p.json").exists()


def test_a_plan_as_json(calls: RecordedCalls, capsys: Capture, tmp_path: Path) -> None:
    """With --json stdout has the plan document; --json-into writes the same beside the text."""
    main(["plan", "--json"])
    document = json.loads(capsys.readouterr().out)
    main(["plan", "--json-into", str(tmp_path / "p.json")])

    assert document == calls.answer.to_json()
    assert json.loads((tmp_path / "p.json").read_text()) == document
    assert "Plan: " in capsys.readouterr().out


def test_a_json_file_that_cannot_be_is_refused_at_once(
    calls: RecordedCalls, capsys: Capture, tmp_path: Path
) -> None:
    """An apply whose result cannot be written does not begin."""
    assert main(["apply", "-y", "--json-into", str(tmp_path / "no" / "out.json")]) == 1
    assert calls.load is None
    assert "there is no such folder" in capsys.readouterr().err


def test_a_saved_plan_can_be_shown(calls: RecordedCalls, capsys: Capture, tmp_path: Path) -> None:
    """`plan -o` writes the document and says how to apply it; `show` prints it again."""
    file = tmp_path / "p.json"
    main(["plan", "-o", str(file)])
    first = capsys.readouterr()

    assert f"jsplan apply {file}" in first.err
    assert main(["show", str(file)]) == 0
    assert capsys.readouterr().out == first.out


def test_how_to_apply_names_the_same_workspace(
    calls: RecordedCalls, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that `plan -o` prints names the folder, environment and variables of the plan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JSPLAN_ENV", "dev")
    main(
        [
            "-C",
            "my shop",
            "--var",
            "keep=1d",
            "plan",
            "-o",
            "p",
            "--var",
            "region=a b",
            "--no-color",
        ]
    )
    assert (
        "\n  jsplan -C 'my shop' --var keep=1d --var 'region=a b' apply p\n"
        in capsys.readouterr().err
    )

    main(["plan", "-o", "p", "-e", "prod"])
    assert "\n  jsplan -e prod apply p\n" in capsys.readouterr().err


def test_a_file_that_is_no_plan_is_refused(capsys: Capture, tmp_path: Path) -> None:
    """A file that is missing or no plan is an error that names it."""
    (tmp_path / "p.json").write_text("{}")

    assert main(["show", str(tmp_path / "p.json")]) == 1
    assert main(["show", str(tmp_path / "q.json")]) == 1
    assert capsys.readouterr().err.count("p.json") == 1


@pytest.mark.parametrize(
    "line", [["apply"], ["apply", "--no-input"], ["destroy"], ["import", "hub/stream/A"]]
)
def test_without_a_terminal(line: list[str], calls: RecordedCalls, capsys: Capture) -> None:
    """Without a terminal an apply is refused with exit code 1 and names the flag."""
    assert main(line) == 1
    captured = capsys.readouterr()

    assert "Plan: 0 to add, 3 to change" in captured.out
    assert "--auto-approve" in captured.err
    assert (" -o FILE" in captured.err) == (line[0] != "import")


def test_an_approved_apply(calls: RecordedCalls, capsys: Capture) -> None:
    """With -y the plan and the final line go to stdout."""
    assert main(["apply", "-y"]) == 0
    out = capsys.readouterr().out

    assert "Plan: 0 to add, 3 to change, 0 to destroy.\n\nApply complete! Resources: 2 added" in out


def test_an_apply_without_changes(no_changes: RecordedCalls, capsys: Capture) -> None:
    """An apply without changes needs no approval and prints the line of a plan without changes."""
    assert main(["apply"]) == 0
    assert capsys.readouterr().out == "No changes. Your streams match the configuration.\n"


def test_an_apply_in_part(calls: RecordedCalls) -> None:
    """An apply in part exits with the code of its result."""
    calls.result = samples.partial_apply()

    assert main(["apply", "-y"]) == 6


def test_an_apply_as_json(calls: RecordedCalls, capsys: Capture) -> None:
    """With --json stdout has the document of the apply alone."""
    main(["apply", "-y", "--json"])

    assert json.loads(capsys.readouterr().out) == calls.result.to_json()


def test_a_saved_plan_asks_nothing(calls: RecordedCalls, capsys: Capture, tmp_path: Path) -> None:
    """A saved plan is applied without a question, with the given hazards and parallelism."""
    file = tmp_path / "p.json"

    assert (
        main(
            [
                "apply",
                str(file),
                "--allow-hazard",
                "DELETES_STREAM",
                "--parallelism",
                "2",
                "--lock-timeout",
                "1s",
            ]
        )
        == 0
    )
    assert calls.rest == (file,)
    assert calls.options == PlanOptions(
        allow_hazards=("DELETES_STREAM",), parallelism=2, lock_timeout=SECOND
    )
    assert capsys.readouterr().out.startswith("Apply complete!")


def test_a_saved_plan_refuses_options_of_the_environment(
    calls: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved plan refuses an option of the environment as it does one of the command line."""
    monkeypatch.setenv("JSPLAN_APPLY_ADOPT", "1")

    assert main(["apply", "p.json"]) == 64


@pytest.mark.parametrize(
    ("line", "addresses"),
    [
        ("import hub/stream/A hub/kv/B", ("hub/stream/A", "hub/kv/B")),
        ("import --all", ("**",)),
        ("import --all --domain hub --domain leaf", ("hub/**", "leaf/**")),
    ],
)
def test_import_addresses(line: str, addresses: tuple[str, ...], calls: RecordedCalls) -> None:
    """Addresses reach the workflow unchanged; --all is everything, or everything of the domains."""
    assert main([*line.split(), "-y"]) == 0
    assert calls.rest == addresses


@pytest.mark.parametrize(
    ("value", "causes"),
    [("changed", {"changed"}), ("missing, unmanaged", {"missing", "unmanaged"}), ("none", set())],
)
def test_drift(
    value: str, causes: set[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drift passes --fail-on on, prints its document, and exits with the code of the result."""
    seen: list[DriftOptions] = []

    def drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Any:
        seen.append(options)
        return samples.drift()

    monkeypatch.setattr("jsplan.workflows.drift.drift", drift)

    assert main(["drift", "--fail-on", value]) == 2
    assert seen[0].fail_on == causes
    assert "Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged." in capsys.readouterr().out
    main(["drift", "--json"])
    assert json.loads(capsys.readouterr().out) == samples.drift().to_json()
    for format_, begins in (
        ("markdown", "<!-- jsplan:shop.prod:"),
        ("html", "<!doctype html>"),
        ("junit", "<?xml"),
        ("github", "::error "),
    ):
        assert main(["drift", "--format", format_]) == 2
        assert capsys.readouterr().out.startswith(begins)


def test_state_commands(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """list, show, rm and mv print one line per thing, or a document."""
    monkeypatch.setattr("jsplan.workflows.state.show", lambda _: samples.state())
    monkeypatch.setattr(
        "jsplan.workflows.state.list_",
        lambda _, globs: [str(Address("hub", "stream", "A")), *globs],
    )
    monkeypatch.setattr("jsplan.workflows.state.rm", lambda _, addresses, *__: list(addresses))
    monkeypatch.setattr(
        "jsplan.workflows.state.mv", lambda _, source, target, *__: [(source, target)]
    )
    said = []
    for line in (
        "list hub/**",
        "list --json",
        "show hub/stream/ORDERS",
        "rm hub/stream/A",
        "mv hub/stream/A leaf/stream/A",
    ):
        assert main(["state", *line.split()]) == 0
        said.append(capsys.readouterr().out)

    assert said[0] == "hub/stream/A\nhub/**\n"
    assert json.loads(said[1])["addresses"] == ["hub/stream/A"]
    assert "max_age: 1y" in said[2]
    assert said[3:] == ["Forgot hub/stream/A\n", "Moved hub/stream/A to leaf/stream/A\n"]
    assert main(["state", "show", "hub/stream/ORDER"]) == 1
    assert 'Did you mean "hub/stream/ORDERS"?' in capsys.readouterr().err
    assert main(["show"]) == 0
    assert "2 resources, serial 7" in capsys.readouterr().out


def test_init_and_validate(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new workspace of either template is valid, named after its folder, and not overwritten."""
    monkeypatch.setenv("ACC_PASSWORD", "acc")
    for template in ("single", "hub-and-leaf"):
        folder = str(tmp_path / template)
        assert main(["init", folder, "--template", template]) == 0
        assert f"Next: jsplan -C {folder} plan" in capsys.readouterr().out
        assert main(["-C", folder, "validate"]) == 0
        assert capsys.readouterr().out.startswith("The workspace is valid: ")
        assert main(["-C", folder, "validate", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["workspace"] == template
        assert main(["init", folder, "--template", template]) == 1
        capsys.readouterr()


class Terminal(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal_approval(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Approval]:
    """Simulate a terminal on which the user typed this line."""

    def make(answer: str) -> Approval:
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setattr("select.select", lambda read, *_: (read[:1], [], []))
        return Approval(
            Output(Settings(no_color=True)), auto_approve=False, no_input=False, question="Really?"
        )

    return make


@pytest.mark.parametrize("answer", ["yes\n", " yes \n", "yes"])
def test_yes_approves(answer: str, terminal_approval: Callable[[str], Approval]) -> None:
    """The word `yes` approves."""
    terminal_approval(answer)(
        samples.plan(samples.resource("hub/stream/A", ["create"], after=samples.STREAM))
    )


@pytest.mark.parametrize("answer", ["y\n", "YES\n", "Yes\n", "\n", "", "yes please\n", "no\n"])
def test_nothing_else_approves(answer: str, terminal_approval: Callable[[str], Approval]) -> None:
    """Anything but the word `yes` refuses, also the end of input."""
    approval = terminal_approval(answer)
    with pytest.raises(NotApprovedError):
        approval(samples.plan(samples.resource("hub/stream/A", ["create"], after=samples.STREAM)))


def test_a_refused_plan_asks_for_no_approval(
    terminal_approval: Callable[[str], Approval], capsys: Capture
) -> None:
    """A plan with a hazard that is not allowed is shown and refused without a question."""
    approval = terminal_approval("no\n")
    with pytest.raises(RefusedError) as caught:
        approval(samples.fleet(10))

    assert approval.shown
    assert isinstance(sys.stderr, Terminal)
    assert "Really?" not in sys.stderr.getvalue()
    assert "are deleted at once" in capsys.readouterr().out
    assert "are deleted at once" in str(caught.value)
    assert "are deleted at once" not in caught.value.beside_plan


@pytest.mark.parametrize("auto_approve", [False, True])
def test_json_is_refused_beside_a_plan_only_where_it_is_shown(
    auto_approve: bool,
    terminal_approval: Callable[[str], Approval],
    capsys: Capture,
) -> None:
    """With JSON, only a plan that is shown on a terminal shortens the message beside it."""
    terminal_approval("yes\n")
    output = Output(Settings(no_color=True, format="json"))
    approval = Approval(output, auto_approve=auto_approve, no_input=False, question="Really?")
    with pytest.raises(RefusedError) as caught:
        approval(samples.fleet(10))

    assert isinstance(sys.stderr, Terminal)
    assert ("are deleted at once" in sys.stderr.getvalue()) is not auto_approve
    assert bool(caught.value.beside_plan) is not auto_approve
    assert capsys.readouterr().out == ""


class ClosedStream(StringIO):
    """A stream whose reader has ended."""

    encoding = "ascii"

    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_changes_no_exit_code(
    calls: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jsplan plan --detailed-exitcode | head` still exits with 2."""
    monkeypatch.setattr(sys, "stdout", ClosedStream())

    assert main(["plan", "--detailed-exitcode"]) == 2


def test_characters_outside_of_the_encoding_are_escaped() -> None:
    """A character that the encoding of the terminal lacks is escaped."""

    class Ascii(StringIO):
        encoding = "ascii"

        def write(self, text: str) -> int:
            text.encode("ascii")
            return super().write(text)

    stream = Ascii()
    TolerantStream(stream).write("ü")

    assert stream.getvalue() == "\\xfc"
