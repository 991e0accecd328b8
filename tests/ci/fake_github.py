"""The part of GitHub's API that the action asks: comments, reviews and merged pull requests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import Answer, HttpServer, json_answer

BOT = "github-actions[bot]"


@dataclass
class FakeGitHub:
    """The repository shop/streams.

    A token that is not `writer` may only read; `per_page` is at most so many.
    """

    comments: list[dict[str, Any]] = field(default_factory=list)
    reviews: list[dict[str, Any]] = field(default_factory=list)
    merges: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    permissions: dict[str, str] = field(
        default_factory=lambda: {"ann": "write", "bob": "admin", "dev": "write"}
    )
    writer: str = "job-token"
    _number: int = 0
    _clock: int = 0

    def __enter__(self) -> FakeGitHub:  # noqa: PYI034 - no class derives from it
        self._server = HttpServer(self._answer)
        self.url = self._server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        token = headers["authorization"].removeprefix("Bearer ")
        code, said = self.handle_request(method, path, json.loads(body) if body else None, token)
        return json_answer(said, code)

    def add_comment(self, number: int, login: str, body: str) -> None:
        """Add a comment of an account."""
        self._number += 1
        self.comments.append(
            {
                "id": self._number,
                "node_id": f"IC_{self._number}",
                "issue": number,
                "user": {"login": login},
                "body": body,
                "updated_at": self.next_time(),
                "editor": None,
            }
        )

    def edit_comment(self, body: str, editor: dict[str, str] | None = None) -> None:
        """Edit the last comment as an account with write permission."""
        self.comments[-1] |= {
            "body": body,
            "updated_at": self.next_time(),
            "editor": editor or {"__typename": "User", "login": "mallory"},
        }

    def next_time(self) -> str:
        """Return a time that is a second later with each call."""
        self._clock += 1
        return f"2026-01-31T12:{self._clock // 60:02}:{self._clock % 60:02}Z"

    def action_comments(self, number: int) -> list[str]:
        """Return the comments of the action on a pull request."""
        return [
            one["body"]
            for one in self.comments
            if one["issue"] == number and one["user"]["login"] == BOT
        ]

    def handle_request(
        self, method: str, path: str, body: dict[str, Any] | None, token: str
    ) -> tuple[int, Any]:
        """Return the answer to a request, with its status."""
        parts = urlsplit(path)
        rest = parts.path.removeprefix("/repos/shop/streams/")
        if parts.path == "/graphql" and body is not None:
            assert "editor { __typename login }" in body["query"]
            one = next(one for one in self.comments if one["node_id"] == body["variables"]["id"])
            return 200, {"data": {"node": {"editor": one["editor"]}}}
        if body is not None and token != self.writer:
            return 403, {"message": "Resource not accessible by integration"}
        if body is not None and len(body["body"]) > 65_536:
            return 422, {"message": "body is too long (maximum is 65536 characters)"}
        if method == "PATCH" and (found := re.fullmatch(r"issues/comments/(\d+)", rest)):
            one = next(one for one in self.comments if one["id"] == int(found[1]))
            one |= {"body": (body or {})["body"], "updated_at": self.next_time()}
            one["editor"] = {"__typename": "Bot", "login": BOT.removesuffix("[bot]")}
            return 200, {}
        if method == "POST" and (found := re.fullmatch(r"issues/(\d+)/comments", rest)):
            self.add_comment(int(found[1]), BOT, (body or {})["body"])
            return 201, {}
        if found := re.fullmatch(r"actions/runs/(\d+)", rest):
            return 200, self.runs[int(found[1])]
        if found := re.fullmatch(r"collaborators/(\w+)/permission", rest):
            known = found[1] in self.permissions
            return (
                (200, {"permission": self.permissions[found[1]]})
                if known
                else (404, {"message": "Not Found"})
            )
        return 200, self._list(rest, parse_qs(parts.query))

    def _list(self, rest: str, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if number := re.fullmatch(r"issues/(\d+)/comments", rest):
            found = [one for one in self.comments if one["issue"] == int(number[1])]
        elif re.fullmatch(r"pulls/\d+/reviews", rest):
            found = self.reviews
        elif re.fullmatch(r"pulls/\d+/commits", rest):
            found = self.commits
        elif commit := re.fullmatch(r"commits/(\w+)/pulls", rest):
            found = self.merges.get(commit[1], [])
        size, page = int(query["per_page"][0]), int(query["page"][0])
        return found[(page - 1) * size : page * size]
