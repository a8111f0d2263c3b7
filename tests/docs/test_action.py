"""The GitHub Action: its steps are run in order by bash, with what GitHub sets."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer.main
import yaml
from result_files import read, write
from tiny_models import tiny_bert

from headscope.cli.app import app
from headscope.core.serialise import to_dict
from headscope.models.certificate.validation import ValidationResult

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
SCRIPTS = [step for step in STEPS if "run" in step]
COMMANDS = typer.main.get_command(app).commands
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
#: What a runner knows of a pull request from the repository itself.
GITHUB = {
    "github.action_path": str(ROOT),
    "github.token": "token",
    "github.repository": "us/models",
    "github.event.pull_request.head.repo.full_name": "us/models",
    "github.event.pull_request.number": "7",
}


@dataclass
class Runner:
    """A temporary working folder, programs on its PATH, and what the steps left behind."""

    folder: Path
    github: dict[str, str] = field(default_factory=lambda: dict(GITHUB))
    codes: dict[str, int] = field(default_factory=dict)
    said: str = ""

    def program(self, name, script):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, **inputs):
        """Run all steps; return the action's outputs."""
        given = {
            name: fill(str(known.get("default", "")), self.github)
            for name, known in ACTION["inputs"].items()
        }
        unknown = {name.replace("_", "-") for name in inputs} - given.keys()
        assert not unknown
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        values = {**self.github, **{f"inputs.{name}": v for name, v in given.items()}}
        for step in STEPS:
            if "uses" not in step and holds(step.get("if", "success()"), values, self.codes):
                self.step(step, values)
        return {name: fill(out["value"], values) for name, out in ACTION["outputs"].items()}

    def step(self, step, values):
        assert step["shell"] == "bash"
        files = {name: self.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        files["GITHUB_OUTPUT"].write_text("")
        script = self.folder / "script.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder,
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "HOME": str(self.folder),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT),
                **{name: str(path) for name, path in files.items()},
                **{name: fill(text, values) for name, text in step.get("env", {}).items()},
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.codes[step["name"]] = done.returncode
        self.said += done.stdout + done.stderr
        for line in files["GITHUB_OUTPUT"].read_text().splitlines():
            name, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{name}"] = value

    @property
    def summary(self):
        path = self.folder / "GITHUB_STEP_SUMMARY"
        return path.read_text() if path.exists() else ""


def fill(text, values):
    """Put values in the place of expressions; what is not known is empty, as on GitHub."""
    return EXPRESSION.sub(lambda found: values.get(found[1].strip(), ""), text)


def holds(condition, values, codes):
    """Decide the condition of a step."""
    text = condition.strip().removeprefix("${{").removesuffix("}}")
    # A step runs only after success unless its condition names one of the status functions.
    if not re.search(r"\b(success|failure|always|cancelled)\(\)", text) and any(codes.values()):
        return False
    names = re.findall(r"'[^']*'|[a-z_]+(?:\.[\w-]+)+|\w+\(\)|&&|\|\||[!=]=|!|\S", text)
    known = {"&&": "and", "||": "or", "!": "not ", "cancelled()": "False"}
    known |= {"success()": str(not any(codes.values())), "==": "==", "!=": "!="}
    words = [
        known.get(name) or (name if name[0] == "'" else repr(values.get(name, "")))
        for name in names
    ]
    return bool(eval(" ".join(words), {}))


@pytest.fixture
def runner(tmp_path):
    found = Runner(tmp_path)
    main = "from headscope.cli.app import main; main()"
    found.program("headscope", f'exec {shlex.quote(sys.executable)} -c "{main}" "$@"')
    found.program("gh", 'printf "%s\\n" "$@" "$GH_REPO" > gh.txt')
    found.program("python", 'printf "%s|" "$@" >> pip.txt; echo >> pip.txt')
    return found


@pytest.fixture
def recorded(runner):
    """Put a program in headscope's place that writes down how it is called."""
    runner.program(
        "headscope",
        """
printf '%s\\0' "$@" >> calls; printf '\\n' >> calls
for word in "$@"; do case "$word" in --output=*) folder="${word#--output=}";; esac; done
if [ "$1" = report ]; then mkdir -p -- "$folder"; echo "# report" > "$folder/report.md"; fi
""",
    )

    def calls():
        text = (runner.folder / "calls").read_text()
        return [line.split("\0") for line in text.split("\0\n")[:-1]]

    return calls


def test_no_input_is_pasted_into_a_script():
    assert len(SCRIPTS) >= 3
    for step in SCRIPTS:
        assert "${{" not in step["run"], step["name"]
        assert "eval" not in step["run"], step["name"]
    named = set(re.findall(r"inputs\.([\w-]+)", json.dumps(STEPS)))
    assert named == set(ACTION["inputs"]), "every input is used, and none is used that is not there"
    assert all(known["description"] for known in ACTION["inputs"].values())


def test_its_options_are_the_commands_own():
    for step in SCRIPTS:
        for command in re.findall(r"headscope (\w+)", step["run"]):
            own = {name for param in COMMANDS[command].params for name in param.opts}
            used = set(re.findall(r"(--[a-z-]+)(?=[^\n]*\))", step["run"]))
            assert used
            assert used <= own


