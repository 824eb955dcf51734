"""Page of ``gradientflow bench train --report``: one self-contained file of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jinja2 import Environment

from gradientflow.annotations import JsonObject

from ..core.environment import environment_lines, readable
from ..core.table import Column, cells_of, grouped, name
from .colors import colors_of, family
from .columns import LAYOUT
from .entry import BASELINE, Entry
from .panels import draw_learnt, draw_rows, draw_scale
from .results import TrainResult

_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto; max-width: 1320px;
  padding: 1.5rem 2rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .4rem; border-top: 2px solid #222; padding-top: .6rem; }
h3 { font-size: 1.05rem; margin: 1.7rem 0 .2rem; }
p { margin: .3rem 0; max-width: 76rem; }
.note { color: #555; }
.warning { background: #fff6e0; border-left: 4px solid #e28413; padding: .4rem .8rem; }
.wrong { background: #fdeaec; border-left: 4px solid #d1495b; padding: .4rem .8rem; }
.right { background: #eaf6f0; border-left: 4px solid #2a9d8f; padding: .4rem .8rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; background: #f5f5f5; }
pre { padding: .6rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .16rem .45rem; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid #222; vertical-align: bottom; font-weight: 600; white-space: pre; }
td.name, th.name { text-align: left; }
tbody tr:nth-child(even) { background: #f8f8f8; }
td.win { color: #1c7a4b; font-weight: 600; }
td.loss { color: #b3263b; font-weight: 600; }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .45em; }
svg { max-width: 100%; height: auto; display: block; margin: .3rem 0; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; font-size: 13px; }
dt { color: #555; } dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { max-width: none; padding: 0; } h2 { break-before: page; } svg, tr { break-inside: avoid; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for line in where %}<p class="note">{{ line }}</p>
{% endfor %}<pre>{{ environment.command }}</pre>
<p class="{{ 'wrong' if wrong else 'right' }}">{{ checked }}</p>
{% for sentence in remarks %}<p class="{{ 'wrong' if 'WRONG' in sentence else 'warning' }}">{{ sentence }}</p>
{% endfor %}
{% for model in models %}
<h2 id="{{ model.name }}">{{ model.name }}: {{ model.parameters }} million parameters, {{ model.samples }}</h2>
{% for sentence in model.summary %}<p>{{ sentence }}</p>
{% endfor %}
{% for title, note, svg in model.charts if svg %}<h3>{{ title }}</h3>
<p class="note">{{ note }}</p>
{{ svg | safe }}
{% endfor %}
<h3>All figures</h3>
<div class="wide"><table>
<thead><tr>{% for heading, kind in model.columns %}<th{% if kind == 'name' %} class="name"{% endif %}>{{ heading }}</th>
{%- endfor %}</tr></thead>
<tbody>
{% for color, cells in model.rows %}<tr>{% for text, kind in cells %}<td{% if kind %} class="{{ kind }}"{% endif %}>
{%- if loop.first %}<span class="key" style="background: {{ color }}"></span>{% endif %}{{ text }}</td>
{%- endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}
<p class="note">{{ legend }}</p>
<details><summary>Environment</summary><dl>
{% for name, value in environment.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}</dl></details>
</body>
</html>
"""


_NAMES = (name("contestant", lambda result: result.entry.short), name("family", lambda result: family(result.entry)))
_LEFT_OUT = {
    "model",
    "contestant",
    "setting",
    "optimizer",
    "backward\nms",
    "least\nms",
    "selection\nms",
    "speed-up\n",
    "staleness\nmost",
}


def page_of(results: Sequence[TrainResult], environment: JsonObject, remarks: Sequence[str]) -> str:
    """Make the page of the results of all models, including wrong ones."""
    models = grouped(results, lambda result: result.model)
    ways = len({result.entry for result in results if not result.entry.is_reference})
    lines = environment_lines(environment)
    lines[1] += f", PyTorch {environment['torch']}; {readable(environment['date'])}"
    return (
        Environment(autoescape=True, trim_blocks=False)
        .from_string(_TEMPLATE)
        .render(
            title=f"{ways} ways to train on {environment['ranks']} ranks: {', '.join(models)}",
            where=lines,
            environment=environment,
            wrong=any(result.wrong for result in results),
            checked=_checked(results),
            remarks=remarks,
            models=[_model(found, results) for found in models.values()],
            legend=LAYOUT.explain(results),
        )
    )


def _checked(results: Sequence[TrainResult]) -> str:
    """Summarize the checks and their outcome."""
    rows = [result for result in results if not result.entry.is_reference]
    exact = [result for result in rows if result.entry.profile.is_lossless]
    bad = [f"{result.entry.name} ({result.model})" for result in rows if result.wrong]
    text = (
        f"Checked: of all {len(rows)} rows that communicate, whether all ranks end with the same parameters, bit by "
        f"bit; and of the {len(exact)} whose gradients are means, every element, against the exact mean of what the "
        "ranks computed by themselves, before anything was timed. "
    )
    return text + (f"WRONG, and without figures: {', '.join(bad)}." if bad else "All of it was right.")


