"""backfill plan --job-file: a backfill as a script for `spark-submit`, with its range pinned and without a credential.

The script carries a workspace of its own, in which every `${env.X}` is still one, and runs the very `backfill run` that would run here:
under the lock of the same state, staged, sealed, brought in, compared. So a job that is killed is taken over by whoever runs the entry
next, with spark-submit or without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import jsplan
from jsplan.backfill.model import BackfillState, hash_config
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.partitioned_run import needs_partitions, reads_archive
from jsplan.backfill.pinning import load_stored_state, pin_ranges, resolve_entry
from jsplan.backfill.reachable_origins import find_offline_domains, pin_reachable_origins
from jsplan.backfill.spark_job_workspace import build_job_workspace, keep_references
from jsplan.backfill.strategy_copy import select_strategy
from jsplan.backfill.tasks.endpoints import declare_connection
from jsplan.backfill.transforms import build_transform_spec, use_job_files
from jsplan.config import load as load_workspace
from jsplan.context import Context, hold_lock, open_context, open_pool
from jsplan.disk import MEGABYTE, read_regular
from jsplan.documents.base import parse
from jsplan.documents.validation import require_valid
from jsplan.errors import JsplanError, UsageError
from jsplan.event_loop import run_until_complete as run_workflow
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from jsplan.config.model import Backfill, LoadOptions
    from jsplan.jetstream import Pool
    from jsplan.options import Observer

FORMAT: Final = "jsplan-job/1"
#: What to do about a job that cannot be run.
REWRITE_HINT: Final = "Write the job file again: jsplan backfill plan NAME --job-file FILE"
_SCRIPT_TEMPLATE: Final = '''"""A backfill for spark-submit. Written by jsplan {version} at {at}; JOB begins with what it copies.

