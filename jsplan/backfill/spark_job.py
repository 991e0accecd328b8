"""A backfill as a script for `spark-submit` (`backfill plan --job-file`).

The script has the pinned range and no credentials. It contains a workspace in which each `${env.X}`
is still a reference, and runs `backfill run` under the lock of the same state. A job that is killed
is resumed by the next run of the entry, with spark-submit or without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import jsplan
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.pinning import load_stored_state, pin_ranges, resolve_entry
from jsplan.backfill.reachable_origins import find_offline_domains, pin_reachable_origins
from jsplan.backfill.spark_job_workspace import build_job_workspace, keep_references
from jsplan.backfill.strategy_selection import select_strategy
from jsplan.backfill.tasks.endpoints import declare_connection
from jsplan.backfill.transforms import (
    build_transform_spec,
    is_joint_copy,
    reads_archive,
    use_job_files,
)
from jsplan.config import load as load_workspace
from jsplan.context import Context, hold_lock, open_context, open_pool
from jsplan.disk import MEGABYTE, read_regular, write_private
from jsplan.documents.base import parse
from jsplan.documents.validation import require_valid
from jsplan.errors import JsplanError, UsageError
from jsplan.event_loop import run_until_complete as run_workflow
from jsplan.planning.backfill.model import BackfillState, hash_config
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, LoadOptions
    from jsplan.jetstream import Pool
    from jsplan.options import Observer

FORMAT: Final = "jsplan-job/1"
#: The hint for a job that cannot be run.
REWRITE_HINT: Final = "Write the job file again: jsplan backfill plan NAME --job-file FILE"
_SCRIPT_TEMPLATE: Final = '''"""A backfill for spark-submit. Written by jsplan {version} at {at}.

JOB begins with a description of the copy.

