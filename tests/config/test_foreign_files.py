"""Files that are no part of a workspace are not quoted, and special files are not read."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from jsplan.config import LoadOptions, load
from jsplan.config.model import Connection, Tls
from jsplan.converting.read_files import read_nats
from jsplan.disk import open_private, read_regular, write_private
from jsplan.errors import ConfigError, ConnectError, JsplanError, StateError
from jsplan.importing import require_new
from jsplan.jetstream.contexts import ConnectionSettings, resolve_settings
from jsplan.jetstream.login import check_files
from jsplan.state.local import LocalBackend
from tests.config.conftest import Loader

CREDS = "-----BEGIN NATS USER JWT-----\neyJleHBvc2Vk\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\nSUAEXPOSED\n"
SHADOW = "root:$y$exposed:19000:0:::\nuser:exposed2:19000:0:::\n"
SECRETS = {
    "a creds file": CREDS,
    "a shadow file": SHADOW,
    "a token": "exposed\n",
    "a number": "4711000\n",
    "a long number": "4711" * 30,
    "an alias": "a: *exposed\n",
    "a tag": "a: !exposed x\n",
    "a tag of YAML": "a: !!exposed x\n",
    "a key twice": "exposed: 1\nexposed: 2\n",
    "a nats context": '{"url": "nats://exposed@h", "password": "exposed", "exposed": 1}',
    "an environment": "EXPOSED=exposed\nexposed: x\n",
    "a list": "- exposed\n- {exposed: exposed}\n",
}


def require_nothing_quoted(found: object) -> None:
    """Require that no part of a secret is in the findings."""
    text = repr(found).lower()
    assert "exposed" not in text
    assert "4711" not in text


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_file_that_is_no_workspace_is_not_quoted(secret: str, workspace: Loader) -> None:
    """A file that is no part of a workspace is reported without its content, for each key."""
    (workspace.root / "secret").write_text(secret, encoding="utf-8")
    require_nothing_quoted(workspace.findings("include: [secret]\n"))
    require_nothing_quoted(workspace.findings('include: ["secre*"]\n'))
    require_nothing_quoted(
        workspace.findings("vars: {x: 1}\n", var_files=(workspace.root / "secret",))
    )
    for section in (
        "streams: [{name: S, ",
        "kv: [{bucket: S, ",
        "consumers: [{stream: S, name: C, ",
    ):
        require_nothing_quoted(workspace.findings(f"{section}config_file: secret}}]\n"))
    (workspace.root / "jsplan.yaml").unlink()
    (workspace.root / "jsplan.yaml").symlink_to("secret")
    with pytest.raises(ConfigError) as caught:
        load(workspace.options())
    require_nothing_quoted(caught.value.diagnostics)


@pytest.mark.parametrize(
    "section",
    ["connections", "domains", "environments", "overrides", "defaults", "backend", "drift"],
)
def test_a_password_in_the_wrong_place_is_not_quoted(section: str, workspace: Loader) -> None:
    """A password with too little indentation becomes an entry of another section."""
    require_nothing_quoted(workspace.findings(f"{section}:\n  password: exposed\n"))
    require_nothing_quoted(workspace.findings(f"{section}: exposed\n"))
    require_nothing_quoted(workspace.findings(f"{section}:\n  hub: {{password: exposed}}\n"))


def test_a_link_that_the_default_pattern_matches(workspace: Loader) -> None:
    """A link that matches the default pattern is reported without its content.

    A pull request can add a link to a file of the machine that plans it.
    """
    (workspace.root / "secret").write_text(CREDS, encoding="utf-8")
    (workspace.root / "x.jsplan.yaml").symlink_to(workspace.root / "secret")
    found = workspace.single_finding("")
    assert (found.code, str(found.range)) == ("JS104", "x.jsplan.yaml:1:1")
    assert found.summary == "x.jsplan.yaml must be a mapping, not text"


def test_a_similar_section_is_suggested(workspace: Loader) -> None:
    """A misspelled section has a suggestion without being quoted."""
    found = workspace.single_finding("", files={"x.jsplan.yaml": "streems: []\n"})
    assert (found.code, found.detail) == ("JS105", 'Did you mean "streams"?')
    assert "streems" not in found.summary


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/environ", "fifo", "large", "folder"])
async def test_only_regular_files_are_read(path: str, workspace: Loader) -> None:
    """Devices, pipes, kernel files, folders and very large files are refused for each key."""
    os.mkfifo(workspace.root / "fifo")
    (workspace.root / "folder").mkdir()
    with (workspace.root / "large").open("wb") as file:
        file.truncate(5 << 30)  # a sparse file, which needs no disk
    assert {
        found.code for found in workspace.findings(f"streams: [{{name: S, config_file: {path}}}]\n")
    } == {"JS100"}
    assert workspace.findings(f"include: [{path}]\n")[0].code in ("JS100", "JS109")
    named = workspace.root / path
    for connection in (
        Connection("main", creds=named),
        Connection("main", nkey=named),
        Connection("main", tls=Tls(ca=named)),
        Connection("main", tls=Tls(cert=named, key=named)),
    ):
        with pytest.raises(ConnectError, match="cannot read its"):
            check_files(resolve_settings(connection, {}))
    with pytest.raises(
        StateError, match=r"cannot read the state|is (a device|a named pipe|a folder), not a file"
    ):
        await LocalBackend(named, "shop", None).read()


def test_a_path_that_is_too_long(workspace: Loader) -> None:
    """A file name that is too long is a finding."""
    long = "x" * 300
    for text in (
        f"include: [{long}]\n",
        f"streams: [{{name: S, config_file: {long}}}]\n",
        f"streams: [{{name: S, config_file: jsplan.yaml/{long}}}]\n",
    ):
        assert {found.code for found in workspace.findings(text)} <= {"JS100", "JS109"}
    assert workspace.findings("", var_files=(workspace.root / long,))[0].code == "JS100"
    with pytest.raises(ConfigError, match="1 error") as caught:
        load(LoadOptions(workspace.root / long))
    assert caught.value.diagnostics[0].summary.endswith("is not a folder")
    with pytest.raises(JsplanError, match="no such folder"):
        require_new(workspace.root / long / "new.yaml")
    with pytest.raises(JsplanError, match="there is no"):
        read_nats(workspace.root / long)


def test_an_unknown_home_folder(tmp_path: Path) -> None:
    """A path with an unknown home folder stays unchanged."""
    (tmp_path / "nats/context").mkdir(parents=True)
    (tmp_path / "nats/context/ctx.json").write_text(
        json.dumps({"creds": "~no-such-user/a.creds"}), "utf-8"
    )
    found = resolve_settings(Connection("main", context="ctx"), {"XDG_CONFIG_HOME": str(tmp_path)})
    assert found.creds == "~no-such-user/a.creds"


@pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=["NUL", "half"])
def test_text_that_is_no_file_name(name: str) -> None:
    """Text that cannot be a file name is an error.

    JSON can contain such text, for example in a context of the nats CLI.
    """
    with pytest.raises(
        ConnectError, match=r"cannot read its creds file .*: no file has such a name"
    ):
        check_files(ConnectionSettings("main", "nats://h", "nats://h", creds=name))


def test_a_variable_file_may_be_a_pipe(workspace: Loader) -> None:
    """A variable file may be a pipe, as in `--var-file <(sops -d prod.yaml)`."""
    os.mkfifo(workspace.root / "fifo")
    writer = threading.Thread(target=(workspace.root / "fifo").write_text, args=("x: 7\n",))
    writer.start()
    loaded = workspace("vars: {x: 1}\n", var_files=(workspace.root / "fifo",))
    writer.join()
    assert dict(loaded.variables) == {"x": 7}


def test_a_file_of_exactly_the_largest_size_is_read(tmp_path: Path) -> None:
    """A file of exactly the maximum size is read, and so is an empty file."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_regular(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="larger"):
        read_regular(path, 9)
    path.write_bytes(b"")
    assert read_regular(path, 9) == b""


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """A new file is private to its owner, and an existing one keeps its permissions."""
    old = os.umask(0)
    try:
        write_private(tmp_path / "new", b"1")
        (tmp_path / "old").write_bytes(b"")
        (tmp_path / "old").chmod(0o640)
        write_private(tmp_path / "old", b"2")
    finally:
        os.umask(old)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("new", "old")] == [
        "0o600",
        "0o640",
    ]
    assert [(tmp_path / name).read_bytes() for name in ("new", "old")] == [b"1", b"2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def _named_files(path: str) -> list[str]:
    """Return a workspace for each key that names a file: its content becomes part of a plan."""
    return [
        f"include: [{path}]\n",
        f"streams: [{{name: S, subjects: [s], config_file: {path}}}]\n",
        f"kv: [{{bucket: B, entries: {{k: {{file: {path}}}}}}}]\n",
        f"object_stores: [{{bucket: B, objects: {{o: {{file: {path}}}}}}}]\n",
        f"""streams: [{{name: S, subjects: ['s.>'], allow_msg_schedules: true,
            schedules: {{s.a: {{every: 1h, target: s.b, file: {path}}}}}}}]\n""",
    ]


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/kmsg", "/sys/kernel/uevent_seqnum"])
def test_files_of_the_kernel(path: str, workspace: Loader) -> None:
    """No key of a workspace reads a file of the kernel, which has the environment of the job."""
    (workspace.root / "link").symlink_to(path)
    for text in [*_named_files(path), *_named_files("link")]:
        found = workspace.findings(text)
        assert {each.code for each in found} <= {"JS100", "JS109"}, text


def test_a_link_out_of_the_workspace(workspace: Loader, tmp_path: Path) -> None:
    """No key of a workspace follows a link out of its folder; a path that says so may lead out."""
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "x.yaml").write_text("x-y: 1\nsubjects: [s]\n", "utf-8")
    workspace.write({"links/inside.yaml": "x-y: 1\nsubjects: [s]\n"})
    (workspace.root / "links/out.yaml").symlink_to(outside / "x.yaml")
    (workspace.root / "links/in.yaml").symlink_to("inside.yaml")
    (workspace.root / "folder").symlink_to(outside)
    for path in ("links/out.yaml", "folder/x.yaml"):
        for text in _named_files(path):
            (found,) = workspace.findings(text)
            assert "a link to a file outside of the workspace" in found.summary, text
    for path in ("links/in.yaml", f"../{outside.name}/x.yaml"):
        for text in _named_files(path)[2:]:
            workspace(text)