It holds no credentials: where the workspace says ${{env.NAME}}, the driver and every executor take NAME from their own environment, and
files of credentials or contexts are those of each machine. Each needs jsplan and pyarrow in its Python environment. The job keeps its
state, and takes its lock, where the workspace does. Options of `jsplan backfill run` may follow.
"""

JOB = r\'\'\'{job}\'\'\'

if __name__ == "__main__":
    from jsplan.cli.job import main

    raise SystemExit(main(JOB))
'''


async def write_job(
    load: LoadOptions, options: BackfillOptions, path: Path, observer: Observer
) -> BackfillState:
    """What `workflows.backfill.write_job` does; the record that the job carries."""
    async with open_context(load) as world:
        entry = resolve_entry(world, options)
        if options.name is None:
            raise UsageError(
                "a job is made of an entry of `backfills:`", hint="Add one for these two addresses."
            )
        workspace = load_workspace(keep_references(load))
        said = build_job_workspace(
            workspace, workspace.backfills[entry.name]
        )  # before anything is kept
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
        "document": said,
    }
    job |= {"record": record.to_json(), "files": _read_files(world.workspace.root, entry)}
    _write_file(path, render_script(job))
    return record


async def _pin_job_ranges(
    world: Context, pool: Pool, entry: Backfill, observer: Observer, *, reset_range: bool
) -> BackfillState:
    """The range that the job carries: what state keeps, with that of origins of a fleet that could not be reached before."""
    record = load_stored_state(world, entry) if not reset_range else None
    for leg in record.origins if record is not None else ():
        _require_spark(entry, leg.strategy)
    if needs_partitions(entry) and not reads_archive(entry):
        record = record or BackfillState(entry.name, hash_config(entry), [], format_timestamp())
        away = await find_offline_domains(world, pool, entry)
        for side in (side for side in entry.origins if side.domain in away):
            observer.warn(
                f"{side} is offline; the run that reaches it pins its range: {away[side.domain]}"
            )
        if await pin_reachable_origins(world, pool, entry, record, away):
            await _save_state(world, record)
    elif record is None or record.planned:  # what a plan has pinned knows no tool yet
        _require_spark(entry, (await select_strategy(world, pool, entry)).strategy)
        if record is None:
            record = await pin_ranges(world, pool, entry)
            await _save_state(world, record)
    return record


def _require_spark(entry: Backfill, strategy: str) -> None:
    if strategy != "spark":
        raise UsageError(
            f"backfill {entry.name} is carried out by the servers ({strategy}), and a cluster has nothing to do in it",
            hint=f"Run it from anywhere: jsplan backfill run {entry.name}",
        )


async def _save_state(world: Context, record: BackfillState) -> None:
    await world.backend.start(world.state)
    try:
        world.backend.append(world.state, {"backfill": record.to_json()})
        await world.backend.sync()
    finally:
        await world.backend.finish(world.state)


def _read_files(root: Path, entry: Backfill) -> dict[str, str]:
    """Files that the entry names."""
    name = entry.transform.rpartition(":")[0] if entry.transform is not None else ""
    try:
        return {name: read_regular(root / name, MEGABYTE).decode()} if name else {}
    except OSError as error:
        raise JsplanError(f"cannot read {root / name}: {error.strerror}") from None


def _describe_job(world: Context, entry: Backfill, record: BackfillState) -> dict[str, Any]:
    """Say to a reader of the script what the job does; nothing reads it but people."""
    known = {text for leg in record.origins for text in (leg.origin, leg.archive)}
    lines = [
        f"{leg.origin} -> {leg.target}: sequences {leg.first:,} to {leg.last:,}"
        for leg in record.origins
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
    """Return the script. All that comes from files or servers is in one literal, as JSON in ASCII without the quote that would end it."""
    text = json.dumps(job, indent=1).replace("'", "\\u0027")
    return _SCRIPT_TEMPLATE.format(version=jsplan.__version__, at=format_timestamp(), job=text)


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None


# --- where it runs --------------------------------------------------------------------------------------------------


@contextmanager
def unpack_job(text: str) -> Iterator[tuple[list[str], str]]:
    """The workspace of a job in a folder of its own, for as long as it runs: the global options that lead to it, and the entry's name.

    Raises JsplanError for a job of another format, and DocumentError for a damaged one.
    """
    job = _parse_job(text)
    for key, connection in job["document"].get("connections", {}).items():
        declare_connection(key, connection)
    with TemporaryDirectory(prefix="jsplan-job-") as folder, use_job_files(job["files"]):
        (Path(folder) / "jsplan.yaml").write_text(json.dumps(job["document"]), "utf-8")
        words = ["-C", folder] + (["-e", job["environment"]] if job["environment"] else [])
        yield words, str(job["record"]["name"])


def _parse_job(text: str) -> dict[str, Any]:
    job: Any = parse(text.encode(errors="surrogatepass"), "this job", REWRITE_HINT)
    if isinstance(job, dict) and job.get("format") != FORMAT:
        raise JsplanError(
            f"this job is of another format, and this jsplan runs {FORMAT}", hint=REWRITE_HINT
        )
    require_valid(job, "job", "this job", REWRITE_HINT)
    return dict(job)


def require_pinned(load: LoadOptions, text: str) -> None:
    """Raise JsplanError unless the state that a job has here is the one in which its range was pinned."""
    run_workflow(_require_pinned(load, BackfillState.from_json(_parse_job(text)["record"])))


async def _require_pinned(load: LoadOptions, record: BackfillState) -> None:
    async with open_context(load) as world:
        found = load_stored_state(world, resolve_entry(world, BackfillOptions(name=record.name)))
        if found is None or found.pinned_at != record.pinned_at:
            words = (
                "has no such range"
                if found is None
                else f"has another range of it, pinned at {found.pinned_at}"
            )
            raise JsplanError(
                f"this job has the range of {record.name} that was pinned at {record.pinned_at}, and {world.backend.location} {words}",
                hint="A state in a file is found only on its machine: submit from there, or keep it in a bucket. Else write the job again.",
            )
