"""Runs `action.yml` as a runner of GitHub would: shell steps, conditions and environment.

Of the actions of others only what they are asked for is done: artifacts are folders.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.yaml_text import read_yaml

ROOT = Path(__file__).parent.parent.parent
ACTION: dict[str, Any] = read_yaml((ROOT / "action.yml").read_text(encoding="utf-8"))
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_TERM = re.compile(r"'([^']*)'|([a-z][\w.-]*)|(==|!=|&&|\|\|)|\s+")
INSTALL = "Install jsplan"
BASH = shutil.which("bash") or "/bin/bash"
#: What the actions of others take, as their pages say.
ACTION_INPUTS = {
    "actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065": {"python-version"},
    "actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02": {
        "name",
        "path",
        "overwrite",
    },
    "actions/download-artifact@d3f86a106a0bac45b974a628896c90dbdf5c8093": {
        "name",
        "path",
        "run-id",
        "github-token",
    },
}


@dataclass
class JobResult:
    """The end of a job: exit code (that of the failed step), log, outputs and steps that ran."""

    code: int
    log: str
    outputs: dict[str, dict[str, str]]
    ran: list[str]
    summary: str


@dataclass
class Runner:
    """A runner with its artifacts.

    `environ` is what the job's own `env:` gives; with `installs` it lets pip say what it would do.
    """

    folder: Path
    api: str
    environ: dict[str, str] = field(default_factory=dict)
    run_id: int = 1000
    installs: bool = False

    def artifact_folder(self, run: int, name: str) -> Path:
        """Return the folder of an artifact of a run."""
        return self.folder / "artifacts" / str(run) / name

    def run_job(
        self, workspace: Path, event: dict[str, Any], *, commit: str = "0" * 40, **given: str
    ) -> JobResult:
        """Run one job with the action as its only step."""
        self.run_id += 1
        inputs = {name: str(row.get("default", "")) for name, row in ACTION["inputs"].items()} | {
            name.replace("_", "-"): value for name, value in given.items()
        }
        temp = self.folder / f"job-{self.run_id}"
        temp.mkdir()
        for name in ("event", "output", "summary"):
            (temp / name).write_text(json.dumps(event) if name == "event" else "", encoding="utf-8")
        scope: dict[str, str] = {f"inputs.{name}": value for name, value in inputs.items()}
        scope |= {
            "github.action_path": str(ROOT),
            "runner.temp": str(temp),
            "github.token": "job-token",
        }
        scope |= {name: self._substitute(value, scope) for name, value in scope.items()}
        done = JobResult(0, "", {}, [], "")
        for step in ACTION["runs"]["steps"]:
            if not self._is_condition_met(step.get("if", ""), scope) or (
                step.get("name") == INSTALL and not self.installs
            ):
                continue
            done.ran.append(step.get("name", step.get("uses", "")))
            outputs = (
                self._run_action(step, scope)
                if "uses" in step
                else self._run_shell(step, scope, temp, workspace, commit, done)
            )
            done.outputs[step.get("id", "")] = outputs
            scope |= {
                f"steps.{step.get('id', '')}.outputs.{name}": value
                for name, value in outputs.items()
            }
            if done.code:
                break
        done.summary = (temp / "summary").read_text(encoding="utf-8")
        return done

    def _run_shell(
        self,
        step: dict[str, Any],
        scope: dict[str, str],
        temp: Path,
        workspace: Path,
        commit: str,
        done: JobResult,
    ) -> dict[str, str]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "what people write may not become part of a script"
        (temp / "output").write_text("", encoding="utf-8")
        env = {
            name: self._substitute(str(value), scope) for name, value in step.get("env", {}).items()
        }
        base = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GITHUB_", "JSPLAN_", "PIP_"))
        }
        base |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(temp),
            "GITHUB_API_URL": self.api,
            "GITHUB_GRAPHQL_URL": f"{self.api}/graphql",
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_REPOSITORY": "shop/streams",
            "GITHUB_RUN_ID": str(self.run_id),
            "GITHUB_SHA": commit,
            "GITHUB_EVENT_PATH": str(temp / "event"),
            "GITHUB_OUTPUT": str(temp / "output"),
            "GITHUB_STEP_SUMMARY": str(temp / "summary"),
            "CI": "true",
            "PIP_DRY_RUN": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
        }
        where = workspace / self._substitute(step.get("working-directory", "."), scope)
        ended = subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=where,
            env=base | self.environ | env,
            capture_output=True,
            text=True,
            check=False,
        )
        done.log += ended.stdout + ended.stderr
        done.code = ended.returncode
        lines = (temp / "output").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def _run_action(self, step: dict[str, Any], scope: dict[str, str]) -> dict[str, str]:
        given = {name: self._substitute(str(value), scope) for name, value in step["with"].items()}
        assert given.keys() <= ACTION_INPUTS[step["uses"]]
        if "upload" in step["uses"]:
            shutil.copytree(given["path"], self.artifact_folder(self.run_id, given["name"]))
            return {"artifact-url": f"https://github.example/artifacts/{self.run_id}"}
        if "download" in step["uses"]:
            assert given["github-token"] == "job-token"
            shutil.copytree(
                self.artifact_folder(int(given["run-id"]), given["name"]), given["path"]
            )
        return {}

    @staticmethod
    def _substitute(text: str, scope: dict[str, str]) -> str:
        return _EXPRESSION.sub(lambda found: scope.get(found[1], ""), text)

    @staticmethod
    def _is_condition_met(condition: str, scope: dict[str, str]) -> bool:
        words = {"&&": " and ", "||": " or ", "==": " == ", "!=": " != "}

        def translated(found: re.Match[str]) -> str:
            if found[3]:
                return words[found[3]]
            return (
                repr(found[1] if found[1] is not None else scope.get(found[2], ""))
                if found[0].strip()
                else ""
            )

        assert _TERM.sub("", condition) == ""
        return not condition or bool(eval(_TERM.sub(translated, condition), {}))  # noqa: S307 - made of literals, above
