"""Configuration of the documentation site, which scripts/docs builds with Sphinx from the Markdown files of this repository.

The source directory is the root of the repository, so that the links of the pages work in the site as they do in a checkout.
"""

from __future__ import annotations

from sandlot import __version__

project = "Sandlot"
release = __version__
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = ["docs/**.md", "examples/*.md", "*.md", "src/sandlot/compat/*/COVERAGE.md"]
exclude_patterns = [".venv", "**/node_modules"]
html_theme = "furo"
html_title = f"Sandlot {release}"
html_show_sourcelink = False
html_search_scorer = "docs/search_scorer.js"  # guides first: most searches come from users
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # GitHub draws mermaid diagrams; here they stay text, because a script would be loaded for them