It holds no credentials: for ${{env.NAME}} in the workspace, the driver and every executor read NAME
from their own environment, and files of credentials or contexts from their own machine. Each needs
jsplan and pyarrow in its Python environment. The job uses the state and the lock of the workspace.
Options of `jsplan backfill run` may follow.
"""

JOB = r\'\'\'{job}\'\'\'

if __name__ == "__main__":
    from jsplan.cli.job import main

    raise SystemExit(main(JOB))
'''


async def write_job(
    load: LoadOptions, options: BackfillOptions, path: Path, observer: Observer
) -> BackfillState:
    """Write a job, as `workflows.backfill.write_job`. Returns the record in the job."""
    async with open_context(load) as world:
        entry = resolve_entry(world, options)
        if options.name is None:
            raise UsageError(
                "a job is made of an entry of `backfills:`", hint="Add one for these two addresses."
            )
        workspace = load_workspace(keep_references(load))
        # Raises before anything is stored.
        document = build_job_workspace(workspace, workspace.backfills[entry.name])
        build_transform_spec(world.workspace.root, entry)
        async with (
            hold_lock(world, "backfill", options.lock_timeout, observer),
            open_pool(world, read_only=False) as pool,
        ):
            await pool.open(domain.connection for domain in world.workspace.domains.values())
            record = await _pin_job_ranges(
                world, pool, entry, observer, reset_range=options.reset_range
            )
    job = {
        "format": FORMAT,
        "about": _describe_job(world, entry, record),
        "environment": world.workspace.environment,
        "document": document,
    }
    job |= {"record": record.to_json(), "files": _read_files(world.workspace.root, entry)}
    _write_file(path, render_script(job))
    return record


async def _pin_job_ranges(
    world: Context, pool: Pool, entry: Backfill, observer: Observer, *, reset_range: bool
) -> BackfillState:
    """Load or pin the ranges of the job, also of origins that were offline before."""
    record = load_stored_state(world, entry) if not reset_range else None
    for origin in record.origins if record is not None else ():
        _require_spark(entry, origin.strategy)
    if is_joint_copy(entry) and not reads_archive(entry):
        record = record or BackfillState(entry.name, hash_config(entry), [], format_timestamp())
        offline = await find_offline_domains(world, pool, entry)
        for side in (side for side in entry.origins if side.domain in offline):
            observer.warn(
                f"{side} is offline; the run that reaches it pins its range: {offline[side.domain]}"
            )
        if await pin_reachable_origins(world, pool, entry, record, offline):
            await _save_state(world, record)
    elif record is None or record.planned:  # a range that a plan pinned has no strategy yet
        _require_spark(entry, (await select_strategy(world, pool, entry)).strategy)
        if record is None:
            record = await pin_ranges(world, pool, entry)
            await _save_state(world, record)
    return record


def _require_spark(entry: Backfill, strategy: str) -> None:
    if strategy != "spark":
        raise UsageError(
            f"backfill {entry.name} is copied by the servers ({strategy}), not by Spark",
            hint=f"Run it without a cluster: jsplan backfill run {entry.name}",
        )


async def _save_state(world: Context, record: BackfillState) -> None:
    await world.backend.start(world.state)
    try:
        world.backend.append(world.state, {"backfill": record.to_json()})
        await world.backend.sync()
    finally:
        await world.backend.finish(world.state)


def _read_files(root: Path, entry: Backfill) -> dict[str, str]:
    """Read the files that the entry names."""
    name = entry.transform.rpartition(":")[0] if entry.transform is not None else ""
    try:
        return {name: read_regular(root / name, MEGABYTE, root=root).decode()} if name else {}
    except OSError as error:
        raise JsplanError(f"cannot read {root / name}: {error.strerror}") from None


def _describe_job(world: Context, entry: Backfill, record: BackfillState) -> dict[str, Any]:
    """Describe the job for readers of the script."""
    known = {text for origin in record.origins for text in (origin.origin, origin.archive)}
    lines = [
        f"{origin.origin} -> {origin.target}: sequences {origin.first:,} to {origin.last:,}"
        for origin in record.origins
    ]
    lines += [
        f"{side} -> {entry.target}: the run that reaches it pins its range"
        for side in entry.origins
        if str(side) not in known
    ]
    backend = world.workspace.backend
    place = (
        f"bucket {backend.bucket} of domain {backend.domain}"
        if backend.kind == "kv"
        else f"file {backend.path}"
    )
    return {
        "backfill": record.name,
        "workspace": world.workspace.name,
        "state": place,
        "origins": lines,
    }


def render_script(job: dict[str, Any]) -> str:
    """Render the script, with all data in one literal: ASCII JSON without single quotes."""
    text = json.dumps(job, indent=1).replace("'", "\\u0027")
    return _SCRIPT_TEMPLATE.format(version=jsplan.__version__, at=format_timestamp(), job=text)


def _write_file(path: Path, text: str) -> None:
    try:
        write_private(path, text.encode())
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None


# --- run ------------------------------------------------------------------------------------------


@contextmanager
def unpack_job(text: str) -> Iterator[tuple[list[str], str]]:
    """Write the workspace of a job into a temporary folder.

    Yields the global options for it and the name of the entry. Raises JsplanError for a job of
    another format, and DocumentError for a damaged one.
    """
    job = _parse_job(text)
    for key, connection in job["document"].get("connections", {}).items():
        declare_connection(key, connection)
    with TemporaryDirectory(prefix="jsplan-job-") as folder, use_job_files(job["files"]):
        (Path(folder) / "jsplan.yaml").write_text(json.dumps(job["document"]), "utf-8")
        arguments = ["-C", folder] + (["-e", job["environment"]] if job["environment"] else [])
        yield arguments, str(job["record"]["name"])


def _parse_job(text: str) -> dict[str, Any]:
    job: Any = parse(text.encode(errors="surrogatepass"), "this job", REWRITE_HINT)
    if isinstance(job, dict) and job.get("format") != FORMAT:
        raise JsplanError(
            f"this job is of another format, and this jsplan runs {FORMAT}", hint=REWRITE_HINT
        )
    require_valid(job, "job", "this job", REWRITE_HINT)
    return dict(job)


def require_pinned(load: LoadOptions, text: str) -> None:
    """Raise JsplanError unless the state has the pinned range of the job."""
    run_workflow(_require_pinned(load, BackfillState.from_json(_parse_job(text)["record"])))


async def _require_pinned(load: LoadOptions, record: BackfillState) -> None:
    async with open_context(load) as world:
        stored = load_stored_state(world, resolve_entry(world, BackfillOptions(name=record.name)))
        if stored is None or stored.pinned_at != record.pinned_at:
            problem = (
                "has no such range"
                if stored is None
                else f"has another range of it, pinned at {stored.pinned_at}"
            )
            raise JsplanError(
                f"this job has the range of {record.name} that was pinned at {record.pinned_at}, "
                f"and {world.backend.location} {problem}",
                hint="A local state file exists only on the machine that wrote the job: submit the "
                "job there, or use the kv backend. Else write the job again.",
            )
