"""Templates of pages: Jinja2 with autoescape, the common style sheet, and filters for quantities."""

from __future__ import annotations

from pathlib import Path

from ..text.quantities import human_bytes, human_seconds

__all__ = ["fill"]

_FOLDER = Path(__file__).parent / "templates"


def fill(template: str, folder: Path = _FOLDER, **values: object) -> str:
    """Return a template with its values, which are escaped unless they are markup.

    Parameters
    ----------
    template : str
        A file's name.
    folder : path
        Folder of a template outside the package, which may extend ``page.html`` too.
    **values
        Variables of the template.
    """
    import jinja2  # imported here: it takes tens of milliseconds

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(bytes=human_bytes, seconds=human_seconds)
    return environment.get_template(template).render(values)
