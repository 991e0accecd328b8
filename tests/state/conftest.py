"""Every backend of the state, for the contract that all of them keep."""

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
    """One location of a state, which several processes can open."""

    kind: str
    path: Path
    sandbox: Sandbox
    bucket: str

    def open(self, workspace: str | None = "shop", environment: str | None = None) -> Backend:
        """Open the backend as another process. A KV bucket is in the hub, behind the leaf."""
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
        """Write over the document without the lock."""
        if self.kind == "local":
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_bytes(data)
            return
        with self.hub() as raw:
            raw.api(f"$JS.API.STREAM.CREATE.KV_{self.bucket}", bucket_config(self.bucket))
            raw.api_ok(f"$KV.{self.bucket}.shop", data)

    def hub(self) -> Raw:
        """Return a client in the domain that has the bucket."""
        hub = self.sandbox["hub"]
        return Raw(hub.url, hub.user, hub.password)


@pytest.fixture(params=["local", "kv", "kv-without-ttl"])
def state_location(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    hub_leaf: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> StateLocation:
    """An empty location of each kind.

    The last kind is a bucket as servers before 2.11 have it, with the fence for them.
    """
    location = StateLocation(
        request.param, tmp_path / "deep" / "state.json", hub_leaf, new_bucket()
    )
    if location.kind == "kv-without-ttl":
        with location.hub() as raw:
            raw.api_ok(
                f"$JS.API.STREAM.CREATE.KV_{location.bucket}", bucket_config(location.bucket)
            )
        monkeypatch.setattr(Lease, "supports_fence_header", False)
    return location
