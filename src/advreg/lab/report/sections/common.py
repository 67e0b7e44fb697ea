"""What several sections share."""

from __future__ import annotations

from advreg.lab.report.compare import Results
from advreg.lab.report.curves import Measure, curve, shared_axis
from advreg.lab.report.labels import method_name, value_text
from advreg.lab.report.pictures.figures import Lines, Look, looks, series_of
from advreg.lab.report.score_tables import task_title


def looks_of(found: Results, task: str | None = None) -> dict[str, Look]:
    """The look of each label, the same in all pictures of a contest.

    On a task whose runs differ in length, labels have the number of epochs: such runs are not on
    equal terms.
    """
    texts = {label: method_name(label) for label in found.methods}
    lengths = {group.label: group.epochs for group in found.contest.on(task or "")}
    if len(set().union(*lengths.values())) > 1:
        for label, epochs in lengths.items():
            if "epochs" not in label:
                texts[label] += f", epochs {' or '.join(map(value_text, sorted(epochs)))}"
    return looks(texts, found.contest.methods)


def titled(found: Results, task: str, title: str) -> str:
    """A picture's title, with the task if there are several."""
    several = len(found.tasks) > 1
    return f"{task_title(found, task)}: {title}" if several else title.capitalize()


def lines_of(
    found: Results, task: str, title: str, unit: str, measure: Measure, zero: bool = False
) -> list[Lines]:
    """A figure of values that were logged over training on a task, if there are any.

    Args:
        found: the contest.
        task: its name.
        title: of the figure.
        unit: of the values.
        measure: the value to take from a log line.
        zero: whether the axis of values begins at 0.
    """
    shown, groups = looks_of(found, task), found.contest.on(task)
    axis = shared_axis(record for group in groups for record in group.records)
    curves = [(group.label, curve(group.records, axis, measure)) for group in groups]
    series = [series_of(shown[label], each) for label, each in curves if len(each.places) > 1]
    figure = Lines(title=titled(found, task, title), x=axis, y=unit, marks=series, zero=zero)
    return [figure] if series else []
