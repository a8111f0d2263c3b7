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
import yaml
from result_files import read, write
from tiny_models import tiny_bert

from headscope.cli.app import click_command
from headscope.core.serialise import to_dict
from headscope.models.certificate.validation import ValidationResult
from headscope.reports.markdown import LINK

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
SCRIPTS = [step for step in STEPS if "run" in step]
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
#: What a runner knows of a pull request from the repository itself.
GITHUB = {
    "github.action_path": str(ROOT),
    "github.token": "token",
    "github.repository": "us/models",
    "github.event.pull_request.head.repo.full_name": "us/models",
    "github.event.pull_request.number": "7",
    "github.event_name": "pull_request",
}
PAGE = "https://github.com/us/models/actions/runs/1/artifacts/2"
#: GitHub's comments in a file: what gh lists, adds and changes of them.
GH = """
import json, os, pathlib, sys
place, words = pathlib.Path("comments.json"), sys.argv[1:]
comments = json.loads(place.read_text()) if place.exists() else []
if "--paginate" in words:
    assert words[-1] == ".[] | select(.body | startswith(env.MARKER)) | .id"
    print(*(c["id"] for c in comments if c["body"].startswith(os.environ["MARKER"])), sep="\\n")
else:
    where = next(word for word in words if word.startswith("repos/us/models/issues/"))
    body = pathlib.Path(words[-1].removeprefix("body=@")).read_text()
    if "PATCH" in words:
        (comment,) = [c for c in comments if where.endswith("/comments/" + str(c["id"]))]
        comment["body"] = body
    else:
        assert where.endswith("/7/comments")
        comments.append({"id": len(comments) + 1, "body": body})
    place.write_text(json.dumps(comments))
"""


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
        environment = {
            name: fill(str(known.get("default", "")), self.github)
            for name, known in ACTION["inputs"].items()
        }
        unknown = {name.replace("_", "-") for name in inputs} - environment.keys()
        assert not unknown
        environment |= {name.replace("_", "-"): value for name, value in inputs.items()}
        values = {**self.github, **{f"inputs.{name}": v for name, v in environment.items()}}
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

    def comments(self):
        path = self.folder / "comments.json"
        return [one["body"] for one in json.loads(path.read_text())] if path.exists() else []

    @property
    def summary(self):
        path = self.folder / "GITHUB_STEP_SUMMARY"
        return path.read_text() if path.exists() else ""


def fill(text, values):
    """Put values in the place of expressions; what is not known is empty, as on GitHub."""
    return EXPRESSION.sub(lambda match: values.get(match[1].strip(), ""), text)


def holds(condition, values, codes):
    """Decide the condition of a step."""
    text = condition.strip().removeprefix("${{").removesuffix("}}")
    # A step runs only after success unless its condition names one of the status functions.
    if not re.search(r"\b(success|failure|always|cancelled)\(\)", text) and any(codes.values()):
        return False
    names = re.findall(r"'[^']*'|[a-z_]+(?:\.[\w-]+)+|\w+\(\)|&&|\|\||[!=]=|!|\S", text)
    known = {"&&": "and", "||": "or", "!": "not ", "cancelled()": "False", "(": "(", ")": ")"}
    known |= {"success()": str(not any(codes.values())), "==": "==", "!=": "!="}
    words = [
        known.get(name) or (name if name[0] == "'" else repr(values.get(name, "")))
        for name in names
    ]
    return bool(eval(" ".join(words), {}))


@pytest.fixture
def runner(tmp_path):
    bash_runner = Runner(tmp_path)
    main = "from headscope.cli.app import main; main()"
    bash_runner.program("headscope", f'exec {shlex.quote(sys.executable)} -c "{main}" "$@"')
    (tmp_path / "gh.py").write_text(GH)
    bash_runner.program("gh", f'exec {shlex.quote(sys.executable)} gh.py "$@"')
    bash_runner.program("python", 'printf "%s|" "$@" >> pip.txt; echo >> pip.txt')
    return bash_runner


