"""Sphinx's settings. The checkout is its source folder: links of pages are those of files."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))

project = "tasks_app"
extensions = [
    "myst_parser",
    "dev.documents.site.builder",
    "dev.documents.site.diagrams",
    "dev.documents.site.navigation",
    "dev.documents.site.sources",
    "dev.documents.site.search",
]
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
root_doc = "docs/README"
nitpicky = True

myst_heading_anchors = 6
myst_enable_extensions = ["tasklist"]

html_theme = "furo"
html_title = "tasks_app"
html_static_path = [str(HERE / "static")]
templates_path = [str(HERE / "templates")]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = html_use_index = False
html_show_copyright = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "github-dark-high-contrast"
