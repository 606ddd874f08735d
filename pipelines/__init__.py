"""The pipelines: wiring only. ``luigi --module pipelines TrainAndValidate``."""

from pipelines.main import TrainAndValidate

__all__ = ["TrainAndValidate"]
