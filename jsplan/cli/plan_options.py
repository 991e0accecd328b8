"""The options that `plan`, `apply`, `destroy` and `import` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jsplan.cli.completion_values import complete_domains
from jsplan.cli.types import AbsolutePath, AddressGlob, Duration, HazardPermission
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from jsplan.options import PlanOptions

F = TypeVar("F", bound="Callable[..., Any]")

#: Options that a saved plan has fixed; those about permission and execution may still be given.
PLAN_SHAPING_OPTIONS = frozenset(
    {
        "target",
        "exclude",
        "replace",
        "refresh_only",
        "adopt",
        "safe_below",
        "measure_limit",
        "offline",
        "reinstalled",
        "no_backfill",
        "rehearse",
        "server_version",
        "stage",
    }
)

#: Options have their own names, for JSPLAN_<COMMAND>_<OPTION>; these are plural in `PlanOptions`.
_FIELD_BY_OPTION = {"target": "targets", "exclude": "excludes", "allow_hazard": "allow_hazards"}


def number_option(
    name: str, help_: str, default: int | None = None, least: int = 1
) -> Callable[[F], F]:
    """Return an option that takes a number."""
    type_ = click.IntRange(min=least)
    return click.option(
        name, type=type_, default=default, show_default=True, metavar="N", help=help_
    )


def addresses_option(name: str, help_: str) -> Callable[[F], F]:
    """Return an option that takes addresses and globs."""
    return click.option(name, multiple=True, type=AddressGlob(), metavar="ADDRESS", help=help_)


#: Options that other commands also have.
hazard_option = click.option(
    "--allow-hazard",
    multiple=True,
    type=HazardPermission(),
    metavar="HAZARD[:ADDRESS]",
    help="Allow a hazard of the plan; repeatable.",
)
adopt_option = click.option(
    "--adopt", is_flag=True, help="Adopt existing resources that differ from the files."
)
safe_below_option = click.option(
    "--safe-below",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Do not count the deletion of at most N messages as a hazard.",
)
measure_limit_option = number_option(
    "--measure-limit",
    "Read at most N messages to count the deletions of one change; report bounds beyond that.",
    100_000,
    least=0,
)
offline_option = click.option(
    "--offline",
    type=click.Choice(("defer", "fail")),
    default="defer",
    show_default=True,
    help="How to treat an offline domain: defer its changes, or stop.",
)
parallelism_option = number_option(
    "--parallelism", "Send at most N requests to a domain at once.", 10
)
lock_timeout_option = click.option(
    "--lock-timeout",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Wait this long for the state lock.",
)

exclude_option = addresses_option("--exclude", "Skip these resources; repeatable.")
out_option = click.option(
    "-o",
    "--out",
    type=AbsolutePath(),
    metavar="FILE",
    help="Save the plan, so that apply FILE does exactly this.",
)
_SELECTION_OPTIONS = (
    addresses_option(
        "--target", "Include only these resources and their dependencies; repeatable."
    ),
    exclude_option,
    addresses_option("--replace", "Force the replacement of these resources; repeatable."),
    click.option(
        "--refresh-only",
        is_flag=True,
        help="Only update the state from the servers; change no server.",
    ),
    hazard_option,
    safe_below_option,
    measure_limit_option,
    click.option("--no-backfill", is_flag=True, help="Skip the backfills."),
    click.option(
        "--rehearse", is_flag=True, help="First try the plan on embedded servers of the same shape."
    ),
    click.option(
        "--stage",
        type=click.Choice(("prepare", "cutover")),
        help=(
            "Plan only the relocations: `prepare` copies and keeps the copies up to date, "
            "`cutover` finishes prepared ones."
        ),
    ),
    click.option(
        "--server-version",
        metavar="VERSION",
        help="With --rehearse: use this nats-server version instead of those of your servers.",
    ),
)
_EXECUTION_OPTIONS = (
    click.option(
        "--reinstalled",
        multiple=True,
        metavar="DOMAIN",
        shell_complete=complete_domains,
        help="Accept that this domain came back empty, and create its resources again; repeatable.",
    ),
    adopt_option,
    offline_option,
    parallelism_option,
    lock_timeout_option,
)
_OPTIONS = (*_SELECTION_OPTIONS, *_EXECUTION_OPTIONS)
_MOVE_OPTIONS = (
    number_option(
        "--moves", "Let a cluster move or scale at most N streams of a domain at once.", 2
    ),
    click.option(
        "--no-wait",
        is_flag=True,
        help="Do not wait until clusters have moved or scaled streams.",
    ),
)
_APPROVAL_OPTIONS = (
    click.option("-y", "--auto-approve", is_flag=True, help="Approve the plan without a question."),
    click.option("--no-input", is_flag=True, help="Never ask; fail if approval is needed."),
)


def planning_options(function: F) -> F:
    """Add the planning options; the function gets them as keywords for `build_plan_options`."""
    return _add_options(_OPTIONS, function)


def destroy_options(function: F) -> F:
    """Add the planning options; help lists only those that matter for a deletion."""
    return _hide_options(
        {"replace", "refresh_only", "no_backfill", "reinstalled", "adopt", "stage"},
        planning_options(function),
    )


def import_options(function: F) -> F:
    """Add the options that say how to work, not which resources to choose."""
    return _hide_options({"reinstalled"}, _add_options(_EXECUTION_OPTIONS, function))


def _hide_options(names: Collection[str], function: F) -> F:
    for param in getattr(function, "__click_params__", ()):
        if isinstance(param, click.Option) and param.name in names:
            param.hidden = True
    return function


def _add_options(options: tuple[Callable[[F], F], ...], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def backup_option(function: F) -> F:
    """Add `--backup`, which goes to `build_plan_options` with the others."""
    text = "Back up each stream to a folder below DIR before its messages are deleted."
    return click.option("--backup", type=AbsolutePath(), metavar="DIR", help=text)(function)


def move_options(function: F) -> F:
    """Add `--moves` and `--no-wait`, which go to `build_plan_options` with the others."""
    return _add_options(_MOVE_OPTIONS, function)


def approval_options(function: F) -> F:
    """Add `--auto-approve` and `--no-input`."""
    return _add_options(_APPROVAL_OPTIONS, function)


def build_plan_options(given: dict[str, Any], **more: Any) -> PlanOptions:
    """Build the options; raise UsageError for options that contradict each other."""
    from jsplan.options import PlanOptions

    backfill = not (given.pop("no_backfill", False) or given.get("stage"))
    follow = not given.pop("no_wait", False)
    fields = {_FIELD_BY_OPTION.get(name, name): value for name, value in given.items()}
    options = PlanOptions(**fields, **more, backfill=backfill, follow=follow)
    if options.refresh_only and (options.destroy or options.replace):
        raise UsageError(
            "--refresh-only changes no server, so it cannot be combined with --destroy or --replace"
        )
    if options.stage and (options.destroy or options.refresh_only or options.replace):
        raise UsageError(
            "--stage plans relocations only, so it cannot be combined with --destroy, "
            "--refresh-only or --replace"
        )
    if options.server_version and not options.rehearse:
        raise UsageError(
            "--server-version is for a rehearsal",
            hint="Add --rehearse, or give it to: jsplan validate, which asks no server.",
        )
    return options


def refuse_plan_options(ctx: click.Context) -> None:
    """Raise UsageError if an option that shapes a plan was given with a saved plan."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name in PLAN_SHAPING_OPTIONS and source in (
            ParameterSource.COMMANDLINE,
            ParameterSource.ENVIRONMENT,
        ):
            raise UsageError(
                f"{param.opts[-1]} shapes a plan, and a saved plan is applied unchanged",
                hint=(
                    "Give it to: jsplan plan -o FILE. A saved plan takes --allow-hazard, "
                    "--parallelism and --lock-timeout."
                ),
            )
