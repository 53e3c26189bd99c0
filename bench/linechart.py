"""Line charts of medians as SVG: a panel for each metric, a line for each arm, a bar from least to greatest sample."""

import html
import math
import statistics

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 760, 250, 70, 170, 52, 58
COLOURS = ["#1b6ca8", "#d1495b", "#2e8b57", "#e09f3e", "#6f4e9b", "#555555"]
FONT = 'font-family="sans-serif" font-size="12"'


def short(number):
    """A number with three digits at most, as 1.5k."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.3g}"


def step_of(top):
    """The distance of five lines of a grid or fewer up to `top`."""
    power = 10 ** math.floor(math.log10(top))
    return next(power * factor for factor in (0.2, 0.5, 1, 2) if top / (power * factor) <= 5)


def text(x, y, words, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {FONT} {extra}>{html.escape(str(words))}</text>'


class Panel:
    """One metric: `lines` has for each arm the samples by x."""

    def __init__(self, top, xs, lines):
        self.top, self.xs, self.lines = top, xs, lines
        values = [value for line in lines.values() for samples in line.values() for value in samples]
        self.most = max(values, default=0) * 1.05 or 1.0
        self.ordinal = {x: place for place, x in enumerate(xs)}

    def x(self, x):
        """The xs have equal distances: those of the workloads are powers."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (self.ordinal[x] + 0.5) / len(self.xs)

    def y(self, value):
        return self.top + PANEL - PANEL * value / self.most

    def grid(self, metric, x_name):
        yield text(LEFT, self.top - 8, metric, 'font-weight="bold"')
        step = step_of(self.most)
        for number in range(int(self.most / step) + 1):
            y = self.y(number * step)
            yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            yield text(LEFT - 6, y + 4, short(number * step), 'text-anchor="end"')
        for x in self.xs:
            yield text(self.x(x), self.top + PANEL + 16, short(x), 'text-anchor="middle"')
        yield text((LEFT + WIDTH - RIGHT) / 2, self.top + PANEL + 33, x_name, 'text-anchor="middle"')

    def line(self, number, arm, samples):
        colour = COLOURS[number % len(COLOURS)]
        points = [(self.x(x), statistics.median(samples[x]), samples[x]) for x in self.xs if x in samples]
        path = " ".join(f"{x:.1f},{self.y(median):.1f}" for x, median, _ in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, median, all_of in points:
            low, high = self.y(min(all_of)), self.y(max(all_of))
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>'
            yield f'<circle cx="{x:.1f}" cy="{self.y(median):.1f}" r="3.5" fill="{colour}"/>'
        y = self.top + 12 + 18 * number
        yield f'<circle cx="{WIDTH - RIGHT + 16}" cy="{y - 4}" r="4" fill="{colour}"/>'
        yield text(WIDTH - RIGHT + 26, y, arm)


def svg(title, x_name, metrics, caption):
    """The picture. `metrics`: for each metric's name, for each arm, for each x a list of samples."""
    parts, top = [text(LEFT, 20, title, 'font-weight="bold"')], TOP
    for metric, lines in metrics.items():
        xs = sorted({x for line in lines.values() for x in line})
        panel = Panel(top, xs, lines)
        parts += panel.grid(metric, x_name)
        for number, (arm, samples) in enumerate(lines.items()):
            parts += panel.line(number, arm, samples)
        top += PANEL + GAP + 20
    for number, words in enumerate(caption):
        parts.append(text(LEFT, top + 16 * number, words, 'fill="#555"'))
    height = top + 16 * len(caption)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>\n"])