@pytest.fixture
def recorded(runner):
    """Put a program in headscope's place that writes down how it is called."""
    runner.program(
        "headscope",
        """
printf '%s\\0' "$@" >> calls; printf '\\n' >> calls
for word in "$@"; do case "$word" in --output=*) folder="${word#--output=}";; esac; done
[ "$1" = report ] || exit 0
mkdir -p -- "$folder"
echo '# report' > "$folder/report.md"
echo '<!-- headscope: link to the page -->' >> "$folder/report.md"
echo '{}' > "$folder/baseline.json"
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
    assert LINK in STEPS[-1]["run"], "what the last step puts the link in the place of"
    assert named == set(ACTION["inputs"]), "every input is used, and none is used that is not there"
    assert all(known["description"] for known in ACTION["inputs"].values())


def test_its_options_are_the_commands_own():
    for step in SCRIPTS:
        for command in re.findall(r"headscope (\w+)", step["run"]):
            option_names = {name for param in click_command(command).params for name in param.opts}
            used = set(re.findall(r"(--[a-z-]+)(?=[^\n]*\))", step["run"]))
            assert used
            assert used <= option_names


def test_a_report_is_made_held_against_its_baseline_and_commented(runner):
    """The whole action on a tiny model, whose baseline was validated on other probes."""
    runner.github["steps.upload.outputs.artifact-url"] = PAGE
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
    expected_outputs = {
        "report": "new report",
        "html": "new report/report.html",
        "artifact-url": PAGE,
    }
    assert outputs == {**expected_outputs, "changed": "true"}, runner.said
    assert list(runner.codes.values()) == [0, 0, 3, 0]
    assert "headscope: any: the results are not equal" in runner.said
    assert read(runner.folder / "new report" / "report.json")["validate"]["passed"]
    assert runner.summary.startswith("## headscope: my bert\n")
    (comment,) = runner.comments()
    marker, changes, report = re.split(r"\n(?=###? (?:What changed|headscope))", comment)
    assert re.fullmatch(r"<!-- headscope: report \w{16} -->", marker), "invisible"
    assert changes.strip() in runner.summary
    assert LINK in runner.summary
    link = f"[The page of this report]({PAGE}) (a zip file: unpack it and open report.html)"
    assert report.strip() in runner.summary.replace(LINK, link)
    row = "| \u2705 | validation = true | the only result passed |"
    places = [report.index(section) for section in (row, link, "What the attention heads")]
    assert places == sorted(places), "limits, the page, the rest"


def test_a_report_has_one_comment_whoever_writes_in_between(runner):
    def run(text, output):
        page = f"{text}\n{LINK}\n"
        runner.program("headscope", f"mkdir -p {output}; printf '%s' '{page}' > {output}/report.md")
        runner.run(model="m", comment="true", install="false", output=output)
        return [body.split("\n", 1)[1] for body in runner.comments()]

    assert run("first", "a") == [f"first\n{LINK}\n"]
    assert run("of another model", "b")[1:] == [f"of another model\n{LINK}\n"]
    path = runner.folder / "comments.json"
    comments = [*json.loads(path.read_text()), {"id": 9, "body": "\nbots\nsay much"}]
    path.write_text(json.dumps(comments))
    assert [body.split("\n")[0] for body in run("again", "a")] == [
        "again",
        "of another model",
        "bots",
    ]


def test_a_comment_that_github_would_refuse_leaves_out_what_is_folded_up(runner):
    folded = "<details><summary>All</summary>\n\n" + "x " * 40_000 + "\n\n</details>\n"
    (runner.folder / "long.md").write_text(f"## Report\n{LINK}\n{folded}_headscope_\n")
    runner.program("headscope", "mkdir -p out; cp long.md out/report.md")
    runner.run(model="m", comment="true", install="false", output="out")
    (comment,) = runner.comments()
    assert comment.splitlines()[1:-1] == ["## Report", LINK, "_headscope_"]
    assert "too long for a comment" in comment


def test_a_run_without_baseline_is_compared_with_the_one_that_was_cached(runner, recorded):
    inputs = {"model": "m", "install": "false", "cache_baseline": "true"}
    assert runner.run(**inputs)["changed"] == ""
    assert [call[0] for call in recorded()] == ["report"]
    (cached,) = runner.folder.glob(".headscope/*/baseline.json")
    cached.write_text("of the main branch")
    assert runner.run(**inputs)["changed"] == "false"
    assert recorded()[-1][-2:] == [str(cached.relative_to(runner.folder)), "headscope-report"]
    assert cached.read_text() == "{}\n", "what is kept for later is the newest one"
    assert runner.run(**inputs, baseline="own.json")["changed"] == "false"
    assert recorded()[-1][-2:] == ["own.json", "headscope-report"]


HOSTILE = "$(touch evil) `touch evil`; touch evil #\" ' ${{ github.token }}\ntouch evil"


def test_what_inputs_say_is_never_run(runner, recorded):
    inputs = dict.fromkeys(("model", "config", "text", "fail_on"), HOSTILE)
    inputs |= {"treebank": "--output=evil", "baseline": "--fail-on", "install": "false"}
    outputs = runner.run(**inputs)
    report, diff = recorded()
    assert report == [
        "report",
        "--output=headscope-report",
        "--quiet",
        f"--config={HOSTILE}",
        f"--text={HOSTILE}",
        "--treebank=--output=evil",
        "--",
        HOSTILE,
    ]
    assert diff[:3] == ["diff", "--format=md", f"--fail-on={HOSTILE}"]
    assert diff[3:] == ["--", "--fail-on", outputs["report"]]
    assert outputs["changed"] == "false"
    assert not (runner.folder / "evil").exists()


def test_an_output_on_two_lines_sets_no_other_output(runner, recorded):
    outputs = runner.run(model="m", output="x\nhtml=evil", baseline="old", install="false")
    assert set(outputs.values()) == {""}
    assert runner.codes == {"Name the caches": 0, "Report": 1}
    assert not (runner.folder / "calls").exists()


@pytest.mark.parametrize(("code", "ran"), [(0, 3), (3, 3), (1, 2)])
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
    runner.run(
        model="m", smaller="s", task="similarity", data="d.csv", max_drop="1", install="false"
    )
    assert runner.codes["Check the smaller model"] == 3


def test_a_smaller_model_without_a_bound_is_refused_before_anything_runs(runner, recorded):
    runner.run(model="m", smaller="s", task="similarity", data="d.csv", install="false")
    assert runner.codes == {"Name the caches": 1}
    assert "say what the smaller model is held to" in runner.said
    assert not (runner.folder / "calls").exists()


@pytest.mark.parametrize("code", [0, 3])
def test_what_the_check_says_is_in_the_comment(code, runner):
    said = "The folder s keeps to it: 2 points ~~~ are lost."
    runner.program(
        "headscope",
        f"""
if [ "$1" = shrink ]; then echo "{said}"; echo "headscope: why" >&2; exit {code}; fi
mkdir -p out; echo '# report' > out/report.md
""",
    )
    runner.run(model="m", smaller="s", max_drop="1", output="out", comment="true", install="false")
    assert runner.codes["Check the smaller model"] == code
    (comment,) = runner.comments()
    shown = said.replace("~~~", "~ ~ ~")
    assert f"### The smaller model\n\n~~~text\n{shown}\nheadscope: why\n~~~\n" in comment
    assert comment.index("smaller model") < comment.index("# report")
    assert said in runner.said


@pytest.mark.usefixtures("recorded")
def test_nobody_elses_pull_request_is_commented(runner):
    runner.github["github.event.pull_request.head.repo.full_name"] = "them/models"
    runner.run(model="m", comment="true", install="false")
    assert list(runner.codes) == ["Name the caches", "Report"]
    assert runner.comments() == []


def test_it_installs_itself_with_the_tested_versions_or_a_release(runner, recorded):
    runner.run(model="demo")
    cache, torch, package = (runner.folder / "pip.txt").read_text().splitlines()
    assert cache == "-m|pip|cache|dir|"
    pins = f"-c|{ROOT}/configs/constraints.txt|"
    assert torch.startswith(
        "-m|pip|install|--no-deps|--index-url|https://download.pytorch.org/whl/cpu|"
    )
    assert torch.endswith(f"{pins}torch|")
    assert package == f"-m|pip|install|{ROOT}[demo]|{pins}"

    (runner.folder / "pip.txt").unlink()
    runner.run(model="demo", smaller="s", max_drop="1", torch_index="")
    package = (runner.folder / "pip.txt").read_text().splitlines()[1]
    assert package == f"-m|pip|install|{ROOT}[demo,export,openvino]|{pins}"

    (runner.folder / "pip.txt").unlink()
    runner.run(model="m", smaller="s", task="seq2seq", extras="serve", max_drop="1", torch_index="")
    package = (runner.folder / "pip.txt").read_text().splitlines()[1]
    assert package == f"-m|pip|install|{ROOT}[export,openvino,seq2seq,serve]|{pins}"
    runner.codes.clear()
    runner.run(model="m", extras="x]; touch evil", torch_index="")
    assert runner.codes == {"Name the caches": 0, "Install headscope": 1}
    runner.codes.clear()

    (runner.folder / "pip.txt").unlink()
    runner.run(model="m", version="0.1.0", torch_index="")
    package = (runner.folder / "pip.txt").read_text().splitlines()[1]
    assert package == "-m|pip|install|headscope==0.1.0|"
    runner.codes.clear()
    runner.run(model="m", version="0.1.0 --index-url http://e.vil", torch_index="")
    assert runner.codes == {"Name the caches": 0, "Install headscope": 1}
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
