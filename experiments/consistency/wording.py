"""Verdicts as sentences: the answer at the top of the page, and the guide of where each method
helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inference import DOES_NOT, PAYS, UNDECIDED, Gain, differences
from outcomes import Entry, Outcome
from stages import Point
from texts import PLACES

from advreg.lab.report.labels import (
    NOTHING,
    counted,
    difference_text,
    method_name,
    method_order,
    number_text,
    task_name,
    value_text,
)
from advreg.lab.report.statistics import Spread

SCALED = "scaled_nll"
HELPS, HARMS, OPEN = "helps", "harms", "no difference shown"  # an effect on calibration
_CONTROLS = {
    "ema": "EMA", "neftune": "NEFTune", "smoothing": "More label smoothing", "twice the epochs": "Twice the epochs",
}  # fmt: skip
_SIGNS = {
    "weight": "λ", "radius": "ε", "step_size": "η", "ascent_steps": "S", "refresh_every": "T_c",
    "label_smoothing": "smoothing", "ema": "average", "neftune": "noise",
}  # fmt: skip
_WORDS = {("ramp", "linear"): "rising", ("preset", "understanding"): "the paper's recipe"}


def label(name: str) -> str:
    """A contestant as people write it."""
    return _CONTROLS.get(name, method_name(name))


def in_text(name: str) -> str:
    """A contestant inside a sentence."""
    shown = label(name)
    return shown[0].lower() + shown[1:] if " " in shown else shown


def setting(point: Point) -> str:
    """What differs from the method's defaults and from the contest's settings."""
    values = {**point.options, **point.settings}
    if "encoder_dropout" in values and values["encoder_dropout"] == values.get("head_dropout"):
        values["dropout"] = values.pop("encoder_dropout")
        del values["head_dropout"]
    told = [_WORDS.get((name, value)) or _one(name, value) for name, value in values.items()]
    return ", ".join(told) or "plain"


def _one(name: str, value: object) -> str:
    shown = value_text(value)
    return (
        f"{shown} epochs"
        if name == "epochs"
        else f"{_SIGNS.get(name, name.replace('_', ' '))} {shown}"
    )


def listed(parts: Sequence[str]) -> str:
    """Joined by commas, and by "and" before the last.

    Example:
        >>> listed(["a", "b", "c"]), listed(["a"])
        ('a, b and c', 'a')
    """
    return " and ".join([part for part in (", ".join(parts[:-1]), *parts[-1:]) if part])


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


UNITS = {"text": "points", "translation": "BLEU", "language": "hundredths of a nat"}


def unit(outcome: Outcome) -> str:
    if outcome.pooled:
        return "deviations"
    return UNITS[outcome.contest.kind]


def gain_text(outcome: Outcome, gain: Gain | None) -> str:
    """With its interval."""
    return difference_text(None if gain is None else gain.spread, outcome.decimals)


def figure(outcome: Outcome, entry: Entry) -> str:
    return f"{gain_text(outcome, entry.gain)} {unit(outcome)}"


def at_price(outcome: Outcome, entry: Entry) -> str:
    return f"{figure(outcome, entry)} at {number_text(entry.step_time, 2)} × Standard's time a step"


def where(outcome: Outcome) -> str:
    return PLACES[outcome.key].where


# ---- the answer


def answer(judged: Sequence[Outcome]) -> str:
    """A list of the methods with where each pays and at what price; where none does; which verdicts
    are open or missing.
    """
    started = [outcome for outcome in judged if outcome.verdicts]
    if not started:
        return "**No verdict yet**: no contestant has all its seeds."
    complete = sum(map(_decided, judged))
    so_far = (
        [f"{complete} of {len(judged)} comparisons are complete so far."]
        if complete < len(judged)
        else []
    )
    names = sorted(
        {name for outcome in started for name in outcome.verdicts},
        key=lambda name: _order(started, name),
    )
    flat = [
        _closest(outcome) for outcome in started if _decided(outcome) and not _with(outcome, PAYS)
    ]
    methods = "\n".join(f"- {_summary(started, name)}" for name in names)
    return "\n\n".join([*so_far, methods, *flat, *_waiting(judged)])


def _order(judged: Sequence[Outcome], name: str) -> tuple[int, int, int]:
    """By how often a method pays for its price, then by how often it pays."""
    found = [outcome.verdicts[name] for outcome in judged if name in outcome.verdicts]
    worth, paid = (
        sum(each.for_price is True for each in found),
        sum(each.text == PAYS for each in found),
    )
    return -worth, -paid, method_order(name)


def _summary(judged: Sequence[Outcome], name: str) -> str:
    """Where a method pays, for its price or not, at what time; how often it does not."""
    mine = [outcome for outcome in judged if name in outcome.verdicts]
    paying = [outcome for outcome in mine if outcome.verdicts[name].text == PAYS]
    parts = []
    for for_price, told in _PRICES.items():
        places = [
            f"{where(outcome)} ({mean_text(outcome, name)})"
            for outcome in paying
            if outcome.verdicts[name].for_price is for_price
        ]
        parts += [f"{told} {listed(places)}"] if places else []
    if paying:
        parts[-1] += f", at {times_text(paying, name)} × Standard's time a step"
    for text, told in ((UNDECIDED, "is undecided"), (DOES_NOT, "does not pay")):
        places = [where(outcome) for outcome in mine if outcome.verdicts[name].text == text]
        parts += [f"{told} {listed(places)}"] if places else []
    return f"**{label(name)}** {'; '.join(parts)}."


_PRICES = {
    True: "pays for its price",
    None: "pays at a price that is not tested",
    False: "pays, but not for its price,",
}


def mean_text(outcome: Outcome, name: str) -> str:
    """A gain without its interval."""
    return f"{difference_text(Spread(outcome.entries[name].mean, None, 1), outcome.decimals)} {unit(outcome)}"


def times_text(judged: Sequence[Outcome], name: str) -> str:
    """The shortest and the longest time a step over Standard's."""
    times = sorted(
        time for outcome in judged if (time := outcome.entries[name].step_time) is not None
    )
    return (
        " to ".join(dict.fromkeys(f"{time:.2f}" for time in [*times[:1], *times[-1:]])) or NOTHING
    )


