"""Write the generated pages under docs/reference/; a test checks that they are current.

`make docs-pages` runs it. The other pages are written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent, wrap
from typing import Any

import click

from jsplan import errors, units
from jsplan.cli.help_text import VALUES
from jsplan.cli.lazy import LazyGroup
from jsplan.cli.main import root
from jsplan.cli.settings import GlobalOption
from jsplan.codes import EXIT_CODES, FILE_CODES, HAZARD_TEXTS, HAZARDS, SERVER_CODES, CodeText
from jsplan.config.sections import Section
from jsplan.config.workspace_schema import all_sections
from jsplan.documents.lint import Explanation
from jsplan.errors import ExitCode, JsplanError
from jsplan.health.thresholds import ROWS as THRESHOLDS
from jsplan.jetstream.context_files import CONTEXT_KEYS, SCHEMES, SCHEMES_OF_USE, Use
from jsplan.planning.server_version import DIFFERENCES
from jsplan.resources import TABLES
from jsplan.resources.buckets import uncovered_fields
from jsplan.resources.fields import (
    ABSENT,
    Field,
    Table,
    ignore_change,
    require_replacement,
    turn_on_only,
    update_in_place,
)
from jsplan.resources.nested import (
    CONSUMER_LIMITS,
    CONSUMER_SOURCE,
    EXTERNAL,
    ORIGIN,
    PLACEMENT,
    REPUBLISH,
    TRANSFORM,
)
from jsplan.resources.server_features import SERVER_VERSIONS
from jsplan.sandbox.versions import VERSIONS
from jsplan.workflows.explain import list_lint_rules
from tests.support.yaml_text import read_yaml
from tools import bench, bench_page

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
COLUMNS = 100
NOTE = "<!-- Written by tools/make_docs.py from {source}: `make docs-pages`. Do not edit. -->\n\n"

#: Update rules that depend on more than the field: what they come to, by field.
CONDITIONAL = {
    "retention": "in place; to and from `workqueue` a new object",
    "max_consumers": "in place from 2.12 on, before that a new object",
    "mirror": "a new object; removing it is in place from 2.12 on",
    "sources": "in place; another `opt_start_*` alone is ignored",
    "mirror_direct": "in place; ignored in a mirror within one JetStream",
    "deliver_subject": "in place for a push consumer; between push and pull a new object",
    "mem_storage": "a new object",
    "subject_delete_marker_ttl": "in place; with `deny_purge` a new object",
    "allow_msg_schedules": "one way: on, and never off again; with `deny_purge` a new object",
}
RULES = {
    update_in_place: "in place",
    require_replacement: "a new object",
    ignore_change: "ignored",
    turn_on_only: "one way: on, and never off again",
}


def pages() -> dict[str, str]:
    """Return every generated page by file name."""
    found = {
        "commands.md": commands(),
        "exit-codes.md": exit_codes(),
        "diagnostics.md": diagnostics(),
        "lint.md": lint(),
        "hazards.md": hazards(),
        "streams.md": streams(),
        "consumers.md": consumers(),
        "buckets.md": buckets(),
        "documents.md": documents(),
        "workspace.md": workspace(),
        "contexts.md": contexts(),
        "benchmarks.md": benchmarks(),
        "compatibility.md": compatibility(),
    }
    return {name: wrap_prose(text) for name, text in found.items()}


def wrap_prose(page: str) -> str:
    """Fold long lines at 100 columns; tables, headings, comments and code stay unchanged."""
    lines: list[str] = []
    code = False
    for line in page.split("\n"):
        code ^= line.startswith("```")
        if code or len(line) <= COLUMNS or line.startswith(("|", "#", "<")):
            lines.append(line)
        else:
            indent = "  " if line.startswith("- ") else ""
            lines += wrap(
                line,
                COLUMNS,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a markdown table; bars in cells are escaped."""
    head = list(head)
    lines = [
        head,
        ["---"] * len(head),
        *([str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- commands -------------------------------------------------------------------------------------


def commands() -> str:
    """Describe every command of this release with its options."""
    context = click.Context(root, info_name="jsplan")
    parts = [NOTE.format(source="jsplan/cli"), "# Commands and options\n\n", _COMMANDS_INTRO]
    parts += [
        "## Global options\n\n",
        "They work before and after the command.\n\n",
        _options(context, root, everywhere=True),
        "\n",
    ]
    parts += [
        "## Values\n\n",
        "".join(f"- `{name}`: {text}\n" for name, text in sorted(VALUES.items())),
        "\n",
    ]
    for command, path in _walk(root, context, "jsplan"):
        parts.append(_command(command, path))
    return "".join(parts)


_COMMANDS_INTRO = """The result goes to stdout; progress, questions and logs go to stderr. With `--json` stdout holds one JSON document.

Every option can be given by the environment as `JSPLAN_<COMMAND>_<OPTION>`, with `_` for `-` and blanks:
`JSPLAN_PLAN_PARALLELISM=20`, `JSPLAN_DRIFT_FAIL_ON=changed`. Global options are also read without the command:
`JSPLAN_ENV`, `JSPLAN_NO_COLOR`, `JSPLAN_FORMAT`. `NO_COLOR` and `FORCE_COLOR` are honoured.

Wherever an address is taken, a glob is too: `hub/stream/*`, `store-*/**`.

"""


def _walk(
    group: click.Command, context: click.Context, path: str
) -> Iterator[tuple[click.Command, str]]:
    assert isinstance(group, LazyGroup)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        subcommands = isinstance(command, LazyGroup) and command.list_commands(inner)
        if not subcommands or getattr(command, "invoke_without_command", False):
            yield command, f"{path} {name}"
        if subcommands:
            yield from _walk(command, inner, f"{path} {name}")


def _command(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join(
        word
        for word in command.collect_usage_pieces(context)
        if "COMMAND" not in word and word != "[ARGS]..."
    )
    text = re.sub(r"\s*\n\s*", " ", (command.help or "").strip())
    options = _options(context, command, everywhere=False)
    examples = "\n".join(getattr(command, "examples", ()))
    shown = f"```shell\n{examples}\n```\n\n" if examples else ""
    return f"## {path}\n\n```text\n{path} {usage}\n```\n\n{text}\n\n{shown}{options}{chr(10) if options else ''}"


def _options(context: click.Context, command: click.Command, *, everywhere: bool) -> str:
    rows = []
    for param in command.params:
        if (
            isinstance(param, click.Option)
            and isinstance(param, GlobalOption) == everywhere
            and not param.hidden
        ):
            names = ", ".join(f"`{name}`" for name in sorted(param.opts, key=len))
            rows.append((names + _value(param, context), _help(param, context)))
    return table(("option", "what it does"), rows) if rows else ""


def _value(option: click.Option, context: click.Context) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return f" {'|'.join(map(str, option.type.choices))}"
    return f" {option.make_metavar(context)}"


def _help(option: click.Option, context: click.Context) -> str:
    shown = option.show_default
    default = shown if isinstance(shown, str) else option.get_default(context) if shown else None
    text = re.sub(r"\.\s+\[default: (.*)\]$", r" (default: \1)", option.help or "").rstrip(".")
    return f"{text} (default: `{default}`)." if default is not None else f"{text}."


# --- codes ----------------------------------------------------------------------------------------


def exit_codes() -> str:
    """Return the table of exit codes, their errors, and their precedence."""
    order = ", ".join(
        str(int(code)) for code in errors.PRECEDENCE if code not in (ExitCode.USAGE, ExitCode.OK)
    )
    return (
        NOTE.format(source="jsplan/errors.py and jsplan/codes")
        + "# Exit codes\n\n"
        + _EXPLAIN.format(example=4)
        + "\n".join(map(_exit_code, ExitCode))
        + f"\n## Several at once\n\nWhere several apply, the first of {order} wins; for `drift`, 2 comes before 1, and the JSON holds both.\n"
    )


def _exit_code(code: ExitCode) -> str:
    number = int(code)
    more = f"\n\n`error.type` in JSON: {names}." if (names := _classes(code)) else ""
    return _text(number, number, EXIT_CODES[number], more)


def _classes(code: ExitCode) -> str:
    """Return the public exceptions that have this code themselves, not from their base."""
    known = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, JsplanError)
    ]
    return ", ".join(
        sorted(
            f"`{cls.__name__}`"
            for cls in known
            if cls.exit_code == code and cls.__name__ != "DiagnosticsError"
        )
    )


def diagnostics() -> str:
    """Describe every code of a finding."""
    parts = [
        NOTE.format(source="jsplan/codes"),
        "# Codes of findings\n\n",
        _DIAGNOSTICS_INTRO,
        _EXPLAIN.format(example="JS438"),
    ]
    parts += ["## Found in the files\n\n", _texts(FILE_CODES)]
    parts.append("\n## Advice\n\nJS2xx are advice, one page for all: [Lint](lint.md).\n")
    parts += ["\n## Found against servers and state\n\n", _texts(SERVER_CODES)]
    parts.append(
        "\nJS301 to JS306 leave the plan sound and stop the apply, with exit 3; the other errors make the plan void.\n"
    )
    return "".join(parts)


def _texts(texts: Mapping[str, CodeText]) -> str:
    return "\n".join(_text(code, code, text) for code, text in sorted(texts.items()))


def _text(title: object, code: object, text: CodeText, more: str = "") -> str:
    """Return a section about one code: links of other pages end here."""
    meaning, why, fix = text
    assert str(title).startswith(str(code))
    advice = "" if fix == "Nothing." else f"\n\n{fix}"
    return f"### {title}\n\n**{meaning}** {why}{advice}{more}\n"


_DIAGNOSTICS_INTRO = """A finding has a severity (`error`, `warning`, `info`), a stable code, a line that says what is
wrong, a line that says what to do, and the place in the files or the address that it concerns.
jsplan reports all findings at once, not only the first.

"""
_EXPLAIN = "`jsplan explain {example}` prints one of these texts.\n\n"


def lint() -> str:
    """Describe every rule of lint."""
    head = NOTE.format(source="jsplan/lint/rules and tests/lint/cases") + "# Lint\n\n" + _LINT_INTRO
    rows = [
        (f"[{rule.code}](#{rule.code.lower()})", rule.level, rule.title)
        for rule in list_lint_rules()
    ]
    return (
        head
        + table(("code", "level", "what it finds"), rows)
        + "".join(map(_rule, list_lint_rules()))
    )


def _rule(rule: Explanation) -> str:
    path = min((ROOT / "tests" / "lint" / "cases").glob(f"{rule.code.lower()}_*.yaml"))
    case = re.search(r"^bad:\n(.*?)^good:", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert case is not None
    found = read_yaml(path.read_text("utf-8"))["find"]
    said = "\n".join(f"{address}: {text}" for address, text in found.items())
    example = f"```yaml\n{dedent(case[1])}```\n\n```text\n{said}\n```"
    return f"\n## {rule.code}\n\n*{rule.title}* ({rule.level})\n\n{example}\n\n{rule.why}\n\n{rule.fix}\n"


_LINT_INTRO = """`jsplan lint` checks for valid but risky configuration. It reads only the files; with `--live` it
also reads the servers, including unmanaged streams: [Advice on a workspace](../how-to/lint.md).

A *note* is reported by `lint` only, a *warning* also by a plan that creates or changes the resource. A finding is an
error only if the files say so: `lint: {JS201: error}` (or `warning`, `ignore`) for the workspace. Then `lint` and `plan`
end with exit code 3, and `apply` is refused. To ignore a finding for one resource, give the reason:
`lint: {ignore: [{code: JS201, reason: "…"}]}`. An entry that no finding needs any more is reported (JS200).
`jsplan explain JS201` prints one of these texts.

The examples have the domains `hub` and `leaf` over one connection; `hub` is the default.

"""


def hazards() -> str:
    """Return the closed list of hazards."""
    effect = {True: "blocks", False: "only warns"}
    texts = [
        _text(code, code, text, f"\n\nIt {effect[HAZARDS[code]]}.")
        for code, text in HAZARD_TEXTS.items()
    ]
    head = NOTE.format(source="jsplan/codes/hazards.py") + "# Hazards\n\n" + _HAZARDS_INTRO
    explain = _EXPLAIN.format(example="DELETES_MESSAGES")
    return head + explain + "\n".join(texts)


_HAZARDS_INTRO = """A hazard is a loss that a plan would cause. A blocking hazard stops the apply before its first
write, with exit 3, unless it is allowed: by `--allow-hazard CODE` or `--allow-hazard CODE:ADDRESS`
on the command line (recorded in a saved plan), or in review by
`lifecycle: {allow_hazards: [{code, until, reason}]}`. The answer `yes` and `--auto-approve` allow
none. The list is closed: other findings are [diagnostics](diagnostics.md) and stop nothing.

"""


# --- benchmarks -----------------------------------------------------------------------------------


def benchmarks() -> str:
    """Return the recorded figures of the benchmarks."""
    head = NOTE.format(source="benchmarks/results.json")
    return head + bench_page.page(bench.read_results(), table)


# --- contexts of the nats CLI ---------------------------------------------------------------------


def contexts() -> str:
    """Return the tables of the keys and schemes of a context of the `nats` CLI."""
    refused = [key for key in CONTEXT_KEYS if key.use is Use.REFUSED]
    rows = [(f"`{key.name}`", key.use, key.meaning) for key in CONTEXT_KEYS if key not in refused]
    hints = [(f"`{key.name}`", key.meaning) for key in refused]
    schemes = [
        (text, "all" if scheme in SCHEMES_OF_USE[Use.VALUE] else "`creds`, `nkey`, `nsc`")
        for scheme, text in SCHEMES.items()
    ]
    return (
        NOTE.format(source="jsplan/jetstream/context_files.py and secret_references.py")
        + "# Contexts of the nats CLI\n\n"
        + _CONTEXTS_INTRO
        + "## Keys\n\n"
        + table(("key", "value", "meaning"), rows)
        + _CONTEXTS_KEYS
        + "## References\n\n"
        + table(("reference and value", "keys that take references"), schemes)
        + _CONTEXTS_REFERENCES
        + "## Keys that are refused\n\n"
        + table(("key", "instead"), hints)
        + _CONTEXTS_REFUSED
    )


_CONTEXTS_INTRO = """A connection can name a context of the `nats` CLI: `{context: shop}` reads
`~/.config/nats/context/shop.json`, or `nats/context/shop.json` in `XDG_CONFIG_HOME`. An absolute
path that ends with `.json` is possible too. [Connect to your servers](../how-to/connect.md) says
when the selected context is used.

The same code logs in for every connection, those of a backfill's tasks too. A login in the
connection of the workspace (`user`, `token`, `creds` or `nkey`) replaces that of the context.

"""
_CONTEXTS_KEYS = """
Write one of `user`, `creds`, `nkey` and `user_jwt`; two are an error. A user or a token in the URL
replaces `user`, `password` and `token`. Keys are found in any case, and an empty value counts as
none.

In `creds`, `nkey`, `ca`, `cert` and `key`, `$NAME`, `${NAME}` and a leading `~` are replaced; an
unset variable is an error. Relative paths belong to the current folder. `ca`, `cert` and `key` may
also be `file:///PATH`.

"""
_CONTEXTS_REFERENCES = """
References are read when jsplan connects, and never shown. Line ends behind a value are cut off. For
a secret, text with another scheme is the secret itself; for a path it is an error. `nsc` and `op`
must be on the `PATH`, and answer within 60 seconds.

"""
_CONTEXTS_REFUSED = """
A key that is neither here nor above is an error too, since the connection might need it.
"""


# --- fields ---------------------------------------------------------------------------------------


def streams() -> str:
    """Describe the fields of streams and of the objects nested in them."""
    parts = [
        NOTE.format(source="jsplan/resources"),
        "# Fields of streams\n\n",
        _FIELDS_INTRO,
        fields(TABLES["stream"]),
        "\n",
    ]
    nested = (
        ("mirror and sources", ORIGIN),
        ("external", EXTERNAL),
        ("consumer of a source", CONSUMER_SOURCE),
        ("subject_transform", TRANSFORM),
        ("placement", PLACEMENT),
        ("republish", REPUBLISH),
        ("consumer_limits", CONSUMER_LIMITS),
    )
    for title, nested_table in nested:
        parts.append(
            f"## {title}\n\n{_ORIGIN_NOTE if nested_table is ORIGIN else ''}{fields(nested_table)}\n"
        )
    parts.append(f"## Thresholds\n\n{_THRESHOLDS_INTRO}{_thresholds('stream')}")
    return "".join(parts).rstrip("\n") + "\n"


def _thresholds(kind: str) -> str:
    """Describe the thresholds that metadata may hold."""
    values = {"unsigned": "int ≥ 0", "integer": "int", "duration": "duration", "flag": "bool"}
    rows = [
        (f"`{row.key}`", values[row.value], row.level, row.text)
        for row in THRESHOLDS
        if row.kind == kind
    ]
    return table(("key", "value", "level", "exceeded if"), rows)


_THRESHOLDS_INTRO = """Metadata whose keys begin with `io.nats.monitor.` holds thresholds. They mean what they mean to
`nats server check`. `jsplan status` marks what is exceeded, and ends with 2, as `jsplan drift` does, where the level is critical,
`jsplan drift watch` alerts, and lint rule JS234 checks keys and values. KV buckets and object stores have those of
streams, [consumers](consumers.md) their own.

```yaml
streams:
  - name: ORDERS
    subjects: ["orders.>"]
    num_replicas: 3
    metadata:
      io.nats.monitor.peer-expect: "3"
      io.nats.monitor.peer-lag-critical: "100"
      io.nats.monitor.msgs-warn: "1"
```

- Values are text in quotes, as all metadata. A threshold of `0` is off. Durations are written `30s`, `5m`, `1d`.
- `io.nats.monitor.enabled: "false"` switches all thresholds of an object off.
- A value that cannot be read counts as exceeded. A warning is left out where the critical threshold is exceeded.
- `seen-critical` is the time since the mirror or the sources heard of their origin. Some releases of the `nats` CLI
  compare it with replicas instead.
- Without `peer-expect` the number of replicas is not checked.

"""
_FIELDS_INTRO = """The names and values are those of the JetStream API. A field left out means the server's default. A duration is
written `30d`, `1h30m`, `500ms` or as an integer of nanoseconds; a size `10GiB` (1024-based) or as an integer of bytes.

*A change* says how the server takes a change of the field: **in place**; only in **a new object** (then `lifecycle.on_replace`
decides); **one way**, on and never off again (hazard `IRREVERSIBLE`); or **ignored**: accepted without effect, so it is never sent and
reported as JS412. *Since* is the first nats-server with the field; plans for an older one are refused (JS413).

"""
_ORIGIN_NOTE = """Instead of `external`, write `domain:` with the name of a domain of the workspace; in `sources` also a list, a glob or
`label:…`, which stands for one source per matching domain.

"""


def consumers() -> str:
    """Describe the fields of consumers."""
    head = NOTE.format(source="jsplan/resources") + "# Fields of consumers\n\n"
    thresholds = f"\n## Thresholds\n\n{_CONSUMER_THRESHOLDS}{_thresholds('consumer')}"
    return head + _FIELDS_INTRO + _CONSUMER_NOTE + fields(TABLES["consumer"]) + thresholds


_CONSUMER_THRESHOLDS = """Metadata whose keys begin with `io.nats.monitor.` holds thresholds, with the rules of those of
[streams](streams.md#thresholds).

"""


_CONSUMER_NOTE = """`name` implies `durable_name`, and the other way round. `durable_name: null` declares a named consumer that
the server may expire; then `inactive_threshold` is required. `pause_until` is compared only if the files name it.

"""


def buckets() -> str:
    """Describe the fields of KV buckets and object stores, and the stream fields beside them."""
    parts = [
        NOTE.format(source="jsplan/resources"),
        "# Fields of KV buckets and object stores\n\n",
        _BUCKETS_INTRO,
    ]
    for section, kind in (("kv", "kv"), ("object_stores", "object_store")):
        raw = [row.name for row in uncovered_fields(kind)]
        own = Table(
            kind,
            tuple(
                row
                for row in TABLES["kv" if kind == "kv" else "object_store"].rows
                if row.name not in raw
            ),
        )
        beside = ", ".join(f"`{name}`" for name in raw)
        parts.append(
            f"\n## {section}\n\n{fields(own)}\nBeside them, as in [streams](streams.md): {beside}.\n"
        )
    return "".join(parts)


_BUCKETS_INTRO = """A bucket is written in its own words and is a stream underneath: `KV_<bucket>` or `OBJ_<bucket>`, as the `nats` CLI
and the client libraries make it. Plans and drift show it in these words again. What the words do not cover is as clients
make it when jsplan makes the bucket, and is left unchanged when another client did.

"""


def fields(rows: Table) -> str:
    """Return one table of fields."""
    head = ("field", "type", "default", "a change", "since", "meaning")
    cells = [
        (
            f"`{r.name}`",
            _type(r),
            _default(r),
            _change(r),
            SERVER_VERSIONS[r.level] if r.level else "",
            r.doc,
        )
        for r in rows.rows
    ]
    return table(head, cells)


def _type(row: Field) -> str:
    limits = [
        f"≥ {row.minimum}" if row.minimum is not None else "",
        f"≤ {row.maximum}" if row.maximum is not None else "",
    ]
    words = {
        "strings": "list of text",
        "string": "text",
        "durations": "list of durations",
        "objects": "list of objects",
    }
    text = ", ".join(f"`{value}`" for value in row.values) or words.get(row.type, row.type)
    bounds = " and ".join(limit for limit in limits if limit) if row.type == "int" else ""
    return text + (f" {bounds}" if bounds else "") + (", **required**" if row.required else "")


def _default(row: Field) -> str:
    if row.default is ABSENT or row.default in ("", [], {}) or row.required:
        return ""
    if row.default is None:
        return "depends"
    if row.unlimited and row.default == -1:
        return "unlimited"
    if row.type == "duration" and row.default:
        return f"`{units.format_duration(row.default)}`"
    shown: Any = str(row.default).lower() if isinstance(row.default, bool) else row.default
    return f"`{shown}`"


def _change(row: Field) -> str:
    return RULES.get(row.update) or CONDITIONAL[row.name]


# --- compatibility --------------------------------------------------------------------------------

_COMPATIBILITY = dedent(
    """\
    # Releases of nats-server

    jsplan works with nats-server {versions}, and its tests run
    on each of them. Domains may run different ones, and leaves may be older than their hub.
    `jsplan validate --server-version VERSION` says for your files what this page says for all:
    [Before an upgrade or a downgrade](../how-to/change-server-version.md).

    2.12 and later do everything. On 2.10 and 2.11 jsplan plans, imports, creates, updates in place,
    deletes, detects drift, backs up, restores and backfills. It does not replace or relocate
    anything there, set a position, end interest retention, or change several consumers of an
    interest stream at once: such a plan is an error (JS459).

    ## Settings by release

    An older server refuses such a setting or drops it, so a plan with it is an error (JS413).

    """
)
_DIFFERENCES = dedent(
    """
    ## Same setting, other meaning

    """
)
_DOWNGRADE = dedent(
    """
    ## After a downgrade

    What becomes of a resource with a setting that the older release does not know:

    | downgraded to | a stream, a bucket | a consumer |
    |---|---|---|
    | 2.11 and later | is offline: publishers get no answer, its consumers nothing (10194) | is neither run nor listed; clients get 10014 |
    | 2.10 | runs without the setting, without a word | the same; with `ack_policy: flow_control` as in 2.11 |

    Nothing is deleted. A newer server runs all of them again with the setting; on 2.10 messages were
    stored without it meanwhile.
    """
)


def compatibility() -> str:
    """Describe what differs between the supported releases."""
    lines = [version for level, version in SERVER_VERSIONS.items() if version.count(".") == 1]
    levels = {version: level for level, version in SERVER_VERSIONS.items()}
    rows = [
        (f"`{name}`", kind, *("yes" if level <= levels[line] else "" for line in lines))
        for kind in ("stream", "consumer")
        for name, level in _leveled(TABLES[kind])
    ]
    differences = [
        (
            f"`{each.field}`",
            f"{SERVER_VERSIONS[each.level]}",
            each.before,
            each.since or "",
        )
        for each in DIFFERENCES
    ]
    return "".join(
        [
            NOTE.format(source="jsplan/resources and jsplan/planning/server_version.py"),
            _COMPATIBILITY.format(versions=", ".join([*VERSIONS[:-1]]) + f" and {VERSIONS[-1]}"),
            table(("setting", "of a", *lines), rows),
            _DIFFERENCES,
            table(("setting", "changed in", "before", "since"), differences),
            _DOWNGRADE,
        ]
    )


def _leveled(rows: Table) -> Iterator[tuple[str, int]]:
    for row in rows.rows:
        if row.level:
            yield row.name, row.level
        for value, level in row.value_levels.items():
            yield f"{row.name}: {value}", level
        if row.table is not None:
            yield from ((f"{row.name}.{path}", level) for path, level in _leveled(row.table))


# --- workspace files ------------------------------------------------------------------------------


def workspace() -> str:
    """Return the page of workspace files with the tables of its keys; the rest is by hand."""
    page, sections = (FOLDER / "workspace.md").read_text(encoding="utf-8"), all_sections()
    return re.sub(
        r"(<!-- keys: ([^>\n]+) -->\n).*?(?=<!-- end -->)",
        lambda found: f"{found[1]}\n{keys(*map(sections.__getitem__, found[2].split()))}\n",
        page,
        flags=re.DOTALL,
    )


def keys(*sections: Section) -> str:
    """Return one table of the keys of mappings."""
    found = {key: section.one_of for section in sections for key in section.keys}
    rows = [
        (
            f"`{key.name}`",
            key.type.word + (", **required**" if key.required or one_of == (key.name,) else ""),
            f"`{json.dumps(default).strip(chr(34))}`" if (default := key.shown_default) else "",
            key.doc,
        )
        for key, one_of in found.items()
    ]
    if any(row[2] for row in rows):
        return table(("key", "value", "default", "meaning"), rows)
    return table(("key", "value", "meaning"), ((key, value, doc) for key, value, _, doc in rows))


# --- documents ------------------------------------------------------------------------------------


def documents() -> str:
    """Return state/SPEC.md as a page of the site."""
    return NOTE.format(source="state/SPEC.md") + (ROOT / "state" / "SPEC.md").read_text(
        encoding="utf-8"
    )


def main() -> None:
    """Write every page and name it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")


if __name__ == "__main__":
    main()
