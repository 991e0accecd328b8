"""Routes between domains: which name one account has for the JetStream of another. Pure.

An API prefix has a meaning only inside an account: `$JS.hub.API` is the domain hub of that account,
`JS.acc@hub.API` a name that an import defines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from jsplan.address import Address
from jsplan.config.model import Domain, ImportRow, Workspace


class ApiRoute(Struct, frozen=True):
    """The route of a domain to an origin. `api` None is its own JetStream.

    `deliver` is the `deliver` of the imports row.
    """

    api: str | None
    deliver: str | None = None
    import_row: ImportRow | None = None


class NoRouteError(Exception):
    """The files have no route between two domains; `detail` says what to write."""

    def __init__(self, text: str, detail: str) -> None:
        super().__init__(text)
        self.detail = detail


class DomainRoutes:
    """The routes between the domains of one workspace, by the keys of the domains."""

    def __init__(self, workspace: Workspace) -> None:
        self._domains = workspace.domains
        self._imports = workspace.imports
        self._imported_domains = [domain for domain in self._domains.values() if is_import(domain)]
        self._by_prefix: dict[str, list[Domain]] = {}
        for domain in self._domains.values():
            self._by_prefix.setdefault(domain.api_prefix, []).append(domain)

    def canonicalize(self, key: str) -> str:
        """Return the key of the real domain, if `key` is another key of it (`same_as`)."""
        domain = self._domains.get(key)
        return key if domain is None else domain.same_as or key

    def find_route(self, own: str, target: str) -> ApiRoute:
        """Return how streams of `own` reach `target`.

        That is an imports row, an import that a domain of the same connection names, or the
        domain's name. Raises NoRouteError: the server refuses `$JS.API` as external (10021), and
        one name is never two JetStreams.
        """
        own, target = self.canonicalize(own), self.canonicalize(target)
        if own == target or self._is_same_jetstream(own, target):
            return ApiRoute(None)
        row = next(
            (
                r
                for r in self._imports
                if r.into_domain == own and self.canonicalize(r.from_domain) == target
            ),
            None,
        )
        if row is not None:
            return ApiRoute(row.api, row.deliver, row)
        named = next(
            (
                d.api_prefix
                for d in self._siblings(own, self._imported_domains)
                if self.canonicalize(d.key) == target
            ),
            None,
        )
        if named is not None:
            return ApiRoute(named)
        return self._route_by_name(self._domains[own], self._domains[target])

    def resolve_prefix(self, own: str, api: str | None) -> str | None:
        """Return the domain of a prefix for streams of `own`; None if the files know none."""
        own = self.canonicalize(own)
        if api is None:
            return own
        row = next((r for r in self._imports if r.into_domain == own and r.api == api), None)
        if row is not None:
            return self.canonicalize(row.from_domain)
        called = self._by_prefix.get(api, [])
        near = next(self._siblings(own, called), None)
        far = [d for d in called if d.is_own and not is_import(d)]
        if near is not None:
            return self.canonicalize(near.key)
        if len(far) == 1:
            return far[0].key
        return None

    def reads_origin(self, downstream: Address, source: Mapping[str, Any], origin: Address) -> bool:
        """Check whether a mirror or source of `downstream` reads `origin`, by name and domain."""
        domain = self.resolve_prefix(downstream.domain, (source.get("external") or {}).get("api"))
        return source["name"] == origin.stream and domain == self.canonicalize(origin.domain)

    def is_imported(self, own: str, api: str) -> bool:
        """Check whether the files say that `own` knows the prefix by an import."""
        own = self.canonicalize(own)
        rows = (row for row in self._imports if row.into_domain == own and row.api == api)
        return any(rows) or any(
            d.api_prefix == api for d in self._siblings(own, self._imported_domains)
        )

    def _is_same_jetstream(self, own: str, target: str) -> bool:
        one, other = self._domains[own], self._domains[target]
        return (one.connection, one.api_prefix) == (other.connection, other.api_prefix)

    def _siblings(self, own: str, some: Iterable[Domain]) -> Iterator[Domain]:
        """Yield those of `some` over the same connection: they see the same names."""
        connection = self._domains[own].connection
        return (d for d in some if d.connection == connection)

    @staticmethod
    def _route_by_name(own: Domain, target: Domain) -> ApiRoute:
        row = f"{{from: {target.key}, into: {own.key}, api: …, deliver: …}}"
        if target.js_domain is None:
            raise NoRouteError(
                f"{target.key} has no JetStream domain,"
                f" so {own.key} cannot reach it as $JS.<domain>.API",
                f"The server refuses $JS.API as external. Write an imports row: {row}.",
            )
        if target.js_domain == own.js_domain:
            raise NoRouteError(
                f"{target.key} and {own.key} both have the JetStream domain {own.js_domain}:"
                f" for {own.key} that name means itself",
                f"In another account it needs an imports row: {row}."
                f" If both are one JetStream, write same_as: {own.key}.",
            )
        return ApiRoute(f"$JS.{target.js_domain}.API")


def external_of(route: ApiRoute, own: Address) -> dict[str, str]:
    """Return the `external` of a mirror in `own`, with the delivery prefix of the import."""
    assert route.api is not None
    if not route.deliver:
        return {"api": route.api}
    return {"api": route.api, "deliver": f"{route.deliver}.{own.domain}.{own.stream}"}


def is_import(domain: Domain) -> bool:
    """Check whether the files give the domain a prefix that is not its server's own."""
    return domain.api_prefix != (f"$JS.{domain.js_domain}.API" if domain.js_domain else "$JS.API")
