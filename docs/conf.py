"""Sphinx: the pages of layers, the errata, the example of the price books and the vocabulary are written first."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generate

import learncost

generate.write(Path(__file__).parent)

project = "learncost"
author = "learncost contributors"
version = release = learncost.__version__
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
smartquotes_action = "qe"  # quotes and dots: --flag in a sentence keeps its two dashes
exclude_patterns = ["_build", "generated"]
html_theme = "furo"
html_title = f"learncost {version}"
html_static_path = ["static"]
html_css_files = ["learncost.css"]
html_show_copyright = False
