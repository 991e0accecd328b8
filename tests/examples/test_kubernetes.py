"""The manifests for Kubernetes: they are valid, and the commands in them work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from tests.drift.conftest import WatchJob
from tests.support.process import run_process
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
MANIFESTS = [
    (path, document)
    for folder in (FOLDER, ROOT / "examples" / "drift-job" / "kubernetes")
    for path in sorted(folder.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text("utf-8"))
]


@pytest.mark.parametrize("version", ["1.29", "1.34"])
@pytest.mark.parametrize(
    ("path", "document"), MANIFESTS, ids=[f"{p.name}-{d['kind']}" for p, d in MANIFESTS]
)
def test_manifests_are_valid(path: Path, document: dict[str, Any], version: str) -> None:
    """Every object is valid by the JSON Schema of its kind, unknown fields included."""
    kubernetes_validate.validate(document, version, strict=True)


def test_an_unknown_field_is_found() -> None:
    """The check refuses what the API server would ignore."""
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "datum": {}},
            "1.34",
            strict=True,
        )


def load(name: str) -> dict[str, Any]:
    """Return the one object of a file."""
    document = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def container(name: str) -> dict[str, Any]:
    """Return the container of a Job or Deployment, which mounts the ConfigMap where it works."""
    spec = load(name)["spec"]["template"]["spec"]
    (found,) = spec["containers"]
    (volume,) = spec["volumes"]
    (mount,) = found["volumeMounts"]
    assert volume["configMap"]["name"] == load("workspace.yaml")["metadata"]["name"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], found["workingDir"])
    assert isinstance(found, dict)
    return found


def mount_config_map(folder: Path) -> Path:
    """Write the ConfigMap as the kubelet does: links into a hidden folder, nothing is writable."""
    data = folder / "..2026"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name, text in load("workspace.yaml")["data"].items():
        (data / name).write_text(text, "utf-8")
        (folder / name).symlink_to(f"..data/{name}")
    data.chmod(0o555)
    folder.chmod(0o555)
    return folder


def environment(server: Server) -> dict[str, str]:
    """Return what the Secret holds."""
    assert server.user is not None
    assert server.password is not None
    return {"SHOP_URL": server.url, "SHOP_USER": server.user, "SHOP_PASSWORD": server.password}


def test_the_job_applies_and_the_deployment_is_ready(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the Job creates the streams; that of the Deployment answers its probes."""
    server = make_server(domain="hub", accounts=True)
    folder = mount_config_map(tmp_path / "srv")
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)

    applied = run_process(folder, *container("apply.yaml")["command"][1:], timeout=90)
    again = run_process(folder, "plan")

    assert applied.code == 0, applied.text
    assert "No changes." in again.out, again.text
    with Raw(server.url, server.user, server.password) as raw:
        assert raw.api("$JS.API.STREAM.INFO.ORDERS")["config"]["max_age"] == 30 * 86_400 * 10**9
    # Run the command of the Deployment, and ask the paths of its probes.
    found = container("drift.yaml")
    command = found["command"][1:]
    port = command[command.index("--metrics") + 1]
    assert port == f":{found['ports'][0]['containerPort']}"
    command[command.index("--metrics") + 1] = "127.0.0.1:0"
    command[command.index("--jitter") + 1] = "0s"
    job = WatchJob(folder, *command[2:])
    try:
        job.wait_until_ready()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert job.get(found[probe]["httpGet"]["path"])[0] == 200
        assert job.stop() == 0
    finally:
        job.close()