def _model(results: Sequence[TrainResult], everything: Sequence[TrainResult]) -> JsonObject:
    first, colors = results[0], colors_of(result.entry for result in everything)
    columns = [column for column in LAYOUT.columns(everything, False) if column.shown]
    left_out = _LEFT_OUT | ({"reported\nMB"} if any(column.heading == "sent\nMB" for column in columns) else set())
    columns = [*_NAMES, *(column for column in columns if column.heading not in left_out)]
    cells = (zip(columns, map(str, cells_of(result, columns)), strict=True) for result in results)
    rows = [[(text, _kind(column, text)) for column, text in row] for row in cells]
    return {
        "name": first.model,
        "parameters": f"{first.parameters / 1e6:.2f}",
        "samples": f"{first.batch} samples a rank in a step",
        "summary": _summary(results),
        "charts": _charts(results, colors),
        "columns": [(column.heading, column.kind) for column in columns],
        "rows": zip((colors[result.entry] for result in results), rows, strict=True),
    }


def _kind(column: Column, text: str) -> str:
    """Give the class of a cell."""
    if column.heading.startswith("over") and text.endswith("x"):
        times = float(text[:-1])
        return "win" if times > 1 else "loss" if times < 1 else ""
    return "name" if column.kind == "name" else ""


def _summary(results: Sequence[TrainResult]) -> list[str]:
    """Describe the contestants that were faster or slower than the baseline, and that learned more or less."""
    rated = {result.entry: result.figures.samples_per_second for result in results if result.figures is not None}
    others = [entry for entry in rated if not entry.is_reference and entry != BASELINE]
    found = []
    if BASELINE in rated and others:
        ratios = {entry: rated[entry] / rated[BASELINE] for entry in others}
        faster = sum(ratio > 1 for ratio in ratios.values())
        slowest, *_, fastest = sorted(ratios, key=ratios.__getitem__) * (2 if len(ratios) == 1 else 1)
        found.append(
            f"Of {len(others)} ways, {faster} trained on more samples a second than ddp-gloo, and "
            f"{len(others) - faster} on as many or fewer: from {slowest.short}, {ratios[slowest]:.2f} times as many, "
            f"to {fastest.short}, {ratios[fastest]:.2f} times."
        )
    losses = {result.entry: result.at_end("loss") for result in results if result.entry in (BASELINE, *others)}
    known = {entry: loss for entry, loss in losses.items() if loss is not None}
    usual = known.get(BASELINE)
    if usual is not None:
        higher = sorted((entry for entry in known if not known[entry] <= 1.03 * usual), key=known.__getitem__)
        names = ", ".join(f"{entry.short} ({known[entry]:.3g})" for entry in higher)
        found.append(
            f"After as many steps, the loss of ddp-gloo was {usual:.3g}, and higher by more than 3 %, from the least "
            f"to the most: {names}."
            if names
            else f"No loss at the end was higher by more than 3 % than that of ddp-gloo, {usual:.3g}."
        )
    return found


def _charts(results: Sequence[TrainResult], colors: Mapping[Entry, str]) -> Iterator[tuple[str, str, str | None]]:
    """Give the title, the explanation and the picture of each chart; None without anything to draw."""
    speed = "The fastest above; the dotted line is ddp-gloo. A strategy has the same color everywhere."
    yield "Speed, communication, and what was learnt", speed, draw_rows(results, colors)
    how = "Lines of other families are gray; dashed: ddp-gloo and the references. "
    notes = {"time": "Held-out samples. An arrow: it went on, so far.", "bytes sent": _bytes_note(results)}
    for (words, note), across in zip(notes.items(), ("seconds", "sent"), strict=True):
        for upwards in ("loss", "accuracy"):
            svg = draw_learnt(results, colors, across, upwards)
            yield f"{upwards.capitalize()} against {words}", how + note, svg
    scale = "Samples a second of so many ranks, over so many times those of one rank that trains alone without "
    yield "Scale efficiency", how + scale + "communication.", draw_scale(results, colors)


def _bytes_note(results: Sequence[TrainResult]) -> str:
    """Describe how bytes were counted, and for which contestants they are unknown."""
    if any(result.figures is not None and result.figures.bytes_sent is not None for result in results):
        return "Counted at the network device between the hosts."
    return (
        "As the library itself counts what it sends in messages, which ranks of one node hardly need; of other rows it "
        "is not known without a network between hosts."
    )
