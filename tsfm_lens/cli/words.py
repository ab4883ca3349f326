"""Translation of the library's messages into the options of the command line."""

from __future__ import annotations

import re

from tsfm_lens.cli.options import OPTIONS

_FLAGS = {
    **{name: f"--{name.replace('_', '-')}" for name in OPTIONS},
    "targets": "--target",
    "variates": "--variate",
    "units": "--unit",
    "num_samples": "--samples",
    "components": "--component",
    "quantiles": "--quantile",
    "holdout": "--holdout",
    "horizon": "--horizon",
    "how": "--how",
    "method": "--method",
    "reference": "--reference",
    "seed": "--seed",
}
# an option as messages of the library spell it: time_column='ds', targets=[…], freq=…
_KEYWORD = re.compile(rf"\b({'|'.join(_FLAGS)})=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|…|True|False|[-\w.]+)")
_PHRASES = (
    (r"\bnum_samples\b", "--samples"),
    (r"`lens\.components\(\)`", "`tsfm-lens hooks MODEL --components`"),
    (r"\blens\.forecast\b", "`tsfm-lens forecast`"),
    (r"use run\.shortened\((\d+)\)(?:\.in_one_pass\(\))?", r"give --horizon \1"),
    (r"use run\.select\(…\)", "name one, as in --data bundled:co2"),
    (r"batch\.targets\(\) leaves them out", "leave --known and --past away"),
    (r"\bload\(folder\)", "name the folder"),
    (r"\bload\('([^']+)'\)", r"\1"),
    (r"\bload\(\) takes", "MODEL is"),
)


def in_option_words(message: str) -> str:
    """Replace keyword arguments in a message of the library by options: ``freq='h'`` becomes ``--freq h``."""

    def option(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if value in ("True", "False"):
            return f"--no-{name}" if value == "False" else f"--{name}"
        flag = _FLAGS[name]
        if value in ("…", "[…]"):
            return f"{flag} …"
        plain = value[1:-1] if value[:1] in "'\"" else ",".join(re.findall(r"'([^']*)'", value)) or value
        return f"{flag} {plain}" if re.fullmatch(r"[\w.,-]+", plain) else f"{flag} {value}"

    text = _KEYWORD.sub(option, message)
    for pattern, words in _PHRASES:
        text = re.sub(pattern, words, text)
    return text
