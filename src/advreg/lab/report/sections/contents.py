"""All sections of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advreg.lab.report.compare import Results, summary
from advreg.lab.report.gather import Gathered
from advreg.lab.report.grouping import contests
from advreg.lab.report.labels import counted
from advreg.lab.report.page.parts import Folded, Heading, Part, Section
from advreg.lab.report.score_tables import task_title
from advreg.lab.report.sections.bench import bench_section
from advreg.lab.report.sections.cost import cost_parts
from advreg.lab.report.sections.failures import failure_section, run_section
from advreg.lab.report.sections.gradients import gradient_parts
from advreg.lab.report.sections.overview import overview
from advreg.lab.report.sections.perturbation import perturbation_parts
from advreg.lab.report.sections.probing import probing_section
from advreg.lab.report.sections.scores import score_parts
from advreg.lab.report.sections.studies import study_parts
from advreg.lab.report.sections.training import training_parts
from advreg.lab.report.sections.verdict import verdict

_MOST_PICTURES = 9  # of a contest in a section; more of them are folded, task by task

_Make = Callable[[Results], Sequence[Part]]


def sections(found: Gathered) -> list[Section]:
    """The sections that have something to show."""
    groups = [summary(contest) for contest in contests(found) if contest.runs]
    made = [
        verdict(groups),
        overview(found, groups),
        _section(
            groups,
            "Scores",
            "Mean over seeds. Small dots are seeds; lines are the 95 % confidence interval of the "
            "mean (Student's t), cut at the edge where it is far wider than all scores together.",
            score_parts,
        ),
        _section(
            groups,
            "Cost",
            "Passes are counted from outside the method, a fused pass as two; time is the time of "
            "the training steps.",
            cost_parts,
        ),
        bench_section(found.benches),
        _section(
            groups,
            "Training",
            "Mean over seeds, and their range. Legends show the last value.",
            _by_task(training_parts),
        ),
        _section(
            groups,
            "Gradients",
            "Norm of the gradient of all parameters before clipping, and its variance over "
            "training: reused perturbations are meant to lower it.",
            _by_task(gradient_parts),
        ),
        _section(
            groups,
            "Studies",
            "One option varies and all others are equal. Bands are the standard deviation over "
            "seeds; SMART is dashed, Standard dotted. *: the default settings.",
            study_parts,
        ),
        probing_section(found.probes),
        _section(
            groups,
            "Perturbation",
            "Is it large enough to matter, does it fill its ball, how old is it, and from which "
            "samples is it borrowed?",
            _by_task(perturbation_parts),
        ),
        failure_section(found),
        run_section(found),
    ]
    return [section for section in made if section.parts]


def _section(groups: Sequence[Results], title: str, intro: str, make: _Make) -> Section:
    """The parts of each contest, under its title if there are several."""
    parts: list[Part] = []
    for found in groups:
        made = make(found)
        heads = [Heading(found.contest.title)] if made and len(groups) > 1 else []
        parts += [*heads, *made]
    return Section(title.lower(), title, intro, parts)


def _by_task(make: Callable[[Results, str], Sequence[Part]]) -> _Make:
    """The pictures of each task; folded if they are many."""

    def parts(found: Results) -> list[Part]:
        made = {task: list(make(found, task)) for task in found.tasks}
        if sum(map(len, made.values())) <= _MOST_PICTURES:
            return [part for each in made.values() for part in each]
        return [
            Folded(f"{task_title(found, task)} ({counted(len(each), 'picture')})", each)
            for task, each in made.items()
            if each
        ]

    return parts