def test_a_report_is_made_held_against_its_baseline_and_commented(runner):
    """The whole action on a tiny model, whose baseline was validated on other probes."""
    tiny_bert(runner.folder / "my bert")
    config = runner.folder / "ci.toml"
    config.write_text('[report]\nonly = "validate"\n[limits]\nvalidation = true\n')
    before = to_dict(ValidationResult(True, (), 0.0, 0.0, {}, tokens=1))
    write(runner.folder / "old.json", before)
    outputs = runner.run(
        model="my bert",
        config="ci.toml",
        baseline="old.json",
        fail_on="validation,any",
        output="new report",
        comment="true",
        install="false",
    )
    made = {"report": "new report", "html": "new report/report.html"}
    assert outputs == {**made, "changed": "true"}, runner.said
    assert list(runner.codes.values()) == [0, 3, 0]
    assert "headscope: any: the results are not equal" in runner.said
    assert read(runner.folder / "new report" / "report.json")["validate"]["passed"]
    assert runner.summary.startswith("## headscope: my bert\n")
    comment = (runner.folder / "new report" / "comment.md").read_text()
    assert comment.startswith("### What changed\n"), "before the report"
    assert all(part in runner.summary for part in comment.split("\n\n## ", 1))
    words = (runner.folder / "gh.txt").read_text().splitlines()
    assert words[:3] == ["pr", "comment", "7"]
    assert words[-2:] == ["new report/comment.md", "us/models"]


HOSTILE = "$(touch evil) `touch evil`; touch evil #\" ' ${{ github.token }}\ntouch evil"


def test_what_inputs_say_is_never_run(runner, recorded):
    given = dict.fromkeys(("model", "config", "text", "fail_on"), HOSTILE)
    given |= {"treebank": "--output=evil", "baseline": "--fail-on", "install": "false"}
    outputs = runner.run(**given)
    report, diff = recorded()
    assert report == [
        *("report", "--output=headscope-report", "--quiet", f"--config={HOSTILE}"),
        *(f"--text={HOSTILE}", "--treebank=--output=evil", "--", HOSTILE),
    ]
    assert diff[:3] == ["diff", "--format=md", f"--fail-on={HOSTILE}"]
    assert diff[3:] == ["--", "--fail-on", outputs["report"]]
    assert outputs["changed"] == "false"
    assert not (runner.folder / "evil").exists()


def test_an_output_on_two_lines_sets_no_other_output(runner, recorded):
    outputs = runner.run(model="m", output="x\nhtml=evil", baseline="old", install="false")
    assert set(outputs.values()) == {""}
    assert runner.codes == {"Report": 1}
    assert not (runner.folder / "calls").exists()


@pytest.mark.parametrize(("code", "ran"), [(0, 2), (3, 2), (1, 1)])
def test_a_limit_that_fails_does_not_hide_what_changed(code, ran, runner):
    """A report that could not be made is not compared; an earlier one in its place least of all."""
    (runner.folder / "out").mkdir()
    runner.program("headscope", f'[ "$1" = diff ] || exit {code}')
    runner.run(model="m", output="out", baseline="old", install="false")
    assert len(runner.codes) == ran
    assert runner.codes["Report"] == code


def test_a_smaller_model_is_held_to_its_bounds(runner, recorded):
    runner.run(model="m", smaller="my small", max_drop="1", min_speed="3", install="false")
    held = ["--check=my small", "--quiet", "--max-drop=1", "--min-speed=3", "--", "m"]
    assert recorded()[-1] == ["shrink", *held]
    runner.program("headscope", '[ "$1" != shrink ] || exit 3')
    runner.run(model="m", smaller="s", task="similarity", data="d.csv", install="false")
    assert runner.codes["Check the smaller model"] == 3


@pytest.mark.usefixtures("recorded")
def test_nobody_elses_pull_request_is_commented(runner):
    runner.github["github.event.pull_request.head.repo.full_name"] = "them/models"
    runner.run(model="m", comment="true", install="false")
    assert list(runner.codes) == ["Report"]
    assert not (runner.folder / "gh.txt").exists()


def test_it_installs_itself_with_the_tested_versions_or_a_release(runner, recorded):
    runner.run(model="demo")
    torch, package = (runner.folder / "pip.txt").read_text().splitlines()
    pins = f"-c|{ROOT}/configs/constraints.txt|"
    assert torch.startswith(
        "-m|pip|install|--no-deps|--index-url|https://download.pytorch.org/whl/cpu|"
    )
    assert torch.endswith(f"{pins}torch|")
    assert package == f"-m|pip|install|{ROOT}[demo]|{pins}"

    (runner.folder / "pip.txt").unlink()
    runner.run(model="demo", smaller="s", max_drop="1", torch_index="")
    package = (runner.folder / "pip.txt").read_text()
    assert package == f"-m|pip|install|{ROOT}[demo,export,openvino]|{pins}\n"

    (runner.folder / "pip.txt").unlink()
    runner.run(model="m", version="0.1.0", torch_index="")
    assert (runner.folder / "pip.txt").read_text() == "-m|pip|install|headscope==0.1.0|\n"
    runner.codes.clear()
    runner.run(model="m", version="0.1.0 --index-url http://e.vil", torch_index="")
    assert runner.codes == {"Install headscope": 1}
    assert "is no release of headscope" in runner.said


def test_the_pages_use_it_as_it_is():
    steps = [
        step
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        for block in re.findall(
            r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        for job in yaml.safe_load(block)["jobs"].values()
        for step in job["steps"]
        if "headscope@" in step.get("uses", "")
    ]
    assert steps
    required = {name for name, known in ACTION["inputs"].items() if known.get("required")}
    for step in steps:
        assert required <= step["with"].keys() <= ACTION["inputs"].keys()
