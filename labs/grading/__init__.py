"""Coursework that grades itself: what an exercise is, how an answer is judged, what is remembered.

| module | one responsibility |
|---|---|
| `spec` | what an exercise folder declares; finding and loading them |
| `draw` | one generator of inputs, driven by a seed or by hypothesis |
| `worker` | the process that runs a student's file: inputs go in, arrays come out |
| `process` | the other side of it: limits, what died and how |
| `values` | is this answer that answer |
| `checks` | the four layers and the named mistakes; the verdict |
| `text` | every sentence a student reads, in English and Chinese |
| `progress` | the local file that remembers hints and attempts |
| `classroom` | reports and whole classes |

The student's process never decides: it answers inputs, and the process that started it compares.
"""
