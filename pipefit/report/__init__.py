"""What people read: the HTML report of a run, and tables for terminals."""

from pipefit.report.html import duration, render
from pipefit.report.table import text_table, validations_table

__all__ = ["duration", "render", "text_table", "validations_table"]
