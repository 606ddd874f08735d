"""The jobs that are struck: the digits on one and two devices, with one and two models."""

from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent

#: Of all runs, so that it runs out within a round; seconds.
LEASE = 4.0


@dataclass(frozen=True)
class Variant:
    """One form of the job.

    Attributes:
        name: for people.
        config: its experiment file.
        changes: what differs from that.
        runs: the names of its runs.
    """

    name: str
    config: Path
    changes: dict[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ("digits",)


_ONE, _TWO = FOLDER / "digits.toml", FOLDER / "two_models.toml"
_BOTH = ("digits/net", "digits/layers")

VARIANTS = (
    Variant("one device", _ONE),
    Variant("two devices", _ONE, {"model.devices": "2"}),
    Variant("two models", _TWO, runs=_BOTH),
    Variant(
        "two models, each on its device",
        _TWO,
        {"models.net.devices": "[0]", "models.layers.devices": "[1]"},
        _BOTH,
    ),
)
