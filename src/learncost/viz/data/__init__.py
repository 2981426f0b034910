"""The data of figures and pages, by themselves: they are drawn, written as JSON, and written as rows."""
