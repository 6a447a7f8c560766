"""A report as one HTML page to mail, with its plot: it loads nothing."""

from __future__ import annotations

from html import escape

from tasks_app.domain.durations import to_the_second
from tasks_app.domain.tasks.error_text import printable
from tasks_app.monitor.pages.history import Bar, History
from tasks_app.monitor.report import Report, Section, counted, headline, sections, summary

_STYLE = """
body{margin:0;background:#f4f5f7;color:#1d2330;font:14px/1.45 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 16px}
h1{font-size:20px;margin:0}h2{font-size:15px;margin:0 0 8px}.soft{color:#5b6475;margin:0 0 16px}
section{background:#fff;border:1px solid #dfe3ea;border-radius:6px}
section{padding:14px 16px;margin:0 0 14px}
p{margin:0 0 6px}table{border-collapse:collapse;width:100%}
th{text-align:left;font-weight:600;color:#5b6475;border-bottom:1px solid #dfe3ea}
th,td{padding:4px 12px 4px 0;vertical-align:top;overflow-wrap:anywhere}
.n{text-align:right;white-space:nowrap}.r td{color:#5b6475;padding-top:0}
.fail{color:#b3261e;font-weight:600}.warn{color:#8a5a00;font-weight:600}
.plot{display:block;width:100%;height:140px;border-bottom:1px solid #dfe3ea}
.plot .hit{fill:none}.plot .ok{fill:#3b7dd8}.plot .again{fill:#d99a1c}.plot .bad{fill:#b3261e}
.ends{display:flex;justify-content:space-between;color:#5b6475;font-size:12px}
.key::before{content:"";display:inline-block;width:10px;height:10px;margin:0 5px 0 12px}
.key.ok::before{background:#3b7dd8}.key.again::before{background:#d99a1c}
.key.bad::before{background:#b3261e}
"""
_LEVELS = frozenset({"fail", "warn"})


def page(report: Report) -> str:
    """Every text of the database is escaped."""
    history = report.history
    ends = [f"{bar.at:%Y-%m-%d %H:%M}Z" for bar in (history.bars[0], history.bars[-1])]
    sentences = "".join(f"<p>{_text(sentence)}</p>" for sentence in summary(report))
    keys = "".join(
        f'<span class="key {shape}">{word}</span>'
        for shape, word in (("ok", "done"), ("again", "retried"), ("bad", "failed"))
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>tasks_app: {_text(headline(report))}</title><style>{_STYLE}</style></head>
<body><main><h1>tasks_app</h1><p class="soft">{_text(headline(report))}<br>{counted(report)}</p>
<section>{sentences}{plot(history)}
<div class="ends"><span>{ends[0]}</span><span>each {report.grain}:{keys}</span>
<span>{ends[1]}</span></div></section>
{"".join(_section(each) for each in sections(report))}</main></body></html>
"""


def _section(section: Section) -> str:
    title = f"<h2>{_text(section.title)}</h2>"
    if not section.rows:
        return f'<section>{title}<p class="soft">{_text(section.otherwise)}</p></section>\n'
    numbers = [' class="n"' if n >= section.words else "" for n in range(len(section.columns))]
    head = "".join(
        f"<th{number}>{_text(column)}</th>"
        for number, column in zip(numbers, section.columns, strict=True)
    )
    remarks = section.remarks or ("",) * len(section.rows)
    body = "".join(
        _row(row, numbers, remark) for row, remark in zip(section.rows, remarks, strict=True)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<section>{title}{table}</section>\n"


def _row(row: tuple[str, ...], numbers: list[str], remark: str) -> str:
    cells = "".join(
        f'<td class="{cell}">{cell}</td>' if cell in _LEVELS else f"<td{number}>{_text(cell)}</td>"
        for number, cell in zip(numbers, row, strict=True)
    )
    below = f'<tr class="r"><td colspan="{len(row)}">{_text(remark)}</td></tr>' if remark else ""
    return f"<tr>{cells}</tr>{below}"


def _text(words: str) -> str:
    return escape(printable(words, keep=""))


WIDE, HIGH, FULL = 10, 100, 96  # of a bar, the plot and the highest bar, in its own units


def plot(history: History) -> str:
    """Return stacked bars: done, retried and failed."""
    label = (
        f"{history.done} done, {history.failed} failed and {history.retried} retried "
        f"within {history.within}"
    )
    bars = "\n".join(_bar(n, bar, history.highest) for n, bar in enumerate(history.bars))
    return (
        f'<svg class="plot" viewBox="0 0 {WIDE * len(history.bars)} {HIGH}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(label)}">\n{bars}\n</svg>'
    )


def _bar(number: int, bar: Bar, highest: int) -> str:
    title = f"{to_the_second(bar.at)}: {bar.done} done, {bar.failed} failed, {bar.retried} retried"
    parts, top = [], float(HIGH)
    for shape, amount in (("ok", bar.done), ("again", bar.retried), ("bad", bar.failed)):
        height = FULL * amount / highest
        top -= height
        parts.append(
            f'<rect class="{shape}" x="{number * WIDE + 1}" y="{top:.2f}" width="{WIDE - 2}" '
            f'height="{height:.2f}"/>'
        )
    hit = f'<rect class="hit" x="{number * WIDE}" y="0" width="{WIDE}" height="{HIGH}"/>'
    return f"<g><title>{title}</title>{hit}{''.join(parts)}</g>"
