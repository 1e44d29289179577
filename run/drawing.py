"""Saves pictures, the same under all settings of matplotlib. A picture that fails costs one line."""

import warnings

from run import files


def save_picture(label, path, draw, *arguments):
    """Writes the figure that draw(*arguments) returns to a .png file. Returns a line that says where it is or why it is
    missing. The user's settings of matplotlib do not apply, and a $ in a name is a $."""
    message = f"{label:10}{path}"
    try:
        import matplotlib.style  # slow to import, so only here

        fonts = ["DejaVu Sans", font_with(str(arguments))]  # the names to be drawn are among them
        style = matplotlib.style.context(["default", {"text.parse_math": False, "font.family": fonts}])
        with style, warnings.catch_warnings(record=True) as caught, files.replacing(path) as f:
            draw(*arguments).savefig(f, format="png")
        if caught:  # a warning for each character that no font has
            message += f" (may look wrong: {caught[0].message})"
    except Exception as error:  # a full disk, no matplotlib, a damaged font
        message = f"cannot draw {path}: {' '.join(str(error).split())[:200]}"
    return message


def font_with(text):
    """The family of an installed font that has all characters of the text; by default matplotlib's own."""
    from matplotlib.font_manager import fontManager, get_font

    codes = set(map(ord, text))
    for font in fontManager.ttflist:
        # LastResort has boxes for all of Unicode
        if codes <= get_font(font.fname).get_charmap().keys() and "LastResort" not in font.fname:
            return font.name
    return "DejaVu Sans"
