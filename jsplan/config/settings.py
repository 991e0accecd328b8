"""`drift:`, `lint:` and `ownership:` of the workspace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jsplan.codes import LINT
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Domain, DriftSettings, Mute
from jsplan.config.node import Node, source_range, to_plain
from jsplan.config.secret_fields import mark_secret, refuse_variables_in_sink, url_problem
from jsplan.diagnostics import did_you_mean

_LEVELS: Final = ("ignore", "warning", "error")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SINKS: Final[dict[str, tuple[str, ...]]] = {
    "webhook": ("webhook",),
    "subject": ("subject", "domain"),
    "file": ("file",),
}


def read_drift(
    section: Node | None, domains: Mapping[str, Domain], scope: Scope, findings: Findings
) -> DriftSettings:
    """Read `drift:`. Only sinks may use `${env.X}`, so `scope` has the environment.

    The rest is read without it.
    """
    if (
        section is None
        or section.value is None
        or not parsing.check_mapping(section, "`drift`", ("ignore", "mute", "sinks"), findings)
    ):
        return DriftSettings()
    plain_scope = Scope(scope.variables)
    ignore = [
        parsing.read_address(interpolate(item, plain_scope, findings), "`drift.ignore`", findings)
        for item in parsing.read_list(section.get("ignore"), "`drift.ignore`", findings)
    ]
    mutes = [
        _read_mute(interpolate(item, plain_scope, findings), findings)
        for item in parsing.read_list(section.get("mute"), "`drift.mute`", findings)
    ]
    sinks = [
        _read_sink(item, scope, domains, findings)
        for item in parsing.read_list(section.get("sinks"), "`drift.sinks`", findings)
    ]
    return DriftSettings(
        tuple(glob for glob in ignore if glob is not None),
        tuple(mute for mute in mutes if mute is not None),
        tuple(sink for sink in sinks if sink is not None),
    )


def _read_mute(node: Node, findings: Findings) -> Mute | None:
    if not parsing.check_mapping(
        node, "a mute", ("address", "fields", "owner", "reason", "until"), findings
    ):
        return None
    parsing.read_required_text(node, "address", "a mute", findings)
    address = parsing.read_address(node.get("address"), "`address`", findings)
    reason = parsing.read_required_text(node, "reason", "a mute", findings)
    owner = parsing.read_required_text(node, "owner", "a mute", findings)
    until = parsing.read_date(node.get("until"), "`until`", findings)
    fields = tuple(parsing.read_texts(node.get("fields"), "`fields`", findings))
    return (
        Mute(address, reason, owner, fields, until, source_range(node.place))
        if address and reason and owner
        else None
    )


def _read_sink(
    written: Node, scope: Scope, domains: Mapping[str, Domain], findings: Findings
) -> Mapping[str, Any] | None:
    refuse_variables_in_sink(written, findings)
    node = interpolate(written, scope, findings)
    if not isinstance(node.value, dict):
        findings.wrong_type(node, "a sink", "a mapping")
        return None
    kinds = [kind for kind in _SINKS if kind in node.value]
    if len(kinds) != 1:
        findings.error(
            "JS104",
            node,
            f"a sink must name one target: {', '.join(_SINKS)}",
            "Write {webhook: {url: …}}, {subject: …, domain: …} or {file: …}.",
        )
        return None
    (kind,) = kinds
    if not parsing.check_mapping(node, "a sink", _SINKS[kind], findings):
        return None
    if kind == "webhook":
        target = node.value["webhook"]
        headers = target.get("headers")
        mark_secret(
            target.get("url"),
            headers,
            *(
                headers.value.values()
                if headers is not None and isinstance(headers.value, dict)
                else ()
            ),
        )
        if (
            not parsing.check_mapping(target, "a webhook", ("url", "headers"), findings)
            or parsing.read_required_text(target, "url", "a webhook", findings) is None
            or not _is_valid_webhook(target, findings)
        ):
            return None
    elif kind == "file":
        if (
            parsing.read_required_text(node, kind, "a sink", findings) is None
            or parsing.read_path(node.get(kind), "`file`", findings) is None
        ):
            return None
    elif parsing.read_required_text(node, kind, "a sink", findings) is not None:
        _check_publishable(node, findings)
    domain = parsing.read_text(node.get("domain"), "`domain`", findings)
    if domain is not None and domain not in domains:
        findings.error(
            "JS122",
            node.value["domain"],
            f'there is no domain "{domain}"',
            f"Declare it under `domains:`.{did_you_mean(domain, domains)}",
        )
    sink: Mapping[str, Any] = to_plain(node)
    return sink


def _is_valid_webhook(node: Node, findings: Findings) -> bool:
    """Check whether a webhook can be called. URL and headers are secrets: no finding shows them."""
    url, headers = node.value["url"], node.get("headers")
    if problem := url_problem(url, url.value, ("http", "https")):
        findings.error("JS130", url, f"`url` of a webhook: {problem}", "Write https://HOST/PATH.")
    wrong = bool(problem)
    for name, item in parsing.read_mapping(headers, "`headers`", findings):
        value = parsing.read_text(item, f"header {name}", findings)
        if not _HEADER.fullmatch(name):
            findings.error(
                "JS130",
                headers.key_place(name) if headers else node,
                f'"{name}" is not a name for a header',
                "Write X-Key.",
            )
        elif value is not None and not (value.isprintable() and _is_latin1(value)):
            findings.error(
                "JS130",
                item,
                f"the value of header {name} cannot be sent",
                "Use Latin letters, without line breaks.",
            )
        else:
            wrong |= value is None
            continue
        wrong = True
    return not wrong and (
        headers is None or headers.value is None or isinstance(headers.value, dict)
    )


def _is_latin1(value: str) -> bool:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _check_publishable(node: Node, findings: Findings) -> None:
    """Check whether a subject can take notifications: the server's own subjects cannot."""
    where = node.value["subject"]
    subject = parsing.read_text(where, "`subject`", findings) or ""
    if (
        subject.startswith(("$", "_INBOX."))
        or any(token in ("", "*", ">") for token in subject.split("."))
        or " " in subject
    ):
        detail = (
            "Use a subject of your own without wildcards, such as ops.drift."
            " Subjects that begin with $ belong to the server."
        )
        findings.error("JS130", where, f'nothing can be reported on subject "{subject}"', detail)


def read_lint(section: Node | None, findings: Findings) -> dict[str, str]:
    """Read `lint:` as level by code."""
    out = {}
    for key, node in parsing.read_mapping(section, "`lint`", findings):
        assert section is not None
        key_node = Node(section.key_place(key), key, key)
        level = parsing.read_choice(node, f"`{key}`", _LEVELS, findings)
        if parsing.read_code(key_node, "a lint code", findings) and level:
            out[key] = level
            if key not in LINT:
                guess = did_you_mean(key, LINT) or " jsplan lint --explain all lists them."
                findings.warning(
                    "JS140",
                    key_node,
                    f"there is no lint rule {key}, so this sets nothing",
                    guess.strip(),
                )
    return out


def read_ownership(section: Node | None, findings: Findings) -> bool:
    """Read whether an owner is written into metadata."""
    if (
        section is None
        or section.value is None
        or not parsing.check_mapping(section, "`ownership`", ("marker",), findings)
    ):
        return False
    return parsing.read_flag(section.get("marker"), "`ownership.marker`", findings) or False
