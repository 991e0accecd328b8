"""The text of `jsplan access`: what each account needs, and the result of `--check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from jsplan.render import diagnostics_text
from jsplan.render.escape import safe
from jsplan.resources.account import PUBLIC_KEY
from jsplan.resources.account_file import variable_of
from jsplan.topology.access import REPLY_FLAG
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.access import Access, AccountGrants, AppAccess, AppChange, Need, Proof

MARKS = {"ok": ("✓", "green"), "missing": ("✗", "red"), "unknown": ("?", "yellow")}


def render(found: Access, console: Console, *, style: str = "both") -> None:
    """Render everything, or with `style` only the server's `config` or the `nsc` commands."""
    diagnostics_text.render(found.diagnostics, console, after=True)
    if found.changes is not None:
        _render_changes(found.changes, console)
        return
    proven = any(app.proof is not None for app in found.apps)
    if found.checked:
        _render_check(found, console)
    elif found.needs and not proven:
        _flows(found, console)
        for account in found.accounts:
            _account(found, account, console, style)
    elif not found.apps:
        _line(console, summary_line(found), "green")
    for app in found.apps:
        if app.proof is not None:
            _render_proof(app, app.proof, console)
        elif not found.checked and not proven:
            _render_app(found, app, console, style)
    if proven and (alike := sum(app.proof is None for app in found.apps)):
        count = count_text(alike, "more application", "more applications")
        _line(console, f"{count} in other domains, which are alike.")


def _flows(found: Access, console: Console) -> None:
    flows = list(dict.fromkeys(why for need in found.needs for why in need.needed_by))
    head = f"# {count_text(len(flows), 'flow')} between accounts:"
    _lines(console, head, *(f"#   {flow}" for flow in flows))
    if any(need.optional for need in found.needs):
        _line(console, f"# {REPLY_FLAG}: for servers since 2.14 that have or will have this flag")


def _account(found: Access, account: AccountGrants, console: Console, style: str) -> None:
    name = _name(found, account.account)
    if style in ("both", "config"):
        head = (
            f"# Account {name}, in the configuration of every server that has "
            f"it: into its block in accounts {{ … }}"
        )
        _lines(console, "", head, *account.configuration.splitlines())
    if style in ("both", "nsc"):
        head = f"# Account {name} with nsc; then: nsc push -a {account.account}"
        _lines(console, "", head, *account.nsc)


def _render_changes(changes: list[AppChange], console: Console) -> None:
    """Print who gains and who loses what."""
    for change in changes:
        _line(console, change.app)
        _lines(console, *(f"  + may {text}" for text in change.gains), style="green")
        _lines(console, *(f"  - may no longer {text}" for text in change.loses), style="red")
    gains, loses = (
        sum(len(getattr(each, name)) for each in changes) for name in ("gains", "loses")
    )
    if not changes:
        _line(console, "No application gains or loses a permission.", "green")
        return
    count = count_text(len(changes), "application changes", "applications change")
    _line(console, f"{count}: {count_text(gains, 'permission')} more, {loses:,} fewer.")


def _render_app(found: Access, app: AppAccess, console: Console, style: str) -> None:
    account = _name(found, app.account) if app.account else "the account of its connection"
    where = f"in {account} on the servers of domain {app.domain}"
    if style in ("both", "config"):
        _lines(
            console,
            "",
            f"# {app.app}, {where}. Its client sets the inbox prefix {app.inbox}.",
            f"# {{user: {app.user}, password: …, permissions: ${variable_of(app.app)}}}",
            *(f"#   {app.app} {escape}" for escape in app.escapes),
            *app.configuration.splitlines(),
        )
    if style in ("both", "nsc"):
        _lines(console, "", f"# {app.app} with nsc", app.nsc)


def _render_proof(app: AppAccess, proof: Proof, console: Console) -> None:
    for use in proof.uses:
        mark, style = MARKS["missing" if use.problem else "ok"]
        problem = f": {use.problem}" if use.problem else ""
        _line(console, f"{mark} {app.app} {use.use}{problem}", style)
    count = len(app.publish) + len(app.subscribe) - proof.unproven
    wrong = [f"does not need {subject}" for subject in proof.unneeded]
    wrong += [f"may {request}, which it does not declare" for request in proof.permitted]
    _lines(console, *(f"✗ {app.app} {text}" for text in wrong), style="red")
    text = f"{app.app}: {count_text(count, 'permission')}, {count - len(proof.unneeded)} needed; "
    text += f"{proof.refused} other requests refused by nats-server {proof.version}"
    if proof.unproven:
        text += f"; {proof.unproven} for {REPLY_FLAG} not tried"
    _line(console, text, "green" if proof.is_complete else "red")
    _lines(console, *(f"  {app.app} {escape}" for escape in app.escapes))


def _render_check(found: Access, console: Console) -> None:
    for need in found.needs:
        assert need.status is not None
        mark, style = MARKS[need.status]
        if need.optional and need.status != "ok":
            mark, style = "-", "dim"
        _line(
            console,
            f"{mark} {_describe_need(found, need)}"
            + (f" (only with {REPLY_FLAG})" if need.optional else "")
            + (f": {need.detail}" if need.detail else ""),
            style,
        )
        if need.status == "missing" and not need.optional:
            _lines(console, *(f"    needed: {why}" for why in need.needed_by))
    _line(console, summary_line(found), "red" if found.with_status("missing") else "green")


def _describe_need(found: Access, need: Need) -> str:
    renamed = f" as {need.local_subject}" if need.local_subject != need.subject else ""
    owner, user = _name(found, need.owner), _name(found, need.user)
    return f"{need.type} {need.subject} from {owner} to {user}{renamed}"


def _name(found: Access, account: str) -> str:
    """Return the account, with its connection beside a public key."""
    connection = found.connections.get(account) if PUBLIC_KEY.fullmatch(account) else None
    return f"{account} ({connection})" if connection else account


def summary_line(found: Access) -> str:
    """Return the last line of a check."""
    if not found.needs:
        return "No mirror or source crosses accounts: no exports are needed."
    missing, unknown = len(found.with_status("missing")), len(found.with_status("unknown"))
    parts = [f"{missing} missing"] if missing else []
    parts += [f"{unknown} not known"] if unknown else []
    optional = [need for need in found.needs if need.optional]
    subjects = count_text(len(found.needs) - len(optional), "subject")
    lacking = sum(1 for need in optional if need.status != "ok")
    more = f" {lacking} of {len(optional)} for {REPLY_FLAG} are not there." if lacking else ""
    return f"Access: {', '.join(parts) or 'nothing missing'} of {subjects}.{more}"


def _lines(console: Console, *texts: str, style: str = "") -> None:
    for text in texts:
        _line(console, text, style)


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(safe(text), style=style), soft_wrap=True)
