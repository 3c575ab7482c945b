"""Reports: one offline HTML file about a run, a diagnosis or a comparison.

    labs.report.report(results, lang="en", stamp=...)      a run of one or several seeds
    labs.report.diagnosis_report(findings, unchecked, ...)  what `labs diagnose` found
    labs.report.comparison_report(comparison, picture)      what `labs compare` found
    labs.report.page(title, sections)                       anything else

A page is smaller than 2 MB, loads nothing, reads without JavaScript and steps and zooms with it, prints, fits a phone,
follows the reader's dark mode, and carries a glossary of exactly the numbers and words it uses. The same results give
the same bytes, the stamp apart.
"""

from __future__ import annotations

from labs.report.comparisons import comparison_report
from labs.report.diagnoses import diagnosis_report
from labs.report.loading import Stored, load
from labs.report.pages import Html, Section, page
from labs.report.runs import report

__all__ = ["Html", "Section", "Stored", "comparison_report", "diagnosis_report", "load", "page", "report"]
