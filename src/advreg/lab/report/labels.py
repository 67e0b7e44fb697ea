"""Values in words, the same in every table."""

from __future__ import annotations

from advreg.lab.catalogue import catalogue, title_of

NOTHING = "–"
TASK_NAMES = {
    **{
        "rte": "RTE",
        "mrpc": "MRPC",
        "cola": "CoLA",
        "sst2": "SST-2",
        "stsb": "STS-B",
        "qnli": "QNLI",
        "qqp": "QQP",
    },
    **{"mnli": "MNLI", "snli": "SNLI", "anli": "ANLI", "anli_r1": "ANLI R1", "anli_r2": "ANLI R2"},
    **{"anli_r3": "ANLI R3", "mr": "MR"},
    **{
        f"{corpus}-{source}-{target}": f"{name} {source.title()}-{target.title()}"
        for corpus, name, pairs in (
            ("iwslt14", "IWSLT'14", ("de-en", "en-de")),
            ("iwslt15", "IWSLT'15", ("en-vi", "vi-en")),
            ("iwslt16", "IWSLT'16", ("en-fr", "fr-en")),
            ("multi30k", "Multi30k", ("en-de", "de-en", "en-fr", "fr-en")),
            ("wmt16", "WMT'16", ("en-de",)),
        )
        for source, target in (pair.split("-") for pair in pairs)
    },
}
"""Known tasks as people write them."""
_SCORES = {"tokenised_bleu": "tokenised BLEU", "bleu": "sacreBLEU", "chrf": "chrF"}


def value_text(value: object) -> str:
    """A setting for people.

    Example:
        >>> value_text(0.10), value_text(None), value_text("block")
        ('0.1', 'none', 'block')
    """
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """How many of something.

    Example:
        >>> counted(1, "run"), counted(2, "run"), counted(0, "study", "studies")
        ('1 run', '2 runs', '0 studies')
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def over_seeds(count: int) -> str:
    """What a cell of a table is: "mean ± sd over 3 seeds"."""
    return "one seed" if count == 1 else f"mean ± sd over {count} seeds"


def method_name(name: str) -> str:
    """A method as people write it; what is not one stays as it is."""
    return title_of(name) or name


def method_order(name: str) -> int:
    """Where a method stands in tables; what is not one stands last."""
    known = list(catalogue())
    return known.index(name) if name in known else len(known)


def task_name(name: str, title: str | None = None) -> str:
    """A task as people write it; one that is not known goes by its title.

    Example:
        >>> task_name("stsb"), task_name("iwslt15-en-vi"), task_name("mine"), task_name("mine", "My reviews")
        ('STS-B', "IWSLT'15 En-Vi", 'mine', 'My reviews')
    """
    return TASK_NAMES.get(name, name if title is None else title)


def metric_name(name: str) -> str:
    """A score as people write it.

    Example:
        >>> metric_name("tokenised_bleu"), metric_name("valid_bleu"), metric_name("accuracy")
        ('tokenised BLEU', 'valid sacreBLEU', 'accuracy')
    """
    for score, title in _SCORES.items():
        if name == score or name.endswith(f"_{score}"):
            return name.removesuffix(score).replace("_", " ") + title
    return name.replace("_", " ")


def bytes_text(count: int | None) -> str:
    """A number of bytes for people.

    Example:
        >>> bytes_text(None), bytes_text(8_192), bytes_text(2_500_000), bytes_text(12_300_000_000)
        ('–', '8.2 kB', '2.5 MB', '12.3 GB')
    """
    if not count:
        return NOTHING
    size, unit = next(
        pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")) if count >= pair[0]
    )
    return f"{count / size:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> duration(4.2), duration(90), duration(7300)
        ('4 s', '1 min 30 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s"
        if whole < 3600
        else f"{whole // 3600} h {whole % 3600 // 60} min"
    )
