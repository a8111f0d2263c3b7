"""Sphinx builds the site: docs as they stand in the repository, and the API from docstrings.

Sphinx with MyST and Furo, since it is kept well, reads the same Markdown as GitHub, makes pages of
docstrings without a plugin of our own, and has a search that needs no server. Formulas become
MathML, which browsers draw by themselves: nothing is fetched from elsewhere.
"""

import json
from pathlib import Path

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

from headscope import __version__
from headscope.reports.schemas import COMMANDS, schema_of

project = "headscope"
author = project_copyright = "the headscope authors"
release = version = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "design.md"]
#: Pages of the repository that are no part of the site: links to them go to the repository.
suppress_warnings = ["myst.xref_missing"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # the notebook is stored with its outputs; tests/docs runs it
nb_output_stderr = "remove"
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"headscope {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
autodoc_typehints = "none"  # numpydoc sections state them
napoleon_google_docstring = False
napoleon_use_rtype = False
copybutton_exclude = ".linenos, .gp, .go"


def write_schemas(app, error):
    """Put the JSON Schema of every command beside the pages."""
    folder = Path(app.outdir) / "schemas"
    folder.mkdir(exist_ok=True)
    for command in COMMANDS:
        text = json.dumps(schema_of(command), indent=1, ensure_ascii=False)
        (folder / f"{command}.schema.json").write_text(text + "\n", encoding="utf-8")


def inline_math(writer, node):
    """Write a formula inside a sentence."""
    writer.body.append(tex2mathml(node.astext()))
    raise SkipNode


def display_math(writer, node):
    """Write a formula that stands by itself."""
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise SkipNode


def setup(app):
    """Add what this site has beside its pages."""
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("build-finished", write_schemas)
