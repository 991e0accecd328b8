"""`jsplan graph [PLANFILE]`: draw the workspace or a saved plan, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import addresses_option
from jsplan.cli.run import start
from jsplan.cli.types import PlanFile
from jsplan.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.documents.graph import Graph

FORMATS = ("mermaid", "dot", "svg")


@declare("graph", examples=["jsplan graph", "jsplan graph --format svg > graph.svg"])
@click.argument("planfile", required=False, type=PlanFile())
@addresses_option(
    "--target", "Draw only these resources with their origins and downstream streams; repeatable."
)
@click.pass_context
def command(ctx: click.Context, planfile: Path | None, target: tuple[str, ...]) -> int:
    """Draw domains, streams, consumers and flows; with PLANFILE also the planned changes.

    --format is mermaid (the default), dot for Graphviz, svg for a picture, or json. Equal domains
    are drawn as one, such as store-{001..200}.
    """
    settings, output = start(ctx, FORMATS)
    from jsplan.workflows import validate as workflow

    drawn = (
        workflow.build_plan_graph(planfile, target)
        if planfile is not None
        else workflow.build_workspace_graph(settings.load_options(), target)
    )
    views = {name: _view(name, drawn) for name in FORMATS}
    output.result(
        drawn.to_json, lambda _: output.line(views["mermaid"]().rstrip("\n")), views=views
    )
    return ExitCode.OK


def _view(name: str, graph: Graph) -> Callable[[], str]:
    def render() -> str:
        from importlib import import_module

        text: str = import_module(f"jsplan.render.graph_{name}").render(graph)
        return text

    return render
