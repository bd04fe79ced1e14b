#!/usr/bin/env python3
"""Writes the job of a workflow of GitHub Actions as a script of bash, for machines without GitHub:

    play.py WORKFLOW.yml FOLDER > job.sh

Steps are those that the workflow runs, and those of this action, which lies in FOLDER where the script runs. Each step
has what GitHub gives it (docs.github.com, "Workflow syntax", "Metadata syntax", "Workflow commands"): its shell, its
environment, inputs, outputs, and files for outputs, PATH and the environment of later steps. What this file does
not know of GitHub ends it with status 2: no step is left out. The script wants RUNNER_TEMP, a folder.
"""
import re
import shlex
import sys
from pathlib import Path

import yaml

ACTION = "/packaging/action@"
BASH = "bash --noprofile --norc -eo pipefail {0}"  # `shell: bash`; the default is `bash -e {0}`
PRELUDE = r"""#!/usr/bin/env bash
set -euo pipefail
files=${RUNNER_TEMP:?}/job
mkdir -p "$files"
declare -A output=()
# step ID NAME VARIABLE=VALUE... -- SHELL...: runs $files/ID.sh, and takes what it leaves for later steps.
step() {
  local id=$1 line variables=()
  printf '== %s\n' "$2"
  shift 2
  while [[ $1 != -- ]]; do variables+=("$1"); shift; done
  shift
  : >"$files/env" >"$files/path" >"$files/output"
  env "${variables[@]}" GITHUB_ENV="$files/env" GITHUB_PATH="$files/path" GITHUB_OUTPUT="$files/output" "$@"
  while IFS= read -r line; do export "${line?}"; done <"$files/env"
  while IFS= read -r line; do PATH=$line:$PATH; done <"$files/path"
  while IFS= read -r line; do output[$id.${line%%=*}]=${line#*=}; done <"$files/output"
  if grep -Eq '^[^=]*<<' "$files/env" "$files/output"; then
    printf 'play: values of several lines are not known here\n' >&2
    return 2
  fi
}
"""


def die(what):
    print(f"play: {what}", file=sys.stderr)
    sys.exit(2)


def only(what, found, known):
    """Refuses keys that are not known: GitHub does something for them, and this file would not."""
    for key in found:
        if key not in known:
            die(f"{what}: {key} is not known here")


class Scope:
    """What expressions may name: inputs of an action, outputs of the steps so far. Texts become words of bash."""

    def __init__(self, inputs, prefix=""):
        self.inputs, self.prefix, self.steps = inputs, prefix, set()

    def word(self, text):
        parts = re.split(r"\$\{\{\s*(.*?)\s*\}\}", str(text))
        words = [self.named(part) if i % 2 else shlex.quote(part) for i, part in enumerate(parts) if part]
        return "".join(words) or "''"

    def named(self, name):
        match name.split("."):
            case ["inputs", key] if key in self.inputs:
                return self.inputs[key]
            case ["steps", step, "outputs", key] if step in self.steps:
                # GitHub takes an output that nobody wrote for an empty text.
                return f'"${{output[{self.prefix}{step}.{key}]?no such output}}"'
        die(f"expression {name}: nothing of this name is known here")


def run(scope, at, step, default):
    """A step with a script, as lines of bash."""
    only(f"step {at}", step, {"id", "name", "run", "shell", "env"})
    shell = step.get("shell", default) or die(f"step {at} of an action has no shell")
    shell = BASH if shell == "bash" else shell
    id = scope.prefix + step.get("id", f"step{at}")
    file = f'"$files/{id}.sh"'
    words = [file if word == "{0}" else shlex.quote(word) for word in shlex.split(shell)]
    if file not in words:
        die(f"step {at}: shell {shell} has no {{0}}")
    env = [f"{shlex.quote(name)}={scope.word(value)}" for name, value in step.get("env", {}).items()]
    name = step.get("name", step["run"].splitlines()[0])
    yield f"printf '%s\\n' {scope.word(step['run'])} >{file}"
    yield " ".join(["step", id, shlex.quote(name), *env, "--", *words])
    scope.steps.add(step.get("id"))


def use(scope, at, step, action, folder):
    """A step that uses this action."""
    only(f"step {at}", step, {"id", "name", "uses", "with"})
    given, inputs = step.get("with", {}), action.get("inputs", {})
    only(f"step {at}: with", given, inputs)
    only("the action", action, {"name", "description", "inputs", "outputs", "runs"})
    only("runs", action["runs"], {"using", "steps"})
    if action["runs"]["using"] != "composite":
        die("an action that is not composite")
    words = {name: scope.word(given.get(name, known.get("default", ""))) for name, known in inputs.items()}
    id = step.get("id", f"step{at}")
    own = Scope(words, f"{id}-")
    yield f"export GITHUB_ACTION_PATH={shlex.quote(folder)}"
    for i, inner in enumerate(action["runs"]["steps"], 1):
        yield from run(own, i, inner, None)
    yield "unset GITHUB_ACTION_PATH"
    for name, value in action.get("outputs", {}).items():
        yield f"output[{id}.{name}]={own.word(value['value'])}"
    scope.steps.add(step.get("id"))


def main():
    if len(sys.argv) != 3:
        die(f"usage: {__doc__.splitlines()[2].strip()}")
    workflow = yaml.safe_load(Path(sys.argv[1]).read_text())
    action = yaml.safe_load((Path(__file__).parent / "action.yml").read_text())
    only("the workflow", workflow, {"name", True, "permissions", "jobs"})  # `on` is a truth value of YAML 1.1
    if workflow.get("permissions", {}) != {}:
        die("permissions: a token that may do something is not known here")
    (job,) = workflow["jobs"].values()
    only("the job", job, {"name", "runs-on", "steps"})
    scope, lines = Scope({}), []
    for at, step in enumerate(job["steps"], 1):
        if "run" in step:
            lines += run(scope, at, step, "bash -e {0}")
        elif ACTION in step.get("uses", ""):
            lines += use(scope, at, step, action, sys.argv[2])
        else:
            die(f"step {at} neither runs a script nor uses this action")
    print(PRELUDE + "\n".join(lines))


main()
