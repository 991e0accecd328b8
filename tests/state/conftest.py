"""Every backend that state can be kept in, for the contract that all of them keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from jsplan.state import LocalBackend
from jsplan.state.lease import Lease
from tests.support.buckets import bucket_config, kv_backend, new_bucket
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from jsplan.state import Backend


@dataclass
class StateLocation:
    """One place for state, and how a process of its own would open it."""

    kind: str
    path: Path
    sandbox: Sandbox
    bucket: str

    def open(self, workspace: str | None = "shop", environment: str | None = None) -> Backend:
        """The backend as another process has it. A KV bucket is in the hub, and is reached through the leaf."""
        assert workspace is not None
        if self.kind == "local":
            return LocalBackend(self.path, workspace, environment)
        return kv_backend(
            self.sandbox["leaf"],
            self.bucket,
            js_domain="hub",
            workspace=workspace,
            environment=environment,
        )

    def overwrite(self, data: bytes) -> None:
        """Write something over the document, past every lock."""
        if self.kind == "local":
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_bytes(data)
            return
        with self.hub() as raw:
            raw.api(f"$JS.API.STREAM.CREATE.KV_{self.bucket}", bucket_config(self.bucket))
            raw.api_ok(f"$KV.{self.bucket}.shop", data)

    def hub(self) -> Raw:
        """A client in the domain that has the bucket."""
        hub = self.sandbox["hub"]
        return Raw(hub.url, hub.user, hub.password)


@pytest.fixture(params=["local", "kv", "kv-without-ttl"])
def state_location(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    hub_leaf: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> StateLocation:
    """A place of each kind with nothing in it. The last is a bucket as servers before 2.11 have it, and the fence for them."""
    place = StateLocation(request.param, tmp_path / "deep" / "state.json", hub_leaf, new_bucket())
    if place.kind == "kv-without-ttl":
        with place.hub() as raw:
            raw.api_ok(f"$JS.API.STREAM.CREATE.KV_{place.bucket}", bucket_config(place.bucket))
        monkeypatch.setattr(Lease, "supports_fence_header", False)
    return place
