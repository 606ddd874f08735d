"""What a worker tells, in words for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def progress_text(values: Mapping[str, Any]) -> str:
    """One line: step, percent, loss, and as soon as they are known speed and time left."""
    step, steps = values["step"], values["steps"]
    parts = [f"step {step}/{steps} ({100 * step / steps:.0f} %)", f"loss {values['loss']:.4g}"]
    if values["rate"]:
        parts.append(f"{values['rate']:,.0f} examples/s")
        parts.append(f"{_duration(values['seconds_left'])} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
