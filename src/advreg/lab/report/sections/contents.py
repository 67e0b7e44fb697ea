"""All sections of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from advreg.lab.report.compare import Results, summary
from advreg.lab.report.gather import Gathered
from advreg.lab.report.grouping import MainMetrics, contests
from advreg.lab.report.labels import counted
from advreg.lab.report.page.parts import Folded, Heading, Part, Section
from advreg.lab.report.score_tables import task_title
from advreg.lab.report.sections.bench import bench_section
from advreg.lab.report.sections.cost import cost_parts
from advreg.lab.report.sections.failures import failure_section, run_section
from advreg.lab.report.sections.gradients import gradient_parts
from advreg.lab.report.sections.overview import overview
from advreg.lab.report.sections.perturbation import perturbation_parts, token_section
from advreg.lab.report.sections.probing import probing_section
from advreg.lab.report.sections.scores import score_parts
from advreg.lab.report.sections.studies import study_parts
from advreg.lab.report.sections.training import training_parts
from advreg.lab.report.sections.verdict import verdict

_MOST_PICTURES = 9  # of a section; more of them are folded, task by task

# the key, the title, the introduction and the parts of a section that each contest has
_ByContest = tuple[str, str, str, Callable[[Results], Sequence[Part]]]
_ByTask = tuple[str, str, str, Callable[[Results, str], Sequence[Part]]]
_SCORES: _ByContest = (
    "scores",
    "Scores",
    "Mean over seeds. Small dots are seeds; lines are the 95 % confidence interval of the mean "
    "(Student's t), with an arrow where it is cut because it is far wider than all scores "
    "together.",
    score_parts,
)
_COST: _ByContest = (
    "cost",
    "Cost",
    "Passes are counted from outside the method, a fused pass as two; time is the time of the "
    "training steps.",
    cost_parts,
)
_STUDIES: _ByContest = (
    "studies",
    "Studies",
    "One option varies and all others are equal. Whiskers and bands are the standard deviation "
    "over seeds; SMART is dashed, Standard dotted. *: the default settings.",
    study_parts,
)
_TRAINING: _ByTask = (
    "training",
    "Training",
    "Mean over seeds, and their range. Legends show the last value.",
    training_parts,
)
_GRADIENTS: _ByTask = (
    "gradients",
    "Gradient norms",
    "Norm of the gradient of all parameters before clipping, and its variance over training: "
    "reused perturbations are meant to lower it.",
    gradient_parts,
)
_PERTURBATION: _ByTask = (
    "perturbation",
    "The perturbation",
    "Is it large enough to matter, does it fill its ball, how old is it, and from which samples "
    "is it borrowed?",
    perturbation_parts,
)


def sections(found: Gathered, main_metrics: MainMetrics) -> list[Section]:
    """The sections that have something to show."""
    groups = [summary(contest) for contest in contests(found, main_metrics) if contest.runs]
    made = [
        verdict(groups),
        overview(found, groups),
        _by_contest(groups, *_SCORES),
        _by_contest(groups, *_COST),
        bench_section(found.benches),
        _by_task(groups, *_TRAINING),
        _by_task(groups, *_GRADIENTS),
        _by_contest(groups, *_STUDIES),
        probing_section(found.probes),
        _by_task(groups, *_PERTURBATION),
        token_section(groups),
        failure_section(found),
        run_section(found),
    ]
    return [section for section in made if section.parts]


def _by_contest(
    groups: Sequence[Results],
    key: str,
    title: str,
    intro: str,
    make: Callable[[Results], Sequence[Part]],
) -> Section:
    """The parts of each contest, under its title if there are several."""
    made = [(found.contest.title, make(found)) for found in groups]
    return Section(key, title, intro, _headed(made, len(groups)))


def _headed(made: Iterable[tuple[str, Sequence[Part]]], count: int) -> list[Part]:
    found: list[Part] = []
    for title, parts in made:
        if parts and count > 1:
            found.append(Heading(title))
        found += parts
    return found


def _by_task(
    groups: Sequence[Results],
    key: str,
    title: str,
    intro: str,
    make: Callable[[Results, str], Sequence[Part]],
) -> Section:
    """The pictures of each task; folded if they are many."""
    made = [(found, task, make(found, task)) for found in groups for task in found.tasks]
    if sum(len(parts) for *_, parts in made) > _MOST_PICTURES:
        folded = [
            Folded(
                f"{found.contest.title}: {task_title(found, task)} "
                f"({counted(len(parts), 'picture')})",
                parts,
            )
            for found, task, parts in made
            if parts
        ]
        return Section(key, title, intro, folded)
    by_contest: dict[str, list[Part]] = {}
    for found, _, parts in made:
        by_contest.setdefault(found.contest.title, []).extend(parts)
    return Section(key, title, intro, _headed(by_contest.items(), len(groups)))
