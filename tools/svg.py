"""A sheet to draw on, written as SVG: light in any theme, with words for those who cannot see it."""

from __future__ import annotations

from html import escape

__all__ = ["INK", "PALE", "Sheet"]

INK, PALE = "#24292f", "#8a919a"
STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px;fill:#24292f}"
    ".small{font-size:11px;fill:#57606a}.on{font-size:11px}.head{font-weight:600;font-size:14px}.mid{text-anchor:middle}.end{text-anchor:end}"
)


class Sheet:
    """Shapes in the order in which they are drawn. Lengths are in pixels, from the upper left corner.

    >>> print(Sheet(10, 5, "A dot", "One dot.").circle(5, 2, 1, "#000000").text_of_svg().splitlines()[-2])
    <circle cx="5" cy="2" r="1" fill="#000000"/>
    """

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self._width, self._height, self._title, self._description = width, height, title, description
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, round: float = 0.0) -> Sheet:
        corners = f' rx="{_n(round)}"' if round else ""
        return self._add(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"{corners} fill="{fill}"/>'
        )

    def circle(self, x: float, y: float, r: float, fill: str) -> Sheet:
        return self._add(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}" fill="{fill}"/>')

    def line(self, x: float, y: float, to_x: float, to_y: float, *, color: str = INK, width: float = 1.0,
             dashed: bool = False, arrow: bool = False) -> Sheet:  # fmt: skip
        more = (' stroke-dasharray="4 3"' if dashed else "") + (' marker-end="url(#tip)"' if arrow else "")
        ends = f'x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}"'
        return self._add(f'<line {ends} stroke="{color}" stroke-width="{_n(width)}"{more}/>')

    def cross(self, x: float, y: float, r: float, color: str) -> Sheet:
        self.line(x - r, y - r, x + r, y + r, color=color, width=2.5)
        return self.line(x - r, y + r, x + r, y - r, color=color, width=2.5)

    def text(self, x: float, y: float, words: str, kind: str = "") -> Sheet:
        """``kind``: small, on (small, on a colour), head, mid (centred at x), end (ends at x), or several of these."""
        named = f' class="{kind}"' if kind else ""
        return self._add(f'<text x="{_n(x)}" y="{_n(y)}"{named}>{escape(words)}</text>')

    def text_of_svg(self) -> str:
        box = f'viewBox="0 0 {_n(self._width)} {_n(self._height)}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(self._title)}</title>',
                f'<desc id="desc">{escape(self._description)}</desc>',
                f"<style>{STYLE}</style>",
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
                f'<rect width="{_n(self._width)}" height="{_n(self._height)}" rx="8" fill="#fbfbfa"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )

    def _add(self, shape: str) -> Sheet:
        self._shapes.append(shape)
        return self


def _n(length: float) -> str:
    return f"{length:.1f}".removesuffix(".0")
