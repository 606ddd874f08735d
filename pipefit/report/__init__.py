"""What people read: the HTML report of a run, and tables for terminals."""

from pipefit.report.html import render
from pipefit.report.table import text_table, validations_table

__all__ = ["render", "text_table", "validations_table"]