def _with(outcome: Outcome, text: str) -> list[str]:
    """Methods with a verdict."""
    return [name for name, verdict in outcome.verdicts.items() if verdict.text == text]


def _decided(outcome: Outcome) -> bool:
    """Whether all methods have a verdict."""
    return bool(outcome.methods) and set(outcome.methods) == set(outcome.verdicts)


def _closest(outcome: Outcome) -> str:
    """Where no method pays: which one has the largest gain."""
    name = max(outcome.verdicts, key=lambda each: outcome.entries[each].mean)
    told = f"the closest is {in_text(name)} ({at_price(outcome, outcome.entries[name])})"
    return f"{capitalised(where(outcome))} no method pays; {told}."


def _waiting(judged: Sequence[Outcome]) -> list[str]:
    """Outcomes that lack verdicts."""
    started = [outcome for outcome in judged if outcome.verdicts and not _decided(outcome)]
    some = [
        f"{_methods(each.methods.keys() - each.verdicts.keys())} {where(each)}" for each in started
    ]
    whole = [where(each) for each in judged if not each.verdicts]
    parts = [*some, *([f"all methods {listed(whole)}"] if whole else [])]
    return [f"No verdict yet, for lack of runs: {'; '.join(parts)}."] if parts else []


def _methods(names: Iterable[str]) -> str:
    return listed([in_text(name) for name in sorted(names, key=method_order)])


# ---- the guide


def guide(judged: Sequence[Outcome]) -> str:
    """For each method what to do with it, where it helps, and what it costs."""
    names = sorted({name for outcome in judged for name in outcome.methods}, key=method_order)
    return "\n".join(f"- **{label(name)}: {advice(judged, name)}** {helps(judged, name)} {costs(judged, name)}"
                     for name in names)  # fmt: skip


def advice(judged: Sequence[Outcome], name: str) -> str:
    """Recommended, baseline, drop or open, with the figure it rests on."""
    mine = [outcome for outcome in judged if name in outcome.methods]
    known = [outcome for outcome in mine if name in outcome.verdicts]
    if not known:
        return "open."
    worth = [outcome for outcome in known if outcome.verdicts[name].for_price]
    paid = [outcome for outcome in known if outcome.verdicts[name].text == PAYS]
    best = max(worth or paid or known, key=lambda outcome: outcome.entries[name].strength)
    shown = f"{figure(best, best.entries[name])} {where(best)}"
    if worth:
        return f"keep as a recommended setting {listed([PLACES[outcome.key].regime for outcome in worth])} ({shown})."
    if paid:
        return f"keep as a baseline ({shown})."
    return f"{'drop' if len(known) == len(mine) else 'open'} (at best {shown})."


def helps(judged: Sequence[Outcome], name: str) -> str:
    """Its verdicts as one sentence."""
    mine = [outcome for outcome in judged if name in outcome.methods]
    parts = []
    for text, told in ((PAYS, "pays"), (UNDECIDED, "is undecided"), (DOES_NOT, "does not pay")):
        places = [f"{PLACES[outcome.key].regime} ({mean_text(outcome, name)})"
                  for outcome in mine if name in _with(outcome, text)]  # fmt: skip
        parts += [f"{told} {listed(places)}"] if places else []
    waiting = sum(name not in outcome.verdicts for outcome in mine)
    parts += [f"lacks runs in {waiting} of {counted(len(mine), 'comparison')}"] if waiting else []
    return f"It {'; '.join(parts)}."


def costs(judged: Sequence[Outcome], name: str) -> str:
    """Its time, and the tasks whose calibration it helps or harms, as one sentence."""
    known = [outcome for outcome in judged if name in outcome.verdicts]
    if not known:
        return "Its cost is not measured yet."
    found = {
        task: changed for each in known for task, changed in calibrated(each.entries[name]).items()
    }
    changes = [
        f"{told} calibration on {listed(tasks)}"
        for told in (HELPS, HARMS)
        if (
            tasks := [
                task_title(task) for task, changed in found.items() if effect(changed) == told
            ]
        )
    ]
    told = " and ".join(changes) or "shows no difference in calibration"
    return f"A step takes {times_text(known, name)} × Standard's time; it {told}."


def calibrated(entry: Entry) -> dict[str, Gain]:
    """By task, the difference to Standard in scaled negative log-likelihood."""
    found = {}
    for task, cell in entry.cells.items():
        gain = Gain.of(
            differences(cell.calibration(SCALED), entry.standard[task].calibration(SCALED))
        )
        if gain is not None:
            found[task] = gain
    return found


def effect(changed: Gain) -> str:
    """What a difference in negative log-likelihood says; less is better."""
    if changed.high < 0:
        return HELPS
    return HARMS if changed.low > 0 else OPEN


_TASKS = {
    "docstrings": "the built-in task",
    "docstrings-noisy": "noisy labels",
    "docstrings-clear": "clear sentences",
}


def task_title(task: str) -> str:
    return _TASKS.get(task, task_name(task))
