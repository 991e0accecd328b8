"""Values that the shell completes: from the files and a local state, never from the network.

A completion must not fail and must not need a secret. So a workspace that cannot be read completes
nothing, and the values of `${env.X}` are left unknown.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

    from jsplan.config.model import Workspace

#: The beginning of a saved plan has this key, since its keys are sorted.
_PLAN_KEY, _PLAN_HEAD = b'"allowed_hazards"', 64


def complete_environments(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Complete the names of the environments in the files."""
    from jsplan.config.files import WorkspaceFiles
    from jsplan.config.findings import Findings

    folder = (ctx.obj.chdir or Path()).absolute()
    document = None
    with suppress(JsplanError, OSError):
        document = WorkspaceFiles(folder, Findings()).load_document()
    section = document.get("environments") if document is not None else None
    names = section.value if section is not None and isinstance(section.value, dict) else {}
    return _items(names, incomplete)


def complete_addresses(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Complete the addresses in the files and in a local state."""
    workspace = _load_workspace(ctx)
    if workspace is None:
        return []
    return _items({*map(str, workspace.resources), *_state_addresses(workspace)}, incomplete)


def complete_domains(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Complete the names of the domains in the files."""
    workspace = _load_workspace(ctx)
    return _items(workspace.domains if workspace is not None else (), incomplete)


def complete_hazards(incomplete: str) -> list[CompletionItem]:
    """Complete the hazards that an apply needs a permission for."""
    from jsplan.codes import HAZARDS

    return _items((code for code, blocks in HAZARDS.items() if blocks), incomplete)


def complete_codes(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Complete what `jsplan explain` explains: the codes of findings, and hazards."""
    from jsplan.codes import FILE_CODES, HAZARDS, LINT, SERVER_CODES

    return _items({*FILE_CODES, *LINT, *SERVER_CODES, *HAZARDS}, incomplete.upper())


def complete_rules(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Complete the codes of the lint rules."""
    from jsplan.codes import LINT

    return _items(("all", *LINT), incomplete)


def complete_plan_files(incomplete: str) -> list[CompletionItem]:
    """Complete saved plans and folders; any file where there is none."""
    before, _, start = incomplete.rpartition("/")
    prefix = f"{before}/" if before or incomplete.startswith("/") else ""
    paths: list[Path] = []
    with suppress(OSError):
        paths = [p for p in sorted(Path(prefix or ".").iterdir()) if p.name.startswith(start)]
    plans = [path for path in paths if _is_plan(path)]
    if not plans:
        return [CompletionItem(incomplete, type="file")]
    folders = [f"{prefix}{path.name}/" for path in paths if path.is_dir()]
    return [CompletionItem(name) for name in (*(f"{prefix}{p.name}" for p in plans), *folders)]


def _is_plan(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.is_file() and _PLAN_KEY in file.read(_PLAN_HEAD)
    except OSError:
        return False


def _load_workspace(ctx: click.Context) -> Workspace | None:
    import dataclasses

    from jsplan.config import load

    options = ctx.obj.load_options()
    try:
        return load(dataclasses.replace(options, files_only=True))
    except (JsplanError, OSError):
        return None


def _state_addresses(workspace: Workspace) -> list[str]:
    """Return the addresses in a state that is a file; one in a bucket would need the network."""
    from jsplan.event_loop import run_until_complete
    from jsplan.state import backend_of

    if workspace.backend.kind != "local":
        return []
    try:
        state = run_until_complete(backend_of(workspace, {}).read())
    except (JsplanError, OSError):
        return []
    return [str(address) for address in state.resources]


def _items(values: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(value) for value in sorted(values) if value.startswith(incomplete)]
