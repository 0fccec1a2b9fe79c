"""Reports as HTML pages: one self-contained file each, with a template, charts in SVG and one style sheet for all."""