def test_files_that_plans_do_not_show(workspace: Loader) -> None:
    """Values of hidden files, and of those that git ignores, are only shown as digests."""
    files = {
        "values/plain": True,
        "values/kept.key": True,
        ".git/config": False,
        "values/.env": False,
        "values/prod.key": False,
        "local/x": False,
        "slow/x": False,
    }
    workspace.write(dict.fromkeys(files, "text"))
    workspace.write(
        {".gitignore": "*.key\n!kept.key\n/local/\n", "slow/.gitignore": "*a*a*a*a*b\n"}
    )
    (workspace.root / "link").symlink_to(".git/config")
    entries = ", ".join(f"k{n}: {{file: {path}}}" for n, path in enumerate([*files, "link"]))
    loaded = workspace(f"kv: [{{bucket: B, entries: {{{entries}}}}}]\n")
    shown = {
        str(address).rpartition("/k")[2]: not declared.sensitive
        for address, declared in loaded.resources.items()
        if address.kind == "kv_entry"
    }
    assert shown == {str(n): may for n, may in enumerate([*files.values(), False])}
    folder = workspace("kv: [{bucket: B, entries_from: {dir: values}}]\n")
    assert {
        address.name: declared.sensitive
        for address, declared in folder.resources.items()
        if address.kind == "kv_entry"
    } == {"B/plain": False, "B/kept.key": False, "B/prod.key": True}


def test_a_link_in_place_of_an_output(tmp_path: Path) -> None:
    """No file that jsplan writes is reached by a link, which a pull request may have put there."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out").symlink_to("precious")
    for flags in (os.O_TRUNC, os.O_APPEND):
        with pytest.raises(OSError, match="it is a link; name the file itself"):
            open_private(tmp_path / "out", flags)
    assert (tmp_path / "precious").read_text() == "precious"
    write_private(Path("/dev/stdout"), b"")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="Too many levels"):
        write_private(tmp_path / "circle" / "x", b"")
